package size

import (
	"llmops/roofline"
)

// decoding is a step of the stated batch.
func (s *Sheet) decoding() {
	in, r := s.In, s.decode
	batch, context := int(in.Number("layout.batch")), int(in.Number("traffic.context"))
	d := r.Deployment()
	step := r.DecodeStep(batch, context)
	s.prose("decode.flops", Arithmetic, flopsOf(d), "of a GPU, at its peak", "of decode.arithmetic, node.flops or node.flops_fp8")
	s.add("decode.memory", Seconds, step.MemorySeconds, "reading weights and cache",
		"(weights.read_bytes + layout.batch / layout.parts * kv.seen * kv.token_bytes_gpu) / (node.bandwidth * share.hbm)")
	s.add("decode.compute", Seconds, step.ComputeSeconds, "arithmetic", "2 * "+s.active()+" * layout.batch / (layout.gpus * decode.flops * share.flops)")
	s.add("decode.all_reduce", Seconds, step.AllReduceSeconds, "waiting for each other", s.collectives(d, "layout.batch / layout.parts"))
	s.chosenBy("node.gpus")
	overlap := in.Number("fabric.overlap")
	s.add("decode.roof", Seconds, step.RooflineSeconds-step.FixedSeconds-(1-overlap)*step.AllReduceSeconds, "the binding roof: "+when(step.ComputeBound(), "compute", "memory"),
		"max(decode.memory, decode.compute, fabric.overlap * decode.all_reduce)")
	s.add("decode.step", Seconds, step.RooflineSeconds, "a step at the roofline", "decode.roof + (1 - fabric.overlap) * decode.all_reduce + decode.fixed")
	s.add("decode.tpot", Seconds, step.Seconds, "between tokens of a stream", "decode.step / share.end_to_end")
	s.add("decode.all_reduce_share", Share, step.AllReduceSeconds/step.RooflineSeconds, "the collectives' of the step", "decode.all_reduce / decode.step")
	copies := s.Value("layout.copies")
	modelled := copies * float64(batch) / step.Seconds
	s.add("decode.modelled", TokenRate, modelled, "output of a node, modelled", "layout.copies * layout.batch / decode.tpot")
	if in.Has("decode.measured") {
		s.add("decode.rate", TokenRate, in.Number("decode.measured"), "output of a node, measured", "1 * decode.measured")
		s.add("decode.reached", Share, in.Number("decode.measured")/modelled, "the measured rate's of the modelled", "decode.measured / decode.modelled")
	} else {
		s.add("decode.rate", TokenRate, modelled, "output of a node", "1 * decode.modelled")
	}
	knee := "weights.gpu_bytes * layout.pp / (kv.seen / layout.parts * kv.token_bytes_gpu)"
	s.add("decode.knee", Count, r.Knee(context), "batch from which each stream is paid", knee)
	if limit := r.LargestBatch(in.Number("slo.tpot"), context); limit > 0 {
		s.limit(limit)
	}
}

// limit is the edge of the service level.
func (s *Sheet) limit(batch int) {
	in, r := s.In, s.decode
	context := int(in.Number("traffic.context"))
	at := r.DecodeStep(batch, context).Seconds
	s.prose("decode.limit_batch", Count, float64(batch), "streams of a copy at the edge of the service level",
		"the largest layout.batch that kv.pool_tokens of layout.copies hold and whose decode.tpot is at most slo.tpot")
	s.add("decode.limit_kv_tokens", Tokens, float64(batch*context), "in the cache there", "decode.limit_batch * traffic.context")
	s.prose("decode.limit_tpot", Seconds, at, "between tokens there", "decode.tpot with a layout.batch of decode.limit_batch")
	s.add("decode.limit_rate", TokenRate, s.Value("layout.copies")*float64(batch)/at, "output of a node there", "layout.copies * decode.limit_batch / decode.limit_tpot")
	s.add("decode.headroom", Share, 1-in.Number("layout.batch")/float64(batch), "streams held back from the edge", "1 - layout.batch / decode.limit_batch")
	s.add("decode.headroom_cost", Share, 1-s.Value("decode.modelled")/s.Value("decode.limit_rate"), "throughput that this costs", "1 - decode.modelled / decode.limit_rate")
}

func (s *Sheet) active() string {
	return when(s.has("model.active"), "model.active", "model.parameters")
}

func flopsOf(d roofline.Deployment) float64 {
	if d.FP8Arithmetic {
		return d.GPU.FP8.Value
	}
	return d.GPU.BF16.Value
}

// collectives is the formula of what a part of a batch waits.
func (s *Sheet) collectives(d roofline.Deployment, tokens string) string {
	if d.ExpertParallel > 1 {
		if !s.has("model.routed") {
			s.prose("model.chosen", Count, float64(d.Shape.Experts.PerToken), "experts of a token in a layer", "num_experts_per_tok, by model.config")
			s.prose("model.routed", Count, float64(d.Shape.Experts.PerToken*(d.Shape.Layers-min(d.Shape.Experts.DenseLayers, d.Shape.Layers))), "experts of a token, over the layers", "chosen experts times model.layers that have some, by model.config")
		}
		return "2 * model.routed * (layout.ep - 1) / layout.ep * " + tokens + " * model.hidden * 2 / fabric.bandwidth + 2 * model.routed / model.chosen * fabric.latency"
	}
	f := ""
	if d.TensorParallel > 1 {
		f = "2 * model.layers * (2 * (layout.tp - 1) / layout.tp * " + tokens + " * model.hidden * 2 / fabric.bandwidth + fabric.latency)"
	}
	if d.PipelineParallel > 1 {
		link := "fabric"
		if d.Assume.StageLinkBytesPerSecond > 0 {
			link = "across"
		}
		f += when(f == "", "", " + ") + "(layout.pp - 1) * (" + tokens + " * model.hidden * 2 / " + link + ".bandwidth + " + link + ".latency)"
	}
	return when(f == "", "0 * layout.tp * layout.pp * layout.ep", f)
}
