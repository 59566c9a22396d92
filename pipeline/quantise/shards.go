package quantise

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"llmops/model"
	"llmops/model/safetensors"
)

// shard is one output file, open until its last job is done.
type shard struct {
	path string
	w    *safetensors.Writer
	left atomic.Int64
	file model.File
}

// pool writes all shards, several jobs at a time.
type pool struct {
	c       *safetensors.Checkpoint
	to      scheme
	workers int
	memory  int64 // of one worker
}

// write makes all shards in dir and returns their files, and the errors of the
// matrices by step. done is called from this goroutine with bytes read.
func (p *pool) write(ctx context.Context, dir string, names []string, steps map[string][]*Step, done func(int64)) ([]model.File, map[*Step]errorSum, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs, bytes := make(chan *job), make(chan int64)
	var shards []*shard
	var all []*job
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(jobs)
		for group := range together(names, runtime.GOMAXPROCS(0)) {
			var mine [][]*job
			for _, name := range group {
				sh := &shard{path: filepath.Join(dir, name)}
				list := p.plan(sh, steps[name])
				if err := p.open(sh, steps[name], list); err != nil {
					cancel(fmt.Errorf("writing %s: %w", name, err))
					return
				}
				shards, mine = append(shards, sh), append(mine, list)
			}
			for j := range inTurn(mine) {
				all = append(all, j)
				select {
				case jobs <- j:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	for range p.workers {
		wg.Go(func() {
			b := &strip{to: p.to}
			for j := range jobs {
				err := p.run(ctx, b, j)
				if err != nil {
					err = fmt.Errorf("quantising %s: tensor %s: %w", filepath.Join(p.c.Dir, p.c.ShardOf(j.step.Name)), j.step.Name, err)
				} else if j.shard.left.Add(-1) == 0 {
					err = p.finish(j.shard)
				}
				if err != nil {
					cancel(err)
					return
				}
				bytes <- j.bytes
			}
		})
	}
	go func() {
		wg.Wait()
		close(bytes)
	}()
	for n := range bytes {
		done(n)
	}
	if err := context.Cause(ctx); err != nil {
		for _, sh := range shards {
			err = errors.Join(err, sh.w.Abort())
		}
		return nil, nil, err
	}
	var files []model.File
	for _, sh := range shards {
		files = append(files, sh.file)
	}
	sums := make(map[*Step]errorSum)
	for _, j := range all { // in order, so that a report does not depend on who was first
		s := sums[j.step]
		s.join(j.sum)
		sums[j.step] = s
	}
	return files, sums, nil
}

// together yields one shard after the other, and the last n as one group. A
// shard's digest is the work of one core once all of it is written: that of the
// last shard would keep all but one core idle.
func together(names []string, n int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for len(names) > n {
			if !yield(names[:1]) {
				return
			}
			names = names[1:]
		}
		if len(names) > 0 {
			yield(names)
		}
	}
}

// open creates a shard and writes what needs no data.
func (p *pool) open(sh *shard, steps []*Step, jobs []*job) (err error) {
	var out []safetensors.Tensor
	for _, s := range steps {
		out = append(out, s.outputs(p.to)...)
	}
	if sh.w, err = safetensors.Create(sh.path, out, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sh.w.Abort())
		}
	}()
	for _, s := range steps {
		for _, c := range s.extra {
			a := arithmeticOf(s.dtype())
			if err := sh.w.WriteAt(c.name, appendFloat(nil, s.dtype(), a.round(float32(c.value))), 0); err != nil {
				return err
			}
		}
		if !p.to.packed() {
			continue
		}
		for _, m := range s.parts {
			dims := binary.LittleEndian.AppendUint64(nil, uint64(m.rows))
			dims = binary.LittleEndian.AppendUint64(dims, uint64(m.cols))
			if err := sh.w.WriteAt(m.module+".weight_shape", dims, 0); err != nil {
				return err
			}
		}
	}
	if len(jobs) == 0 {
		return p.finish(sh)
	}
	return nil
}

// finish takes a shard's digest and moves it to its place.
func (p *pool) finish(sh *shard) error {
	digest, size, err := sh.w.Digest()
	if err != nil {
		return err
	}
	sh.file = model.File{Path: filepath.Base(sh.path), Size: size, Digest: digest}
	return sh.w.Commit()
}
