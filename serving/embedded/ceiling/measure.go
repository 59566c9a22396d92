package ceiling

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"llmops/serving/embedded/llama/kernel"
)

const (
	// leastBuffer is read where caches are small or of unknown size.
	leastBuffer = 256 << 20
	// beyond is how many times the last-level caches the buffer is.
	beyond = 4
	// piece is what a thread reads in one repetition, at most: some milliseconds, so that
	// on a busy machine some repetitions are over before another process has its turn.
	piece = 16 << 20
	// columns are those of the matrices that are multiplied, rows those that a thread
	// multiplies in one repetition, and batch the rows with which: enough for widening
	// and reading the weights to be little beside the products.
	columns, rows, batch = 2048, 256, 96
	// patience bounds one reading on a busy machine.
	patience = 2 * time.Second
)

// Options are what Measure may take.
type Options struct {
	Machine     Machine
	Now         time.Time
	BufferBytes int64 // 0: far beyond the last-level caches
	FreeBytes   int64 // memory that may be taken; 0: not known
}

// Measure measures this machine, in about a second where nothing else runs. It fails
// when other processes took the cores, or when there is no memory for a buffer that
// caches do not hold.
func Measure(ctx context.Context, o Options) (*Ceilings, error) {
	n := o.BufferBytes
	if n == 0 {
		n = max(leastBuffer, beyond*o.Machine.CacheBytes)
	}
	if o.FreeBytes > 0 && n > o.FreeBytes/2 {
		return nil, fmt.Errorf("measuring memory takes a buffer of %d MiB, far beyond the caches, and %d MiB are free: stop something, or measure on a larger machine", n>>20, o.FreeBytes>>20)
	}
	start := time.Now()
	c := &Ceilings{Measured: o.Now.UTC().Truncate(time.Second), Machine: o.Machine, BufferBytes: n}
	b := newBench(int(n), o.Machine.Threads)
	var err error
	if c.One, err = b.rates(ctx, 1); err != nil {
		return nil, err
	}
	if c.All, err = b.rates(ctx, o.Machine.Threads); err != nil {
		return nil, err
	}
	c.Took = time.Since(start).Seconds()
	return c, nil
}

// bench is what is computed with. Threads take parts of it, as those of the engine do.
type bench struct {
	words []uint64      // all of the buffer
	rows  kernel.Matrix // the buffer as bf16 weights
	f32   kernel.Matrix
	bf16  kernel.Matrix
	x     []float32 // a batch
	y     []float32 // of which each thread writes the columns of its own rows
	room  [][]float32
	sums  []uint64 // of each thread, so that no loop is for nothing
}

func newBench(n, threads int) *bench {
	quad := kernel.Size(kernel.BF16, 4, columns)
	n = max(n/quad, 4*threads) * quad
	buf := kernel.Huge(n)
	b := &bench{words: unsafe.Slice((*uint64)(unsafe.Pointer(&buf[0])), n/8)}
	for i := range b.words { // pages that nobody wrote to are all the same one
		b.words[i] = 0x3f803f803f803f80 // four times 1
	}
	b.rows = kernel.New(kernel.BF16, n/quad*4, columns, 0, func(int) []byte { return buf })
	b.f32 = kernel.New(kernel.F32, rows*threads, columns, 0, kernel.Huge)
	b.bf16 = kernel.New(kernel.BF16, rows*threads, columns, 0, kernel.Huge)
	b.x = make([]float32, batch*columns)
	for i := range b.x {
		b.x[i] = 1
	}
	b.y = make([]float32, max(batch*rows*threads, b.rows.Rows))
	b.sums = make([]uint64, threads)
	for range threads {
		b.room = append(b.room, make([]float32, kernel.Room(columns)))
	}
	return b
}

// rates are all readings on so many threads.
func (b *bench) rates(ctx context.Context, threads int) (Rates, error) {
	quad := kernel.Size(kernel.BF16, 4, columns)
	quads := max(1, min(piece, 8*len(b.words)/4/threads)/quad) // of the buffer, for a thread and repetition
	// part is where in the buffer a thread reads: each repetition goes on behind the
	// last, so that caches have what was read longest ago.
	part := func(i, thread int) (from, to int) {
		steps := b.rows.Rows / 4 / quads
		from = (i*threads + thread) % steps * quads
		return from, from + quads
	}
	product := func(m *kernel.Matrix) func(i, thread int) {
		return func(_, thread int) {
			m.Product(b.y, b.x, batch, thread*rows, (thread+1)*rows, b.room[thread])
		}
	}
	read, operations := float64(quads*quad*threads), float64(2*batch*columns*rows*threads)
	r := Rates{Threads: threads}
	for _, of := range []struct {
		what string
		work float64
		run  func(i, thread int)
		to   *Reading
	}{
		{"the reading of memory", read, func(i, thread int) {
			from, to := part(i, thread)
			b.sums[thread] += sum(b.words[from*quad/8 : to*quad/8])
		}, &r.Read},
		{"a product with one row", read, func(i, thread int) {
			from, to := part(i, thread)
			b.rows.Product(b.y, b.x, 1, 4*from, 4*to, b.room[thread])
		}, &r.Row},
		{"products in f32", operations, product(&b.f32), &r.F32},
		{"products in bf16", operations, product(&b.bf16), &r.BF16},
	} {
		samples, err := repeat(ctx, threads, of.work, of.run)
		if err != nil {
			return r, err
		}
		if *of.to, err = judge(of.what, threads, samples); err != nil {
			return r, err
		}
	}
	return r, nil
}

// repeat runs the work, dealt to threads, until enough repetitions had the cores to
// themselves or patience is at its end. The first warms up and is not counted.
func repeat(ctx context.Context, threads int, work float64, run func(i, thread int)) ([]sample, error) {
	out := []sample{}
	for i, good, start := 0, 0, time.Now(); good < wanted && time.Since(start) < patience; i++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s := together(threads, func(thread int) { run(i, thread) })
		s.work = work
		if i == 0 {
			continue
		}
		if out = append(out, s); s.undisturbed(threads) {
			good++
		}
	}
	return out, nil
}

// together runs a piece of work on so many threads of the operating system, the calling
// one among them, from the moment at which all of them run: what waking them takes is
// no part of the work.
func together(threads int, run func(thread int)) sample {
	var ready, begin atomic.Int32
	var wg sync.WaitGroup
	cpu := make([]float64, threads)
	timed := func(thread int) {
		start := threadTime()
		run(thread)
		cpu[thread] = threadTime() - start
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for thread := 1; thread < threads; thread++ {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Add(1)
			spin(&begin, 1)
			timed(thread)
		})
	}
	spin(&ready, threads-1)
	clock := time.Now()
	begin.Store(1)
	timed(0)
	wg.Wait()
	s := sample{seconds: time.Since(clock).Seconds()}
	for _, c := range cpu {
		s.cpu += c
	}
	return s
}

// spin waits without giving the processor away, but for now and then: where there are
// fewer processors than threads, those that are waited for have to run.
func spin(n *atomic.Int32, until int) {
	for i := 1; int(n.Load()) < until; i++ {
		if i%(1<<16) == 0 {
			runtime.Gosched()
		}
	}
}

// sum reads w with as many loads under way as a core has ports for.
func sum(w []uint64) uint64 {
	var a, b, c, d uint64
	for ; len(w) >= 8; w = w[8:] {
		a += w[0] + w[4]
		b += w[1] + w[5]
		c += w[2] + w[6]
		d += w[3] + w[7]
	}
	return a + b + c + d
}
