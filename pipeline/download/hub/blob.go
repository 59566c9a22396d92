package hub

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// partSize is what one request fetches.
const partSize = 32 << 20

// lockPause is how often a lock is tried that another process holds.
const lockPause = 100 * time.Millisecond

// sums are the digests of a file's content.
type sums struct{ sha256, git string }

// digests hashes as the listing does. The sha256 is made of every file, since that is
// what the rest of llmops knows files by.
type digests struct {
	sha hash.Hash
	git hash.Hash // nil for large files, whose git digest is that of a pointer
}

func newDigests(f File) *digests {
	d := &digests{sha: sha256.New()}
	if f.SHA256 == "" {
		d.git = sha1.New() // git's own digest, as a check against accidents
		_, _ = fmt.Fprintf(d.git, "blob %d\x00", f.Size)
	}
	return d
}

func (d *digests) Write(p []byte) (int, error) {
	if d.git != nil {
		_, _ = d.git.Write(p)
	}
	return d.sha.Write(p)
}

func (d *digests) sums() sums {
	s := sums{sha256: hex.EncodeToString(d.sha.Sum(nil))}
	if d.git != nil {
		s.git = hex.EncodeToString(d.git.Sum(nil))
	}
	return s
}

// match is an error unless the sums are the listing's.
func (f File) match(s sums) error {
	have, want := s.sha256, f.SHA256
	if f.SHA256 == "" {
		have, want = s.git, f.Git
	}
	if have != want {
		return fmt.Errorf("%s: %w: have %s, want %s", f.Path, ErrDigest, have, want)
	}
	return nil
}

