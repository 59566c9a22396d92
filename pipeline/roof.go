package pipeline

import (
	"fmt"
	"time"

	"llmops/evidence"
	"llmops/model"
	"llmops/pipeline/benchmark"
	"llmops/roofline"
	"llmops/serving/embedded/ceiling"
	"llmops/serving/engine"
)

// Roof is what a replica can reach on the GPUs of its placement, by the assumptions of
// the roofline.
type Roof struct {
	GPU       string  `json:"gpu"`
	GPUs      int     `json:"gpus"`
	KVTokens  int     `json:"kv_tokens"`  // that the cache of a replica holds
	TPOT      float64 `json:"tpot"`       // seconds a token with one sequence of the planned traffic
	Sequences int     `json:"sequences"`  // of the planned traffic, at most, within the service level's TPOT
	Prefill   float64 `json:"prefill"`    // seconds of a planned prompt alone
	WeightGPU int64   `json:"weight_gpu"` // bytes of weights on each GPU
}

// kvBytes are those of one number of a cache, 2 for what the engine chooses.
var kvBytes = map[engine.KVDtype]float64{engine.F32: 4, engine.FP8: 1, engine.E5M2: 1, engine.INT8: 1, engine.INT4: 0.5, engine.NVFP4: 0.5625}

// deployment is a replica as the roofline takes it.
func deployment(s Spec, gpu roofline.GPU, shape model.Shape, w Weights) roofline.Deployment {
	d := roofline.Deployment{GPU: gpu, TensorParallel: max(s.Engine.TensorParallel, 1), PipelineParallel: s.Engine.PipelineParallel, Shape: shape, KVBytes: 2,
		WeightBytes: float64(w.Bytes) / float64(max(shape.Parameters(), 1)), FP8Arithmetic: w.Scheme == "fp8-dynamic" && gpu.FP8.Value > 0, Assume: roofline.Assumed()}
	if b, ok := kvBytes[s.Engine.KVCache]; ok {
		d.KVBytes = b
	}
	return d
}

// roof prepares the arithmetic of a replica; nil without a GPU.
func roof(s Spec, shape model.Shape, w Weights) (*roofline.Roof, error) {
	gpu, ok := roofline.Lookup(s.Placement.GPU)
	if !ok {
		return nil, nil
	}
	d := deployment(s, gpu, shape, w)
	if s.Engine.Kind == "vllm" { // how much others keep back is not known
		d.Reserve = roofline.VLLMReserve(shape, d.GPUs())
	}
	r, err := roofline.New(d)
	if err != nil {
		return nil, fmt.Errorf("the roofline of %d × %s: %w", d.GPUs(), gpu.Name, err)
	}
	return r, nil
}

// unbounded is a bandwidth that never binds: that of weights which stay in a cache.
const unbounded = 1e18

// newRoof is what r comes to for the traffic of s; nil of nil.
func newRoof(s Spec, r *roofline.Roof) *Roof {
	if r == nil {
		return nil
	}
	tokens := s.Traffic.Input + s.Traffic.Output
	out := &Roof{GPU: s.Placement.GPU, GPUs: s.Engine.gpus(), KVTokens: int(r.KVPoolTokens()), WeightGPU: int64(r.WeightBytesGPU()),
		TPOT: r.DecodeStep(1, tokens).Seconds, Prefill: r.PrefillPrompt(s.Traffic.Input).Seconds}
	if limit := s.SLO.TPOT.Limit.Seconds(); limit > 0 {
		out.Sequences = r.LargestBatch(limit, tokens)
	}
	return out
}

// machineRoof is what one of so many replicas of the embedded engine has of the machine
// that they share, by what was measured of it; nil where nothing was, of an encoder, of
// another engine, whose kernels nobody measured, and of a shape that the roofline does
// not take: a benchmark goes on without.
func machineRoof(s Spec, shape model.Shape, w Weights, c *ceiling.Ceilings, replicas int) *roofline.Roof {
	if s.Placement.GPU != CPU || s.Engine.Kind != "embedded" || s.Task != "" || c == nil {
		return nil
	}
	bandwidth, flops := c.Replica(replicas)
	gpu := roofline.GPU{Name: fmt.Sprintf("this machine, measured on %s", c.Measured.Format(time.DateOnly))}
	if c.Cached(float64(w.Bytes)) {
		gpu.Name += "; its caches hold the weights"
		bandwidth = unbounded
	}
	measured := func(v float64) roofline.Figure {
		return roofline.Figure{Value: v, Counts: roofline.Reached, Source: "llmops doctor --measure"}
	}
	gpu.Memory, gpu.Bandwidth, gpu.BF16 = measured(float64(max(c.Machine.MemoryBytes, c.BufferBytes))), measured(bandwidth), measured(flops)
	d := deployment(s, gpu, shape, w)
	d.Assume = roofline.Assumptions{HBMShare: 1, FLOPShare: 1, LinkShare: 1, EndToEndShare: 1} // all of it was reached
	if s.Engine.KVCache == "" {
		d.KVBytes = kvBytes[engine.F32]
	}
	r, err := roofline.New(d)
	if err != nil {
		return nil
	}
	return r
}

