package download

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"llmops/fleet/objects"
	"llmops/model"
	"llmops/pipeline/download/registry"
	"llmops/pipeline/download/transfer"
)

// objects lists a prefix of a bucket. A SHA256SUMS below it vouches for its files;
// without one a file is what the bucket has while it is fetched, which is checked.
func (s Sources) objects(ctx context.Context, src string) (listing, error) {
	b, err := objects.Open(src, s.Objects)
	if err != nil {
		return listing{}, err
	}
	all, err := b.List(ctx, "")
	if err != nil {
		return listing{}, err
	}
	if len(all) == 0 {
		return listing{}, fmt.Errorf("%s has no objects", b)
	}
	l := listing{name: b.String()}
	var pin bytes.Buffer
	etags := map[string]string{}
	for _, o := range all {
		if strings.HasPrefix(o.Key, ".") || strings.Contains(o.Key, "/.") {
			continue // a clone's history
		}
		if !transfer.SafePath(o.Key) {
			return listing{}, fmt.Errorf("%s: %q is no path within a folder", b, o.Key)
		}
		l.vouchers = l.vouchers || o.Key == transfer.SumsName
		l.files = append(l.files, transfer.File{Path: o.Key, Size: o.Size})
		etags[o.Key] = o.ETag
		fmt.Fprintln(&pin, o.Key, o.Size, o.ETag)
	}
	l.id = b.String() + "#" + string(model.DigestOf(pin.Bytes()))
	c := s.client()
	l.remote = func(f transfer.File) *transfer.Remote {
		return &transfer.Remote{Client: c, File: f, ETag: quoted(etags[f.Path]), Address: func(ctx context.Context) (string, error) { return b.Address(ctx, f.Path) }}
	}
	if l.vouchers {
		err = l.vouch(ctx, b)
	}
	return l, err
}

// registered lists a version of a registry: the digests of its manifest vouch for all.
func (s Sources) registered(ctx context.Context, at, ref string) (listing, error) {
	name, version, err := registry.ParseRef(ref)
	if err != nil {
		return listing{}, err
	}
	b, err := objects.Open(at, s.Objects)
	if err != nil {
		return listing{}, err
	}
	m, err := registry.Get(ctx, b, name, version)
	if err != nil {
		return listing{}, err
	}
	l := listing{name: b.String() + "#" + ref, id: b.String() + "#" + string(m.Digest), vouchers: true, license: m.License}
	keys := map[string]string{}
	for _, f := range m.Files {
		if keys[f.Path], err = objects.BlobKey(string(f.Digest)); err != nil {
			return listing{}, err
		}
		l.files = append(l.files, transfer.File{Path: f.Path, Size: f.Size, SHA256: f.Digest.Hex()})
	}
	c := s.client()
	l.remote = func(f transfer.File) *transfer.Remote {
		return &transfer.Remote{Client: c, File: f, Address: func(ctx context.Context) (string, error) { return b.Address(ctx, keys[f.Path]) }}
	}
	return l, nil
}

// quoted is an entity tag as requests have it.
func quoted(etag string) string {
	if etag == "" {
		return ""
	}
	return `"` + strings.Trim(etag, `"`) + `"`
}

// vouch gives files the digests of the bucket's list.
func (l *listing) vouch(ctx context.Context, b *objects.Bucket) (err error) {
	r, err := b.Open(ctx, transfer.SumsName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	sums, err := transfer.ReadSums(io.LimitReader(r, maxSums), l.name+"/"+transfer.SumsName)
	if err != nil {
		return err
	}
	for _, sum := range sums {
		i := slices.IndexFunc(l.files, func(f transfer.File) bool { return f.Path == sum.Path })
		if i < 0 && !model.Unsafe(sum.Path) {
			return fmt.Errorf("%s is on line %d of its %s, and not in %s", sum.Path, sum.Line, transfer.SumsName, l.name)
		}
		if i >= 0 {
			l.files[i].SHA256 = sum.SHA256
		}
	}
	return nil
}
