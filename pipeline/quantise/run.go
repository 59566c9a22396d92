package quantise

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
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
// difference over root mean square of the weight, and rows that were all zero.
type TensorReport struct {
	Name     string  `json:"name"`
	Shape    []int64 `json:"shape"`
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
	part := filepath.Join(filepath.Dir(dst), ".partial-"+filepath.Base(dst))
	if err := os.RemoveAll(part); err != nil {
		return rep, err
	}
	if err := os.MkdirAll(part, 0o700); err != nil {
		return rep, fmt.Errorf("making room for the quantised model: %w", err)
	}
	rep = Report{Dir: dst, Scheme: o.Scheme}
	r := &run{ctx: ctx, c: c, o: o, rep: &rep, progress: progress}
	for _, s := range steps {
		r.total += s.Tensor.Size()
	}
	if err := errors.Join(r.shards(part, steps), side(src, part), config(src, part, o, steps)); err != nil {
		return rep, errors.Join(err, os.RemoveAll(part))
	}
	m, err := model.Scan(ctx, os.DirFS(part))
	if err != nil {
		return rep, err
	}
	rep.Files, rep.Digest = m.Files, m.Digest()
	if err := os.RemoveAll(dst); err != nil {
		return rep, err
	}
	if err := os.Rename(part, dst); err != nil {
		return rep, fmt.Errorf("finishing the quantised model: %w", err)
	}
	return rep, nil
}

type run struct {
	ctx      context.Context
	c        *safetensors.Checkpoint
	o        Options
	rep      *Report
	progress func(done, total int64)
	done     int64
	total    int64
}

// shards writes one output shard for each input shard, under the same name.
func (r *run) shards(dir string, steps []Step) error {
	shardOf := map[string]string{}
	for _, f := range r.c.Shards() {
		name := filepath.Base(f.Path)
		var mine []Step
		for _, s := range steps {
			if r.c.ShardOf(s.Name) == name {
				mine = append(mine, s)
			}
		}
		var out []safetensors.Tensor
		for _, s := range mine {
			out = append(out, r.outputs(s)...)
		}
		for _, t := range out {
			shardOf[t.Name] = name
			r.rep.After += t.Size()
		}
		if err := r.shard(filepath.Join(dir, name), out, mine); err != nil {
			return fmt.Errorf("quantising %s: %w", f.Path, err)
		}
	}
	if !r.c.Indexed {
		return nil
	}
	b, err := safetensors.AppendIndex(nil, r.rep.After, shardOf)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, safetensors.IndexName), b, 0o600)
}

// sized gives the tensor the byte range that its size needs; Create lays it out.
func sized(name string, d safetensors.DType, shape ...int64) safetensors.Tensor {
	t := safetensors.Tensor{Name: name, DType: d, Shape: shape}
	t.End = (t.Elements()*d.Bits() + 7) / 8
	return t
}

// outputs are the tensors that one input tensor becomes.
func (r *run) outputs(s Step) []safetensors.Tensor {
	if !s.Quantise {
		return []safetensors.Tensor{sized(s.Name, s.Tensor.DType, s.Shape...)}
	}
	rows, cols := s.Shape[0], s.Shape[1]
	module := strings.TrimSuffix(s.Name, ".weight")
	if r.o.Scheme == FP8Dynamic {
		return []safetensors.Tensor{
			sized(module+".weight", safetensors.F8E4M3, rows, cols),
			sized(module+".weight_scale", s.Tensor.DType, rows, 1),
		}
	}
	return []safetensors.Tensor{
		sized(module+".weight_packed", safetensors.I32, rows, cols/8),
		sized(module+".weight_scale", s.Tensor.DType, 1),
		sized(module+".weight_shape", safetensors.I64, 2),
	}
}

func (r *run) shard(path string, out []safetensors.Tensor, steps []Step) (err error) {
	w, err := safetensors.Create(path, out, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Abort()) }()
	for _, s := range steps {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		in, err := r.c.Reader(s.Name)
		if err != nil {
			return err
		}
		switch {
		case !s.Quantise:
			r.rep.Kept = append(r.rep.Kept, s)
			err = w.Copy(s.Name, in)
		case r.o.Scheme == FP8Dynamic:
			err = r.fp8(w, s, in)
		default:
			err = r.int4(w, s, in)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", s.Name, err)
		}
		r.rep.Before += s.Tensor.Size()
		r.done += s.Tensor.Size()
		r.progress(r.done, r.total)
	}
	return w.Commit()
}

// rows calls fn with each row of the tensor as floats.
func rows(s Step, in io.Reader, fn func(i int, row []float32) error) error {
	cols := s.Shape[1]
	raw := make([]byte, cols*s.Tensor.DType.Bits()/8)
	row := make([]float32, cols)
	for i := range s.Shape[0] {
		if _, err := io.ReadFull(in, raw); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		if _, err := safetensors.Floats(row, s.Tensor.DType, raw); err != nil {
			return err
		}
		if err := fn(int(i), row); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
	}
	return nil
}

var errNotFinite = errors.New("holds NaN or Inf; the weights are damaged and no scheme can represent them")

