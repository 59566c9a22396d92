package size

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"time"

	"llmops/roofline"
)

// Ceilings are what a job measured of a GPU inside of the engine's container: what
// jobs/ceilings.nomad.hcl writes. Figures are of one GPU but for collectives.
type Ceilings struct {
	APIVersion  string            `json:"api_version"`
	Kind        string            `json:"kind"`
	Device      string            `json:"device"`
	DeviceType  string            `json:"device_type"` // cuda, or cpu for a try-out
	Devices     int               `json:"devices"`
	Torch       string            `json:"torch"`
	Measured    time.Time         `json:"measured_at"`
	Took        float64           `json:"took_seconds"`
	Copy        *Copied           `json:"copy"` // null: it could not
	DecodeGEMM  []GEMM            `json:"decode_gemm"`
	PrefillGEMM []GEMM            `json:"prefill_gemm"`
	Attention   []DecodeAttention `json:"decode_attention"`
	AllReduce   []AllReduce       `json:"all_reduce"`
	Missing     map[string]string `json:"missing"` // what the device could not do, and why
}

// Timed is how long one call took.
type Timed struct {
	Seconds     float64 `json:"seconds"` // the median of the repetitions
	SecondsBest float64 `json:"seconds_best"`
	Repetitions int     `json:"repetitions"`
	Calls       int     `json:"calls"` // of each repetition
}

// Copied is memory that was copied, read and written bytes together.
type Copied struct {
	Bytes float64 `json:"bytes"`
	Timed
}

// GEMM is a product of M rows with weights of N rows and K columns.
type GEMM struct {
	DType string  `json:"dtype"` // bf16 or fp8
	M     int     `json:"m"`
	N     int     `json:"n"`
	K     int     `json:"k"`
	FLOPs float64 `json:"flops"`
	Bytes float64 `json:"bytes"` // read and written
	Timed
}

// DecodeAttention is the next token of some sequences.
type DecodeAttention struct {
	Sequences int     `json:"sequences"`
	Context   int     `json:"context_tokens"`
	Heads     int     `json:"heads"`
	KVHeads   int     `json:"kv_heads"`
	HeadDim   int     `json:"head_dim"`
	Bytes     float64 `json:"bytes"` // of keys and values
	Timed
}

// AllReduce is the sum of so many bytes of each rank.
type AllReduce struct {
	Ranks int     `json:"ranks"`
	Bytes float64 `json:"bytes"`
	Timed
}

// ParseCeilings reads what the job wrote, and nothing else: an unknown or missing
// figure is an error that names it.
func ParseCeilings(b []byte) (*Ceilings, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var c Ceilings
	if err := d.Decode(&c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something behind the object")
	}
	return &c, c.check()
}

func (c *Ceilings) check() error {
	switch {
	case c.APIVersion != "llmops/v1" || c.Kind != "Ceilings":
		return fmt.Errorf("it is a %q of %q, want Ceilings of llmops/v1", c.Kind, c.APIVersion)
	case c.Device == "" || c.Measured.IsZero() || c.Devices < 1:
		return errors.New("device, devices or measured_at is missing")
	case c.DeviceType != "cuda" && c.DeviceType != "cpu":
		return fmt.Errorf("device_type is %q, want cuda or cpu", c.DeviceType)
	}
	if c.Copy != nil {
		if err := c.Copy.check("copy", c.Copy.Bytes); err != nil {
			return err
		}
	}
	for part, rows := range map[string][]GEMM{"decode_gemm": c.DecodeGEMM, "prefill_gemm": c.PrefillGEMM} {
		for i, g := range rows {
			name := fmt.Sprintf("%s[%d]", part, i)
			if g.DType != "bf16" && g.DType != "fp8" {
				return fmt.Errorf("%s: dtype is %q, want bf16 or fp8", name, g.DType)
			}
			if g.M < 1 || g.N < 1 || g.K < 1 || g.FLOPs != 2*float64(g.M)*float64(g.N)*float64(g.K) {
				return fmt.Errorf("%s: a product of %d × %d × %d is not of %v FLOP", name, g.M, g.N, g.K, g.FLOPs)
			}
			if err := g.check(name, g.Bytes); err != nil {
				return err
			}
		}
	}
	for i, a := range c.Attention {
		name := fmt.Sprintf("decode_attention[%d]", i)
		if want := 4 * float64(a.Sequences) * float64(a.Context) * float64(a.KVHeads) * float64(a.HeadDim); a.Bytes != want || min(a.Sequences, a.Context, a.KVHeads, a.HeadDim, a.Heads) < 1 {
			return fmt.Errorf("%s: keys and values in bf16 are %v bytes, not %v", name, want, a.Bytes)
		}
		if err := a.check(name, a.Bytes); err != nil {
			return err
		}
	}
	for i, r := range c.AllReduce {
		name := fmt.Sprintf("all_reduce[%d]", i)
		if r.Ranks < 2 || r.Ranks > c.Devices && c.DeviceType == "cuda" || r.Ranks != c.AllReduce[0].Ranks {
			return fmt.Errorf("%s: %d ranks on %d devices", name, r.Ranks, c.Devices)
		}
		if err := r.check(name, r.Bytes); err != nil {
			return err
		}
	}
	return nil
}

