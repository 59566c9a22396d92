package hub

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// remote is one file of a commit as a server has it. Its address is looked up once and
// again when it is no longer honoured: signed addresses expire.
type remote struct {
	c    *client
	at   string // of the endpoint
	file File

	mu     sync.Mutex // guards signed
	signed string
}

func (c *client) remote(r Repo, commit string, f File) *remote {
	var parts []string
	for p := range strings.SplitSeq(f.Path, "/") {
		parts = append(parts, url.PathEscape(p))
	}
	return &remote{c: c, file: f, at: c.endpoint + "/" + r.ID + "/resolve/" + commit + "/" + strings.Join(parts, "/")}
}

// errWhole reports a server that answers a range with the whole file.
var errWhole = errors.New("the server ignores ranges")

// maxRedirects is how often an address may lead to another.
const maxRedirects = 8

// get asks for bytes from off to end, or for the whole file when end is 0, and returns
// the body. A server that sends the whole file although a range was asked for makes
// errWhole.
func (r *remote) get(ctx context.Context, off, end int64) (io.ReadCloser, error) {
	ranges := ""
	if end > 0 {
		ranges = fmt.Sprintf("bytes=%d-%d", off, end-1)
	}
	r.mu.Lock()
	at, signed := r.signed, r.signed != ""
	r.mu.Unlock()
	if !signed {
		at = r.at
	}
	for range maxRedirects {
		res, err := r.c.ask(ctx, at, ranges)
		if err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode/100 == 3:
			if at, err = r.c.follow(res); err != nil {
				return nil, err
			}
			// Kept before it has answered: each look-up counts against a limit.
			r.mu.Lock()
			r.signed = at
			r.mu.Unlock()
			continue
		case res.StatusCode == http.StatusForbidden && at != r.at:
			_ = res.Body.Close()
			r.forget()
			return nil, &transient{err: fmt.Errorf("%s answers %s: its address is no longer honoured", hostOf(at), res.Status)}
		case res.StatusCode == http.StatusOK && ranges != "":
			_ = res.Body.Close()
			return nil, errWhole
		case res.StatusCode == http.StatusRequestedRangeNotSatisfiable:
			_ = res.Body.Close()
			return nil, fmt.Errorf("%s has no bytes %d to %d: it is not of %d bytes, as is listed", r.file.Path, off, end, r.file.Size)
		case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusPartialContent:
			return nil, refusal(res)
		}
		if err := r.plausible(res, off, end); err != nil {
			_ = res.Body.Close()
			return nil, err
		}
		return res.Body, nil
	}
	r.forget()
	return nil, fmt.Errorf("fetching %s: redirected in a circle, last to %s", r.file.Path, hostOf(at))
}

func (r *remote) forget() {
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
func (r *remote) plausible(res *http.Response, off, end int64) error {
	size := r.file.Size
	if end > 0 {
		want := fmt.Sprintf("bytes %d-%d/", off, end-1)
		have := res.Header.Get("Content-Range")
		total, ok := strings.CutPrefix(have, want)
		if !ok {
			return fmt.Errorf("fetching %s: asked for bytes %d to %d, got %q", r.file.Path, off, end-1, have)
		}
		if total != "*" && total != fmt.Sprint(size) {
			return fmt.Errorf("fetching %s: the server has %s bytes, the listing %d", r.file.Path, total, size)
		}
		size = end - off
	}
	if res.ContentLength >= 0 && res.ContentLength != size {
		return fmt.Errorf("fetching %s: %d bytes of %s come instead of %d", r.file.Path, res.ContentLength, res.Header.Get("Content-Type"), size)
	}
	return nil
}

// stream copies a body to w at off and returns how many bytes came. A body that brings
// nothing for a while, ends early or goes on too long is an error; only the last is
// final.
func (r *remote) stream(ctx context.Context, watchdog *time.Timer, body io.ReadCloser, w io.WriterAt, off, end int64, b *budget) (n int64, err error) {
	defer func() { _ = body.Close() }()
	buf := b.buffers.Get().(*[]byte)
	defer b.buffers.Put(buf)
	for off+n < end {
		watchdog.Reset(r.c.stall)
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
			return n, &transient{err: fmt.Errorf("fetching %s: %w at byte %d", r.file.Path, rerr, off+n)}
		}
	}
	return n, nil
}

// once makes one request for bytes off to end, or for the whole file when ranged is
// false, and returns how many came. A connection that brings nothing is broken off.
func (r *remote) once(ctx context.Context, w io.WriterAt, off, end int64, ranged bool, b *budget) (n int64, err error) {
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(r.c.stall, cancel)
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
		err = &transient{err: fmt.Errorf("fetching %s: nothing came for %v", r.file.Path, r.c.stall)}
	}
	return n, err
}

// span fetches bytes off to end into w, going on where a connection broke.
func (r *remote) span(ctx context.Context, w io.WriterAt, off, end int64, b *budget) error {
	return r.c.retry(ctx, "fetching "+r.file.Path, func() (bool, error) {
		n, err := r.once(ctx, w, off, end, true, b)
		off += n
		return n > 0, err
	})
}

// whole fetches the file over one connection from its beginning, for servers without
// ranges and for small files.
func (r *remote) whole(ctx context.Context, w io.WriterAt, b *budget) error {
	return r.c.retry(ctx, "fetching "+r.file.Path, func() (bool, error) {
		n, err := r.once(ctx, w, 0, r.file.Size, false, b)
		if err != nil {
			b.took0(-n)
		}
		return false, err
	})
}

// ReadAt fetches a few bytes, which is how headers are read before all else.
func (r *remote) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= r.file.Size {
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), r.file.Size)
	b := newBudget(0, nil)
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

// budget is what all connections of a call share: a rate, buffers and the count of what
// came.
type budget struct {
	rate    int64 // bytes a second; 0: no bound
	tell    func(n int64)
	buffers sync.Pool

	mu   sync.Mutex // guards next
	next time.Time  // by when what was taken is paid for
}

func newBudget(rate int64, tell func(n int64)) *budget {
	return &budget{rate: rate, tell: tell, buffers: sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}}
}

// took counts n bytes and waits until they are within the rate.
func (b *budget) took(ctx context.Context, n int64) error {
	b.took0(n)
	if b.rate == 0 {
		return nil
	}
	b.mu.Lock()
	now := time.Now()
	if b.next.Before(now) {
		b.next = now
	}
	b.next = b.next.Add(time.Duration(float64(n) / float64(b.rate) * float64(time.Second)))
	wait := b.next.Sub(now)
	b.mu.Unlock()
	if wait < 10*time.Millisecond {
		return nil
	}
	return sleep(ctx, wait)
}

func (b *budget) took0(n int64) {
	if b.tell != nil {
		b.tell(n)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf is the checksum of bytes off to end of a file on disk.
func sumOf(f *os.File, off, end int64) (uint32, error) {
	h := crc32.New(castagnoli)
	_, err := io.Copy(h, io.NewSectionReader(f, off, end-off))
	return h.Sum32(), err
}
