package size

import (
	"math"

	"llmops/roofline"
	"llmops/roofline/cost"
)

// weights are what is stored and read.
func (s *Sheet) weights() {
	in, r := s.In, s.decode
	d := r.Deployment()
	gpus := float64(d.GPUs())
	s.add("layout.gpus", Count, gpus, "GPUs of a copy", "layout.tp * layout.pp * layout.ep")
	copies := math.Floor(in.Number("node.gpus") / gpus)
	f := "floor(node.gpus / layout.gpus)"
	if copies == 0 {
		copies, f = in.Number("node.gpus")/gpus, "node.gpus / layout.gpus"
	}
	s.add("layout.copies", Count, copies, "copies of the model on a node", f)
	s.add("layout.parts", Count, float64(max(d.PipelineParallel, 1)*max(d.ExpertParallel, 1)), "parts that a batch is dealt to", "layout.pp * layout.ep")

	s.prose("weights.width", Bytes, d.WeightBytes, "a weight", "of one weight in weights.dtype; int4 with a scale for each 128")
	s.add("weights.bytes", Bytes, r.WeightBytes(), "the model", "model.parameters * weights.width")
	moe := d.Shape.Experts.Count > 0
	active := "model.parameters"
	if moe {
		active = "model.active"
		s.prose("model.active", Count, r.ActiveParameters(), "weights that a token is multiplied with", "of model.parameters, those of the chosen experts and of all else, by model.config")
		s.chosenBy("model.layers", "model.hidden", "model.heads", "model.kv_heads", "model.head_dim")
		s.prose("model.idle", Share, 1-float64(d.Shape.Experts.PerToken)/float64(d.Shape.Experts.Count), "experts that a token leaves out", "1 - chosen / all, by model.config")
		s.add("weights.expert_bytes", Bytes, (r.WeightBytes()-r.ActiveParameters()*d.WeightBytes)/s.Value("model.idle"), "all experts", "(weights.bytes - model.active * weights.width) / model.idle")
		s.add("weights.dense_bytes", Bytes, r.WeightBytes()-s.Value("weights.expert_bytes"), "what is no expert", "weights.bytes - weights.expert_bytes")
	}
	ep := d.ExpertParallel > 1
	s.add("weights.gpu_bytes", Bytes, r.WeightBytesGPU(), "of the model on each GPU", when(ep, "weights.dense_bytes + weights.expert_bytes / layout.ep", "weights.bytes / layout.gpus"))
	s.add("weights.node_bytes", Bytes, copies*gpus*r.WeightBytesGPU(), "all copies on a node", "layout.copies * layout.gpus * weights.gpu_bytes")
	read := "weights.bytes / layout.tp"
	switch {
	case ep:
		read = "weights.dense_bytes + weights.expert_bytes / layout.ep * (1 - pow(model.idle, layout.batch))"
	case moe:
		read = "(weights.dense_bytes + weights.expert_bytes * (1 - pow(model.idle, layout.batch / layout.parts))) / layout.tp"
	}
	s.add("weights.read_bytes", Bytes, r.ReadBytesGPU(in.Number("layout.batch")), "what each GPU reads for a step", read)
	s.add("decode.single_bound", TokenRate, in.Number("node.bandwidth")*float64(d.TensorParallel)/(r.ActiveParameters()*d.WeightBytes),
		"one stream at most, at peak bandwidth", "node.bandwidth * layout.tp / ("+active+" * weights.width)")
}

