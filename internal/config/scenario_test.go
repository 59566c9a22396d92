package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/serving/sim"
)

const goodScenario = `apiVersion: llmops/v1
kind: Scenario
seed: 7
duration: 10m
warmup: 1m
interval: 30s
fleet: {nodes: 2, gpus: 8, gpu: h100-sxm, tensor_parallel: 4}
model: {config: ./config.json, parameters: 70e9, weights: fp8, kv: fp8, arithmetic: fp8}
engine: {max_num_seqs: 128, step_tokens: 1024, chunk: 512, block_size: 64, kv_tokens: 100000, admit: overcommit, role: both}
assume: {hbm: 80%, flops: 50%, link: 70%, end_to_end: 90%, reserve: 10%, fixed: 2ms, collective: 10us, prefill_collectives: true}
router: {streams: 100, queue: 50, queue_time: 5s}
arrivals: {process: gamma, rate: 20/s, cv: 2, bursts: {every: 1m, for: 10s, times: 3}}
tenants:
  - {name: chat, share: 60%, priority: 1, prompt: {mean: 500, cv: 1, min: 10, max: 4000}, output: {values: [10, 20]}, prefix: {groups: 10, tokens: 256, zipf: 1.1}}
  - {name: batch, share: 40%, prompt: {mean: 100}, output: {mean: 50}}
faults:
  - {kind: slow, replica: 0, at: 1m, factor: 1.15}
  - {kind: crash, replica: 3, at: 2m, for: 30s}
slo: {ttft: 400ms, tpot: 30ms}
`

const shape8B = `{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256}`

