package quantise

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
)

// stripBytes is how much of a source one job reads: enough for a disk to be fast,
// little enough to stay in a core's cache.
const stripBytes = 1 << 20

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
	scale := p.to.scale(d, top)
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