// cache is the memory for keys and values.
func (s *Sheet) cache() {
	in, r := s.In, s.decode
	d := r.Deployment()
	s.prose("kv.width", Bytes, d.KVBytes, "an element of the cache", "of one element in kv.dtype")
	latent := d.Shape.Latent.KVRank > 0
	if latent {
		s.prose("model.latent", Count, float64(d.Shape.Latent.KVRank+d.Shape.Latent.RopeDim), "elements of a latent vector", "kv_lora_rank + qk_rope_head_dim, by model.config")
	}
	s.add("kv.token_bytes", Bytes, r.KVBytesPerToken(), "a token", when(latent, "model.layers * model.latent * kv.width", "2 * model.layers * model.kv_heads * model.head_dim * kv.width"))
	s.add("kv.token_bytes_gpu", Bytes, r.KVBytesPerTokenGPU(), "a token, on each GPU of a layer", when(latent, "kv.token_bytes", "kv.token_bytes / min(layout.tp, model.kv_heads)"))
	seen := func(key, length, is string) {
		n := in.Number(length)
		if r.Seen(1<<40) == 1<<40 {
			s.add(key, Tokens, n, is, "1 * "+length)
			return
		}
		s.add(key, Tokens, r.Seen(n), is, "(1 - model.sliding) * "+length+" + model.sliding * min("+length+", model.window)")
	}
	if d.Shape.SlidingWindow > 0 && r.Seen(1<<40) < 1<<40 {
		w := float64(d.Shape.SlidingWindow)
		s.prose("model.window", Tokens, w, "what sliding layers look back", "sliding_window, by model.config")
		s.prose("model.sliding", Share, (1<<40-r.Seen(1<<40))/(1<<40-w), "layers that slide", "layer_types, or the family's pattern, by model.config; of model.layers")
	}
	seen("kv.seen", "traffic.context", "of a stream, in the mean of the layers")
	seen("kv.seen_long", "slo.long_prompt", "of the longest, in the mean of the layers")
	s.add("kv.sequence_bytes", Bytes, s.Value("kv.seen")*r.KVBytesPerToken(), "a stream", "kv.seen * kv.token_bytes")
	s.add("kv.long_bytes", Bytes, s.Value("kv.seen_long")*r.KVBytesPerToken(), "the longest prompt", "kv.seen_long * kv.token_bytes")

	if d.Reserve == (roofline.Reserve{}) {
		s.add("reserve.gpu_bytes", Bytes, r.ReserveBytesGPU(), "kept back on each GPU", "node.memory * reserve.share")
	} else {
		s.vllm("activations", d.Reserve.ActivationBytes, "by model.config")
		s.vllm("others", d.Reserve.OtherBytes, "by layout.tp")
		s.vllm("graphs", d.Reserve.GraphBytes, "for all")
		s.add("reserve.gpu_bytes", Bytes, r.ReserveBytesGPU(), "kept back on each GPU, as vLLM does",
			"(1 - reserve.utilisation) * node.memory + reserve.activations_gpu + reserve.others_gpu + reserve.graphs_gpu")
	}
	s.chosenBy("reserve.model")
	s.prose("lora.gpu_bytes", Bytes, r.LoRABytesGPU(), "room for adapters on each GPU",
		"2 B for each slot of A and B of every matrix in model.config, of lora.adapters of lora.rank, over layout.tp and layout.pp")
	s.chosenBy("model.layers", "model.hidden", "model.heads", "model.kv_heads", "model.head_dim")
	used := s.Value("layout.copies") * float64(d.GPUs())
	if in.Has("kv.pool") {
		s.add("kv.pool_bytes", Bytes, s.Value("layout.copies")*in.Number("kv.pool"), "the cache of a node, measured", "layout.copies * kv.pool")
	} else {
		s.add("kv.pool_bytes", Bytes, used/float64(d.GPUs())*r.KVPoolBytes(), "the cache of a node", "layout.copies * layout.gpus * (node.memory - reserve.gpu_bytes - weights.gpu_bytes - lora.gpu_bytes)")
	}
	s.add("kv.pool_tokens", Tokens, math.Floor(s.Value("kv.pool_bytes")/(float64(d.TensorParallel)*r.KVBytesPerTokenGPU())), "that it holds", "floor(kv.pool_bytes / (layout.tp * kv.token_bytes_gpu))")
	s.add("kv.streams", Count, s.Value("kv.pool_tokens")/s.Value("kv.seen"), "streams that it holds", "kv.pool_tokens / kv.seen")
	s.add("kv.reserved_streams", Count, s.Value("kv.pool_tokens")/s.Value("kv.seen_long"), "if the longest prompt were reserved for each", "kv.pool_tokens / kv.seen_long")
	s.add("kv.paging_gain", Count, s.Value("kv.streams")/s.Value("kv.reserved_streams"), "times more by paging", "kv.streams / kv.reserved_streams")
}

func (s *Sheet) vllm(part string, v float64, by string) {
	key := "reserve." + part
	if s.In.Has(key) {
		s.add(key+"_gpu", Bytes, v, part+" of each GPU", "1 * "+key)
		return
	}
	s.prose(key+"_gpu", Bytes, v, part+" of each GPU", "measured on an H100 by llm-d, "+by)
}

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

