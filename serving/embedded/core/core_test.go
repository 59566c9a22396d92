package core

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// ledger is an executor that keeps, for each slot of the cache, whose token was
// stored there, and checks that every row finds its own past.
type ledger struct {
	t     *testing.T
	slots map[[2]int]stored
}

type stored struct {
	salt     string
	adapter  string
	pos, tok int
}

func (l *ledger) step(b *Batch, out []Token) {
	for i, r := range b.Rows {
		s := r.Seq
		for j, tok := range r.Tokens {
			pos := r.Start + j
			if tok != s.At(pos) {
				l.t.Fatalf("sequence %d: token %d at %d, want %d", s.ID, tok, pos, s.At(pos))
			}
			l.slots[[2]int{int(r.Blocks[pos/BlockSize]), pos % BlockSize}] = l.name(s, pos)
		}
		for pos := range r.Start + len(r.Tokens) {
			if got := l.slots[[2]int{int(r.Blocks[pos/BlockSize]), pos % BlockSize}]; got != l.name(s, pos) {
				l.t.Fatalf("sequence %d at %d finds %+v, want %+v", s.ID, pos, got, l.name(s, pos))
			}
		}
		out[i] = Token{ID: (int(s.ID)*7 + len(s.output)) % 50}
		for j := range r.Tokens {
			if next := r.Start + j + 1; s.Score && next < len(s.Prompt) {
				out[i].Prompt = append(out[i].Prompt, Token{ID: s.Prompt[next]})
			}
		}
	}
}

func (l *ledger) name(s *Sequence, pos int) stored { return stored{s.Salt, s.Adapter, pos, s.At(pos)} }

// Random sequences of three tenants with shared beginnings, some given up: nothing
// is lost, nobody reads another's block, and all blocks come back.
func TestCoreKeepsItsPromises(t *testing.T) {
	var preempted, recomputed uint64
	for seed := range uint64(48) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limits := Limits{Sequences: 1 + rng.IntN(6), Tokens: 8 + rng.IntN(60), Blocks: 12 + rng.IntN(30), Chunk: rng.IntN(2) * 7, Adapters: 2, Record: true}
		limits.Overcommit = seed%2 == 1
		priorities := seed%3 == 2
		c, err := New(limits)
		if err != nil {
			t.Fatal(err)
		}
		l := &ledger{t, make(map[[2]int]stored)}
		var live []*Sequence
		var ended, given, tokens int
		scored := map[*Sequence]int{}
		cache := map[Key]bool{}
		var order []uint64
		var b Batch
		out := make([]Token, limits.Sequences)
		for id := uint64(1); id <= 120 || len(live) > 0; {
			if id <= 120 && rng.IntN(3) > 0 {
				s := &Sequence{ID: id, Salt: string(rune('a' + rng.IntN(3))), Max: 1 + rng.IntN(40), Stop: []int{49}}
				for range 1 + rng.IntN(limits.Blocks*BlockSize-s.Max) {
					s.Prompt = append(s.Prompt, len(s.Prompt)/40)
				}
				s.Score = rng.IntN(8) == 0
				s.Hold = rng.IntN(5) == 0
				s.Adapter = []string{"", "", "", "x", "y", "z"}[rng.IntN(6)]
				if priorities {
					s.Priority = rng.IntN(3)
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
				if !slices.Contains(order, r.Seq.ID) && r.Seq.Adapter == "" {
					order = append(order, r.Seq.ID)
				}
			}
			l.step(&b, out)
			follow(t, cache, c)
			c.Commit(0, &b, out, func(e Event) {
				if e.Token != nil {
					tokens++
				}
				scored[e.Seq] += len(e.Prompt)
				if e.Finish == "" {
					return
				}
				if want := len(e.Seq.Prompt) - 1; e.Seq.Score && scored[e.Seq] != want || !e.Seq.Score && scored[e.Seq] != 0 {
					t.Errorf("seed %d: %d scores of a prompt of %d", seed, scored[e.Seq], len(e.Seq.Prompt))
				}
				if blocks, n, ok := c.Held(e.Seq.ID); ok != e.Seq.Hold || ok && (n != e.Seq.Len()-1 || len(blocks)*BlockSize < n) {
					t.Errorf("seed %d: holds %d tokens in %d blocks (%v)", seed, n, len(blocks), ok)
				}
				c.Release(e.Seq.ID)
				if want := e.Finish == "stop"; want != (e.Token != nil && e.Token.ID == 49) {
					t.Errorf("seed %d: finish %q with %+v", seed, e.Finish, e.Token)
				}
				live = slices.DeleteFunc(live, func(s *Sequence) bool { return s == e.Seq })
				ended++
			})
		}
		st := c.Stats()
		preempted, recomputed = preempted+st.Preemptions, recomputed+st.Recomputed
		if !limits.Overcommit && st.Preemptions+st.Recomputed > 0 {
			t.Errorf("seed %d: preemption in spite of reservation: %+v", seed, st)
		}
		if ended+given != 120 || st.UsedBlocks != 0 || c.pool.reserved != 0 || len(c.coming) != 0 || st.Running+st.Waiting != 0 {
			t.Errorf("seed %d: %d ended, %d given up, reserved %d, %+v", seed, ended, given, c.pool.reserved, st)
		}
		follow(t, cache, c)
		if !c.Reset() {
			t.Errorf("seed %d: the cache is in use: %+v", seed, st)
		}
		if follow(t, cache, c); len(cache) > 0 {
			t.Errorf("seed %d: %d blocks after the cache was emptied", seed, len(cache))
		}
		if st.Generated != uint64(tokens) || st.PrefixHits == 0 || st.PrefixHits >= st.PrefixQueries {
			t.Errorf("seed %d: %d tokens, %+v", seed, tokens, st)
		}
		if !slices.IsSorted(order) && !priorities {
			t.Errorf("seed %d: first come was not first served: %v", seed, order)
		}
	}
	if preempted == 0 || recomputed == 0 {
		t.Errorf("%d preemptions and %d tokens computed again: the cases are too easy", preempted, recomputed)
	}
}

