package roofline

import (
	"math"
	"strings"
	"testing"

	"llmops/model"
)

func mixtral(t *testing.T) model.Shape {
	t.Helper()
	s, err := model.ParseShape([]byte(`{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
		"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2}`))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Two stages over four GPUs each: a token goes through all layers, with half of the
// batch beside it, and once from stage to stage. The eight GPUs hold what eight do.
func TestPipeline(t *testing.T) {
	stages := dense70B(t, four, func(d *Deployment) { d.PipelineParallel = 2 })
	alone, eight := dense70B(t, four), dense70B(t)
	s, half := stages.DecodeStep(192, 2048), alone.DecodeStep(96, 2048)
	hop := 96*8192*2/300e9 + 8e-6
	check(t, []golden{
		{"memory", s.MemorySeconds, half.MemorySeconds, 1e-12},
		{"arithmetic", s.ComputeSeconds, half.ComputeSeconds, 1e-12},
		{"collectives", s.AllReduceSeconds, half.AllReduceSeconds + hop, 1e-12},
		{"pool", stages.KVPoolBytes(), eight.KVPoolBytes(), 1},
		{"pool in tokens", stages.KVPoolTokens(), eight.KVPoolTokens(), 1},
		{"weights of a GPU", stages.WeightBytesGPU(), 140e9 / 8, 1},
		{"knee: each half of the batch reads the weights", stages.Knee(2048), 2 * alone.Knee(2048), 1e-9},
		{"a prompt alone", stages.PrefillPrompt(2048).Seconds, alone.PrefillPrompt(2048).Seconds, 1e-12},
		{"prompts a second", stages.PrefillRate(2048), 2 * alone.PrefillRate(2048), 1e-6},
		{"over a slower way", dense70B(t, four, func(d *Deployment) {
			d.PipelineParallel, d.Assume.StageLinkBytesPerSecond, d.Assume.StageSeconds = 2, 25e9, 30e-6
		}).DecodeStep(192, 2048).AllReduceSeconds, half.AllReduceSeconds + 96*8192*2/25e9 + 30e-6, 1e-12},
		{"GPUs", float64(stages.Deployment().GPUs()), 8, 0},
	})
}

// Experts over eight GPUs: attention is copied, an expert is on one of them.
func TestExpertParallel(t *testing.T) {
	of := func(tp, ep int) *Roof {
		return dense70B(t, func(d *Deployment) {
			d.Shape, d.Parameters, d.TensorParallel, d.ExpertParallel = mixtral(t), 0, tp, ep
		})
	}
	one, dealt, split := of(1, 0), of(1, 8), of(8, 0)
	dense, experts := one.denseBytes, one.expertBytes
	s := dealt.DecodeStep(64, 1024)
	link := 300e9
	check(t, []golden{
		{"weights of a GPU", dealt.WeightBytesGPU(), dense + experts/8, 1},
		{"pool", dealt.KVPoolBytes(), 8 * (192e9*0.85 - dense - experts/8), 1e3},
		{"pool in tokens", dealt.KVPoolTokens(), dealt.KVPoolBytes() / one.KVBytesPerToken(), 1e-3},
		{"read by 64 tokens", dealt.ReadBytesGPU(64), dense + experts/8*(1-math.Pow(0.75, 64)), 1},
		{"memory", s.MemorySeconds, (dealt.ReadBytesGPU(64) + 8*1024*one.KVBytesPerToken()) / (5.3e12 * 0.7), 1e-12},
		{"arithmetic", s.ComputeSeconds, split.DecodeStep(64, 1024).ComputeSeconds, 1e-12},
		{"all to all", s.AllReduceSeconds, 64*(8*2*7.0/8*4096*2/link) + 64*8e-6, 1e-9},
	})
	if gap := dealt.WeightBytes() - one.WeightBytes(); gap != 0 {
		t.Errorf("dealing experts changes the model by %v bytes", gap)
	}
}

// Layers that slide keep their window, the others all.
func TestSlidingLayers(t *testing.T) {
	of := func(family string, layers []bool) *Roof {
		return dense70B(t, func(d *Deployment) {
			d.Shape.Family, d.Shape.SlidingWindow, d.Shape.SlidingLayers = family, 1024, layers
		})
	}
	quarter := make([]bool, 80)
	for i := range quarter {
		quarter[i] = i%4 == 0
	}
	check(t, []golden{
		{"all slide", of("mistral", nil).Seen(8192), 1024, 0},
		{"every second", of("gemma2", nil).Seen(8192), (8192 + 1024) / 2, 0},
		{"78 of 80 less a sixth", of("gemma3_text", nil).Seen(8192), (13*8192 + 67*1024) / 80.0, 1e-9},
		{"three of four", of("cohere2", nil).Seen(8192), (8192 + 3*1024) / 4, 0},
		{"as listed", of("unheard-of", quarter).Seen(8192), (3*8192 + 1024) / 4, 0},
		{"a window that no class is known to use", of("unheard-of", nil).Seen(8192), 8192, 0},
		{"shorter than the window", of("gemma2", nil).Seen(512), 512, 0},
	})
	if all, none := of("gemma2", nil).LargestBatch(10, 32768), dense70B(t).LargestBatch(10, 32768); none != 108 || all <= none {
		t.Errorf("%d sequences of 32k fit with half of the layers sliding, %d with none", all, none)
	}
}

// Collectives that run beside the rest are hidden until they are the longest.
func TestOverlap(t *testing.T) {
	of := func(share float64, edits ...func(*Deployment)) Step {
		return dense70B(t, append(edits, func(d *Deployment) { d.Assume.OverlapShare = share })...).DecodeStep(192, 2048)
	}
	s := of(0)
	check(t, []golden{
		{"half", of(0.5).RooflineSeconds, s.RooflineSeconds - s.AllReduceSeconds/2, 1e-12},
		{"all", of(1).RooflineSeconds, s.MemorySeconds + s.FixedSeconds, 1e-12},
		{"all of a slow link", of(1, acrossNodes).RooflineSeconds, of(0, acrossNodes).AllReduceSeconds + s.FixedSeconds, 1e-12},
		{"a TPOT of all", of(1).Seconds * 1e3, 17.6, 0.1},
	})
}

// What vLLM is documented to leave for the cache of four models on H100s of 79.18 GiB
// at a utilisation of 0.9, in GiB (llm-d, empirical-vllm-memory-results.md).
func TestReserveOfVLLM(t *testing.T) {
	for _, c := range []struct {
		name                        string
		tp                          int
		weights, activation, others float64
		pool, digit                 float64
	}{
		{"Llama-3.1-8B", 1, 14.99, 4.76, 0.13, 51.38, 0.01},
		{"Llama-3.3-70B-FP8", 2, 33.88, 4.84, 0.55, 32.00, 0.02},
		{"Qwen3-32B", 1, 61.03, 5.64, 0.14, 4.45, 0.01},
		{"Qwen3-32B over two", 2, 30.59, 5.64, 0.54, 34.49, 0.01},
	} {
		r := dense70B(t, func(d *Deployment) {
			d.TensorParallel, d.GPU.Memory.Value = c.tp, 79.18*GiB
			d.Parameters, d.WeightBytes = c.weights*float64(c.tp)*GiB, 1
			d.Reserve = Reserve{0.9, c.activation * GiB, c.others * GiB, 0}
		})
		check(t, []golden{{c.name, r.KVPoolBytes() / float64(c.tp) / GiB, c.pool, 2 * c.digit}})
	}
	moe, llama := VLLMReserve(mixtral(t), 1), VLLMReserve(shape70B, 8)
	if moe.ActivationBytes != 8*GiB || llama.ActivationBytes != 4.8*GiB || llama.OtherBytes != 0.6*GiB || moe.OtherBytes != 0.15*GiB {
		t.Errorf("reserves are %+v and %+v", moe, llama)
	}
}

// A rank of 16 on all layers of an 8B model has 41,943,040 weights.
func TestLoRA(t *testing.T) {
	small := model.Shape{Family: "llama", Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Intermediate: 14336, Vocab: 128256}
	of := func(tp, adapters, rank int) *Roof {
		return dense70B(t, func(d *Deployment) {
			d.Shape, d.Parameters, d.TensorParallel, d.LoRA = small, 8e9, tp, LoRA{adapters, rank}
		})
	}
	// Over two GPUs the columns' B and the rows' A are halved: for each layer and rank
	// q 4096+2048, k and v 4096+512 each, o 2048+4096, gate and up 4096+7168 each, down 7168+4096.
	check(t, []golden{
		{"one", of(1, 1, 16).LoRABytesGPU(), 2 * 41943040, 0},
		{"eight of rank 64", of(1, 8, 64).LoRABytesGPU(), 32 * 2 * 41943040, 0},
		{"over two GPUs", of(2, 1, 16).LoRABytesGPU(), 2 * 16 * 32 * (6144 + 2*4608 + 6144 + 2*11264 + 11264), 0},
		{"off the pool", of(1, 0, 0).KVPoolBytes() - of(1, 1, 16).KVPoolBytes(), 2 * 41943040, 1e-3},
	})
}

// A cache that was measured is taken as it is.
func TestMeasuredPool(t *testing.T) {
	r := dense70B(t, func(d *Deployment) { d.PoolBytes = 2048 * 327680 * 40 })
	if got := r.LargestBatch(0.030, 2048); got != 40 || r.KVPoolTokens() != 40*2048 {
		t.Errorf("%d streams in %v tokens", got, r.KVPoolTokens())
	}
}

func TestRefusedLayouts(t *testing.T) {
	for want, edit := range map[string]func(*Deployment){
		"81 stages":           func(d *Deployment) { d.PipelineParallel = 81 },
		"the model has none":  func(d *Deployment) { d.TensorParallel, d.ExpertParallel = 1, 8 },
		"8 experts cannot":    func(d *Deployment) { d.Shape, d.TensorParallel, d.ExpertParallel = mixtral(t), 1, 3 },
		"one kind at a time":  func(d *Deployment) { d.Shape, d.ExpertParallel = mixtral(t), 8 },
		"a cache of -1 bytes": func(d *Deployment) { d.PoolBytes = -1 },
		"neither below 0":     func(d *Deployment) { d.PipelineParallel = -1 },
		"share 7 KV heads":    func(d *Deployment) { d.Shape.KVHeads = 7 },
		"utilisation of 1.5":  func(d *Deployment) { d.Reserve.Utilisation = 1.5 },
		"none may be":         func(d *Deployment) { d.Reserve = Reserve{0.9, -1, 0, 0} },
		"2 adapters of rank":  func(d *Deployment) { d.LoRA.Adapters = 2 },
		"overlap of 2 of the": func(d *Deployment) { d.Assume.OverlapShare = 2 },
	} {
		d := Deployment{GPU: gpu(t, "assumed-192gb"), TensorParallel: 8, Shape: shape70B, WeightBytes: 2, KVBytes: 2, Assume: Assumed()}
		edit(&d)
		if _, err := New(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
}
