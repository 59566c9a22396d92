package embedded

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"llmops/model"
)

// ledger is an executor that keeps, for each slot of the cache, whose token was
// stored there, and checks that every row finds its own past.
type ledger struct {
	t     *testing.T
	slots map[[2]int]stored
}

type stored struct {
	salt     string
	pos, tok int
}

func (l *ledger) step(b *Batch, out []Token) {
	for i, r := range b.Rows {
		s := r.Seq
		for j, tok := range r.Tokens {
			pos := r.Start + j
			if tok != s.at(pos) {
				l.t.Fatalf("sequence %d: token %d at %d, want %d", s.ID, tok, pos, s.at(pos))
			}
			l.slots[[2]int{int(r.Blocks[pos/BlockSize]), pos % BlockSize}] = l.name(s, pos)
		}
		for pos := range r.Start + len(r.Tokens) {
			if got := l.slots[[2]int{int(r.Blocks[pos/BlockSize]), pos % BlockSize}]; got != l.name(s, pos) {
				l.t.Fatalf("sequence %d at %d finds %+v, want %+v", s.ID, pos, got, l.name(s, pos))
			}
		}
		out[i] = Token{ID: (int(s.ID)*7 + len(s.output)) % 50}
	}
}

func (l *ledger) name(s *Sequence, pos int) stored { return stored{s.Salt, pos, s.at(pos)} }

// Random sequences of three tenants with shared beginnings, some given up: nothing
// is lost, nobody reads another's block, and all blocks come back.
func TestCoreKeepsItsPromises(t *testing.T) {
	for seed := range uint64(16) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limits := Limits{Sequences: 1 + rng.IntN(6), Tokens: 8 + rng.IntN(60), Blocks: 12 + rng.IntN(30)}
		c, err := NewCore(limits)
		if err != nil {
			t.Fatal(err)
		}
		l := &ledger{t, make(map[[2]int]stored)}
		var live []*Sequence
		var ended, given, tokens int
		var order []uint64
		var b Batch
		out := make([]Token, limits.Sequences)
		for id := uint64(1); id <= 120 || len(live) > 0; {
			if id <= 120 && rng.IntN(3) > 0 {
				s := &Sequence{ID: id, Salt: string(rune('a' + rng.IntN(3))), Max: 1 + rng.IntN(40), Stop: []int{49}}
				for range 1 + rng.IntN(limits.Blocks*BlockSize-s.Max) {
					s.Prompt = append(s.Prompt, len(s.Prompt)/40)
				}
				if rng.IntN(8) == 0 {
					s.Score = true
				}
				if err := c.Add(time.Duration(id), s); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				live = append(live, s)
				id++
			}
			if len(live) > 0 && rng.IntN(10) == 0 {
				i := rng.IntN(len(live))
				c.Cancel(0, live[i].ID)
				live = slices.Delete(live, i, i+1)
				given++
			}
			if !c.Next(0, &b) {
				if st := c.Stats(); st.Running > 0 || st.Waiting > 0 && st.UsedBlocks == 0 {
					t.Fatalf("seed %d: idle with %+v", seed, st)
				}
				continue
			}
			if b.Tokens > limits.Tokens || len(b.Rows) > limits.Sequences {
				t.Fatalf("seed %d: batch of %d tokens and %d rows over %+v", seed, b.Tokens, len(b.Rows), limits)
			}
			for _, r := range b.Rows {
				if !slices.Contains(order, r.Seq.ID) {
					order = append(order, r.Seq.ID)
				}
			}
			l.step(&b, out)
			c.Commit(0, &b, out, func(e Event) {
				if e.Token != nil {
					tokens++
				}
				if e.Finish == "" {
					return
				}
				if want := e.Finish == "stop"; want != (e.Token != nil && e.Token.ID == 49) {
					t.Errorf("seed %d: finish %q with %+v", seed, e.Finish, e.Token)
				}
				live = slices.DeleteFunc(live, func(s *Sequence) bool { return s == e.Seq })
				ended++
			})
		}
		st := c.Stats()
		if ended+given != 120 || st.UsedBlocks != 0 || c.pool.reserved != 0 || len(c.coming) != 0 || st.Running+st.Waiting != 0 {
			t.Errorf("seed %d: %d ended, %d given up, reserved %d, %+v", seed, ended, given, c.pool.reserved, st)
		}
		if st.Generated != uint64(tokens) || st.PrefixHits == 0 || st.PrefixHits >= st.PrefixQueries {
			t.Errorf("seed %d: %d tokens, %+v", seed, tokens, st)
		}
		if !slices.IsSorted(order) {
			t.Errorf("seed %d: first come was not first served: %v", seed, order)
		}
	}
}