// The oldest unused blocks are the ones that go.
func TestEvictionIsLeastRecentlyUsed(t *testing.T) {
	c, err := New(Limits{Sequences: 1, Tokens: 64, Blocks: 4})
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

// follow applies block events as a router would, which must always agree with the cache.
func follow(t *testing.T, cache map[Key]bool, c *Core) {
	t.Helper()
	for _, e := range c.BlockEvents() {
		switch e.Kind {
		case BlockStored:
			if cache[e.Key] || len(e.Tokens) != BlockSize {
				t.Errorf("stored twice, or with %d tokens", len(e.Tokens))
			}
			cache[e.Key] = true
		case BlockRemoved:
			if !cache[e.Key] {
				t.Error("removed what was not stored")
			}
			delete(cache, e.Key)
		case AllBlocksCleared:
			clear(cache)
		}
	}
	kept := 0
	for i, b := range c.pool.blocks {
		if b.keyed {
			kept++
			if at, ok := c.pool.find(b.key); !ok || int(at) != i {
				t.Errorf("block %d is not found by its key", i)
			}
		}
	}
	if len(cache) != kept {
		t.Errorf("the events tell of %d blocks, the cache has %d", len(cache), kept)
	}
}

// drive steps c until it is idle and notes for each step who was in it.
func drive(t *testing.T, c *Core) (steps [][]uint64) {
	t.Helper()
	l := &ledger{t, make(map[[2]int]stored)}
	var b Batch
	out := make([]Token, c.limits.Sequences)
	for c.Next(0, &b) {
		var ids []uint64
		for _, r := range b.Rows {
			ids = append(ids, r.Seq.ID)
		}
		steps = append(steps, ids)
		l.step(&b, out)
		c.Commit(0, &b, out, func(Event) {})
	}
	return steps
}

func add(t *testing.T, c *Core, seqs ...*Sequence) {
	t.Helper()
	for i, s := range seqs {
		if err := c.Add(time.Duration(i), s); err != nil {
			t.Fatal(err)
		}
	}
}

// Two answers that outgrow the cache: the later one is thrown out once and comes
// back, and both are whole.
func TestPreemption(t *testing.T) {
	for _, priority := range []int{0, -1} {
		c, err := New(Limits{Sequences: 4, Tokens: 64, Blocks: 6, Overcommit: true})
		if err != nil {
			t.Fatal(err)
		}
		first := &Sequence{ID: 1, Prompt: make([]int, 30), Max: 50}
		second := &Sequence{ID: 2, Prompt: []int{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, Max: 50, Priority: priority}
		add(t, c, first, second)
		drive(t, c)
		st := c.Stats()
		if len(first.output) != 50 || len(second.output) != 50 || st.Preemptions == 0 || st.Recomputed == 0 || st.Generated != 100 || st.Prompt != 47 {
			t.Errorf("priority %d: %d and %d tokens, %+v", priority, len(first.output), len(second.output), st)
		}
		loser := second
		if priority < 0 {
			loser = first
		}
		if loser.highest == 0 || st.UsedBlocks != 0 {
			t.Errorf("priority %d: %+v", priority, st)
		}
	}
}

func TestPriority(t *testing.T) {
	c, err := New(Limits{Sequences: 1, Tokens: 64, Blocks: 6})
	if err != nil {
		t.Fatal(err)
	}
	add(t, c, &Sequence{ID: 1, Prompt: make([]int, 3), Max: 1}, &Sequence{ID: 2, Prompt: make([]int, 3), Max: 1, Priority: 5},
		&Sequence{ID: 3, Prompt: make([]int, 3), Max: 1, Priority: -5}, &Sequence{ID: 4, Prompt: make([]int, 3), Max: 1})
	if got, want := drive(t, c), [][]uint64{{3}, {1}, {4}, {2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("served %v, want %v", got, want)
	}
}

// The third adapter waits for a slot; what needs none goes past it.
func TestAdapterSlots(t *testing.T) {
	c, err := New(Limits{Sequences: 8, Tokens: 64, Blocks: 60, Adapters: 2})
	if err != nil {
		t.Fatal(err)
	}
	seq := func(id uint64, adapter string, max int) *Sequence {
		return &Sequence{ID: id, Prompt: []int{1, 2, 3}, Max: max, Adapter: adapter}
	}
	add(t, c, seq(1, "a", 3), seq(2, "b", 2), seq(3, "c", 1), seq(4, "", 1), seq(5, "a", 1))
	if running, waiting := c.Adapters(); running != nil || !slices.Equal(waiting, []string{"a", "b", "c"}) {
		t.Errorf("running %v, waiting %v", running, waiting)
	}
	if got, want := drive(t, c), [][]uint64{{1, 2, 4, 5}, {1, 2}, {1, 3}}; !reflect.DeepEqual(got, want) {
		t.Errorf("served %v, want %v", got, want)
	}
	none, err := New(Limits{Sequences: 1, Tokens: 8, Blocks: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := none.Add(0, seq(1, "a", 1)); err == nil {
		t.Error("an engine without adapters took one")
	}
}

// A hand-over: the imported tokens are not computed, the last one is, and the
// blocks go into the cache.
func TestImport(t *testing.T) {
	for _, tt := range []struct{ imported, start, from int }{{40, 39, 0}, {32, 32, 0}, {20, 20, 0}} {
		c, err := New(Limits{Sequences: 2, Tokens: 64, Blocks: 8})
		if err != nil {
			t.Fatal(err)
		}
		s := &Sequence{ID: 1, Prompt: make([]int, 40), Max: 1, Import: "keys and values", Imported: tt.imported}
		add(t, c, s)
		var b Batch
		if !c.Next(0, &b) || len(b.Rows) != 1 {
			t.Fatal("nothing to do")
		}
		r := b.Rows[0]
		if !r.Import || r.ImportFrom != tt.from || r.Start != tt.start || len(r.Blocks) != 3 || s.Cached() != tt.start {
			t.Errorf("%d imported: row %+v, %d cached", tt.imported, r, s.Cached())
		}
		c.Commit(0, &b, []Token{{ID: 1}}, func(Event) {})
		again := &Sequence{ID: 2, Prompt: make([]int, 40), Max: 1, Import: "keys and values", Imported: 40}
		add(t, c, again)
		if !c.Next(0, &b) || b.Rows[0].ImportFrom != 32 || b.Rows[0].Start != 39 {
			t.Errorf("with a warm cache: %+v", b.Rows[0])
		}
	}
}

func TestCoreRefusals(t *testing.T) {
	c, err := New(Limits{Sequences: 2, Tokens: 8, Blocks: 2})
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
	if _, err := New(Limits{}); err == nil {
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
			n[Choose(&Sequence{Sampling: p}, fresh())]++
		}
		return n
	}
	if got := Choose(&Sequence{}, fresh()); got != 1 {
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
		if got := Choose(&tt.s, fresh()); got != tt.want {
			t.Errorf("%s: chose %d, want %d", name, got, tt.want)
		}
	}
	r := Report(logits, 4, 3)
	if r.Rank != 2 || len(r.Top) != 3 || r.Top[0].ID != 1 || r.Top[1].ID != 4 || r.Top[2].ID != 2 || r.Logprob != r.Top[0].Logprob {
		t.Errorf("report %+v", r)
	}
}