func (t Timed) check(name string, bytes float64) error {
	if !(bytes >= 1 && t.SecondsBest > 0 && t.Seconds >= t.SecondsBest && !math.IsInf(t.Seconds, 0)) || t.Repetitions < 3 || t.Calls < 1 {
		return fmt.Errorf("%s: %v bytes in %v s at the median and %v s at best of %d repetitions is no measurement", name, bytes, t.Seconds, t.SecondsBest, t.Repetitions)
	}
	return nil
}

// steady is how far the median may be above the best before it is said.
const steady = 1.2

// Settings are the assumptions that c replaces, by medians, and what a reader should
// know of them. share.hbm is what the products and the attention of one decoding step
// read, over their time, of node.bandwidth; share.flops the arithmetic of the products
// of a prefill over theirs, of the peak that prefill.arithmetic has; fabric.latency and
// fabric.bandwidth the line t = latency + 2(n−1)/n · bytes / bandwidth through the
// smallest and the largest all-reduce of n ranks. What was not measured is not set, and
// said. A figure above the register's peak is an error, as is one of another GPU.
func (c *Ceilings) Settings(in Inputs, source string) (out []Setting, notes []string, err error) {
	if err := in.check(); err != nil {
		return nil, nil, err
	}
	if err := c.of(in); err != nil {
		return nil, nil, err
	}
	set := func(key string, v float64) {
		out = append(out, Setting{Key: key, Value: Value{Number: v}, Measured: source})
	}
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	for _, s := range []struct {
		key, peak string
		measure   func(Inputs) (perSecond float64, err error)
	}{{"share.hbm", "node.bandwidth", c.decodeRate}, {"share.flops", peakOf(in), c.prefillRate}} {
		rate, err := s.measure(in)
		if err != nil {
			note("%s stays assumed: %v", s.key, err)
			continue
		}
		if rate > in.Number(s.peak) {
			return nil, nil, fmt.Errorf("%s measured %.4g a second on %s, and %s is %.4g: set node.gpu or %s to what was measured", source, rate, c.Device, s.peak, in.Number(s.peak), s.peak)
		}
		set(s.key, rate/in.Number(s.peak))
	}
	latency, link, off, err := c.line()
	if err != nil {
		note("the fabric stays assumed: %v", err)
	} else {
		set("fabric.latency", latency)
		set("fabric.bandwidth", link)
		if ranks, tp := c.AllReduce[0].Ranks, in.Number("layout.tp"); float64(ranks) != tp {
			note("all-reduces were measured over %d GPUs, and layout.tp is %g", ranks, tp)
		}
		if off > steady-1 {
			note("all-reduces are up to %.0f%% off the line through the smallest and the largest of them", 100*off)
		}
	}
	if n := c.unsteady(); n > 0 {
		note("%d figures have a median more than %.0f%% above their best: something else ran beside them", n, 100*(steady-1))
	}
	if hidden := int(in.Number("model.hidden")); !slices.ContainsFunc(c.PrefillGEMM, func(g GEMM) bool { return g.K == hidden }) {
		note("no product was as wide as the model, %d: dispatch the job with -meta hidden=%[1]d", hidden)
	}
	if len(out) == 0 {
		return nil, nil, fmt.Errorf("%s has no figure to use: %s", source, notes[0])
	}
	return out, notes, nil
}

