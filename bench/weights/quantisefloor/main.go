//go:build linux

// Quantisefloor reads every safetensors file of a folder and writes half of its
// bytes to another, durably: the work that no quantiser to eight bits can do
// without. Its wall time is what bench/weights/quantise.sh divides by.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"llmops/model"
)

// chunk is what one worker reads at a time, in bytes: as much as the quantiser.
const chunk = 1 << 20

func main() {
	in := flag.String("in", "", "the folder to read")
	out := flag.String("out", "", "the folder to write")
	digests := flag.Bool("digests", false, "take the digest of each file that was written, as well")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *in, *out, *digests); err != nil {
		fmt.Fprintln(os.Stderr, "quantisefloor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in, out string, digests bool) error {
	files, err := filepath.Glob(filepath.Join(in, "*.safetensors"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no safetensors file in %s: %w", in, err)
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, 2*len(files))
	for _, f := range files {
		to := filepath.Join(out, filepath.Base(f))
		if err := half(ctx, f, to); err != nil {
			return err
		}
		// The disk goes on while the next file is read.
		wg.Go(func() { errs <- each(to, (*os.File).Sync) })
		if digests {
			wg.Go(func() { errs <- each(to, digest) })
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func each(name string, fn func(*os.File) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(fn(f), f.Close())
}

func digest(f *os.File) error {
	_, _, err := model.DigestFrom(f)
	return err
}

// half copies the first half of every chunk, several chunks at a time.
func half(ctx context.Context, from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	info, err := r.Stat()
	if err != nil {
		return err
	}
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, 2*runtime.GOMAXPROCS(0))
	for range cap(errs) {
		wg.Go(func() {
			b := make([]byte, chunk)
			for ctx.Err() == nil {
				at := (next.Add(1) - 1) * chunk
				if at >= info.Size() {
					return
				}
				n, err := r.ReadAt(b, at)
				if err == nil || err == io.EOF {
					_, err = w.WriteAt(b[:n/2], at/2)
				}
				if err == nil && at/chunk%64 == 63 { // as the quantiser: 32 MiB are written
					err = syncRange(w)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.Close()
}

// syncRange has the disk begin.
func syncRange(f *os.File) error {
	const begin = 2 // SYNC_FILE_RANGE_WRITE
	return syscall.SyncFileRange(int(f.Fd()), 0, 0, begin)
}
