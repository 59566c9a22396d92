package size_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"llmops/internal/config"
	"llmops/serving/sim"
)

// The simulation draws arrivals, lengths and prefixes, and runs the engine's scheduler;
// the model takes means. For the batch that the simulation arrives at, the time between
// tokens is the model's.
func TestOnePoolIsWhatTheSimulationDoes(t *testing.T) {
	for _, rate := range []float64{20, 25} {
		path := filepath.Join(t.TempDir(), "fleet.yaml")
		text := fmt.Sprintf(`apiVersion: llmops/v1
kind: Scenario
duration: 2m
warmup: 30s
fleet: {nodes: 2, gpus: 8, gpu: assumed-192gb, tensor_parallel: 8}
model: {config: %s, parameters: 70e9}
engine: {max_num_seqs: 256, step_tokens: 2048, block_size: 64, admit: reserve}
arrivals: {process: poisson, rate: %g/s}
tenants:
  - {name: chat, prompt: {mean: 1500, cv: 0.3, min: 960}, output: {mean: 250, cv: 0.3}, prefix: {groups: 20, tokens: 896}}
`, absolute(t, "../../examples/simulate/llama-70b.json"), rate)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		scenario, err := config.Scenario(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := sim.Run(t.Context(), scenario)
		if err != nil {
			t.Fatal(err)
		}
		hits := fmt.Sprintf("traffic.prefix_hits=%.4f%%", 100*got.Engines.PrefixHitShare)
		s := sheet(t, register(t), hits, "prefill.prompt=1500", "traffic.context=1625", fmt.Sprintf("traffic.rate=%g/s", rate))
		batch := int(math.Round(got.Engines.Batch))
		want := 1e3 * s.Mean(batch)
		if math.Abs(got.Total.TPOT.P50/want-1) > 0.035 {
			t.Errorf("%g/s: streams of a batch of %d wait %.2f ms in the simulation, %.2f ms in the model; %v busy, %v cached", rate, batch, got.Total.TPOT.P50, want, got.Engines.Busy, got.Engines.PrefixHitShare)
		}
		t.Logf("%g/s: batch %d, %.2f ms simulated, %.2f ms modelled", rate, batch, got.Total.TPOT.P50, want)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	p, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
