package roofline

import (
	"fmt"

	"llmops/model"
)

// GiB is a binary gigabyte, the unit in which engines report memory.
const GiB = 1 << 30

// Reserve is what an engine keeps of each GPU's memory, as vLLM 0.32 computes it in
// Worker.determine_available_memory: the cache gets
//
//	utilisation · memory − weights − activations − others − graphs
//
// where weights include the room for adapters. The zero Reserve is none.
type Reserve struct {
	Utilisation     float64 // of the memory; vLLM's default is 0.92, older versions' 0.9
	ActivationBytes float64 // the peak of a forward pass over max_num_batched_tokens
	OtherBytes      float64 // outside of PyTorch: NCCL, contexts
	GraphBytes      float64 // of captured graphs
}

func (r Reserve) check() error {
	if r == (Reserve{}) {
		return nil
	}
	if !(r.Utilisation > 0 && r.Utilisation <= 1) {
		return fmt.Errorf("a utilisation of %v of the memory: want more than 0 and at most 1", r.Utilisation)
	}
	if !(r.ActivationBytes >= 0 && r.OtherBytes >= 0 && r.GraphBytes >= 0) {
		return fmt.Errorf("%v, %v and %v bytes for activations, others and graphs: none may be negative", r.ActivationBytes, r.OtherBytes, r.GraphBytes)
	}
	return nil
}

func (r Reserve) bytesGPU(memory float64) float64 {
	return (1-r.Utilisation)*memory + r.ActivationBytes + r.OtherBytes + r.GraphBytes
}

// VLLMReserve is what vLLM is seen to keep for a model over tp GPUs. The figures are
// llm-d's, of eight models on an H100 (empirical-vllm-memory-results.md): activations
// depend on the architecture and not on the longest context. Graphs took from nothing
// to 1 GiB there; half of one is taken here.
func VLLMReserve(s model.Shape, tp int) Reserve {
	r := Reserve{Utilisation: 0.92, ActivationBytes: 5.5 * GiB, OtherBytes: 0.15 * GiB, GraphBytes: 0.5 * GiB}
	switch {
	case s.Family == "gpt_oss":
		r.ActivationBytes = 7.4 * GiB
	case s.Experts.Count > 0:
		r.ActivationBytes = 8 * GiB
	case s.Family == "llama":
		r.ActivationBytes = 4.8 * GiB
	case s.Family == "qwen3":
		r.ActivationBytes = 5.6 * GiB
	}
	if tp > 1 {
		r.OtherBytes = 0.6 * GiB
	}
	return r
}

// LoRA is the room for adapters that are in memory at the same time: vLLM's
// max_loras and max_lora_rank. The zero LoRA is none.
type LoRA struct {
	Adapters int
	Rank     int
}

func (l LoRA) check() error {
	if l.Adapters < 0 || l.Rank < 0 || l.Adapters > 0 && l.Rank == 0 {
		return fmt.Errorf("%d adapters of rank %d: want both above 0, or neither", l.Adapters, l.Rank)
	}
	return nil
}

// bytesGPU is what vLLM sets aside before it knows an adapter, from its
// lora/layers: for each linear layer of attention and MLP a slot of A (rank × in) and
// of B (out × rank) in 16 bits. Layers that are split by their outputs have all of A
// and a part of B on each GPU, those split by their inputs a part of A and all of B.
// Experts have slots of their own. Exact for attention with projections of its own and
// a gated MLP; latent attention is taken for its heads' projections.
func (l LoRA) bytesGPU(s model.Shape, tp float64) float64 {
	h, wide := float64(s.Hidden), float64(s.Intermediate)
	q, kv := float64(s.Heads*s.HeadDim), float64(s.KVHeads*s.HeadDim)
	column := func(in, out float64) float64 { return in + out/tp }
	row := func(in, out float64) float64 { return in/tp + out }
	attention := column(h, q) + 2*column(h, kv) + row(q, h)
	mlp := func(wide float64) float64 { return 2*column(h, wide) + row(wide, h) }
	dense, sparse := float64(s.Layers), 0.0
	if s.Experts.Count > 0 {
		dense = float64(min(s.Experts.DenseLayers, s.Layers))
		sparse = float64(s.Layers) - dense
	}
	elements := float64(s.Layers)*attention + dense*mlp(wide) + sparse*float64(s.Experts.Count)*mlp(float64(s.Experts.Intermediate))
	return 2 * float64(l.Adapters*l.Rank) * elements
}
