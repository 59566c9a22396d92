package size

import (
	"llmops/roofline"
)

// prefilling is prompts, each alone on a copy.
func (s *Sheet) prefilling() {
	in, r := s.In, s.prefill
	d := r.Deployment()
	s.prose("prefill.flops", Arithmetic, flopsOf(d), "of a GPU, at its peak", "of prefill.arithmetic, node.flops or node.flops_fp8")
	if d.Shape.Latent.KVRank > 0 {
		l := d.Shape.Latent
		s.prose("model.pair", Count, 2*float64(d.Shape.Heads*(l.NopeDim+l.RopeDim+l.ValDim)), "FLOP for two tokens that see each other, in a layer", "2 * heads * (nope + rope + value), by model.heads of model.config")
	}
	s.prompt("prefill.", "prefill.prompt", "a prompt")
	s.prompt("prefill.class_", "slo.ttft_prompt", "the longest short prompt")
	s.prompt("prefill.long_", "slo.long_prompt", "the longest prompt")
	prompt := int(in.Number("prefill.prompt"))
	modelled := s.Value("layout.copies") * r.PrefillRate(prompt)
	s.add("prefill.modelled", TokenRate, modelled, "prompt tokens of a node, modelled", "layout.copies * layout.parts * prefill.prompt / prefill.time")
	if in.Has("prefill.measured") {
		s.add("prefill.rate", TokenRate, in.Number("prefill.measured"), "prompt tokens of a node, measured", "1 * prefill.measured")
		s.add("prefill.reached", Share, in.Number("prefill.measured")/modelled, "the measured rate's of the modelled", "prefill.measured / prefill.modelled")
		return
	}
	s.add("prefill.rate", TokenRate, modelled, "prompt tokens of a node", "1 * prefill.modelled")
}

// prompt adds the numbers of one length under a prefix.
func (s *Sheet) prompt(prefix, length, is string) {
	r := s.prefill
	d := r.Deployment()
	n := s.In.Number(length)
	p := r.PrefillPrompt(int(n))
	s.add(prefix+"linear", Operations, p.LinearFLOPs, is+": products with weights", "2 * "+s.active()+" * "+length)
	pair := when(d.Shape.Latent.KVRank > 0, "model.pair", "4 * model.heads * model.head_dim")
	switch {
	case r.Seen(1<<40) == 1<<40:
		s.add(prefix+"attention", Operations, p.AttentionFLOPs, is+": attention", "model.layers * "+pair+" * "+length+" * "+length)
	default:
		s.add(prefix+"attention", Operations, p.AttentionFLOPs, is+": attention, none further back than its window", "model.layers * "+pair+
			" * ((1 - model.sliding) * "+length+" * "+length+" + model.sliding * (pow(min("+length+", model.window), 2) + 2 * model.window * max(0, "+length+" - model.window)))")
	}
	s.add(prefix+"attention_share", Share, p.AttentionShare(), is+": attention's of all", prefix+"attention / ("+prefix+"linear + "+prefix+"attention)")
	s.add(prefix+"compute", Seconds, p.ComputeSeconds, is+": arithmetic", "("+prefix+"linear + "+prefix+"attention) / (layout.tp * prefill.flops * share.flops)")
	if s.In.Text("prefill.collectives") == "yes" {
		s.add(prefix+"all_reduce", Seconds, p.AllReduceSeconds, is+": waiting for each other", s.collectives(d, length))
		s.chosenBy("prefill.collectives", "node.gpus")
	} else {
		s.prose(prefix+"all_reduce", Seconds, 0, is+": waiting for each other", "not charged: prefill.collectives")
	}
	s.add(prefix+"time", Seconds, p.Seconds, is+", alone",
		"(max("+prefix+"compute, fabric.overlap * "+prefix+"all_reduce) + (1 - fabric.overlap) * "+prefix+"all_reduce) / share.end_to_end")
}

