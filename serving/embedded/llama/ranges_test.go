package llama

import (
	"math"
	"path/filepath"
	"testing"

	"llmops/serving/embedded/core"
)

// bench/golden/ranges.py wrote what transformers met on the same prompts.
func TestRanges(t *testing.T) {
	for _, name := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", name)
			var want Ranges
			readGolden(t, filepath.Join(dir, "ranges.json"), &want)
			var rows []golden
			readGolden(t, filepath.Join(dir, "golden.json"), &rows)
			e := newEngine(t, dir, core.Limits{Sequences: 2, Tokens: 32, Blocks: 64}, 2)
			e.exec.Observe()
			for _, g := range rows {
				e.run(t, &core.Sequence{Prompt: g.IDs, Max: 1})
			}
			got := e.exec.Ranges()
			for what, tables := range map[string][2]map[string]float32{
				"input": {got.Inputs, want.Inputs}, "keys": {got.Keys, want.Keys}, "values": {got.Values, want.Values},
			} {
				if len(tables[0]) != len(tables[1]) || len(tables[1]) == 0 {
					t.Errorf("%d of %s, want %d", len(tables[0]), what, len(tables[1]))
				}
				for module, w := range tables[1] {
					if g := tables[0][module]; math.Abs(float64(g-w)) > 1e-4*float64(w) {
						t.Errorf("%s of %s is %g, want %g", what, module, g, w)
					}
				}
			}
		})
	}
}
