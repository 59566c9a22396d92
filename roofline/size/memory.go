package size

import (
	"math"

	"llmops/roofline"
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