func TestPrefixCacheOfTenants(t *testing.T) {
	e := newEngine(t, filepath.Join("testdata", "llama"), Limits{Sequences: 2, Tokens: 64, Blocks: 64}, 1)
	prompt := make([]int, 50)
	for i := range prompt {
		prompt[i] = 3 + i
	}
	cached := func(salt string, n int) int {
		s := &Sequence{Prompt: prompt[:n], Salt: salt, Max: 1}
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
	e := newEngine(t, filepath.Join("testdata", "llama"), Limits{Sequences: 8, Tokens: 32, Blocks: 64}, 1)
	var seqs []*Sequence
	for q := range 4 {
		s := &Sequence{Max: 2}
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
	first, second := &Sequence{ID: 100, Prompt: make([]int, 100), Max: 1}, &Sequence{ID: 101, Prompt: make([]int, 100), Max: 1}
	for _, s := range []*Sequence{first, second} {
		if err := e.core.Add(0, s); err != nil {
			t.Fatal(err)
		}
	}
	var b Batch
	if !e.core.Next(0, &b) || len(b.Rows) != 1 {
		t.Fatalf("%d rows, want the first sequence alone", len(b.Rows))
	}
	e.core.Cancel(0, first.ID)
	if !e.core.Next(0, &b) || len(b.Rows) != 1 || b.Rows[0].Seq != second {
		t.Errorf("the second sequence waits for one that is gone: %+v", b.Rows)
	}
}

// The oldest unused blocks are the ones that go.
func TestEvictionIsLeastRecentlyUsed(t *testing.T) {
	c, err := NewCore(Limits{Sequences: 1, Tokens: 64, Blocks: 4})
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{t, make(map[[2]int]stored)}
	var id uint64
	run := func(first int) int {
		id++
		s := &Sequence{ID: id, Max: 1, Prompt: make([]int, 17)}
		for i := range s.Prompt {
			s.Prompt[i] = first
		}
		if err := c.Add(0, s); err != nil {
			t.Fatal(err)
		}
		var b Batch
		out := make([]Token, 1)
		for c.Next(0, &b) {
			l.step(&b, out)
			c.Commit(0, &b, out, func(Event) {})
		}
		return s.Cached()
	}
	for i, tt := range []struct{ first, want int }{{1, 0}, {2, 0}, {1, 16}, {3, 0}, {4, 0}, {1, 16}, {2, 0}} {
		if got := run(tt.first); got != tt.want {
			t.Errorf("step %d: prompt %d finds %d, want %d", i, tt.first, got, tt.want)
		}
	}
}

// Logits are equal to the bit for a prompt alone, among fifteen others, from the
// cache, in other pieces and on two threads.
func TestLogitsDoNotDependOnTheBatch(t *testing.T) {
	shape, w := randomModel(1)
	build := func(tokens, threads int) *engine {
		core, err := NewCore(Limits{Sequences: 16, Tokens: tokens, Blocks: 600})
		if err != nil {
			t.Fatal(err)
		}
		return &engine{core: core, exec: newLlama(shape, w, tokens, 512, 600, threads)}
	}
	seq := func(k int) *Sequence {
		s := &Sequence{Max: 4, Sampling: Sampling{Top: shape.Vocab}}
		for i := range 70 + 5*k {
			s.Prompt = append(s.Prompt, (i*31+min(i, 60)/60*k)%shape.Vocab)
		}
		return s
	}
	alone, _ := build(128, 1).run(t, seq(3))
	check := func(name string, got []Token) {
		t.Helper()
		if !reflect.DeepEqual(got, alone[0]) {
			t.Errorf("%s: logits differ", name)
		}
	}
	for _, c := range []struct{ tokens, threads int }{{37, 1}, {300, 2}} {
		e := build(c.tokens, c.threads)
		name := fmt.Sprintf("%+v", c)
		var all []*Sequence
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
		f := aligned(n)
		for i := range f {
			f[i] = float32(rng.NormFloat64() * std)
		}
		return f
	}
	ones := func(n int) []float32 {
		f := aligned(n)
		for i := range f {
			f[i] = 1
		}
		return f
	}
	w := &weights{embed: fill(s.Vocab*s.Hidden, 1), norm: ones(s.Hidden), layers: make([]layer, s.Layers)}
	w.head = linear{in: s.Hidden, out: s.Vocab, w: w.embed}
	matrix := func(out int) linear { return linear{in: 256, out: out, w: fill(out*256, 0.0625)} }
	for i := range w.layers {
		w.layers[i] = layer{attnNorm: ones(256), mlpNorm: ones(256), qkv: matrix(384), out: matrix(256), gateUp: matrix(512), down: matrix(256)}
	}
	return s, w
}

func TestCoreRefusals(t *testing.T) {
	c, err := NewCore(Limits{Sequences: 2, Tokens: 8, Blocks: 2})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Sequence{
		"empty":    {ID: 1, Max: 1},
		"no limit": {ID: 2, Prompt: []int{1}},
		"too long": {ID: 3, Prompt: make([]int, 30), Max: 4},
	} {
		if err := c.Add(0, s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	s := &Sequence{ID: 4, Prompt: make([]int, 30), Max: 3}
	if err := c.Add(0, s); err != nil {
		t.Error(err)
	}
	if err := c.Add(0, s); err == nil {
		t.Error("the same sequence was accepted twice")
	}
	if _, err := NewCore(Limits{}); err == nil {
		t.Error("a core without limits")
	}
}

func TestSampling(t *testing.T) {
	logits := []float32{1, 3, 2, -1, 3}
	fresh := func() []float32 { return slices.Clone(logits) }
	draw := func(p Sampling) map[int]int {
		n := map[int]int{}
		for seed := range uint64(4000) {
			p.Seed = seed
			n[choose(&Sequence{Sampling: p}, fresh())]++
		}
		return n
	}
	if got := choose(&Sequence{}, fresh()); got != 1 {
		t.Errorf("greedy chooses %d, want the first of the largest", got)
	}
	if got := draw(Sampling{Temperature: 1, TopK: 1}); got[1] != 4000 {
		t.Errorf("top_k 1 draws %v", got)
	}
	// e^0 : e^0 : e^-1 : e^-2 : e^-4 sum to 2.5215
	got := draw(Sampling{Temperature: 1})
	for id, want := range []float64{0.0537, 0.3966, 0.1459, 0.0073, 0.3966} {
		if p := float64(got[id]) / 4000; p < want-0.03 || p > want+0.03 {
			t.Errorf("token %d has the share %.3f, want %.3f", id, p, want)
		}
	}
	if got := draw(Sampling{Temperature: 1, TopP: 0.75}); got[0]+got[3]+got[2] != 0 {
		t.Errorf("top_p 0.75 draws %v", got)
	}
	if got := draw(Sampling{Temperature: 1, MinP: 0.3}); got[0]+got[3] != 0 || got[2] == 0 {
		t.Errorf("min_p 0.3 draws %v", got)
	}
	for name, tt := range map[string]struct {
		s    Sequence
		want int
	}{
		"bias":       {Sequence{Sampling: Sampling{Bias: map[int]float64{3: 10}}}, 3},
		"repetition": {Sequence{Prompt: []int{1, 4}, Sampling: Sampling{Repetition: 2}}, 2},
		"presence":   {Sequence{output: []int{1, 4}, Sampling: Sampling{Presence: 1.5}}, 2},
		"frequency":  {Sequence{output: []int{1, 4, 4, 1, 2}, Sampling: Sampling{Frequency: 0.9}}, 1},
		"min":        {Sequence{Stop: []int{1, 4}, Sampling: Sampling{Min: 1}}, 2},
		"min past":   {Sequence{Stop: []int{1, 4}, output: []int{0}, Sampling: Sampling{Min: 1}}, 1},
	} {
		if got := choose(&tt.s, fresh()); got != tt.want {
			t.Errorf("%s: chose %d, want %d", name, got, tt.want)
		}
	}
	r := report(logits, 4, 3)
	if r.Rank != 2 || len(r.Top) != 3 || r.Top[0].ID != 1 || r.Top[1].ID != 4 || r.Top[2].ID != 2 || r.Logprob != r.Top[0].Logprob {
		t.Errorf("report %+v", r)
	}
}

func TestExp32(t *testing.T) {
	for x := float32(-90); x < 88; x += 0.0137 {
		got, want := float64(exp32(x)), expOf(x)
		if d := got - want; d > want*3e-7+1e-37 || -d > want*3e-7+1e-37 {
			t.Fatalf("exp32(%g) = %g, want %g", x, got, want)
		}
	}
}
