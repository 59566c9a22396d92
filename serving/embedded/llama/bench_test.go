package llama

import (
	"testing"

	"llmops/serving/embedded/core"
)

// BenchmarkPrefill computes prompts of 128 tokens one after the other.
func BenchmarkPrefill(b *testing.B) {
	shape, w := randomModel(1)
	c, err := core.New(core.Limits{Sequences: 16, Tokens: 128, Blocks: 256})
	if err != nil {
		b.Fatal(err)
	}
	e := &engine{core: c, exec: newExecutor(shape, w, Options{Tokens: 128, Length: 2048, Blocks: 256, Threads: 1})}
	prompt := make([]int, 128)
	n := 0
	for b.Loop() {
		n++
		for i := range prompt {
			prompt[i] = (i*7 + n) % 1024 // another one each time: nothing is cached
		}
		e.run(b, &core.Sequence{Prompt: prompt, Max: 1, Sampling: core.Sampling{Top: -1}})
	}
	b.ReportMetric(128*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkDecode steps answers behind prompts of 128 tokens.
func BenchmarkDecode(b *testing.B) {
	for _, batch := range []int{1, 8, 16} {
		b.Run("batch-"+string(rune('0'+batch/10))+string(rune('0'+batch%10)), func(b *testing.B) {
			shape, w := randomModel(1)
			c, err := core.New(core.Limits{Sequences: 16, Tokens: 128, Blocks: 2048})
			if err != nil {
				b.Fatal(err)
			}
			e := &engine{core: c, exec: newExecutor(shape, w, Options{Tokens: 128, Length: 2048, Blocks: 2048, Threads: 1})}
			out := make([]core.Token, 16)
			var bt core.Batch
			id := uint64(0)
			fill := func() {
				for range batch {
					id++
					s := &core.Sequence{ID: id, Prompt: make([]int, 128), Max: 128, Sampling: core.Sampling{Top: -1}}
					for i := range s.Prompt {
						s.Prompt[i] = (i + int(id)) % 1024
					}
					if err := c.Add(0, s); err != nil {
						b.Fatal(err)
					}
				}
				for c.Stats().Waiting > 0 || bt.Tokens != batch {
					c.Next(0, &bt)
					if _, err := e.exec.Step(b.Context(), &bt, out); err != nil {
						b.Fatal(err)
					}
					c.Commit(0, &bt, out, func(core.Event) {})
				}
			}
			for b.Loop() {
				if !c.Next(0, &bt) {
					b.StopTimer()
					bt.Tokens = 0
					fill()
					b.StartTimer()
					c.Next(0, &bt)
				}
				if _, err := e.exec.Step(b.Context(), &bt, out); err != nil {
					b.Fatal(err)
				}
				c.Commit(0, &bt, out, func(core.Event) {})
			}
			b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