func writeScenario(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "scenario.yaml")
	for name, body := range map[string]string{"config.json": shape8B, "scenario.yaml": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestScenario(t *testing.T) {
	s, err := Scenario(writeScenario(t, goodScenario))
	if err != nil {
		t.Fatal(err)
	}
	f, a, n := s.Fleet, s.Fleet.Engine.Assume, s.Tenants
	for what, ok := range map[string]bool{
		"times":    s.Duration == 10*time.Minute && s.Warmup == time.Minute && s.Interval == 30*time.Second && s.Seed == 7,
		"fleet":    f.Nodes == 2 && f.GPUs == 8 && f.Engine.GPU == "h100-sxm" && f.Engine.TensorParallel == 4,
		"model":    f.Engine.Shape.Layers == 32 && f.Engine.Parameters == 70e9 && f.Engine.Weights == "fp8" && f.Engine.KV == "fp8" && f.Engine.FP8Arithmetic,
		"engine":   f.Sequences == 128 && f.StepTokens == 1024 && f.Chunk == 512 && f.Engine.BlockSize == 64 && f.KVTokens == 100000 && f.Overcommit && !f.DecodeOnly,
		"assume":   a.HBMShare == 0.8 && a.FLOPShare == 0.5 && a.LinkShare == 0.7 && a.EndToEndShare == 0.9 && a.ReserveShare == 0.1 && a.FixedSeconds == 0.002 && a.CollectiveSeconds == 1e-5 && a.PrefillCollectives,
		"router":   s.Router == sim.Router{Streams: 100, Queue: 50, QueueTime: 5 * time.Second},
		"arrivals": s.Arrivals == sim.Arrivals{Process: sim.Gamma, Rate: 20, CV: 2, Bursts: sim.Bursts{Every: time.Minute, For: 10 * time.Second, Times: 3}},
		"tenants":  len(n) == 2 && n[0].Share == 0.6 && n[0].Priority == 1 && n[0].Prompt.Max == 4000 && len(n[0].Output.Values) == 2 && n[0].Prefix.Zipf == 1.1 && n[1].Output.Mean == 50,
		"faults":   len(s.Faults) == 2 && s.Faults[0].Factor == 1.15 && s.Faults[1] == sim.Fault{Kind: sim.Crash, Replica: 3, At: 2 * time.Minute, For: 30 * time.Second},
		"slo":      s.SLO.TTFT.Limit == 400*time.Millisecond && s.SLO.TPOT.Limit == 30*time.Millisecond,
	} {
		if !ok {
			t.Errorf("%s is wrong in %+v", what, s)
		}
	}
}

func TestScenarioRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown key", "warmup: 1m", "warm: 1m", "scenario.yaml:5: unknown field"},
		{"unknown key within", "nodes: 2", "node: 2", "scenario.yaml:7: unknown field"},
		{"duplicate key", "seed: 7", "seed: 7\nseed: 8", "seed"},
		{"zero nodes", "nodes: 2", "nodes: 0", "scenario.yaml:7: fleet.nodes is \"0\", want a whole number above 0"},
		{"unknown GPU", "gpu: h100-sxm", "gpu: h100", "scenario.yaml:7: fleet.gpu is \"h100\", want one of: assumed-192gb"},
		{"no GPU", "gpu: h100-sxm, ", "", "fleet.gpu is missing"},
		{"no model", "config: ./config.json, ", "", "model.config is missing"},
		{"model that is not there", "./config.json", "./x.json", "scenario.yaml:8: model.config"},
		{"model too large", "parameters: 70e9", "parameters: 9e11", "scenario.yaml:7: estimating on h100-sxm: 900.0 GB of weights leave no room"},
		{"arithmetic that the GPU has not", "h100-sxm", "a100-80gb", "scenario.yaml:7: estimating on a100-80gb"},
		{"no duration", "duration: 10m\n", "", "duration is missing"},
		{"duration of nothing", "duration: 10m", "duration: 0s", "scenario.yaml:4: duration"},
		{"warm-up of everything", "warmup: 1m", "warmup: 10m", "less than the duration"},
		{"wrong process", "process: gamma", "process: uniform", "scenario.yaml:12: arrivals.process"},
		{"cv of another process", "process: gamma", "process: poisson", "scenario.yaml:12: arrivals.cv does not go with the process poisson"},
		{"rate of closed clients", "process: gamma, rate: 20/s, cv: 2, bursts: {every: 1m, for: 10s, times: 3}", "process: closed, rate: 20/s, concurrency: 3", "as fast as they are answered"},
		{"no concurrency", "process: gamma, rate: 20/s, cv: 2, bursts: {every: 1m, for: 10s, times: 3}", "process: closed", "concurrency is missing"},
		{"rate without unit", "rate: 20/s", "rate: 20", "such as 20/s"},
		{"bursts longer than what is between", "for: 10s, times", "for: 2m, times", "bursts"},
		{"no name", "name: chat, ", "", "scenario.yaml:14: a tenant needs a name"},
		{"twice a name", "name: batch", "name: chat", "scenario.yaml:15: a tenant needs a name of its own"},
		{"negative priority", "priority: 1", "priority: -1", "scenario.yaml:14: tenants.priority"},
		{"mean and values", "output: {values", "output: {mean: 3, values", "scenario.yaml:14: tenants.output has a mean and values"},
		{"no lengths", "output: {mean: 50}", "output: {cv: 2}", "tenants.output is missing"},
		{"bounds out of order", "min: 10, max: 4000", "min: 10, max: 5", "tenants.prompt.max is less"},
		{"prefix below a block", "tokens: 256", "tokens: 63", "scenario.yaml:14: tenants.prefix.tokens is 63, want at least engine.block_size, 64"},
		{"replica that is not there", "replica: 3", "replica: 4", "replica 4: there are 4, from 0"},
		{"slow without a factor", ", factor: 1.15", "", "scenario.yaml:17: a slow replica needs a factor"},
		{"crash with a factor", "for: 30s", "factor: 2", "scenario.yaml:18: a slow replica needs a factor"},
		{"wrong admission", "admit: overcommit", "admit: all", "engine.admit"},
		{"more cache than memory", "kv_tokens: 100000", "kv_tokens: 0", "engine.kv_tokens"},
		{"other kind", "kind: Scenario", "kind: Model", "kind is \"Model\""},
		{"nothing", goodScenario, "", "is empty"},
		{"share above one", "hbm: 80%", "hbm: 120%", "assume.hbm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(goodScenario, c.old) {
				t.Fatalf("%q is not in the good file", c.old)
			}
			_, err := Scenario(writeScenario(t, strings.Replace(goodScenario, c.old, c.new, 1)))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "scenario.yaml") {
				t.Errorf("error is\n%v\nwant %q and the file's name in it", err, c.want)
			}
		})
	}
}

func FuzzScenario(f *testing.F) {
	f.Add(goodScenario)
	f.Add("tenants: [{}]\nfaults: [{}]")
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(shape8B), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "scenario.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Scenario(path); err == nil && s.Check() != nil {
			t.Errorf("accepted %+v", s)
		}
	})
}
