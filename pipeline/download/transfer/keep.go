package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
)

// Fetcher fetches files. Its connections and its budget are shared by all calls, which
// may run beside each other.
type Fetcher struct {
	Conns  chan struct{} // one for each connection there may be
	Budget *Budget
	Part   int64 // bytes that one request fetches; 0: 32 MiB
	Say    func(format string, args ...any)
}

// partSize is what one request fetches.
const partSize = 32 << 20

// Keep sees to it that path holds r's file, whole, and returns its digests. A file that
// is there is hashed and fetched again if it is broken. No other call may be at work on
// the same path.
func (x *Fetcher) Keep(ctx context.Context, r *Remote, path string) (Sums, error) {
	if _, err := os.Stat(path); err == nil {
		s, err := Hash(ctx, path, r.File)
		if err == nil {
			err = r.File.Match(s)
		}
		if err == nil {
			x.Budget.take(r.File.Size)
			return s, nil
		}
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		x.Say("%s is broken and is fetched again: %v", r.File.Path, err)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Sums{}, err
	}
	p := &partial{Fetcher: x, r: r, part: x.Part, path: path + Unfinished, log: path + Unfinished + "s"}
	if p.part == 0 {
		p.part = partSize
	}
	return p.fill(ctx, path)
}

// Unfinished is what the name of a file on its way ends with.
const Unfinished = ".llmops-part"

// partial is a file on its way: its bytes, and a list of the parts that are there.
type partial struct {
	*Fetcher
	r         *Remote
	part      int64
	path, log string

	f    *os.File
	list *os.File
	mu   sync.Mutex // guards list
}

func (p *partial) count() int { return int((p.r.File.Size + p.part - 1) / p.part) }

func (p *partial) bounds(i int) (off, end int64) {
	off = int64(i) * p.part
	return off, min(off+p.part, p.r.File.Size)
}

// fill fetches what is missing and puts the file in its place. Bytes that turn out
// wrong although parts of them were kept from before are fetched once more from the
// beginning.
func (p *partial) fill(ctx context.Context, to string) (s Sums, err error) {
	for kept := -1; kept != 0; {
		if s, kept, err = p.once(ctx); err == nil {
			err = p.r.File.Match(s)
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
		p.Budget.take(-p.r.File.Size)
		if kept > 0 {
			p.Say("%v: fetched anew from its beginning", err)
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
func (p *partial) once(ctx context.Context) (s Sums, kept int, err error) {
	if p.f, err = os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return s, 0, err
	}
	defer func() { err = errors.Join(err, p.f.Close()) }()
	have, err := p.kept(ctx)
	if err != nil {
		return s, 0, err
	}
	defer func() { err = errors.Join(err, p.list.Close()) }()
	if err := p.f.Truncate(p.r.File.Size); err != nil {
		return s, 0, err
	}
	done := make([]chan struct{}, p.count())
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
	d := newDigests(p.r.File)
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
		if err := p.conn(ctx, func() error { return p.r.whole(ctx, p.f, p.Budget) }); err != nil {
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
		case p.Conns <- struct{}{}:
			wg.Go(func() {
				defer func() { <-p.Conns }()
				w := &partWriter{p: p, i: i, off: off, head: have[i], noted: have[i].n}
				err := p.r.span(pctx, w, off+have[i].n, end, p.Budget)
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
		p.Say("%s: the server ignores ranges: it is fetched over one connection", p.r.File.Path)
		err = p.conn(ctx, func() error { return p.r.whole(ctx, p.f, p.Budget) })
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
	case p.Conns <- struct{}{}:
	}
	defer func() { <-p.Conns }()
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
	title := fmt.Sprintf("llmops %d %d", p.r.File.Size, p.part)
	if in, err := os.Open(p.log); err == nil {
		listed := readList(in, title, p.count())
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
					p.Budget.take(h.n)
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
