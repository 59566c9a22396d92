// Quantisefloor reads every safetensors file of a folder and writes half of its
// bytes to another, durably: the work that no quantiser to eight bits can do
// without. Its wall time is what bench/weights/quantise.sh divides by.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// chunk is what one worker reads at a time, in bytes: as much as the quantiser.
const chunk = 1 << 20

func main() {
	in := flag.String("in", "", "the folder to read")
	out := flag.String("out", "", "the folder to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "quantisefloor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in, out string) error {
	files, err := filepath.Glob(filepath.Join(in, "*.safetensors"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no safetensors file in %s: %w", in, err)
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if err := half(ctx, f, filepath.Join(out, filepath.Base(f))); err != nil {
			return err
		}
	}
	return nil
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
	if err := w.Sync(); err != nil {
		return err
	}
	return w.Close()
}