// of refuses what was measured on something else.
func (c *Ceilings) of(in Inputs) error {
	if c.DeviceType != "cuda" {
		return fmt.Errorf("it was measured on a %s, which tries the job out and says nothing of a GPU", c.DeviceType)
	}
	g, ok := roofline.Lookup(in.Text("node.gpu"))
	if !ok || g.Device == "" {
		return nil
	}
	is, err := regexp.MatchString(g.Device, c.Device)
	if err != nil || !is {
		return fmt.Errorf("it was measured on %s, and node.gpu is %s", c.Device, g.Name)
	}
	return nil
}

// peakOf names the peak that prefill stands under.
func peakOf(in Inputs) string {
	if in.Text("prefill.arithmetic") == "fp8" {
		return "node.flops_fp8"
	}
	return "node.flops"
}

// decodeRate is what the largest step of decoding that memory still bounds reads a
// second.
func (c *Ceilings) decodeRate(in Inputs) (float64, error) {
	dtype := "bf16"
	if in.Text("weights.dtype") == "fp8" {
		dtype = "fp8"
	}
	// Half of the knee: nearer to it, arithmetic has a part in the time.
	knee, largest := in.Number("node.flops")/in.Number("node.bandwidth"), 0
	for _, g := range c.DecodeGEMM {
		if g.DType == dtype && g.FLOPs/g.Bytes <= knee/2 {
			largest = max(largest, g.M)
		}
	}
	if largest == 0 {
		return 0, c.absent(dtype, "products of decoding in "+dtype+" that memory bounds")
	}
	if len(c.Attention) == 0 {
		return 0, c.absent("decode_attention", "attention of decoding")
	}
	var bytes, seconds float64
	for _, g := range c.DecodeGEMM {
		if g.DType == dtype && g.M == largest {
			bytes, seconds = bytes+g.Bytes, seconds+g.Seconds
		}
	}
	for _, a := range c.Attention {
		bytes, seconds = bytes+a.Bytes, seconds+a.Seconds
	}
	return bytes / seconds, nil
}

// prefillRate is the arithmetic of a prefill's products.
func (c *Ceilings) prefillRate(in Inputs) (float64, error) {
	dtype := in.Text("prefill.arithmetic")
	var flops, seconds float64
	for _, g := range c.PrefillGEMM {
		if g.DType == dtype {
			flops, seconds = flops+g.FLOPs, seconds+g.Seconds
		}
	}
	if seconds == 0 {
		return 0, c.absent(dtype, "products of prefill in "+dtype)
	}
	return flops / seconds, nil
}

func (c *Ceilings) absent(part, what string) error {
	if why := c.Missing[part]; why != "" {
		return fmt.Errorf("it has no %s: %s", what, why)
	}
	return fmt.Errorf("it has no %s", what)
}

// line is the straight one through the smallest and the largest all-reduce, and by what
// share the others are off it at most.
func (c *Ceilings) line() (latency, bandwidth, off float64, err error) {
	if len(c.AllReduce) == 0 {
		return 0, 0, 0, c.absent("all_reduce", "all-reduces, which take more than one GPU")
	}
	by := func(a, b AllReduce) int { return cmp.Compare(a.Bytes, b.Bytes) }
	small, large := slices.MinFunc(c.AllReduce, by), slices.MaxFunc(c.AllReduce, by)
	n := float64(small.Ranks)
	around := 2 * (n - 1) / n
	bandwidth = around * (large.Bytes - small.Bytes) / (large.Seconds - small.Seconds)
	latency = small.Seconds - around*small.Bytes/bandwidth
	if !(bandwidth > 0 && latency > 0) || math.IsInf(bandwidth, 0) {
		return 0, 0, 0, fmt.Errorf("%.4g bytes took %.4g s and %.4g took %.4g, which is no latency and no bandwidth", small.Bytes, small.Seconds, large.Bytes, large.Seconds)
	}
	for _, r := range c.AllReduce {
		off = max(off, math.Abs((latency+around*r.Bytes/bandwidth)/r.Seconds-1))
	}
	return latency, bandwidth, off, nil
}

// unsteady counts the figures whose repetitions are far apart.
func (c *Ceilings) unsteady() (n int) {
	count := func(t Timed) {
		if t.Seconds > steady*t.SecondsBest {
			n++
		}
	}
	if c.Copy != nil {
		count(c.Copy.Timed)
	}
	for _, g := range slices.Concat(c.DecodeGEMM, c.PrefillGEMM) {
		count(g.Timed)
	}
	for _, a := range c.Attention {
		count(a.Timed)
	}
	for _, r := range c.AllReduce {
		count(r.Timed)
	}
	return n
}
