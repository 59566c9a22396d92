package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Remote is a file where a server has it. Address says where to ask for it; where that
// leads is kept, and asked for again when it is no longer honoured: signed addresses
// expire.
type Remote struct {
	Client  *Client
	File    File
	Address func(context.Context) (string, error)
	ETag    string // of the version that is wanted; empty: whatever there is

	mu     sync.Mutex // guards signed
	signed string
}

// errWhole reports a server that answers a range with the whole file.
var errWhole = errors.New("the server ignores ranges")

// maxRedirects is how often an address may lead to another.
const maxRedirects = 8

// get asks for bytes from off to end, or for the whole file when end is 0, and returns
// the body. A server that sends the whole file although a range was asked for makes
// errWhole.
func (r *Remote) get(ctx context.Context, off, end int64) (io.ReadCloser, error) {
	ranges := ""
	if end > 0 {
		ranges = fmt.Sprintf("bytes=%d-%d", off, end-1)
	}
	r.mu.Lock()
	at, signed := r.signed, r.signed != ""
	r.mu.Unlock()
	first, err := r.Address(ctx)
	if err != nil {
		return nil, err
	}
	if !signed {
		at = first
	}
	for range maxRedirects {
		res, err := r.Client.Ask(ctx, at, ranges, r.ETag)
		if err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode/100 == 3:
			if at, err = Follow(res); err != nil {
				return nil, err
			}
			// Kept before it has answered: each look-up counts against a limit.
			r.mu.Lock()
			r.signed = at
			r.mu.Unlock()
			continue
		case res.StatusCode == http.StatusForbidden && (signed || at != first):
			_ = res.Body.Close()
			r.forget()
			return nil, &Transient{Err: fmt.Errorf("%s answers %s: its address is no longer honoured", hostOf(at), res.Status)}
		case res.StatusCode == http.StatusOK && ranges != "":
			_ = res.Body.Close()
			return nil, errWhole
		case res.StatusCode == http.StatusPreconditionFailed:
			_ = res.Body.Close()
			return nil, fmt.Errorf("%s changed at its source while it was fetched; run again when its writer is done", r.File.Path)
		case res.StatusCode == http.StatusRequestedRangeNotSatisfiable:
			_ = res.Body.Close()
			return nil, fmt.Errorf("%s has no bytes %d to %d: it is not of %d bytes, as is listed", r.File.Path, off, end, r.File.Size)
		case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusPartialContent:
			return nil, r.Client.refuse(res)
		}
		if err := r.plausible(res, off, end); err != nil {
			_ = res.Body.Close()
			return nil, err
		}
		return res.Body, nil
	}
	r.forget()
	return nil, fmt.Errorf("fetching %s: redirected in a circle, last to %s", r.File.Path, hostOf(at))
}

func (r *Remote) forget() {
	r.mu.Lock()
	r.signed = ""
	r.mu.Unlock()
}

func hostOf(at string) string {
	if u, err := url.Parse(at); err == nil {
		return u.Host
	}
	return "the server"
}

// plausible holds an answer to what was asked for, before its bytes are taken.
func (r *Remote) plausible(res *http.Response, off, end int64) error {
	size := r.File.Size
	if end > 0 {
		want := fmt.Sprintf("bytes %d-%d/", off, end-1)
		have := res.Header.Get("Content-Range")
		total, ok := strings.CutPrefix(have, want)
		if !ok {
			return fmt.Errorf("fetching %s: asked for bytes %d to %d, got %q", r.File.Path, off, end-1, have)
		}
		if total != "*" && total != fmt.Sprint(size) {
			return fmt.Errorf("fetching %s: the server has %s bytes, the listing %d", r.File.Path, total, size)
		}
		size = end - off
	}
	if res.ContentLength >= 0 && res.ContentLength != size {
		return fmt.Errorf("fetching %s: %d bytes of %s come instead of %d", r.File.Path, res.ContentLength, res.Header.Get("Content-Type"), size)
	}
	return nil
}

// stream copies a body to w at off and returns how many bytes came. A body that brings
// nothing for a while, ends early or goes on too long is an error; only the last is
// final.
func (r *Remote) stream(ctx context.Context, watchdog *time.Timer, body io.ReadCloser, w io.WriterAt, off, end int64, b *Budget) (n int64, err error) {
	defer func() { _ = body.Close() }()
	buf := b.buffers.Get().(*[]byte)
	defer b.buffers.Put(buf)
	for off+n < end {
		watchdog.Reset(r.Client.Stall)
		m, rerr := body.Read((*buf)[:min(int64(len(*buf)), end-off-n)])
		if m > 0 {
			if _, err := w.WriteAt((*buf)[:m], off+n); err != nil {
				return n, err // a full disk is no fault of the server's
			}
			n += int64(m)
			if err := b.took(ctx, int64(m)); err != nil {
				return n, err
			}
		}
		if off+n == end {
			break
		}
		if rerr != nil {
			if errors.Is(rerr, io.EOF) {
				rerr = io.ErrUnexpectedEOF
			}
			return n, &Transient{Err: fmt.Errorf("fetching %s: %w at byte %d", r.File.Path, rerr, off+n)}
		}
	}
	return n, nil
}

// once makes one request for bytes off to end, or for the whole file when ranged is
// false, and returns how many came. A connection that brings nothing is broken off.
func (r *Remote) once(ctx context.Context, w io.WriterAt, off, end int64, ranged bool, b *Budget) (n int64, err error) {
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(r.Client.Stall, cancel)
	defer watchdog.Stop()
	last := end
	if !ranged {
		last = 0
	}
	body, err := r.get(rctx, off, last)
	if err == nil {
		n, err = r.stream(rctx, watchdog, body, w, off, end, b)
	}
	if err != nil && rctx.Err() != nil && ctx.Err() == nil {
		err = &Transient{Err: fmt.Errorf("fetching %s: nothing came for %v", r.File.Path, r.Client.Stall)}
	}
	return n, err
}

// span fetches bytes off to end into w, going on where a connection broke.
func (r *Remote) span(ctx context.Context, w io.WriterAt, off, end int64, b *Budget) error {
	return r.Client.Retry(ctx, "fetching "+r.File.Path, func() (bool, error) {
		n, err := r.once(ctx, w, off, end, true, b)
		off += n
		return n > 0, err
	})
}

// whole fetches the file over one connection from its beginning, for servers without
// ranges and for small files.
func (r *Remote) whole(ctx context.Context, w io.WriterAt, b *Budget) error {
	return r.Client.Retry(ctx, "fetching "+r.File.Path, func() (bool, error) {
		n, err := r.once(ctx, w, 0, r.File.Size, false, b)
		if err != nil {
			b.take(-n)
		}
		return false, err
	})
}

// ReadAt fetches a few bytes, which is how headers are read before all else.
func (r *Remote) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= r.File.Size {
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), r.File.Size)
	b := NewBudget(0, nil)
	if err := r.span(ctx, sliceAt{p, off}, off, end, b); err != nil {
		return 0, err
	}
	if end-off < int64(len(p)) {
		return int(end - off), io.EOF
	}
	return len(p), nil
}

type sliceAt struct {
	p   []byte
	off int64
}

func (s sliceAt) WriteAt(p []byte, off int64) (int, error) { return copy(s.p[off-s.off:], p), nil }