// fleet is how many nodes the peak takes.
func (s *Sheet) fleet() {
	in, v := s.In, s.Value
	rate := in.Number("traffic.rate")
	s.add("fleet.decode_demand", TokenRate, rate*in.Number("traffic.output"), "output at the peak", "traffic.rate * traffic.output")
	s.add("fleet.input_demand", TokenRate, rate*in.Number("traffic.input"), "input at the peak", "traffic.rate * traffic.input")
	s.add("fleet.prefill_demand", TokenRate, v("fleet.input_demand")*(1-in.Number("traffic.prefix_hits")), "that no cache has", "fleet.input_demand * (1 - traffic.prefix_hits)")
	s.add("fleet.decode_nodes", Count, v("fleet.decode_demand")/v("decode.rate"), "nodes that decode", "fleet.decode_demand / decode.rate")
	s.add("fleet.prefill_nodes", Count, v("fleet.prefill_demand")/v("prefill.rate"), "nodes that prefill", "fleet.prefill_demand / prefill.rate")
	s.add("fleet.capacity", Count, v("fleet.decode_nodes")+v("fleet.prefill_nodes"), "nodes that the peak takes", "fleet.decode_nodes + fleet.prefill_nodes")
	s.add("fleet.nodes", Count, math.Ceil(in.Number("fleet.headroom")*v("fleet.capacity"))+in.Number("fleet.spare"), "nodes to have", "ceil(fleet.headroom * fleet.capacity) + fleet.spare")
	s.add("fleet.gpus", Count, v("fleet.nodes")*in.Number("node.gpus"), "GPUs to have", "fleet.nodes * node.gpus")
}

// Capacity is what a node of the sheet does.
func (s *Sheet) Capacity() cost.Capacity {
	return cost.Capacity{Decode: s.Value("decode.rate"), Prefill: s.Value("prefill.rate")}
}

// Use is what the peak asks for in so many seconds.
func (s *Sheet) Use(seconds float64) cost.Use {
	in := s.In
	return cost.Use{Requests: 1, Input: in.Number("traffic.input"), Cached: in.Number("traffic.input") * in.Number("traffic.prefix_hits"), Output: in.Number("traffic.output")}.
		Times(in.Number("traffic.rate") * seconds)
}

// cost is what it comes to.
func (s *Sheet) cost() {
	in, v := s.In, s.Value
	s.add("cost.hour", Dollars, v("fleet.gpus")*in.Number("cost.gpu_hour"), "the fleet, an hour", "fleet.gpus * cost.gpu_hour")
	s.add("cost.month_total", Dollars, v("cost.hour")*in.Number("cost.month"), "the fleet, a month", "cost.hour * cost.month")
	hour := s.Use(3600 * in.Number("traffic.load"))
	s.add("cost.output_hour", Tokens, hour.Output, "output an hour, in the mean", "fleet.decode_demand * traffic.load * 3600")
	s.add("cost.input_hour", Tokens, hour.Input, "input an hour, cached or not", "fleet.input_demand * traffic.load * 3600")
	c := s.Capacity()
	p := c.Prices(v("cost.hour"), hour)
	s.add("cost.decode_share", Share, c.DecodeShare(hour), "decoding's of the nodes", "fleet.decode_nodes / fleet.capacity")
	s.add("cost.prefill_share", Share, 1-c.DecodeShare(hour), "prefill's of the nodes", "1 - cost.decode_share")
	s.add("cost.output", Dollars, p.PerMillionOutput, "1M output tokens", "cost.hour * cost.decode_share / (cost.output_hour / 1e6)")
	if hour.Input > 0 {
		s.add("cost.input", Dollars, p.PerMillionInput, "1M input tokens", "cost.hour * cost.prefill_share / (cost.input_hour / 1e6)")
	}
	s.add("cost.request", Dollars, p.PerRequest, "a served request", "cost.hour / (traffic.rate * traffic.load * 3600)")
	if in.Has("cost.output_month") {
		s.add("cost.all_output", Dollars, v("cost.month_total")/in.Number("cost.output_month")*1e6, "1M output tokens that pay for all", "cost.month_total / (cost.output_month / 1e6)")
	} else {
		s.add("cost.all_output", Dollars, v("cost.hour")/hour.Output*1e6, "1M output tokens that pay for all", "cost.hour / (cost.output_hour / 1e6)")
	}
	s.breakEven()
}

