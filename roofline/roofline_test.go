package roofline

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"llmops/model"
)

var shape70B = model.Shape{Family: "llama", Hidden: 8192, Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128, Intermediate: 28672, Vocab: 128256}

func gpu(t *testing.T, name string) GPU {
	t.Helper()
	g, ok := Lookup(name)
	if !ok {
		t.Fatalf("no GPU %q", name)
	}
	return g
}

// dense70B is the copy that the published sizing is about, changed by edits.
func dense70B(t *testing.T, edits ...func(*Deployment)) *Roof {
	t.Helper()
	d := Deployment{GPU: gpu(t, "assumed-192gb"), TensorParallel: 8, Shape: shape70B, Parameters: 70e9, WeightBytes: 2, KVBytes: 2, Assume: Assumed()}
	for _, e := range edits {
		e(&d)
	}
	r, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fp8(d *Deployment)         { d.WeightBytes, d.KVBytes = 1, 1 }
func fp8Math(d *Deployment)     { d.FP8Arithmetic = true }
func four(d *Deployment)        { d.TensorParallel = 4 }
func collectives(d *Deployment) { d.Assume.PrefillCollectives = true }
func multiHead(d *Deployment)   { d.Shape.KVHeads = 64 }
func acrossNodes(d *Deployment) {
	d.Assume.LinkBytesPerSecond, d.Assume.CollectiveSeconds = 25e9, 30e-6
}

type golden struct {
	what      string
	got, want float64
	digit     float64 // of the last one that is given
}

func check(t *testing.T, all []golden) {
	t.Helper()
	for _, g := range all {
		if math.Abs(g.got-g.want) > g.digit/2*1.0001 {
			t.Errorf("%s: %v, want %v ± %v", g.what, g.got, g.want, g.digit/2)
		}
	}
}

func TestKVCache(t *testing.T) {
	r, q := dense70B(t), dense70B(t, fp8)
	reserved := r.KVPoolBytes() / (32768 * r.KVBytesPerToken())
	check(t, []golden{
		{"bf16 bytes a token", r.KVBytesPerToken(), 327680, 0},
		{"fp8 bytes a token", q.KVBytesPerToken(), 163840, 0},
		{"bytes a token with 64 KV heads", dense70B(t, multiHead).KVBytesPerToken(), 2.5 * (1 << 20), 0},
		{"GB of 32k", 32768 * r.KVBytesPerToken() / 1e9, 10.74, 0.01},
		{"pool", r.KVPoolBytes() / 1e9, 1165.6, 0.1},
		{"pool in tokens", math.Floor(r.KVPoolTokens()), 3557128, 0},
		{"streams at 2k", r.KVPoolTokens() / 2048, 1736.9, 0.1},
		{"streams with 32k reserved", math.Floor(reserved), 108, 0},
		{"fp8 pool", q.KVPoolBytes() / 1e9, 1235.6, 0.1},
		{"fp8 pool in tokens", math.Floor(q.KVPoolTokens()), 7541503, 0},
		{"pool of two TP 4", 2 * dense70B(t, four).KVPoolBytes() / 1e9, 1025.6, 0.1},
		{"transfer of 2,048 tokens in MB", 2048 * r.KVBytesPerToken() / 1e6, 671, 1},
		{"transfer at 25 GB/s in ms", 2048 * r.KVBytesPerToken() / 25e9 * 1e3, 26.8, 0.1},
	})
}

func TestDecode(t *testing.T) {
	r := dense70B(t)
	s, q, q2, far := r.DecodeStep(192, 2048), dense70B(t, fp8).DecodeStep(192, 2048), dense70B(t, fp8, fp8Math).DecodeStep(192, 2048), dense70B(t, acrossNodes).DecodeStep(192, 2048)
	if s.ComputeBound() || !q.ComputeBound() {
		t.Errorf("bf16 stands on compute: %v, fp8 does: %v", s.ComputeBound(), q.ComputeBound())
	}
	largest := r.LargestBatch(0.030, 2048)
	check(t, []golden{
		{"memory ms", s.MemorySeconds * 1e3, 9.06, 0.01},
		{"compute ms", s.ComputeSeconds * 1e3, 6.46, 0.01},
		{"all-reduce ms", s.AllReduceSeconds * 1e3, 4.22, 0.01},
		{"step ms", s.RooflineSeconds * 1e3, 14.77, 0.01},
		{"TPOT ms", s.Seconds * 1e3, 24.62, 0.01},
		{"tokens/s", 192 / s.Seconds, 7797, 1},
		{"knee at 2k", r.Knee(2048), 208.6, 0.1},
		{"knee at 8k", r.Knee(8192), 52.2, 0.1},
		{"largest batch at 30 ms", float64(largest), 277, 0},
		{"its KV tokens", float64(largest * 2048), 567296, 0},
		{"its tokens/s", float64(largest) / r.DecodeStep(largest, 2048).Seconds, 9235, 1},
		{"fp8 memory ms", q.MemorySeconds * 1e3, 4.53, 0.01},
		{"fp8 step ms", q.RooflineSeconds * 1e3, 12.18, 0.01},
		{"fp8 tokens/s", 192 / q.Seconds, 9460, 1},
		{"fp8 arithmetic: step ms", q2.RooflineSeconds * 1e3, 10.25, 0.01},
		{"fp8 arithmetic: tokens/s", 192 / q2.Seconds, 11244, 1},
		{"across nodes: all-reduce ms", far.AllReduceSeconds * 1e3, 40.0, 0.1},
		{"across nodes: TPOT ms", far.Seconds * 1e3, 84.3, 0.1},
	})
}

// Two copies over four GPUs each overtake one over eight near 44 ms, not at the
// 40 ms that the sizing says.
func TestFourAgainstEight(t *testing.T) {
	rate := func(r *Roof, tpot float64) (batch int, tokens float64) {
		b := r.LargestBatch(tpot, 2048)
		return b, float64(b) / r.DecodeStep(b, 2048).Seconds
	}
	r8, r4 := dense70B(t), dense70B(t, four)
	b8, t8 := rate(r8, 0.040)
	b4, t4 := rate(r4, 0.040)
	_, late8 := rate(r8, 0.045)
	_, late4 := rate(r4, 0.045)
	_, strict4 := rate(r4, 0.030)
	check(t, []golden{
		{"TP 8 batch at 40 ms", float64(b8), 433, 0}, {"tokens/s", t8, 10837, 1},
		{"TP 4 batch at 40 ms", float64(b4), 202, 0}, {"tokens/s of two", 2 * t4, 10102, 1},
		{"TP 8 at 45 ms", late8, 10994, 1}, {"two TP 4 at 45 ms", 2 * late4, 11256, 1},
		{"two TP 4 at 30 ms", 2 * strict4, 6604, 1},
	})
}

func TestPrefill(t *testing.T) {
	r, c := dense70B(t), dense70B(t, collectives)
	short, long, charged, four := r.PrefillPrompt(2048), r.PrefillPrompt(32768), c.PrefillPrompt(2048), r.PrefillPrompt(4096)
	check(t, []golden{
		{"2k linear TFLOP", short.LinearFLOPs / 1e12, 286.7, 0.1},
		{"2k attention TFLOP", short.AttentionFLOPs / 1e12, 11.0, 0.1},
		{"2k attention %", 100 * short.AttentionShare(), 3.7, 0.1},
		{"2k ms", short.Seconds * 1e3, 119.3, 0.1},
		{"tokens/s", 2048 / short.Seconds, 17170, 1},
		{"32k linear TFLOP", long.LinearFLOPs / 1e12, 4587.5, 0.1},
		{"32k attention TFLOP", long.AttentionFLOPs / 1e12, 2814.7, 0.1},
		{"32k attention %", 100 * long.AttentionShare(), 38.0, 0.1},
		{"32k ms without the end-to-end share", long.ComputeSeconds * 1e3, 1779, 1},
		{"32k ms", long.Seconds * 1e3, 2966, 1},
		{"4k ms", four.Seconds * 1e3, 247, 1},
		{"2k ms of arithmetic", charged.ComputeSeconds * 1e3, 71.6, 0.1},
		{"2k ms with collectives before the share", (charged.ComputeSeconds + charged.AllReduceSeconds) * 1e3, 104.2, 0.1},
		{"2k all-reduce ms", charged.AllReduceSeconds * 1e3, 32.6, 0.1},
		{"2k ms with collectives", charged.Seconds * 1e3, 173.6, 0.1},
	})
}

// The second sizing: an 8B and a 70B model on GPUs of 80 GB.
func TestSecondSizing(t *testing.T) {
	small := model.Shape{Family: "llama", Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Intermediate: 14336, Vocab: 128256}
	one := dense70B(t, func(d *Deployment) {
		d.GPU, d.TensorParallel, d.Shape, d.Parameters = gpu(t, "h100-sxm"), 1, small, 8e9
		d.GPU.Bandwidth.Value, d.Assume.HBMShare = 3.3e12, 1
	})
	eight := func(kv float64) *Roof {
		return dense70B(t, fp8, func(d *Deployment) {
			d.GPU, d.KVBytes, d.Assume.ReserveShare = gpu(t, "h100-sxm"), kv, 0.10
		})
	}
	kv := one.KVBytesPerToken()
	check(t, []golden{
		{"8B bytes a token", kv, 131072, 0},
		{"32k sequences in 40 GiB", 40 * (1 << 30) / (32768 * kv), 10, 0},
		{"32k sequences in 40 GB", 40e9 / (32768 * kv), 9.3, 0.1},
		{"8B tokens/s of one stream", 1 / one.DecodeStep(1, 1).MemorySeconds, 206, 1},
		{"70B fp8 GB for the cache", eight(2).KVPoolBytes() / 1e9, 506, 1},
		{"sequences of 8k", math.Floor(eight(2).KVPoolTokens() / 8192), 188, 0},
		{"sequences of 8k in fp8", eight(1).KVPoolTokens() / 8192, 377, 0.1},
	})
	for _, reserve := range []float64{0.05, 0.15} {
		r := dense70B(t, func(d *Deployment) {
			d.GPU, d.TensorParallel, d.Shape, d.Parameters, d.Assume.ReserveShare = gpu(t, "h100-sxm"), 1, small, 8e9, reserve
		})
		if n := r.KVPoolTokens() / 8192; n < 48 || n > 60 {
			t.Errorf("an 8B model with a reserve of %v holds %.1f sequences of 8k", reserve, n)
		}
	}
}

// Pieces of a prompt cost what the whole costs, and a step of one kind what the
// formula of that kind says.
func TestStepAddsUp(t *testing.T) {
	for _, window := range []int{0, 700, 4096} {
		r := dense70B(t, collectives, func(d *Deployment) { d.Shape.Family, d.Shape.SlidingWindow = "mistral", window })
		var whole, parts Work
		r.Prefill(&whole, 0, 2048)
		for start := 0; start < 2048; start += 512 {
			r.Prefill(&parts, start, 512)
		}
		if math.Abs(whole.SquaredLengths-parts.SquaredLengths) > 1 {
			t.Errorf("window %d: %v in one piece, %v in four", window, whole.SquaredLengths, parts.SquaredLengths)
		}
		s, p := r.Step(whole), r.PrefillPrompt(2048)
		if got, want := s.RooflineSeconds-s.FixedSeconds, p.ComputeSeconds+p.AllReduceSeconds; math.Abs(got/want-1) > 1e-12 {
			t.Errorf("window %d: a step takes %v s, a prompt %v s", window, got, want)
		}
	}
	if s := dense70B(t).Step(Work{}); s != (Step{}) {
		t.Errorf("nothing takes %+v", s)
	}
}

// An expert is read when a token of the batch chose it: of 8 with 2 a token, one
// token reads 2 and many read all.
func TestExpertsAreReadWhenChosen(t *testing.T) {
	s, err := model.ParseShape([]byte(`{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
		"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2}`))
	if err != nil {
		t.Fatal(err)
	}
	r := dense70B(t, func(d *Deployment) { d.Shape, d.Parameters, d.TensorParallel = s, 0, 1 })
	read := func(batch int) float64 { return r.DecodeStep(batch, 0).MemorySeconds * r.hbmBytesPerSec / 2e9 }
	check(t, []golden{
		{"1 token", read(1), 12.88, 0.3},
		{"2 tokens, 3.5 experts", read(2), 12.88 + 1.5*5.637, 0.3}, // 32 layers × 3 × 4096 × 14336 = 5.637 billion an expert
		{"64 tokens", read(64), 46.70, 0.01},
	})
}

// A latent cache is copied to each GPU, a GQA cache split down to one head.
func TestCacheOverGPUs(t *testing.T) {
	one := func(tp, kvHeads int) *Roof {
		return dense70B(t, func(d *Deployment) { d.TensorParallel, d.Shape.KVHeads, d.Parameters = tp, kvHeads, 1e9 })
	}
	perGPU := func(r *Roof) float64 { return r.kvBytesGPU / r.KVBytesPerToken() }
	latent := dense70B(t, func(d *Deployment) {
		d.Shape.Latent = model.Latent{KVRank: 512, NopeDim: 128, RopeDim: 64, ValDim: 128}
	})
	check(t, []golden{
		{"8 heads over 4", perGPU(one(4, 8)), 0.25, 0},
		{"2 heads over 8", perGPU(one(8, 2)), 0.5, 0},
		{"latent over 8", perGPU(latent), 1, 0},
		{"latent bytes", latent.KVBytesPerToken(), 80 * 576 * 2, 0},
	})
}

// Traps of public tables: sparse figures as dense ones, both directions as one,
// links that a card has not.
func TestCatalogue(t *testing.T) {
	for _, g := range GPUs() {
		for what, f := range map[string]Figure{"memory": g.Memory, "bandwidth": g.Bandwidth, "bf16": g.BF16, "link": g.Link} {
			if f.Value <= 0 || f.Source == "" {
				t.Errorf("%s: %s is %+v", g.Name, what, f)
			}
		}
		if g.Memory.Counts != Capacity || g.Bandwidth.Counts != Peak || g.BF16.Counts != Dense || g.Link.Counts != OneDirection && g.Link.Counts != Reached {
			t.Errorf("%s: a figure counts something else: %+v", g.Name, g)
		}
		if knee := g.BF16.Value / g.Bandwidth.Value; knee < 150 || knee > 420 {
			t.Errorf("%s: %.0f FLOP a byte", g.Name, knee)
		}
		if r := g.FP8.Value / g.BF16.Value; g.FP8.Value != 0 && (r < 1.99 || r > 2.03) {
			t.Errorf("%s: fp8 is %.2f times bf16", g.Name, r)
		}
	}
	check(t, []golden{
		{"H100 FLOP a byte", gpu(t, "h100-sxm").BF16.Value / gpu(t, "h100-sxm").Bandwidth.Value, 295, 1},
		{"H100 link", gpu(t, "h100-sxm").Link.Value, 450e9, 0},
		{"L40S link", gpu(t, "l40s").Link.Value, 32e9, 0},
	})
	if _, ok := Lookup("h100"); ok {
		t.Error("half a name was found")
	}
}

func TestRefusals(t *testing.T) {
	for want, edit := range map[string]func(*Deployment){
		"0 GPUs":           func(d *Deployment) { d.TensorParallel = 0 },
		"over 3 GPUs":      func(d *Deployment) { d.TensorParallel = 3 },
		"0 layers":         func(d *Deployment) { d.Shape.Layers = 0 },
		"0 bytes a weight": func(d *Deployment) { d.WeightBytes = 0 },
		"NaN bytes":        func(d *Deployment) { d.KVBytes = math.NaN() },
		"this arithmetic":  func(d *Deployment) { d.GPU, d.FP8Arithmetic = gpu(t, "a100-80gb"), true },
		"link":             func(d *Deployment) { d.GPU.Link = Figure{} },
		"HBM share":        func(d *Deployment) { d.Assume.HBMShare = 0 },
		"end-to-end":       func(d *Deployment) { d.Assume.EndToEndShare = 1.1 },
		"reserve":          func(d *Deployment) { d.Assume.ReserveShare = 1 },
		"negative":         func(d *Deployment) { d.Assume.FixedSeconds = -1 },
	} {
		d := Deployment{GPU: gpu(t, "assumed-192gb"), TensorParallel: 8, Shape: shape70B, WeightBytes: 2, KVBytes: 2, Assume: Assumed()}
		edit(&d)
		if _, err := New(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
}

func TestStepDoesNotAllocate(t *testing.T) {
	r := dense70B(t)
	var sum float64
	if n := testing.AllocsPerRun(100, func() {
		var w Work
		r.Decode(&w, 2048)
		r.Prefill(&w, 0, 512)
		sum += r.Step(w).Seconds
	}); n != 0 || sum == 0 {
		t.Errorf("a step allocates %v times", n)
	}
}

// Names as NVIDIA's driver gives them: each finds its row, and its neighbours none.
func TestDevices(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA A100-SXM4-80GB": "a100-80gb", "NVIDIA A100 80GB PCIe": "a100-80gb", "NVIDIA A100-SXM4-40GB": "",
		"NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 PCIe": "", "NVIDIA H100 NVL": "",
		"NVIDIA H200": "h200-sxm", "NVIDIA H200 NVL": "", "NVIDIA GH200 480GB": "",
		"NVIDIA B200": "b200-sxm", "NVIDIA GB200": "gb200", "NVIDIA L40S": "l40s", "NVIDIA L40": "", "NVIDIA L4": "l4",
	} {
		got := ""
		for _, g := range GPUs() {
			if g.Device == "" {
				continue
			}
			if regexp.MustCompile(g.Device).MatchString(name) {
				got += g.Name
			}
		}
		if got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestDTypes(t *testing.T) {
	weights, kv := DTypes()
	for _, name := range weights {
		if b, ok := WeightBytes(name); !ok || !(b > 0 && b <= 2) {
			t.Errorf("a weight in %s takes %v bytes", name, b)
		}
	}
	for _, name := range kv {
		if b, ok := KVBytes(name); !ok || !(b > 0 && b <= 2) {
			t.Errorf("an element in %s takes %v bytes", name, b)
		}
	}
	if _, ok := WeightBytes("fp4"); ok {
		t.Error("fp4 is known")
	}
	check(t, []golden{{"70B in int4", 70 * weightTypes[3].bytes, 37.1, 0.1}})
}