// hashFile hashes a blob that is there.
func hashFile(ctx context.Context, path string, f File) (sums, error) {
	in, err := os.Open(path)
	if err != nil {
		return sums{}, err
	}
	defer func() { _ = in.Close() }()
	if info, err := in.Stat(); err != nil || info.Size() != f.Size {
		return sums{}, errors.Join(err, fmt.Errorf("%s: %w: it has another size than %d", path, ErrDigest, f.Size))
	}
	d := newDigests(f)
	if _, err := io.Copy(d, &ctxReader{ctx, in}); err != nil {
		return sums{}, err
	}
	return d.sums(), nil
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// fetcher puts files into a cache's blobs.
type fetcher struct {
	cache *cache
	conns chan struct{} // one for each connection there may be
	b     *budget
	part  int64
	say   func(format string, args ...any)
}

// get sees to it that the blob of a file is there and whole, and returns its digests.
// It holds the lock that huggingface_hub takes for the same blob.
func (x *fetcher) get(ctx context.Context, r *remote) (s sums, err error) {
	path := x.cache.blob(r.file)
	lock := flock.New(x.cache.lock(r.file))
	if err := os.MkdirAll(filepath.Dir(lock.Path()), 0o755); err != nil {
		return s, err
	}
	if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
		return s, fmt.Errorf("waiting for %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Close() }()
	if _, err := os.Stat(path); err == nil {
		s, err := hashFile(ctx, path, r.file)
		if err == nil {
			err = r.file.match(s)
		}
		if err == nil {
			x.b.took0(r.file.Size)
			return s, nil
		}
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		x.say("%s in the cache is broken and is fetched again: %v", r.file.Path, err)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	p := &partial{fetcher: x, r: r, path: path + ".llmops-part", log: path + ".llmops-parts"}
	return p.fill(ctx, path)
}

// partial is a blob on its way: its bytes, and a list of the parts that are there.
type partial struct {
	*fetcher
	r         *remote
	path, log string

	f    *os.File
	list *os.File
	mu   sync.Mutex // guards list
}

func (p *partial) parts() int { return int((p.r.file.Size + p.part - 1) / p.part) }

func (p *partial) bounds(i int) (off, end int64) {
	off = int64(i) * p.part
	return off, min(off+p.part, p.r.file.Size)
}

// fill fetches what is missing and puts the blob in its place. Bytes that turn out
// wrong although parts of them were kept from before are fetched once more from the
// beginning.
func (p *partial) fill(ctx context.Context, to string) (s sums, err error) {
	for kept := -1; kept != 0; {
		if s, kept, err = p.once(ctx); err == nil {
			err = p.r.file.match(s)
		}
		if err == nil {
			return s, errors.Join(os.Rename(p.path, to), os.Remove(p.log))
		}
		if !errors.Is(err, ErrDigest) {
			return s, err
		}
		// Never to be gone on with.
		if e := errors.Join(remove(p.path), remove(p.log)); e != nil {
			return s, errors.Join(err, e)
		}
		p.b.took0(-p.r.file.Size)
		if kept > 0 {
			p.say("%v: fetched anew from its beginning", err)
		}
	}
	return s, err
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// once fetches what is missing and hashes it all in order, as it comes. kept is how many
// parts were there before.
func (p *partial) once(ctx context.Context) (s sums, kept int, err error) {
	if p.f, err = os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return s, 0, err
	}
	defer func() { err = errors.Join(err, p.f.Close()) }()
	have, err := p.kept(ctx)
	if err != nil {
		return s, 0, err
	}
	defer func() { err = errors.Join(err, p.list.Close()) }()
	if err := p.f.Truncate(p.r.file.Size); err != nil {
		return s, 0, err
	}
	done := make([]chan struct{}, p.parts())
	for i := range done {
		done[i] = make(chan struct{})
		if have[i].n > 0 {
			kept++
		}
		if off, end := p.bounds(i); have[i].n == end-off {
			close(done[i])
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	wg.Go(func() { p.fetchAll(ctx, cancel, have, done) })
	d := newDigests(p.r.file)
	for i := range done {
		select {
		case <-ctx.Done():
		case <-done[i]:
			off, end := p.bounds(i)
			if _, err := io.Copy(d, io.NewSectionReader(p.f, off, end-off)); err != nil {
				cancel(err)
			}
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return s, kept, err
	}
	return d.sums(), kept, p.f.Sync()
}

// fetchAll fetches the parts that are missing, as many at a time as there are
// connections to be had. It cancels with the first error.
func (p *partial) fetchAll(ctx context.Context, cancel context.CancelCauseFunc, have map[int]head, done []chan struct{}) {
	if len(done) == 1 && have[0].n == 0 {
		if err := p.conn(ctx, func() error { return p.r.whole(ctx, p.f, p.b) }); err != nil {
			cancel(err)
			return
		}
		close(done[0])
		return
	}
	pctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	for i := range done {
		off, end := p.bounds(i)
		if have[i].n == end-off {
			continue
		}
		select {
		case <-pctx.Done():
		case p.conns <- struct{}{}:
			wg.Go(func() {
				defer func() { <-p.conns }()
				w := &partWriter{p: p, i: i, off: off, head: have[i], noted: have[i].n}
				err := p.r.span(pctx, w, off+have[i].n, end, p.b)
				if err == nil {
					err = p.note(i, w.head)
					writeOut(p.f, off, end)
				}
				if err != nil {
					stop(err)
					return
				}
				close(done[i])
			})
		}
	}
	wg.Wait()
	err := context.Cause(pctx)
	if errors.Is(err, errWhole) && ctx.Err() == nil {
		p.say("%s: the server ignores ranges: it is fetched over one connection", p.r.file.Path)
		err = p.conn(ctx, func() error { return p.r.whole(ctx, p.f, p.b) })
		for i := 0; err == nil && i < len(done); i++ {
			select {
			case <-done[i]:
			default:
				close(done[i])
			}
		}
	}
	if err != nil {
		cancel(err)
	}
}

func (p *partial) conn(ctx context.Context, fn func() error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case p.conns <- struct{}{}:
	}
	defer func() { <-p.conns }()
	return fn()
}

// head is how much of a part is there, and the checksum of that much.
type head struct {
	n   int64
	sum uint32
}

// kept reads how much of each part is there and checks it, then opens the list for more.
func (p *partial) kept(ctx context.Context) (map[int]head, error) {
	have := map[int]head{}
	title := fmt.Sprintf("llmops %d %d", p.r.file.Size, p.part)
	if in, err := os.Open(p.log); err == nil {
		listed := readList(in, title, p.parts())
		_ = in.Close()
		for i, heads := range listed {
			// The longest whose bytes reached the disk before whatever broke off.
			for _, h := range slices.Backward(heads) {
				off, end := p.bounds(i)
				if h.n <= 0 || off+h.n > end {
					continue
				}
				if sum, err := sumOf(p.f, off, off+h.n); err == nil && sum == h.sum {
					have[i] = h
					p.b.took0(h.n)
					break
				}
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var err error
	if p.list, err = os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(p.list, title); err != nil {
		return nil, err
	}
	for i, h := range have {
		if err := p.note(i, h); err != nil {
			return nil, err
		}
	}
	return have, nil
}

// maxHeads is how many heads of one part are tried: a crash loses what was written last.
const maxHeads = 8

// readList reads the last heads of each part; nil when the list is of something else.
func readList(in io.Reader, title string, parts int) map[int][]head {
	out := map[int][]head{}
	lines := bufio.NewScanner(in)
	if !lines.Scan() || lines.Text() != title {
		return nil
	}
	for lines.Scan() {
		var i int
		var h head
		if n, err := fmt.Sscanf(lines.Text()+"\n", partLine, &i, &h.n, &h.sum); err != nil || n != 3 || i < 0 || i >= parts {
			continue // torn by a crash
		}
		out[i] = append(out[i], h)
		if len(out[i]) > maxHeads {
			out[i] = out[i][1:]
		}
	}
	return out
}

// partLine is a part's number, how many of its bytes are there, and their checksum.
const partLine = "%d %d %08x\n"

// note puts what is there of a part on the list. The list is not synced: what did not
// reach the disk fails its checksum.
func (p *partial) note(i int, h head) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := fmt.Fprintf(p.list, partLine, i, h.n, h.sum)
	return err
}

// noteEvery is how many bytes a connection loses at most when the process is killed.
const noteEvery = 1 << 20

// partWriter writes a part in order and notes now and then how far it is.
type partWriter struct {
	p     *partial
	i     int
	off   int64 // of the part
	head  head
	noted int64
}

func (w *partWriter) WriteAt(b []byte, off int64) (int, error) {
	n, err := w.p.f.WriteAt(b, off)
	w.head.sum = crc32.Update(w.head.sum, castagnoli, b[:n])
	w.head.n = off + int64(n) - w.off
	if err == nil && w.head.n-w.noted >= noteEvery {
		w.noted = w.head.n
		err = w.p.note(w.i, w.head)
	}
	return n, err
}
