package transfer

import (
	"context"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"
)

// Budget is what all connections of a call share: a rate, buffers and the count of what
// came.
type Budget struct {
	rate    int64 // bytes a second; 0: no bound
	tell    func(n int64)
	buffers sync.Pool

	mu   sync.Mutex // guards next
	next time.Time  // by when what was taken is paid for
}

// NewBudget allows rate bytes a second, 0 for no bound, and tells what came; n below zero:
// that much is fetched anew. tell may be called from several goroutines, or be nil.
func NewBudget(rate int64, tell func(n int64)) *Budget {
	return &Budget{rate: rate, tell: tell, buffers: sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}}
}

// took counts n bytes and waits until they are within the rate.
func (b *Budget) took(ctx context.Context, n int64) error {
	b.take(n)
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

func (b *Budget) take(n int64) {
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
