package quantise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

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
// be what an earlier call left. Everything that is not weights is carried over.
// dst appears whole or not at all. progress gets bytes read and to read, from
// the calling goroutine.
func Run(ctx context.Context, src, dst string, o Options, progress func(done, total int64)) (rep Report, err error) {
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
	if err := room(filepath.Dir(dst), rep.After); err != nil {
		return rep, err
	}
	part := filepath.Join(filepath.Dir(dst), ".partial-"+filepath.Base(dst))
	if err := os.RemoveAll(part); err != nil {
		return rep, err
	}
	if err := os.MkdirAll(part, 0o700); err != nil {
		return rep, fmt.Errorf("making room for the quantised model: %w", err)
	}
	if err := p.all(ctx, src, part, steps, o, &rep, progress); err != nil {
		return rep, errors.Join(err, os.RemoveAll(part))
	}
	if err := os.RemoveAll(dst); err != nil {
		return rep, err
	}
	if err := os.Rename(part, dst); err != nil {
		return rep, fmt.Errorf("finishing the quantised model: %w", err)
	}
	return rep, nil
}

// all writes every file of the result to dir.
func (p *pool) all(ctx context.Context, src, dir string, steps []Step, o Options, rep *Report, progress func(done, total int64)) error {
	if err := errors.Join(side(src, dir), config(src, dir, o, steps)); err != nil {
		return err
	}
	var names []string
	of, shardOf := map[string][]*Step{}, map[string]string{}
	for _, f := range p.c.Shards() {
		names = append(names, filepath.Base(f.Path))
	}
	var total, done int64
	for i := range steps {
		s := &steps[i]
		name := p.c.ShardOf(s.Name)
		of[name] = append(of[name], s)
		for _, t := range s.outputs(p.to) {
			shardOf[t.Name] = name
		}
		if !s.dropped {
			total += s.Tensor.Size()
		}
	}
	if p.c.Indexed {
		b, err := safetensors.AppendIndex(nil, rep.After, shardOf)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, safetensors.IndexName), b, 0o600); err != nil {
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
	slices.SortFunc(m.Files, func(a, b model.File) int { return strings.Compare(a.Path, b.Path) })
	rep.Files, rep.Digest = m.Files, m.Digest()
	for i := range steps {
		s := &steps[i]
		if !s.Quantise {
			rep.Kept = append(rep.Kept, *s)
			continue
		}
		e := sums[s]
		t := TensorReport{Name: s.Name, Shape: s.Shape, Reason: s.Reason, ZeroRows: e.zeroRows}
		if e.size > 0 {
			t.Error = math.Sqrt(e.lost / e.size)
		}
		rep.Tensors = append(rep.Tensors, t)
	}
	return nil
}

// room refuses what the disk cannot hold, before the hour in which it would
// find out.
func room(dir string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return nil // the folder is not there yet, or does not tell
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need {
		return fmt.Errorf("%s has %d bytes free, the quantised model needs %d", dir, free, need)
	}
	return nil
}

// side carries over every file that is neither weights nor rewritten. Weights in
// folders below belong to other modules and stay as they are.
func side(src, dst string) error {
	return filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		switch {
		case filepath.Base(rel) == rel && (strings.HasSuffix(rel, ".safetensors") || strings.HasSuffix(rel, ".safetensors.index.json")),
			rel == "config.json", rel == "SHA256SUMS", model.Unsafe(rel):
			return nil
		}
		to := filepath.Join(dst, rel)
		return errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), copyFile(path, to))
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, in.Close(), out.Close())
}

// config writes config.json with what an engine must know of the scheme, in the
// place where all of them look first.
func config(src, dst string, o Options, steps []Step) error {
	b, err := os.ReadFile(filepath.Join(src, "config.json"))
	if err != nil {
		return err
	}
	var c map[string]any
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("reading %s: %w", filepath.Join(src, "config.json"), err)
	}
	for _, key := range []string{"text_config", "llm_config", "language_config"} {
		if inner, ok := c[key].(map[string]any); ok {
			delete(inner, "quantization_config")
		}
	}
	c["quantization_config"] = schemes[o.Scheme].config(ignored(steps), o.Scales != nil && len(o.Scales.KV) > 0)
	out, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dst, "config.json"), append(out, '\n'), 0o600)
}