func (r *run) fp8(w *safetensors.Writer, s Step, in io.Reader) error {
	a := arithmeticOf(s.Tensor.DType)
	isBF16 := s.Tensor.DType == safetensors.BF16
	cols := s.Shape[1]
	codes := make([]byte, cols)
	width := s.Tensor.DType.Bits() / 8
	scales := make([]byte, 0, s.Shape[0]*width)
	module := strings.TrimSuffix(s.Name, ".weight")
	var e errorSum
	err := rows(s, in, func(i int, row []float32) error {
		top := amax(row)
		if !finite(top) {
			return errNotFinite
		}
		if top == 0 {
			e.zeroRows++
		}
		scale := a.scale(top, safetensors.MaxE4M3)
		a.fp8Row(codes, row, scale, isBF16)
		for k, c := range codes {
			e.add(row[k], safetensors.FromE4M3(c)*scale)
		}
		scales = appendFloat(scales, s.Tensor.DType, scale)
		return w.WriteAt(s.Name, codes, int64(i)*cols)
	})
	if err != nil {
		return err
	}
	r.rep.Tensors = append(r.rep.Tensors, e.report(s))
	return w.WriteAt(module+".weight_scale", scales, 0)
}

func (r *run) int4(w *safetensors.Writer, s Step, in io.ReadSeeker) error {
	a := arithmeticOf(s.Tensor.DType)
	var top float32
	if err := rows(s, in, func(_ int, row []float32) error {
		m := amax(row)
		if !finite(m) {
			return errNotFinite
		}
		top = max(top, m)
		return nil
	}); err != nil {
		return err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return err
	}
	scale := a.scale(top, 7.5)
	cols := s.Shape[1]
	words := make([]byte, cols/2)
	module := strings.TrimSuffix(s.Name, ".weight")
	var e errorSum
	err := rows(s, in, func(i int, row []float32) error {
		a.int4Row(words, row, scale)
		for k, x := range row {
			e.add(x, float32(int(words[k/2]>>(4*(k%2))&15)-8)*scale)
		}
		return w.WriteAt(module+".weight_packed", words, int64(i)*cols/2)
	})
	if err != nil {
		return err
	}
	r.rep.Tensors = append(r.rep.Tensors, e.report(s))
	dims := binary.LittleEndian.AppendUint64(nil, uint64(s.Shape[0]))
	dims = binary.LittleEndian.AppendUint64(dims, uint64(cols))
	return errors.Join(
		w.WriteAt(module+".weight_scale", appendFloat(nil, s.Tensor.DType, scale), 0),
		w.WriteAt(module+".weight_shape", dims, 0))
}

// errorSum adds up how far codes are from their weights.
type errorSum struct {
	diff, size float64
	zeroRows   int
}

func (e *errorSum) add(x, q float32) {
	d := float64(x) - float64(q)
	e.diff += d * d
	e.size += float64(x) * float64(x)
}

func (e *errorSum) report(s Step) TensorReport {
	t := TensorReport{Name: s.Name, Shape: s.Shape, ZeroRows: e.zeroRows}
	if e.size > 0 {
		t.Error = math.Sqrt(e.diff / e.size)
	}
	return t
}

func finite(f float32) bool { return f-f == 0 }

// appendFloat appends f, which is representable in d, in d's bytes.
func appendFloat(b []byte, d safetensors.DType, f float32) []byte {
	switch d {
	case safetensors.BF16:
		return binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(f)>>16))
	case safetensors.F16:
		return binary.LittleEndian.AppendUint16(b, halfBits(f))
	}
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
}

// halfBits is the IEEE half of a positive value that toF16 has rounded.
func halfBits(f float32) uint16 {
	if f < 1.0/(1<<14) {
		return uint16(f * (1 << 24))
	}
	frac, exp := math.Frexp(float64(f))
	return uint16(exp+14)<<10 | uint16(frac*2048)&0x3ff
}

// side carries over every file that is neither weights nor rewritten.
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
		case strings.HasSuffix(rel, ".safetensors"), strings.HasSuffix(rel, ".safetensors.index.json"), rel == "config.json", rel == "SHA256SUMS", model.Unsafe(rel):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		return errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, b, 0o600))
	})
}

// config writes config.json with what an engine must know of the scheme.
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
	ignore := []string{}
	hasHead := false
	for _, s := range steps {
		module := strings.TrimSuffix(s.Name, ".weight")
		hasHead = hasHead || module == head
		if s.Ignore {
			ignore = append(ignore, module)
		}
	}
	if !hasHead {
		// A tied head has no tensor of its own, but engines build a module for it.
		ignore = append(ignore, head)
	}
	c["quantization_config"] = quantisation(o.Scheme, ignore)
	out, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dst, "config.json"), append(out, '\n'), 0o600)
}

func quantisation(scheme string, ignore []string) map[string]any {
	args := func(bits int, typ, strategy string, dynamic bool, observer any) map[string]any {
		return map[string]any{
			"num_bits": bits, "type": typ, "symmetric": true, "strategy": strategy, "dynamic": dynamic,
			"group_size": nil, "block_structure": nil, "actorder": nil, "observer": observer, "observer_kwargs": map[string]any{},
		}
	}
	format, weights := "float-quantized", args(8, "float", "channel", false, "memoryless_minmax")
	var activations any = args(8, "float", "token", true, nil)
	if scheme == Int4 {
		format, weights, activations = "pack-quantized", args(4, "int", "tensor", false, "memoryless_minmax"), nil
	}
	return map[string]any{
		"config_groups": map[string]any{"group_0": map[string]any{
			"format": format, "targets": []string{"Linear"}, "weights": weights,
			"input_activations": activations, "output_activations": nil,
		}},
		"format": format, "global_compression_ratio": nil, "ignore": ignore, "kv_cache_scheme": nil,
		"quant_method": "compressed-tensors", "quantization_status": "compressed",
		"sparsity_config": map[string]any{}, "transform_config": map[string]any{},
	}
}
