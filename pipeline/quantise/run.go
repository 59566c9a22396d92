package quantise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// Report is what Run did.
type Report struct {
	Dir     string         `json:"dir"`
	Digest  model.Digest   `json:"digest"`
	Scheme  string         `json:"scheme"`
	Before  int64          `json:"before"` // bytes of tensors
	After   int64          `json:"after"`
	Tensors []TensorReport `json:"tensors"`
	Kept    []Step         `json:"kept"`
	Files   []model.File   `json:"files"`
}

// TensorReport is the error of one quantised tensor: root mean square of the
// difference over root mean square of the weight, and rows, groups or blocks
// under one scale that were all zero.
type TensorReport struct {
	Name     string  `json:"name"`
	Shape    []int64 `json:"shape"`
	Reason   string  `json:"reason,omitempty"`
	Error    float64 `json:"error"`
	ZeroRows int     `json:"zero_rows,omitempty"`
}

// Run writes the checkpoint in src, quantised, to dst, which must not exist or
// be what an earlier call left. Everything that is not weights is carried over,
// and SHA256SUMS has the digest of every file. dst appears whole or not at all.
// progress gets bytes read and to read, from the calling goroutine.
func Run(ctx context.Context, src, dst string, o Options, progress func(done, total int64)) (rep Report, err error) {
	if err := apart(src, dst); err != nil {
		return rep, err
	}
	shape, err := model.LoadShape(src)
	if err != nil {
		return rep, err
	}
	c, err := safetensors.OpenDir(src)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	steps, err := Plan(c, shape, o)
	if err != nil {
		return rep, err
	}
	p := &pool{c: c, to: schemes[o.Scheme]}
	if err := p.size(steps, o.Memory); err != nil {
		return rep, err
	}
	rep = Report{Dir: dst, Scheme: o.Scheme}
	rep.Before, rep.After = Sizes(steps, o.Scheme)
	part, err := claim(dst)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	err = room(part.Name(), rep.After)
	if err == nil {
		err = p.all(ctx, src, part.Name(), steps, o, &rep, progress)
	}
	if err != nil {
		return rep, errors.Join(err, os.RemoveAll(part.Name()))
	}
	if err := os.RemoveAll(dst); err != nil {
		return rep, err
	}
	if err := os.Rename(part.Name(), dst); err != nil {
		return rep, fmt.Errorf("finishing the quantised model: %w", err)
	}
	return rep, syncDir(filepath.Dir(dst))
}

// all writes every file of the result to dir.
func (p *pool) all(ctx context.Context, src, dir string, steps []Step, o Options, rep *Report, progress func(done, total int64)) error {
	if err := errors.Join(side(src, dir), config(src, dir, o, steps)); err != nil {
		return err
	}
	var names []string
	of, shardOf := map[string][]*Step{}, map[string]string{}
	var total, done int64
	for i := range steps {
		s := &steps[i]
		name, out := p.c.ShardOf(s.Name), s.outputs(p.to)
		for _, t := range out {
			shardOf[t.Name] = name
		}
		if of[name] == nil && len(out) > 0 {
			names = append(names, name)
		}
		of[name] = append(of[name], s)
		if !s.dropped {
			total += s.Tensor.Size()
		}
	}
	slices.Sort(names)
	if p.c.Indexed {
		b, err := safetensors.AppendIndex(nil, rep.After, shardOf)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, safetensors.IndexName), b); err != nil {
			return err
		}
	}
	// What is small is hashed first, so that only the shards are left to their
	// workers.
	m, err := model.Scan(ctx, os.DirFS(dir))
	if err != nil {
		return err
	}
	files, sums, err := p.write(ctx, dir, names, of, func(n int64) {
		done += n
		progress(done, total)
	})
	if err != nil {
		return err
	}
	m.Files = append(m.Files, files...)
	list, err := writeSums(dir, m.Files)
	if err != nil {
		return err
	}
	m.Files = append(m.Files, list)
	slices.SortFunc(m.Files, func(a, b model.File) int { return strings.Compare(a.Path, b.Path) })
	rep.Files, rep.Digest = m.Files, m.Digest()
	rep.fill(steps, sums)
	return nil
}

// fill adds what became of each tensor.
func (r *Report) fill(steps []Step, sums map[*Step]errorSum) {
	for i := range steps {
		s := &steps[i]
		if !s.Quantise {
			r.Kept = append(r.Kept, *s)
			continue
		}
		e := sums[s]
		t := TensorReport{Name: s.Name, Shape: s.Shape, Reason: s.Reason, ZeroRows: e.zeroRows}
		if e.size > 0 {
			t.Error = math.Sqrt(e.lost / e.size)
		}
		r.Tensors = append(r.Tensors, t)
	}
}

// Worst lists the quantised tensors, the largest error first.
func (r Report) Worst() []TensorReport {
	out := slices.Clone(r.Tensors)
	slices.SortStableFunc(out, func(a, b TensorReport) int { return cmp.Compare(b.Error, a.Error) })
	return out
}