// API is the price list that the assumptions name.
func (s *Sheet) API() (cost.API, bool) {
	in := s.In
	a := cost.API{Input: in.Number("api.input"), Cached: in.Number("api.input"), Output: in.Number("api.output")}
	if in.Has("api.cached") {
		a.Cached = in.Number("api.cached")
	}
	return a, in.Has("api.input") && in.Has("api.output")
}

// BreakEven compares a month of the fleet with an API.
func (s *Sheet) BreakEven(a cost.API) cost.Comparison {
	in := s.In
	return cost.BreakEven(cost.Month{
		GPUs: s.Value("cost.month_total"), Team: in.Number("cost.team"), Full: s.Use(3600 * in.Number("cost.month")), Load: in.Number("traffic.load"),
		Batch: in.Number("cost.backfill"), SpotShare: in.Number("cost.spot"), SpotDiscount: in.Number("cost.spot_discount"),
	}, a)
}

func (s *Sheet) breakEven() {
	a, ok := s.API()
	if !ok {
		return
	}
	c := s.BreakEven(a)
	cached := when(s.In.Has("api.cached"), "api.cached", "api.input")
	s.add("cost.self", Dollars, c.Self, "a month with people and spot", "cost.month_total * (1 - cost.spot * cost.spot_discount) + cost.team")
	full := "((1 - traffic.prefix_hits) * api.input + traffic.prefix_hits * " + cached + ") * fleet.input_demand + api.output * fleet.decode_demand"
	s.add("cost.api_full", Dollars, a.Costs(s.Use(3600*s.In.Number("cost.month"))), "what the API asks for a month at the peak", "("+full+") * 3600 * cost.month / 1e6")
	s.add("cost.api", Dollars, c.API, "what it asks for this load and the batch work", "cost.api_full * (traffic.load + cost.backfill)")
	if s.Value("cost.api_full") > 0 {
		s.add("cost.even_load", Share, c.Load, "load at which both cost the same", "cost.self / cost.api_full - cost.backfill")
	}
	if c.PeakToAverage > 0 {
		s.add("cost.even_peak", Count, c.PeakToAverage, "peak over mean at which they do", "1 / cost.even_load")
	}
}

// batch is a job without a service level.
func (s *Sheet) batch() {
	in := s.In
	for _, k := range []string{"batch.documents", "batch.input", "batch.output", "batch.decode", "batch.prefill"} {
		if !in.Has(k) {
			return
		}
	}
	c := cost.Capacity{Decode: in.Number("batch.decode"), Prefill: in.Number("batch.prefill")}
	d, p := c.GPUHours(cost.Use{Input: in.Number("batch.input"), Output: in.Number("batch.output")}.Times(in.Number("batch.documents")))
	s.add("batch.decode_hours", Hours, d, "GPU-hours of decoding", "batch.documents * batch.output / batch.decode / 3600")
	s.add("batch.prefill_hours", Hours, p, "GPU-hours of prefill", "batch.documents * batch.input / batch.prefill / 3600")
	s.add("batch.hours", Hours, d+p, "GPU-hours, if neither overlaps", "batch.decode_hours + batch.prefill_hours")
	s.add("batch.cost", Dollars, (d+p)*in.Number("cost.gpu_hour"), "the job", "batch.hours * cost.gpu_hour")
}

// caps are what a router lets a copy have.
func (s *Sheet) caps() {
	if !s.has("decode.limit_batch") {
		return
	}
	streams := min(s.In.Number("layout.batch"), s.Value("decode.limit_batch"))
	s.add("cap.streams", Count, streams, "streams that a router lets a copy have", "min(layout.batch, decode.limit_batch)")
	s.add("cap.kv_tokens", Tokens, streams*s.In.Number("traffic.context"), "tokens that it lets them hold", "cap.streams * traffic.context")
	s.add("cap.long_streams", Count, math.Floor(s.Value("cap.kv_tokens")/s.In.Number("slo.long_prompt")), "of the longest prompts, that is", "floor(cap.kv_tokens / slo.long_prompt)")
}
