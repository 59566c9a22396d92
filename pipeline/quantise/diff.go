package quantise

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"llmops/model"
	"llmops/model/safetensors"
)

// Difference is how one weight of two checkpoints differs, as the numbers that
// engines compute with. A and B say how it is stored, "" where it is not there.
type Difference struct {
	Name string `json:"name"`
	A    string `json:"a"`
	B    string `json:"b"`
	// Error is the root mean square of the difference over that of A, or of B where
	// A is all zero; Largest is the largest difference over the same.
	Error   float64 `json:"error"`
	Largest float64 `json:"largest"`
	// Fault is why the two cannot be one model: a weight that is missing, has another
	// shape, is not finite in one of them, or has other bytes that are no floats.
	Fault string `json:"fault,omitempty"`
}

// Diff compares the checkpoints in two folders weight by weight: those with faults
// first, then by error, the largest first. progress gets bytes read and to read, from the calling
// goroutine.
func Diff(ctx context.Context, a, b string, progress func(done, total int64)) (out []Difference, err error) {
	var of [2]*safetensors.Checkpoint
	var views [2]map[string]view
	for i, dir := range []string{a, b} {
		shape, err := model.LoadShape(dir)
		if err != nil {
			return nil, err
		}
		if of[i], err = safetensors.OpenDir(dir); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, of[i].Close()) }()
		if views[i], err = viewsOf(of[i], shape); err != nil {
			return nil, err
		}
	}
	names := slices.Collect(maps.Keys(views[0]))
	for n := range views[1] {
		if _, both := views[0][n]; !both {
			names = append(names, n)
		}
	}
	bytesOf := func(name string) int64 { return views[0][name].size() + views[1][name].size() }
	var read, total int64
	for _, n := range names {
		total += bytesOf(n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo, done := make(chan string), make(chan Difference)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(todo)
		for _, n := range names {
			select {
			case todo <- n:
			case <-ctx.Done():
				return
			}
		}
	})
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			from, to := &reader{c: of[0]}, &reader{c: of[1]}
			for n := range todo {
				d, err := compareViews(ctx, from, to, views[0][n], views[1][n])
				if err != nil {
					cancel(fmt.Errorf("comparing %s: %w", n, err))
					return
				}
				d.Name = n
				done <- d
			}
		})
	}
	go func() {
		wg.Wait()
		close(done)
	}()
	for d := range done {
		out = append(out, d)
		read += bytesOf(d.Name)
		progress(read, total)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(strings.Compare(b.Fault, a.Fault), cmp.Compare(b.Error, a.Error), strings.Compare(a.Name, b.Name))
	})
	return out, nil
}

// compareViews reads strips of both and adds up. A view without a name is not
// there.
func compareViews(ctx context.Context, from, to *reader, a, b view) (d Difference, err error) {
	d.A, d.B = a.how(), b.how()
	switch {
	case a.name == "":
		d.Fault = "only in the second"
	case b.name == "":
		d.Fault = "only in the first"
	case a.rows != b.rows || a.cols != b.cols:
		d.Fault = fmt.Sprintf("%d × %d in the first, %d × %d in the second", a.rows, a.cols, b.rows, b.cols)
	case !a.float() || !b.float():
		return compareBytes(ctx, d, from, to, a, b)
	}
	if d.Fault != "" || a.rows*a.cols == 0 {
		return d, nil
	}
	var lost, size, other, top float64
	height := max(stripBytes/2/a.cols, 1)
	for r := int64(0); r < a.rows; r += height {
		n := min(height, a.rows-r)
		x, err := from.read(a, r, n)
		if err != nil {
			return d, err
		}
		y, err := to.read(b, r, n)
		if err := errors.Join(err, ctx.Err()); err != nil {
			return d, err
		}
		for i, v := range x {
			w := y[i]
			if math.Float32bits(v) == math.Float32bits(w) {
				e := float64(v) * float64(v)
				size, other = size+e, other+e
				continue
			}
			if !finite(v) || !finite(w) {
				d.Fault = fmt.Sprintf("row %d: %g in the first, %g in the second", r+int64(i)/a.cols, v, w)
				return d, nil
			}
			e := float64(v) - float64(w)
			lost += e * e
			size += float64(v) * float64(v)
			other += float64(w) * float64(w)
			top = max(top, math.Abs(e))
		}
	}
	if size == 0 {
		size = other
	}
	if lost > 0 {
		d.Error, d.Largest = math.Sqrt(lost/size), top/math.Sqrt(size/float64(a.rows*a.cols))
	}
	return d, nil
}

// compareBytes is for what is no float: it is the same or not.
func compareBytes(ctx context.Context, d Difference, from, to *reader, a, b view) (Difference, error) {
	same := a.stored.DType == b.stored.DType && a.part == b.part && a.stored.Size() == b.stored.Size()
	for at := int64(0); same && at < a.stored.Size(); at += stripBytes {
		n := min(stripBytes, a.stored.Size()-at)
		x, err := from.bytes(a, at, n)
		if err != nil {
			return d, err
		}
		y, err := to.bytes(b, at, n)
		if err := errors.Join(err, ctx.Err()); err != nil {
			return d, err
		}
		same = bytes.Equal(x, y)
	}
	if !same {
		d.Fault = "other bytes, which are no floats"
	}
	return d, nil
}
