package llama

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/serving/embedded/llama/kernel"
)

// The products of a layer.
const (
	qkvProduct = iota
	outProduct
	gateUpProduct
	downProduct
	products
)

// adapter is a low-rank change (LoRA, arXiv:2106.09685) of a model's matrices.
type adapter struct {
	layers [][products][]delta
}

// delta adds scale · up(down(x)) to the columns of a product from column at on.
// The rank is padded with zeros to a multiple of kernel.Lanes.
type delta struct {
	down, up kernel.Matrix
	at       int
	scale    float32
}

// adapt changes y, n rows of stride, by what d makes of x.
func (m *Executor) adapt(d *delta, y []float32, stride int, x []float32, n int) {
	rank, out := d.down.Rows, d.up.Rows
	m.low = slices.Grow(m.low[:0], n*rank)[:n*rank]
	m.change = slices.Grow(m.change[:0], n*out)[:n*out]
	m.pool.multiply(m.low, x, &d.down, n)
	m.pool.multiply(m.change, m.low, &d.up, n)
	for i := range n {
		to := y[i*stride+d.at : i*stride+d.at+out]
		for j, v := range m.change[i*out : (i+1)*out] {
			to[j] += d.scale * v
		}
	}
}

// target is where the change of a module belongs.
type target struct {
	product     int
	at, in, out int
}

func targets(s model.Shape) map[string]target {
	q, kv, h, wide := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim, s.Hidden, s.Intermediate
	return map[string]target{
		"self_attn.q_proj": {qkvProduct, 0, h, q},
		"self_attn.k_proj": {qkvProduct, q, h, kv},
		"self_attn.v_proj": {qkvProduct, q + kv, h, kv},
		"self_attn.o_proj": {outProduct, 0, q, h},
		"mlp.gate_proj":    {gateUpProduct, 0, h, wide},
		"mlp.up_proj":      {gateUpProduct, wide, h, wide},
		"mlp.down_proj":    {downProduct, 0, wide, h},
	}
}

// LoadAdapter reads a LoRA adapter in PEFT's format, adapter_config.json and
// adapter_model.safetensors in dir, for rows whose sequence names it; one of that
// name is replaced. An error names the file and the tensor, and changes nothing.
func (m *Executor) LoadAdapter(name, dir string) (err error) {
	if name == "" {
		return errors.New("loading an adapter: it has no name")
	}
	if m.maxRank == 0 {
		return fmt.Errorf("loading adapter %q: this engine was started without adapters", name)
	}
	rank, scale, err := readAdapterConfig(filepath.Join(dir, "adapter_config.json"), m.maxRank)
	if err != nil {
		return fmt.Errorf("loading adapter %q: %w", name, err)
	}
	file := filepath.Join(dir, "adapter_model.safetensors")
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "adapter_model.bin")); err == nil {
			return fmt.Errorf("loading adapter %q: %s has pickled weights, which can run code: convert them to safetensors", name, dir)
		}
	}
	f, err := safetensors.Open(file)
	if err != nil {
		return fmt.Errorf("loading adapter %q: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a, err := readAdapter(f, m.shape, rank, scale)
	if err != nil {
		return fmt.Errorf("loading adapter %q from %s: %w", name, file, err)
	}
	m.adapters[name] = a
	return nil
}

// UnloadAdapter forgets an adapter; rows that name it are then refused.
func (m *Executor) UnloadAdapter(name string) { delete(m.adapters, name) }

// readAdapterConfig gives the rank of all changes, and what they are multiplied with.
func readAdapterConfig(file string, maxRank int) (rank int, scale float32, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, fmt.Errorf("reading the adapter's configuration: %w", err)
	}
	rank, scale, err = parseAdapterConfig(b, maxRank)
	if err != nil {
		return 0, 0, fmt.Errorf("parsing %s: %w", file, err)
	}
	return rank, scale, nil
}

// otherwise are the keys of an adapter that computes otherwise, unless they are off.
var otherwise = []string{
	"alora_invocation_tokens", "alpha_pattern", "arrow_config", "bias", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias", "modules_to_save",
	"monteclora_config", "rank_pattern", "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora", "velora_config",
}

