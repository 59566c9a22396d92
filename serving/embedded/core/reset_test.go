package core

import (
	"slices"
	"testing"
)

// A sequence that was used before is served as a new one is, and allocates nothing.
func TestReset(t *testing.T) {
	c, err := New(Limits{Sequences: 2, Tokens: 40, Blocks: 64})
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{t, make(map[[2]int]stored)}
	var b Batch
	out := make([]Token, 2)
	var got []int
	serve := func(s *Sequence) {
		if err := c.Add(0, s); err != nil {
			t.Fatal(err)
		}
		for c.Next(0, &b) {
			l.step(&b, out)
			c.Commit(0, &b, out, func(e Event) { got = append(got[:0], e.Seq.Output()...) })
		}
	}
	prompt := make([]int, 50)
	for i := range prompt {
		prompt[i] = i
	}
	old := &Sequence{ID: 1, Prompt: prompt, Max: 30, Salt: "a", Priority: 3, Stop: []int{1000}, Score: true}
	serve(old)
	old.Reset()
	if old.Prompt != nil || old.Score || old.Stop != nil || old.Len() != 0 || old.Cached() != 0 {
		t.Errorf("after Reset: %+v", old)
	}
	old.ID, old.Prompt, old.Max = 7, prompt[:45], 20
	serve(old)
	again := slices.Clone(got)
	serve(&Sequence{ID: 8, Prompt: prompt[:45], Max: 20}) // tokens of the ledger differ by 7 an ID
	if len(again) != 20 || len(got) != 20 || got[0] != (again[0]+7)%50 {
		t.Errorf("a used sequence gets %v, a new one %v", again, got)
	}

	s, id := &Sequence{}, uint64(100)
	if n := testing.AllocsPerRun(50, func() {
		s.Reset()
		id++
		s.ID, s.Prompt, s.Max = id, prompt, 100
		if err := c.Add(0, s); err != nil {
			t.Fatal(err)
		}
		for c.Next(0, &b) {
			for i := range b.Rows {
				out[i] = Token{ID: 3}
			}
			c.Commit(0, &b, out, func(Event) {})
		}
	}); n > 1 { // a map may grow
		t.Errorf("a request of 150 tokens allocates %v times", n)
	}

	if err := c.Add(0, func() *Sequence { s.Reset(); s.ID, s.Prompt, s.Max = 1, prompt, 1; return s }()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a waiting sequence was reset")
		}
	}()
	s.Reset()
}
