// Package registry is one place for the models of a fleet: files by digest, each stored
// once however many versions have it, and for each version a manifest that says what is
// in it, of what kind it is and what it was made from.
//
// It is a prefix of a bucket: blobs/ is laid out as the fleet's own blobs are, so that
// both may share it, and models/<name>/<version>.json are the manifests. A version is
// written last and once: one that can be read is whole, and what it is never changes.
// Calls may run at once, on the same prefix, from any machine.
package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/fleet/objects"
	"llmops/model"
)

var (
	// ErrExists reports a version that is there with other content.
	ErrExists = errors.New("the version exists with other content")
	// ErrVersion reports a name or version that cannot be one.
	ErrVersion = errors.New("no name of a version")
)

// Manifest is one version of a model.
type Manifest struct {
	APIVersion string       `json:"apiVersion"`
	Name       string       `json:"name"`
	Version    string       `json:"version"`
	Kind       Kind         `json:"kind"`
	Digest     model.Digest `json:"digest"` // of all files
	Files      []model.File `json:"files"`
	Scheme     string       `json:"scheme,omitempty"`  // how its weights were quantised
	Source     string       `json:"source,omitempty"`  // where its first ancestor came from, with commit
	License    string       `json:"license,omitempty"` // as its card says
	Base       string       `json:"base,omitempty"`    // digest of what its weights were made from, or an adapter's model
	Run        string       `json:"run,omitempty"`     // that made it
	By         string       `json:"by,omitempty"`      // the program that did
	Made       time.Time    `json:"made"`
}

const (
	apiVersion = "llmops/v1"
	manifests  = "models/"
	// maxManifest bounds one manifest.
	maxManifest = 16 << 20
)

var versionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Key is where a version's manifest is below the prefix.
func Key(name, version string) (string, error) {
	if name == "" || len(name) > 128 || !versionName.MatchString(version) {
		return "", fmt.Errorf("%w: %q@%q", ErrVersion, name, version)
	}
	return manifests + fleet.Escape(name) + "/" + version + ".json", nil
}

// ParseRef reads name@version.
func ParseRef(ref string) (name, version string, err error) {
	i := strings.LastIndexByte(ref, '@')
	if i < 0 {
		return "", "", fmt.Errorf("%w: %q: want name@version", ErrVersion, ref)
	}
	name, version = ref[:i], ref[i+1:]
	_, err = Key(name, version)
	return name, version, err
}

// Get reads a version's manifest; fleet.ErrNotFound.
func Get(ctx context.Context, b *objects.Bucket, name, version string) (m Manifest, err error) {
	key, err := Key(name, version)
	if err != nil {
		return m, err
	}
	r, err := b.Open(ctx, key)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return m, fmt.Errorf("reading %s of %s: %w", key, b, err)
	}
	if m, err = parse(text); err != nil {
		return m, fmt.Errorf("%s of %s: %w", key, b, err)
	}
	if m.Name != name || m.Version != version {
		return m, fmt.Errorf("%s of %s is the manifest of %s@%s", key, b, m.Name, m.Version)
	}
	return m, nil
}

// parse reads a manifest and holds it to what its files can be.
func parse(text []byte) (Manifest, error) {
	var m Manifest
	if len(text) > maxManifest {
		return m, fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, err
	}
	if m.APIVersion != apiVersion {
		return m, fmt.Errorf("apiVersion is %q, want %s: another release of llmops wrote it", m.APIVersion, apiVersion)
	}
	files := model.Manifest{Files: m.Files}
	if err := files.Validate(); err != nil {
		return m, err
	}
	for _, f := range m.Files {
		if model.Unsafe(f.Path) {
			return m, fmt.Errorf("it names %q: loading that can run code", f.Path)
		}
	}
	if d := files.Digest(); d != m.Digest {
		return m, fmt.Errorf("its files make %s, and it says %s", d, m.Digest)
	}
	return m, nil
}