func parseAdapterConfig(b []byte, maxRank int) (rank int, scale float32, err error) {
	var c struct {
		Type       string          `json:"peft_type"`
		Rank       int             `json:"r"`
		Alpha      float64         `json:"lora_alpha"`
		RankScaled bool            `json:"use_rslora"`
		Modules    json.RawMessage `json:"target_modules"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return 0, 0, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return 0, 0, err
	}
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Type != "LORA" {
		refuse("peft_type %q is not supported: want LORA", c.Type)
	}
	if c.Rank < 1 || c.Rank > maxRank {
		refuse("r is %d: want 1 to %d, the largest rank this engine was started for", c.Rank, maxRank)
	}
	if math.IsNaN(c.Alpha) || math.IsInf(c.Alpha, 0) || c.Alpha == 0 {
		refuse("lora_alpha is %g: an adapter with it changes nothing", c.Alpha)
	}
	for _, key := range otherwise {
		switch strings.TrimSpace(string(all[key])) {
		case "", "null", "false", "[]", "{}", `"none"`:
		default:
			refuse("%s is %s: not supported", key, all[key])
		}
	}
	var modules []string
	if json.Unmarshal(c.Modules, &modules) == nil {
		for _, name := range modules {
			if !known(name) {
				refuse("target_modules has %q: want projections of the layers (q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj)", name)
			}
		}
	}
	if len(errs) > 0 {
		return 0, 0, errors.Join(errs...)
	}
	if c.RankScaled {
		return c.Rank, float32(c.Alpha / math.Sqrt(float64(c.Rank))), nil
	}
	return c.Rank, float32(c.Alpha / float64(c.Rank)), nil
}

// known takes a module's name, or one with what is before it.
func known(name string) bool {
	for t := range targets(model.Shape{}) {
		if t == name || strings.HasSuffix(t, "."+name) || strings.HasSuffix(name, "."+t) {
			return true
		}
	}
	return false
}

var adapterKey = regexp.MustCompile(`^base_model\.model\.model\.layers\.(\d{1,6})\.([a-z_]+\.[a-z_]+)\.lora_([AB])\.weight$`)

func readAdapter(f *safetensors.File, s model.Shape, rank int, scale float32) (*adapter, error) {
	type pair struct{ a, b *safetensors.Tensor }
	type place struct {
		layer  int
		module string
	}
	pairs := make(map[place]*pair)
	known := targets(s)
	for i := range f.Tensors {
		t := &f.Tensors[i]
		match := adapterKey.FindStringSubmatch(t.Name)
		if match == nil {
			return nil, fmt.Errorf("tensor %q is no low-rank half of a layer's projection: nothing else can be adapted", t.Name)
		}
		layer, err := strconv.Atoi(match[1])
		if err != nil || layer >= s.Layers {
			return nil, fmt.Errorf("tensor %q is of layer %s, the base has %d: it is an adapter of another model", t.Name, match[1], s.Layers)
		}
		if _, ok := known[match[2]]; !ok {
			return nil, fmt.Errorf("tensor %q is of the module %s, which this base does not have", t.Name, match[2])
		}
		p := pairs[place{layer, match[2]}]
		if p == nil {
			p = new(pair)
			pairs[place{layer, match[2]}] = p
		}
		if match[3] == "A" {
			p.a = t
		} else {
			p.b = t
		}
	}
	if len(pairs) == 0 {
		return nil, errors.New("there are no tensors in it")
	}
	out := &adapter{layers: make([][products][]delta, s.Layers)}
	for at, p := range pairs {
		name := fmt.Sprintf("base_model.model.model.layers.%d.%s.lora_", at.layer, at.module)
		if p.a == nil || p.b == nil {
			return nil, fmt.Errorf("tensor %q is missing", name+map[bool]string{true: "A.weight", false: "B.weight"}[p.a == nil])
		}
		t := known[at.module]
		if len(p.a.Shape) != 2 || p.a.Shape[1] != int64(t.in) {
			return nil, fmt.Errorf("tensor %q has the shape %v, the base has %d inputs: it is an adapter of another model", p.a.Name, p.a.Shape, t.in)
		}
		if p.a.Shape[0] != int64(rank) {
			return nil, fmt.Errorf("tensor %q has the rank %d, adapter_config.json says %d", p.a.Name, p.a.Shape[0], rank)
		}
		if !slices.Equal(p.b.Shape, []int64{int64(t.out), int64(rank)}) {
			return nil, fmt.Errorf("tensor %q has the shape %v, want [%d %d], outputs of the base and rank", p.b.Name, p.b.Shape, t.out, rank)
		}
		wide := (rank + kernel.Lanes - 1) / kernel.Lanes * kernel.Lanes
		down, err := adapterHalf(f, *p.a, wide, t.in)
		if err != nil {
			return nil, err
		}
		up, err := adapterHalf(f, *p.b, t.out, wide)
		if err != nil {
			return nil, err
		}
		d := delta{down: down, up: up, at: t.at, scale: scale}
		to := &out.layers[at.layer][t.product]
		*to = append(*to, d)
	}
	return out, nil
}

// adapterHalf reads a tensor and pads it with zeros.
func adapterHalf(f *safetensors.File, t safetensors.Tensor, rows, cols int) (kernel.Matrix, error) {
	m := kernel.New(kernel.F32, rows, cols, 0, kernel.Huge)
	raw := make([]byte, t.Size())
	if _, err := f.Reader(t).ReadAt(raw, 0); err != nil {
		return m, fmt.Errorf("reading tensor %q: %w", t.Name, err)
	}
	v := make([]float32, t.Elements())
	if _, err := safetensors.Floats(v, t.DType, raw); err != nil {
		return m, fmt.Errorf("reading tensor %q: %w", t.Name, err)
	}
	if i := slices.IndexFunc(v, func(x float32) bool { return x-x != 0 }); i >= 0 {
		return m, fmt.Errorf("tensor %q has %g at element %d: the adapter is damaged", t.Name, v[i], i)
	}
	row := make([]byte, 4*cols)
	for i := range int(t.Shape[0]) {
		for j, x := range v[i*int(t.Shape[1]) : (i+1)*int(t.Shape[1])] {
			binary.LittleEndian.PutUint32(row[4*j:], math.Float32bits(x))
		}
		m.Set(i, row)
	}
	return m, nil
}
