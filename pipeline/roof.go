package pipeline

import (
	"fmt"

	"llmops/evidence"
	"llmops/model"
	"llmops/pipeline/benchmark"
	"llmops/roofline"
	"llmops/serving/engine"
)

// Roof is what a replica can reach on the GPUs of its placement, by the assumptions of
// the roofline. A model that is cut into stages is taken for one that is split over the
// GPUs of a stage and has the memory of all.
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

// roof prepares the arithmetic of a replica; nil without a GPU.
func roof(s Spec, shape model.Shape, w Weights) (*roofline.Roof, error) {
	gpu, ok := roofline.Lookup(s.Placement.GPU)
	if !ok {
		return nil, nil
	}
	d := roofline.Deployment{GPU: gpu, TensorParallel: max(s.Engine.TensorParallel, 1), Shape: shape, KVBytes: 2, Assume: roofline.Assumed(),
		WeightBytes: float64(w.Bytes) / float64(max(shape.Parameters(), 1)), FP8Arithmetic: w.Scheme == "fp8-dynamic" && gpu.FP8.Value > 0}
	if b, ok := kvBytes[s.Engine.KVCache]; ok {
		d.KVBytes = b
	}
	r, err := roofline.New(d)
	if err != nil {
		return nil, fmt.Errorf("the roofline of %d × %s: %w", d.TensorParallel, gpu.Name, err)
	}
	return r, nil
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
	room := r.KVPoolTokens()
	if s.Engine.PipelineParallel > 1 { // the stages together hold what one cannot
		d := r.Deployment()
		room = max(0, float64(gpus)*d.GPU.Memory.Value*(1-d.Assume.ReserveShare)-r.WeightBytes()) / r.KVBytesPerToken()
	}
	out.Roof = &Roof{GPU: s.Placement.GPU, GPUs: gpus, KVTokens: int(room), WeightGPU: w.Bytes / int64(gpus),
		TPOT: r.DecodeStep(1, tokens).Seconds, Prefill: r.PrefillPrompt(s.Traffic.Input).Seconds}
	if limit := s.SLO.TPOT.Limit.Seconds(); limit > 0 {
		out.Roof.Sequences = r.LargestBatch(limit, tokens)
	}
	return evidence.Check(claim, out.Roof.KVTokens >= full, 1,
		fmt.Sprintf("%.1f GB of weights leave room for %d tokens of cache; %.1f ms a token for one sequence, %d sequences within the service level",
			float64(w.Bytes)/1e9, out.Roof.KVTokens, 1000*out.Roof.TPOT, out.Roof.Sequences))
}

// share compares the time between tokens that was measured with what the roofline gives
// for as many sequences as were under way in each of the replicas; empty where there is
// nothing to compare.
func share(r *roofline.Roof, p benchmark.Point, t Traffic, replicas int) string {
	measured := p.Summary.TPOT.Mean / 1e9
	if r == nil || measured <= 0 {
		return ""
	}
	batch := max(1, int(p.Rate*p.Summary.E2ESent.Mean/1e9/float64(max(replicas, 1))+0.5))
	step := r.DecodeStep(batch, t.Input+t.Output)
	return fmt.Sprintf("%.2f ms a token at %d sequences a replica: %.0f%% of the %.2f ms at the roofline of %s", 1000*measured, batch, 100*step.RooflineSeconds/measured, 1000*step.RooflineSeconds, r.Deployment().GPU.Name)
}