// List reads the manifests of a name, or of all when it is empty, ordered by name and
// version.
func List(ctx context.Context, b *objects.Bucket, name string) ([]Manifest, error) {
	under := strings.TrimSuffix(manifests, "/")
	if name != "" {
		under += "/" + fleet.Escape(name)
	}
	found, err := b.List(ctx, under)
	if err != nil {
		return nil, err
	}
	var out []Manifest
	for _, o := range found {
		dir, version, _ := strings.Cut(strings.TrimPrefix(o.Key, manifests), "/")
		n, err := fleet.Unescape(dir)
		version, isJSON := strings.CutSuffix(version, ".json")
		if err != nil || !isJSON {
			continue // somebody else's
		}
		m, err := Get(ctx, b, n, version)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// Push stores the folder dir as the version that m names; its kind, digest and files are
// filled in, and so is when. Files that are there already are not sent. want, unless
// empty, is the digest that dir has to have. Sent tells how many bytes went out.
func Push(ctx context.Context, b *objects.Bucket, dir string, m Manifest, want model.Digest, progress func(done, total int64)) (out Manifest, sent int64, err error) {
	key, err := Key(m.Name, m.Version)
	if err != nil {
		return m, 0, err
	}
	files, err := model.Scan(ctx, os.DirFS(dir))
	if err != nil {
		return m, 0, fmt.Errorf("reading %s: %w", dir, err)
	}
	if err := files.Validate(); err != nil {
		return m, 0, fmt.Errorf("%s: %w", dir, err)
	}
	for _, f := range files.Files {
		if model.Unsafe(f.Path) {
			return m, 0, fmt.Errorf("%s of %s can run code when it is loaded, and is never shared: remove it, or push what llmops download made of it", f.Path, dir)
		}
	}
	m.APIVersion, m.Files, m.Digest = apiVersion, files.Files, files.Digest()
	if want != "" && want != m.Digest {
		return m, 0, fmt.Errorf("%s has changed: it is %s and was %s; run it again to make it anew", dir, m.Digest.Short(), want.Short())
	}
	base := ""
	if m.Kind, base, err = kindOf(dir); err != nil {
		return m, 0, err
	}
	if m.Base == "" {
		m.Base = base
	}
	old, err := Get(ctx, b, m.Name, m.Version)
	switch {
	case err == nil && old.Digest == m.Digest:
		return old, 0, nil
	case err == nil:
		return m, 0, fmt.Errorf("%s@%s of %s: %w, %s; push it under another name", m.Name, m.Version, b, ErrExists, old.Digest.Short())
	case !errors.Is(err, fleet.ErrNotFound):
		return m, 0, err
	}
	if sent, err = send(ctx, b, dir, files, progress); err != nil {
		return m, sent, err
	}
	m.Made = m.Made.UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, sent, err
	}
	return m, sent, b.Write(ctx, key, strings.NewReader(string(text)), int64(len(text)))
}

// send stores what is missing of the files.
func send(ctx context.Context, b *objects.Bucket, dir string, files model.Manifest, progress func(done, total int64)) (sent int64, err error) {
	var done int64
	total := files.Size()
	for _, f := range files.Files {
		key, err := objects.BlobKey(string(f.Digest))
		if err != nil {
			return sent, err
		}
		if o, err := b.Stat(ctx, key); err == nil && o.Size == f.Size {
			done += f.Size
			progress(done, total)
			continue
		} else if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return sent, err
		}
		in, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return sent, err
		}
		r := &checked{ctx: ctx, r: in, sum: sha256.New(), file: f, tell: func(n int64) { progress(done+n, total) }}
		err = errors.Join(b.Write(ctx, key, r, f.Size), in.Close())
		if err != nil {
			return sent, err
		}
		done += f.Size
		sent += f.Size
	}
	return sent, nil
}

// checked is a file on its way out. It ends with an error instead of its end when it is
// not what it was, so that nothing is stored under a digest that is another's.
type checked struct {
	ctx  context.Context
	r    io.Reader
	sum  hash.Hash
	n    int64
	file model.File
	tell func(int64)
}

func (c *checked) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	_, _ = c.sum.Write(p[:n])
	c.n += int64(n)
	if c.n >= c.file.Size && n > 0 || err == io.EOF {
		// The store may count bytes and not wait for an end.
		if c.n != c.file.Size || "sha256:"+hex.EncodeToString(c.sum.Sum(nil)) != string(c.file.Digest) {
			return 0, fmt.Errorf("%s changed while it was sent; push it again", c.file.Path)
		}
	}
	c.tell(c.n)
	return n, err
}
