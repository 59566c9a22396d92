package trace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/fleet"
)

// Defaults of Options.
const (
	// DefaultSize holds some two million requests of a few thousand bytes.
	DefaultSize = 1 << 30
	// DefaultFlush is how much time of records a crash may lose.
	DefaultFlush = time.Second
)

const (
	// parts of the size is what a file has: of a full folder a sixteenth goes at a time.
	parts = 16
	// MinSize makes files of 64 KiB.
	MinSize = parts << 16
	// mostFiles bounds what a router leaves that starts again and again.
	mostFiles = 256
	// maxQueue bounds what waits for the disk, in bytes, and what is being written has
	// at most as much.
	maxQueue = 4 << 20
	// soon is how much is written before its time.
	soon = 256 << 10
	// lastWrite is how long a router that ends waits for a disk that hangs.
	lastWrite = 5 * time.Second
)

// Options of a Recorder. Dir is needed.
type Options struct {
	Dir   string
	Name  string        // of the router, which begins the names of its files
	Size  int64         // bytes of all files of that name, of which the oldest go first; 0: DefaultSize
	Flush time.Duration // 0: DefaultFlush
	Key   Key           // that hashes are made under
	Log   *slog.Logger  // nil: discarded
}

// Recorder writes records. Add never waits for a disk: what cannot be written is kept
// for a while and then dropped and counted. Make it with NewRecorder, and Run it.
type Recorder struct {
	o      Options
	prefix string
	last   time.Duration // how long the end may take
	wake   chan struct{}

	mu    sync.Mutex // guards what follows
	queue []byte     // whole lines
	lines int        // in queue
	stats Stats

	// What follows is Run's alone.
	f     *os.File // nil: none is open
	size  int64
	batch []byte // lines that are being written
	from  int    // of the batch: what is written already
	held  int    // lines behind from
}

// Stats are what became of records since the start.
type Stats struct {
	Written uint64 `json:"written"`
	Dropped uint64 `json:"dropped"`           // for want of room, while the disk was full, slow or away
	Waiting int    `json:"waiting"`           // records not yet written
	Failing string `json:"failing,omitempty"` // why the newest write failed; empty: it did not
}

// NewRecorder makes the folder and the first file, so that one that cannot be written
// to is known at the start.
func NewRecorder(o Options) (*Recorder, error) {
	o.Size = cmp.Or(o.Size, DefaultSize)
	o.Flush = cmp.Or(o.Flush, DefaultFlush)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Size < MinSize {
		return nil, fmt.Errorf("records of at most %d bytes: want at least %d", o.Size, int64(MinSize))
	}
	r := &Recorder{o: o, prefix: fleet.Escape(cmp.Or(o.Name, "router")) + ".", last: lastWrite, wake: make(chan struct{}, 1)}
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("making the folder of records: %w", err)
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	return r, nil
}

// encoded are buffers for lines on their way into the queue.
var encoded = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Add takes a record, which is not kept. It waits for no disk.
func (r *Recorder) Add(rec *Record) {
	buf := encoded.Get().(*[]byte)
	line := rec.Append((*buf)[:0])
	r.mu.Lock()
	if len(r.queue)+len(line) > maxQueue {
		r.stats.Dropped++
	} else {
		r.queue = append(r.queue, line...)
		r.lines++
		r.stats.Waiting++
	}
	full := len(r.queue) >= soon
	r.mu.Unlock()
	if cap(line) <= 32<<10 {
		*buf = line
		encoded.Put(buf)
	}
	if full {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Key is what hashes in the records are to be made under.
func (r *Recorder) Key() *Key { return &r.o.Key }

// Stats are the counts as of now.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Run writes until ctx ends, and then what is left. A disk that hangs is not waited for
// longer than some seconds, and the error says how many records that cost.
func (r *Recorder) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- r.write(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	t := time.NewTimer(r.last)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return fmt.Errorf("writing records to %s: the disk did not answer for %v; %d are lost", r.o.Dir, r.last, r.Stats().Waiting)
	}
}

func (r *Recorder) write(ctx context.Context) error {
	tick := time.NewTicker(r.o.Flush)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			err := r.flush()
			if r.held == 0 { // what came in between
				err = errors.Join(err, r.flush())
			}
			err = errors.Join(err, r.close())
			if n := r.Stats().Waiting; n > 0 {
				err = fmt.Errorf("%d records are lost: %w", n, err)
			}
			return err
		case <-tick.C:
		case <-r.wake:
			if r.held > 0 {
				continue // a disk that fails is tried again at its time
			}
		}
		if err := r.flush(); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("writing records", "err", err)
		}
	}
}

