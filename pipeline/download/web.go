package download

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"llmops/model"
	"llmops/pipeline/download/transfer"
)

// maxSums bounds a list of digests.
const maxSums = 32 << 20

// listAt is how many sizes are asked for at once.
const listAt = 8

// web lists a folder of a web server, which is what its SHA256SUMS names.
func (s Sources) web(ctx context.Context, src string) (listing, error) {
	u, err := parseWeb(src)
	if err != nil {
		return listing{}, err
	}
	if !strings.HasSuffix(u.Path, "/"+transfer.SumsName) {
		u = u.JoinPath(transfer.SumsName)
	}
	c := s.client()
	b, err := c.Get(ctx, u.String(), maxSums)
	if err != nil {
		return listing{}, fmt.Errorf("a folder on the web needs a list of its digests, as sha256sum writes it: %w", err)
	}
	sums, err := transfer.ReadSums(bytes.NewReader(b), u.Redacted())
	if err != nil {
		return listing{}, err
	}
	if len(sums) == 0 {
		return listing{}, fmt.Errorf("%s names no files", u.Redacted())
	}
	d := model.DigestOf(b)
	base := *u
	base.Path = strings.TrimSuffix(u.Path, transfer.SumsName)
	base.RawPath = ""
	at := func(path string) string { return base.JoinPath(path).String() }
	l := listing{name: base.Redacted(), id: base.Redacted() + "#" + string(d), vouchers: true, files: make([]transfer.File, len(sums))}
	l.remote = func(f transfer.File) *transfer.Remote {
		return &transfer.Remote{Client: c, File: f, Address: func(context.Context) (string, error) { return at(f.Path), nil }}
	}
	return l, l.sizes(ctx, c, sums, at)
}

func parseWeb(src string) (*url.URL, error) {
	u, err := url.Parse(src)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("source %q: want https://host/folder/", src)
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return u, nil
}

// sizes asks for the size of every file, several at once.
func (l listing) sizes(ctx context.Context, c *transfer.Client, sums []transfer.Sum, at func(string) string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, listAt)
	var wg sync.WaitGroup
	for i, sum := range sums {
		l.files[i] = transfer.File{Path: sum.Path, SHA256: sum.SHA256}
		select {
		case <-ctx.Done():
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				var err error
				if l.files[i].Size, err = c.Size(ctx, at(sum.Path)); err != nil {
					cancel(fmt.Errorf("%s, which is on line %d of its %s: %w", sum.Path, sum.Line, transfer.SumsName, err))
				}
			})
		}
	}
	wg.Wait()
	return context.Cause(ctx)
}