// latency is the way to the first token, and KV's over the fabric.
func (s *Sheet) latency() {
	in := s.In
	sum := func(suffix string) (v float64, formula string) {
		for _, hop := range []string{"hops.edge", "hops.gateway", "hops.tokenise", "hops.queue", "hops.first"} {
			v += in.Number(hop + suffix)
			formula += when(formula == "", "", " + ") + hop + suffix
		}
		return v, formula
	}
	p50, f50 := sum("")
	p95, f95 := sum("_p95")
	v := s.Value
	s.add("ttft.hops", Seconds, p50, "all hops but prefill, p50", f50)
	s.add("ttft.hops_p95", Seconds, p95, "all hops but prefill, p95", f95)
	s.add("ttft.p50", Seconds, p50+v("prefill.time"), "to the first token, p50", "ttft.hops + prefill.time")
	s.add("ttft.p95", Seconds, p95+v("prefill.time")+in.Number("hops.prefill_spread"), "to the first token, p95", "ttft.hops_p95 + prefill.time + hops.prefill_spread")
	s.add("ttft.headroom", Seconds, in.Number("slo.ttft")-v("ttft.p95"), "left of the service level", "slo.ttft - ttft.p95")
	s.add("ttft.class_p95", Seconds, p95+v("prefill.class_time"), "of the longest short prompt, p95, at least", "ttft.hops_p95 + prefill.class_time")
	s.add("ttft.class_headroom", Seconds, in.Number("slo.ttft")-v("ttft.class_p95"), "left of the service level", "slo.ttft - ttft.class_p95")
	s.add("ttft.long_p95", Seconds, p95+v("prefill.long_time"), "of the longest prompt, p95, at least", "ttft.hops_p95 + prefill.long_time")
	s.add("ttft.long_headroom", Seconds, in.Number("slo.long_ttft")-v("ttft.long_p95"), "left of the service level", "slo.long_ttft - ttft.long_p95")

	s.add("transfer.bytes", Bytes, s.prefill.Seen(in.Number("prefill.prompt"))*v("kv.token_bytes"), "of a prompt, from prefill to decode",
		when(s.In.shape().SlidingWindow > 0 && s.has("model.window"), "((1 - model.sliding) * prefill.prompt + model.sliding * min(prefill.prompt, model.window)) * kv.token_bytes", "prefill.prompt * kv.token_bytes"))
	s.add("transfer.time", Seconds, v("transfer.bytes")/in.Number("across.bandwidth"), "over one GPU's share of the fabric", "transfer.bytes / across.bandwidth")
	s.add("transfer.ttft_p95", Seconds, v("ttft.p95")+v("transfer.time"), "to the first token with it, p95", "ttft.p95 + transfer.time")
	if in.Number("layout.tp") > 1 {
		s.across()
	}
}

// across is what a step would be if a layer's GPUs were on different nodes.
func (s *Sheet) across() {
	d := s.decode.Deployment()
	if d.ExpertParallel > 1 || d.PipelineParallel > 1 {
		return
	}
	d.Assume.LinkBytesPerSecond, d.Assume.CollectiveSeconds = s.In.Number("across.bandwidth"), s.In.Number("across.latency")
	r, err := roofline.New(d)
	if err != nil {
		return
	}
	step := r.DecodeStep(int(s.In.Number("layout.batch")), int(s.In.Number("traffic.context")))
	s.add("across.all_reduce", Seconds, step.AllReduceSeconds, "a layer split across nodes: waiting",
		"2 * model.layers * (2 * (layout.tp - 1) / layout.tp * layout.batch * model.hidden * 2 / across.bandwidth + across.latency)")
	s.add("across.tpot", Seconds, step.Seconds, "a layer split across nodes: between tokens",
		"(max(decode.memory, decode.compute, fabric.overlap * across.all_reduce) + (1 - fabric.overlap) * across.all_reduce + decode.fixed) / share.end_to_end")
}