// flush writes what waits. What could not be written is held and tried again.
func (r *Recorder) flush() error {
	if r.held == 0 {
		r.mu.Lock()
		r.batch, r.queue = r.queue, r.batch[:0]
		r.from, r.held, r.lines = 0, r.lines, 0
		r.mu.Unlock()
	}
	var err error
	for r.held > 0 && err == nil {
		err = r.some()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stats.Failing = ""; err != nil {
		r.stats.Failing = err.Error()
	}
	return err
}

// some writes as many lines of the batch as the file has room for.
func (r *Recorder) some() error {
	if r.f != nil {
		// Whoever collects files may take this one, too.
		if _, err := os.Stat(r.f.Name()); errors.Is(err, fs.ErrNotExist) {
			_, r.f = r.f.Close(), nil
		}
	}
	if r.f == nil {
		if err := r.open(); err != nil {
			return err
		}
	}
	part, room := r.batch[r.from:], max(0, r.o.Size/parts-r.size)
	if int64(len(part)) > room {
		part = part[:bytes.LastIndexByte(part[:room], '\n')+1]
	}
	if len(part) == 0 { // a record is smaller than an empty file
		return r.close()
	}
	n, err := r.f.Write(part)
	if err != nil {
		// Of half a line the rest would come behind it: take it back, or begin another
		// file.
		if n > 0 && r.f.Truncate(r.size) != nil {
			_ = r.close()
		}
		return fmt.Errorf("writing records: %w", err)
	}
	lines := bytes.Count(part, []byte("\n"))
	r.size, r.from, r.held = r.size+int64(n), r.from+n, r.held-lines
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Written += uint64(lines)
	r.stats.Waiting -= lines
	return nil
}

// close ends the file, and leaves none without a record.
func (r *Recorder) close() error {
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	err := f.Close()
	if r.size == 0 {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// open begins a file, and removes the oldest of those that are too many.
func (r *Recorder) open() error {
	at := time.Now().UTC()
	for {
		path := filepath.Join(r.o.Dir, r.prefix+at.Format("20060102T150405.000000Z")+suffix)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o640)
		if errors.Is(err, fs.ErrExist) {
			at = at.Add(time.Microsecond)
			continue
		}
		if err != nil {
			return fmt.Errorf("beginning a file of records: %w", err)
		}
		r.f, r.size = f, 0
		break
	}
	if err := r.prune(); err != nil {
		r.o.Log.Warn("removing old records", "err", err)
	}
	return nil
}

// prune removes the oldest files of this router, so that there is room for one more.
func (r *Recorder) prune() error {
	all, err := Files(r.o.Dir)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(p string) bool { return !strings.HasPrefix(filepath.Base(p), r.prefix) })
	left := r.o.Size - r.o.Size/parts
	for i, p := range slices.Backward(all) {
		if r.f != nil && p == r.f.Name() {
			continue // a clock that was put back has it among the old ones
		}
		info, serr := os.Stat(p)
		if serr != nil {
			err = errors.Join(err, serr)
			continue
		}
		if left -= info.Size(); left < 0 || len(all)-i > mostFiles {
			err = errors.Join(err, os.Remove(p))
		}
	}
	return err
}