// planRoof says whether the weights leave room for one sequence of full length, and
// what the replica can reach. Without a GPU it claims nothing.
func planRoof(s Spec, shape model.Shape, w Weights, out *PlanOutput) evidence.Verdict {
	r, err := roof(s, shape, w)
	tokens := s.Traffic.Input + s.Traffic.Output
	full, gpus := max(s.Engine.MaxModelLen, tokens), s.Engine.gpus()
	claim := fmt.Sprintf("weights and one sequence of %d tokens fit %d × %s", full, gpus, s.Placement.GPU)
	if err != nil {
		return evidence.Check(claim, false, 1, err.Error())
	}
	if r == nil {
		return evidence.Verdict{}
	}
	out.Roof = newRoof(s, r)
	return evidence.Check(claim, out.Roof.KVTokens >= full, 1,
		fmt.Sprintf("%.1f GB of weights and %.1f GB kept back leave room for %d tokens of cache; %.1f ms a token for one sequence, %d sequences within the service level",
			float64(w.Bytes)/1e9, float64(gpus)*r.ReserveBytesGPU()/1e9, out.Roof.KVTokens, 1000*out.Roof.TPOT, out.Roof.Sequences))
}

// planMachine says what a replica without a GPU takes at the least, and that no engine
// keeps a service level below it; nothing where the machine was not measured.
func planMachine(s Spec, shape model.Shape, w Weights, c *ceiling.Ceilings) []string {
	r := machineRoof(s, shape, w, c, s.Placement.Replicas)
	if r == nil {
		return nil
	}
	step := r.DecodeStep(1, s.Traffic.Input+s.Traffic.Output)
	text := fmt.Sprintf("a token of one sequence takes %.2f ms at the least and a prompt of %d tokens %.1f ms, at the roofline of %s, where %s binds",
		1000*step.RooflineSeconds, s.Traffic.Input, 1000*r.PrefillPrompt(s.Traffic.Input).ComputeSeconds, r.Deployment().GPU.Name, binding(step))
	if limit := s.SLO.TPOT.Limit.Seconds(); limit > 0 && step.RooflineSeconds > limit {
		text += fmt.Sprintf("; the service level of %.2f ms cannot be kept", 1000*limit)
	}
	return []string{text}
}

// share compares the time between tokens that was measured with what the roofline gives
// for as many sequences as were under way in each of the replicas, and says which roof
// that is; empty where there is nothing to compare.
func share(r *roofline.Roof, p benchmark.Point, t Traffic, replicas int) string {
	measured := p.Summary.TPOT.Mean / 1e9
	if r == nil || measured <= 0 {
		return ""
	}
	batch := sequences(p, replicas)
	step := r.DecodeStep(batch, t.Input+t.Output)
	reached := step.RooflineSeconds / measured
	text := fmt.Sprintf("%.2f ms a token at %d sequences a replica: %.0f%% of the %.2f ms at the roofline of %s, where %s binds",
		1000*measured, batch, 100*reached, 1000*step.RooflineSeconds, r.Deployment().GPU.Name, binding(step))
	if reached > 1 {
		text += "; nothing is faster than its roof: the ceilings are too low, or another machine answered"
	}
	return text
}

// rooflineOf places what the points measured under the roofs: a step of decoding at each
// rate, and the planned prompt at the rate at which it waited least; nil where there are
// no roofs. What a prompt took is its TTFT since it was sent, which has the way there and
// a queue in it: at least so much of the roof was reached.
func rooflineOf(r *roofline.Roof, points []benchmark.Point, t Traffic, replicas int) *benchmark.Roofline {
	if r == nil {
		return nil
	}
	bytes, flops := r.CeilingsGPU()
	out := &benchmark.Roofline{Device: r.Deployment().GPU.Name, BytesPerSecond: bytes, FLOPS: flops}
	if bytes >= unbounded {
		out.BytesPerSecond = 0
	}
	var quickest *benchmark.Point
	for i, p := range points {
		if s := p.Summary.TTFTSent; s.N > 0 && (quickest == nil || s.P50 < quickest.Summary.TTFTSent.P50) {
			quickest = &points[i]
		}
		if p.Summary.TPOT.Mean <= 0 {
			continue
		}
		batch := sequences(p, replicas)
		step := r.DecodeStep(batch, t.Input+t.Output)
		name := fmt.Sprintf("decode at %.3g/s", p.Rate)
		if p.Rate == 0 {
			name = "decode, " + p.Load.String()
		}
		out.Add(name, r.Intensity(step), step.MemorySeconds, step.ComputeSeconds, p.Summary.TPOT.Mean/1e9, share(r, p, t, replicas))
	}
	if quickest != nil && t.Input > 0 {
		var w roofline.Work
		r.Prefill(&w, 0, t.Input)
		step, took := r.Step(w), quickest.Summary.TTFTSent.P50/1e9
		out.Add("prefill", r.Intensity(step), step.MemorySeconds, step.ComputeSeconds, took,
			fmt.Sprintf("a prompt of %d tokens in %.2f ms, waiting and the way there included", t.Input, 1000*took))
	}
	if len(out.Points) == 0 {
		return nil
	}
	return out
}

// sequences are about how many were under way in each of the replicas, by Little's law.
func sequences(p benchmark.Point, replicas int) int {
	rate := p.Rate
	if rate == 0 { // a closed loop's is what comes of it
		rate = p.Summary.RequestRate
	}
	return max(1, int(rate*p.Summary.E2ESent.Mean/1e9/float64(max(replicas, 1))+0.5))
}

// binding is what the most of a step's time is for.
func binding(s roofline.Step) string {
	switch most := max(s.MemorySeconds, s.ComputeSeconds); {
	case s.AllReduceSeconds > most:
		return "the GPUs' wait for each other"
	case s.FixedSeconds > most:
		return "the fixed time of a step"
	case s.ComputeBound():
		return "arithmetic"
	}
	return "memory"
}
