package size

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"llmops/roofline"
)

// Option is a way to lay copies of the model out on a node, at the edge of the service
// level: the largest batch that keeps its TPOT.
type Option struct {
	TP     int     `json:"tp"`
	PP     int     `json:"pp"`
	EP     int     `json:"ep"`
	Copies float64 `json:"copies"` // on a node; below 1 a copy takes several
	Why    string  `json:"why,omitempty"`

	Weights float64 `json:"weight_bytes"` // on a node, all copies
	Pool    float64 `json:"pool_bytes"`   // on a node
	Long    bool    `json:"holds_longest_prompt"`
	Batch   int     `json:"batch"` // of a copy; 0: not one keeps the TPOT
	TPOT    float64 `json:"tpot_seconds"`
	Rate    float64 `json:"tokens_per_second"` // of a node
}

// Name of the option: TP 8, TP 4 × 2, PP 2 × TP 8, EP 8.
func (o Option) Name() string {
	var parts []string
	if o.PP > 1 {
		parts = append(parts, fmt.Sprintf("PP %d", o.PP))
	}
	if o.EP > 1 {
		parts = append(parts, fmt.Sprintf("EP %d", o.EP))
	}
	if o.TP > 1 || len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("TP %d", o.TP))
	}
	s := strings.Join(parts, " × ")
	if o.Copies > 1 {
		s += fmt.Sprintf(", %g copies", o.Copies)
	}
	return s
}

// Keeps tells whether the service level can be kept at all.
func (o Option) Keeps() bool { return o.Batch > 0 }

// options are all layouts of a node, and of several for a model that none holds.
func (in Inputs) options() []Option {
	gpus := int(in.Number("node.gpus"))
	var out []Option
	fits := false
	for tp := 1; tp <= gpus; tp++ {
		if gpus%tp != 0 {
			continue
		}
		if o, ok := in.option(tp, 1, 1); ok {
			out = append(out, o)
			fits = fits || o.Pool > 0
		}
	}
	if gpus > 1 {
		if o, ok := in.option(1, 1, gpus); ok {
			out = append(out, o)
			fits = fits || o.Pool > 0
		}
	}
	for pp := 2; !fits && pp <= 8; pp *= 2 {
		if o, ok := in.option(gpus, pp, 1); ok {
			out = append(out, o)
			fits = o.Pool > 0
		}
	}
	return out
}

// option is one layout; not ok when the model cannot be cut so.
func (in Inputs) option(tp, pp, ep int) (Option, bool) {
	d := in.deployment("decode.arithmetic")
	if d.TensorParallel != tp || d.PipelineParallel != pp || d.ExpertParallel != ep {
		d.PoolBytes = 0 // what was measured is of another layout
	}
	d.TensorParallel, d.PipelineParallel, d.ExpertParallel = tp, pp, ep
	if in.Text("reserve.model") == "vllm" && !in.Has("reserve.others") {
		d.Reserve.OtherBytes = roofline.VLLMReserve(d.Shape, tp).OtherBytes
	}
	gpus := in.Number("node.gpus")
	if float64(d.GPUs()) > gpus {
		d.Assume.StageLinkBytesPerSecond, d.Assume.StageSeconds = in.Number("across.bandwidth"), in.Number("across.latency")
	}
	r, err := roofline.New(d)
	if err != nil {
		return Option{}, false
	}
	o := Option{TP: tp, PP: pp, EP: ep, Copies: gpus / float64(d.GPUs())}
	if o.Copies > 1 {
		o.Copies = math.Floor(o.Copies)
	}
	o.Weights, o.Pool = o.Copies*float64(d.GPUs())*r.WeightBytesGPU(), o.Copies*r.KVPoolBytes()
	if o.Pool <= 0 {
		o.Why = "the weights do not fit"
		return o, true
	}
	context := int(in.Number("traffic.context"))
	o.Long = r.KVPoolTokens() >= r.Seen(in.Number("slo.long_prompt"))
	o.Batch = r.LargestBatch(in.Number("slo.tpot"), context)
	if o.Batch == 0 {
		o.TPOT = r.DecodeStep(1, context).Seconds
		o.Why = fmt.Sprintf("one stream already takes %s a token", Seconds.Format(o.TPOT))
		if r.KVPoolTokens() < r.Seen(float64(context)) {
			o.Why = "its cache holds no stream"
		}
		return o, true
	}
	o.TPOT = r.DecodeStep(o.Batch, context).Seconds
	o.Rate = o.Copies * float64(o.Batch) / o.TPOT
	return o, true
}

// ranked are the options that keep the service level, the most throughput first. Of
// equals the fewer GPUs a copy takes the less is lost with one.
func ranked(all []Option) []Option {
	out := slices.DeleteFunc(slices.Clone(all), func(o Option) bool { return !o.Keeps() })
	slices.SortStableFunc(out, func(a, b Option) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.TP, b.TP)) })
	return out
}

// smallest is the second rule: the smallest TP that holds weights and the longest
// prompt, whatever its TPOT, and the smallest that keeps the service level too.
func smallest(all []Option) (holds, keeps *Option) {
	for i, o := range all {
		if o.PP > 1 || o.EP > 1 || !o.Long {
			continue
		}
		if holds == nil {
			holds = &all[i]
		}
		if keeps == nil && o.Keeps() {
			keeps = &all[i]
		}
	}
	return holds, keeps
}
