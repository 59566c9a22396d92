package llama

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"testing"

	"llmops/model"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama/kernel"
)

func TestPrefixCacheOfTenants(t *testing.T) {
	e := newEngine(t, filepath.Join("testdata", "llama"), core.Limits{Sequences: 2, Tokens: 64, Blocks: 64}, 1)
	prompt := make([]int, 50)
	for i := range prompt {
		prompt[i] = 3 + i
	}
	cached := func(salt string, n int) int {
		s := &core.Sequence{Prompt: prompt[:n], Salt: salt, Max: 1}
		e.run(t, s)
		return s.Cached()
	}
	for i, tt := range []struct {
		salt    string
		n, want int
	}{
		{"a", 50, 0}, {"a", 50, 48}, {"b", 50, 0}, {"b", 50, 48}, {"", 50, 0},
		{"a", 48, 32}, // the last token is computed for its logits, so the last full block is not used
		{"a", 20, 16}, {"a", 16, 0},
	} {
		if got := cached(tt.salt, tt.n); got != tt.want {
			t.Errorf("step %d: %d tokens of salt %q find %d cached, want %d", i, tt.n, tt.salt, got, tt.want)
		}
	}
}

// Questions to one document that come together compute the document once.
func TestSharedBeginningIsComputedOnce(t *testing.T) {
	e := newEngine(t, filepath.Join("testdata", "llama"), core.Limits{Sequences: 8, Tokens: 32, Blocks: 64}, 1)
	var seqs []*core.Sequence
	for q := range 4 {
		s := &core.Sequence{Max: 2}
		for i := range 120 {
			s.Prompt = append(s.Prompt, 3+i+i/100*q)
		}
		seqs = append(seqs, s)
	}
	e.run(t, seqs...)
	for i, s := range seqs {
		if want := min(i, 1) * 96; s.Cached() != want {
			t.Errorf("question %d found %d tokens, want %d", i, s.Cached(), want)
		}
	}
	// One that is given up takes its promise with it.
	first, second := &core.Sequence{ID: 100, Prompt: make([]int, 100), Max: 1}, &core.Sequence{ID: 101, Prompt: make([]int, 100), Max: 1}
	for _, s := range []*core.Sequence{first, second} {
		if err := e.core.Add(0, s); err != nil {
			t.Fatal(err)
		}
	}
	var b core.Batch
	if !e.core.Next(0, &b) || len(b.Rows) != 1 {
		t.Fatalf("%d rows, want the first sequence alone", len(b.Rows))
	}
	e.core.Cancel(0, first.ID)
	if !e.core.Next(0, &b) || len(b.Rows) != 1 || b.Rows[0].Seq != second {
		t.Errorf("the second sequence waits for one that is gone: %+v", b.Rows)
	}
}

// Logits are equal to the bit for a prompt alone, among fifteen others, from the
// cache, in other pieces and on two threads.
func TestLogitsDoNotDependOnTheBatch(t *testing.T) {
	shape, w := randomModel(1)
	build := func(tokens, threads int) *engine {
		c, err := core.New(core.Limits{Sequences: 16, Tokens: tokens, Blocks: 600})
		if err != nil {
			t.Fatal(err)
		}
		return &engine{core: c, exec: newExecutor(shape, w, Options{Tokens: tokens, Length: 512, Blocks: 600, Threads: threads})}
	}
	seq := func(k int) *core.Sequence {
		s := &core.Sequence{Max: 4, Sampling: core.Sampling{Top: shape.Vocab}}
		for i := range 70 + 5*k {
			s.Prompt = append(s.Prompt, (i*31+min(i, 60)/60*k)%shape.Vocab)
		}
		return s
	}
	alone, _ := build(128, 1).run(t, seq(3))
	check := func(name string, got []core.Token) {
		t.Helper()
		if !reflect.DeepEqual(got, alone[0]) {
			t.Errorf("%s: logits differ", name)
		}
	}
	for _, c := range []struct{ tokens, threads int }{{37, 1}, {300, 2}} {
		e := build(c.tokens, c.threads)
		name := fmt.Sprintf("%+v", c)
		var all []*core.Sequence
		for k := range 16 {
			all = append(all, seq(k))
		}
		got, _ := e.run(t, all...)
		check(name+", among 15", got[3])
		warm := seq(3)
		got, _ = e.run(t, warm)
		if warm.Cached() < 64 {
			t.Errorf("%s: only %d tokens were cached", name, warm.Cached())
		}
		check(name+", warm", got[0])
	}
}

// randomModel has the shape of the shipped model.
func randomModel(seed uint64) (model.Shape, *weights) {
	s := model.Shape{
		Family: "llama", Architectures: []string{"LlamaForCausalLM"}, Hidden: 256, Layers: 4, Heads: 8, KVHeads: 2, HeadDim: 32, Intermediate: 256,
		Vocab: 1024, MaxPositions: 2048, NormEps: 1e-5, Tied: true, Rope: model.Rope{Theta: 10000, Type: "default"},
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	fill := func(n int, std float64) []float32 {
		f := make([]float32, n)
		for i := range f {
			f[i] = float32(rng.NormFloat64() * std)
		}
		return f
	}
	ones := func(n int) []float32 {
		f := make([]float32, n)
		for i := range f {
			f[i] = 1
		}
		return f
	}
	full := func(out int, std float64) kernel.Matrix {
		m := kernel.New(kernel.BF16, out, s.Hidden, 0, kernel.Huge)
		raw := make([]byte, 0, 2*out*s.Hidden)
		for _, v := range fill(out*s.Hidden, std) {
			bits, _ := bf16(float64(v))
			raw = binary.LittleEndian.AppendUint16(raw, bits)
		}
		m.Set(0, raw)
		return m
	}
	w := &weights{embed: full(s.Vocab, 1), norm: ones(s.Hidden), layers: make([]layer, s.Layers)}
	w.head = linear{Matrix: w.embed}
	matrix := func(out int) linear { return linear{Matrix: full(out, 0.0625)} }
	for i := range w.layers {
		w.layers[i] = layer{attnNorm: ones(256), mlpNorm: ones(256), qkv: matrix(384), out: matrix(256), gateUp: matrix(512), down: matrix(256)}
	}
	return s, w
}
