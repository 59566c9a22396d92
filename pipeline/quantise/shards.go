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

// stripBytes is how much of a source one job reads: enough for a disk to be fast,
// little enough to stay in a core's cache.
const stripBytes = 1 << 20

// shard is one output file, open until its last job is done.
type shard struct {
	path string
	w    *safetensors.Writer
	left atomic.Int64
	file model.File
}

// job is some rows of one matrix, or some bytes of a tensor that is copied.
type job struct {
	shard *shard
	step  *Step
	part  part
	row   int64
	rows  int64
	bytes int64 // of the source
	sum   errorSum
}

// pool writes all shards, several jobs at a time.
type pool struct {
	c       *safetensors.Checkpoint
	to      scheme
	workers int
	memory  int64 // of one worker
}

// plan cuts the steps of one shard into jobs.
func (p *pool) plan(sh *shard, steps []*Step) (jobs []*job) {
	for _, s := range steps {
		if s.dropped {
			continue
		}
		parts := s.parts
		switch {
		case s.Quantise:
		case s.inverse.Name != "":
			parts = []part{{module: s.module(), rows: s.Shape[0], cols: s.Shape[1]}}
		default: // bytes, which is all that a copy need know
			for at := int64(0); at < s.Tensor.Size(); at += stripBytes {
				n := min(stripBytes, s.Tensor.Size()-at)
				jobs = append(jobs, &job{shard: sh, step: s, row: at, rows: n, bytes: n})
			}
		}
		for _, m := range parts {
			rows := p.height(s, m)
			if s.Quantise && p.to.whole {
				rows = m.rows // two passes, by one worker
			}
			for r := int64(0); r < m.rows; r += rows {
				n := min(rows, m.rows-r)
				jobs = append(jobs, &job{shard: sh, step: s, part: m, row: r, rows: n, bytes: n * m.cols * s.Tensor.DType.Bits() / 8})
			}
		}
	}
	sh.left.Store(int64(len(jobs)))
	return jobs
}

// height is the rows of a strip: whole blocks, and no more than memory allows.
func (p *pool) height(s *Step, m part) int64 {
	unit := int64(1)
	if s.Quantise && p.to.block > 0 {
		unit = p.to.block
	}
	bytes := max(m.cols*s.Tensor.DType.Bits()/8, 1)
	want := int64(stripBytes)
	if m.across > 0 {
		want *= 8 // of each of the tensor's rows some are read: more are faster
	}
	n := max(want/bytes/unit, 1)
	if most := p.memory / (m.cols * perWeight(s.Tensor.DType, m)) / unit; n > most {
		n = max(most, 1)
	}
	return min(n*unit, max(m.rows, 1))
}

// size settles how many workers fit into memory bytes.
func (p *pool) size(steps []Step, memory int64) error {
	p.workers = 2 * runtime.GOMAXPROCS(0) // one half computes while the other waits for the disk
	if memory == 0 {
		memory = 1 << 30
	}
	var least int64
	widest := ""
	for _, s := range steps {
		for _, m := range s.parts {
			rows := int64(1)
			if p.to.block > 0 {
				rows = min(p.to.block, m.rows)
			}
			if n := rows * m.cols * perWeight(s.Tensor.DType, m); n > least {
				least, widest = n, s.Name
			}
		}
	}
	// A job's buffers are one half; the other is what the runtime keeps before it
	// collects.
	if p.workers = min(p.workers, int(memory/2/max(least, 1))); p.workers < 1 {
		return fmt.Errorf("a strip of %s needs %d bytes of buffers, twice that with what is left uncollected: more than the %d allowed", widest, least, memory)
	}
	p.memory = memory / 2 / int64(p.workers)
	return nil
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

// inTurn yields from each list in proportion to its length, so that all end at
// the same time.
func inTurn(lists [][]*job) iter.Seq[*job] {
	var longest int
	for _, l := range lists {
		longest = max(longest, len(l))
	}
	return func(yield func(*job) bool) {
		for i := range longest {
			for _, l := range lists {
				for _, j := range l[i*len(l)/longest : (i+1)*len(l)/longest] {
					if !yield(j) {
						return
					}
				}
			}
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

func (p *pool) run(ctx context.Context, b *strip, j *job) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch {
	case !j.step.Quantise:
		return p.keep(b, j)
	case p.to.whole:
		return p.whole(ctx, b, j)
	}
	return p.strip(b, j, j.row, j.rows, 0)
}

// strip quantises some rows of the job's matrix.
func (p *pool) strip(b *strip, j *job, row, rows int64, whole float32) error {
	if err := b.read(p.c, *j.step, j.part, row, rows); err != nil {
		return err
	}
	d := j.step.dtype()
	sum, err := b.encode(j.part.cols, j.part.first+row, whole)
	if err != nil {
		return err
	}
	j.sum.join(sum)
	out := p.to.outputs(j.part, d)
	codes, scales := out[0], out[1]
	if err := j.shard.w.WriteAt(codes.Name, b.packed(), row*(codes.Size()/j.part.rows)); err != nil {
		return err
	}
	if p.to.whole {
		return nil
	}
	at := row * scales.Size() / j.part.rows
	if p.to.block > 0 {
		at = row / p.to.block * scales.Shape[1] * scales.DType.Bits() / 8
	}
	return j.shard.w.WriteAt(scales.Name, b.scales, at)
}

// whole looks for the largest magnitude of the matrix first.
func (p *pool) whole(ctx context.Context, b *strip, j *job) error {
	height := p.height(j.step, j.part)
	each := func(fn func(row, rows int64) error) error {
		for r := int64(0); r < j.rows; r += height {
			if err := errors.Join(ctx.Err(), fn(r, min(height, j.rows-r))); err != nil {
				return err
			}
		}
		return nil
	}
	var top float32
	if err := each(func(row, rows int64) error {
		if err := b.read(p.c, *j.step, j.part, row, rows); err != nil {
			return err
		}
		for i := range rows {
			wide := j.part.cols * int64(b.kernel.width)
			m := b.kernel.amax(b.raw[i*wide : (i+1)*wide])
			if !finite(m) {
				return fmt.Errorf("row %d: %w", j.part.first+row+i, errNotFinite)
			}
			top = max(top, m)
		}
		return nil
	}); err != nil {
		return err
	}
	if top == 0 {
		j.sum.zeroRows++
	}
	d := j.step.dtype()
	scale := arithmeticOf(d).scale(top, p.to.half())
	if err := each(func(row, rows int64) error { return p.strip(b, j, row, rows, scale) }); err != nil {
		return err
	}
	return j.shard.w.WriteAt(j.part.module+".weight_scale", appendFloat(nil, d, scale), 0)
}

// keep copies, and multiplies a source in blocks out.
func (p *pool) keep(b *strip, j *job) error {
	if j.step.inverse.Name != "" {
		if err := b.read(p.c, *j.step, j.part, j.row, j.rows); err != nil {
			return err
		}
		if !finite(b.kernel.amax(b.raw)) {
			return errNotFinite
		}
		return j.shard.w.WriteAt(j.step.Name, b.raw, j.row*j.part.cols*2)
	}
	r, err := p.c.Reader(j.step.Name)
	if err != nil {
		return err
	}
	b.raw = grow(b.raw, j.rows)
	if _, err := r.ReadAt(b.raw, j.row); err != nil {
		return err
	}
	return j.shard.w.WriteAt(j.step.Name, b.raw, j.row)
}
