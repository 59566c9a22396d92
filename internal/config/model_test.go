package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const good = `apiVersion: llmops/v1
kind: Model
name: freight
change: infra
first: parent
source: ./weights
engine: {kind: embedded, max_model_len: 2048, max_num_seqs: 16}
quantise: {scheme: fp8-dynamic, keep: [lm_head]}
placement: {gpu: cpu, replicas: 1, pool: interactive}
traffic: {rate: 20/s, input: 64, output: 12}
slo: {preset: interactive, error_rate: 2%, refusal_rate: 2%}
eval: {suites: [{name: freight, margin: 3pt}], confidence: 95%}
shadow: {share: 5%, for: 10s}
canary: {steps: [{weight: 10%, bake: 10s}, {weight: 50%, bake: 15s}], max: 4x, harm: 1.25, rollback_on: [ttft, errors]}
standby: 2d
caps: {streams: 24}
`

func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "model.yaml")
	if err := os.MkdirAll(filepath.Join(dir, "evals"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"evals/freight.jsonl": "", "model.yaml": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestModel(t *testing.T) {
	path := write(t, good)
	s, err := Model(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{"source", s.Source == filepath.Join(dir, "weights")},
		{"scheme", s.Quantise.Scheme == "fp8-dynamic" && len(s.Quantise.Keep) == 1},
		{"rate", s.Traffic.Rate == 20},
		{"slo", s.SLO.TTFT.Limit == 800*time.Millisecond && s.SLO.ErrorRate == 0.02},
		{"suite", s.Eval.Suites[0].Margin == 0.03 && s.Eval.Suites[0].Items == filepath.Join(dir, "evals/freight.jsonl")},
		{"steps", len(s.Canary.Steps) == 2 && s.Canary.Steps[1].Weight == 0.5 && s.Canary.Max == 4},
		{"confidence", s.Eval.Confidence == 0.95},
		{"guards", len(s.Canary.RollbackOn) == 2},
		{"standby", s.Standby == 48*time.Hour},
		{"caps", s.Caps.Streams == 24 && s.Caps.KVTokens == 0},
	} {
		if !c.ok {
			t.Errorf("%s is wrong in %+v", c.what, s)
		}
	}
}

func TestModelRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"a cap of nothing", "caps: {streams: 24}", "caps: {streams: 0}", "caps.streams"},
		{"a cache below a sequence", "caps: {streams: 24}", "caps: {kv_tokens: 2000}", "less than one sequence of engine.max_model_len, 2048"},
		{"unknown key", "standby: 2d", "stanby: 2d", "stanby"},
		{"unknown key within", "max: 4x", "maximum: 4x", "maximum"},
		{"duplicate key", "standby: 2d", "standby: 2d\nstandby: 3d", "standby"},
		{"wrong unit of share", "error_rate: 2%", "error_rate: 2pt", ":11:"},
		{"bare number as share", "error_rate: 2%", "error_rate: 0.02", "such as 5%"},
		{"share above one", "share: 5%", "share: 500%", "100%"},
		{"wrong unit of time", "for: 10s", "for: 10", "such as 400ms"},
		{"wrong unit of margin", "margin: 3pt", "margin: 3%", "margin"},
		{"rate without unit", "rate: 20/s", "rate: 20", "such as 20/s"},
		{"unknown scheme", "fp8-dynamic", "fp9", "fp8-dynamic"},
		{"unknown guard", "[ttft, errors]", "[ttfb]", "ttfb"},
		{"falling steps", "weight: 50%", "weight: 5%", "step 2"},
		{"harm of one", "harm: 1.25", "harm: 1", "more than 1"},
		{"missing name", "name: freight\n", "", "name is missing"},
		{"missing source", "source: ./weights\n", "", "source is missing"},
		{"static without scales", "scheme: fp8-dynamic", "scheme: fp8-static", "llmops quantise scales measures"},
		{"scales of nothing", "scheme: fp8-dynamic", "scheme: none, scales: ./model.yaml", "has no scales"},
		{"scales that are not there", "scheme: fp8-dynamic", "scheme: fp8-static, scales: ./none.json", "none.json"},
		{"another store", "source: ./weights", "source: ftp://host/folder", "s3://bucket/prefix"},
		{"a repository without a name", "source: ./weights", "source: hf://", "hf://org/name@revision"},
		{"missing items", "name: freight, margin", "name: other, margin", "other"},
		{"mapping for a value", "standby: 2d", "standby: {a: 1}", "one value"},
		{"not yaml", "standby: 2d", "standby: [", "15"},
		{"zone of one machine", "canary: {steps", "canary: {zone: az1, steps", "no zones"},
		{"no name of a pool", "pool: interactive", "pool: a b", "placement.pool"},
		{"unknown key's line", "standby: 2d", "stanby: 2d", "model.yaml:15: unknown field"},
		{"nothing", good, "", "is empty"},
		{"only a comment", good, "# nothing\n", "is empty"},
		{"infinite", "harm: 1.25", "harm: .inf", "harm"},
		{"no number", "harm: 1.25", `harm: "NaN"`, "canary.harm"},
		{"no number as ratio", "confidence: 95%", `text: ./evals/freight.jsonl, perplexity: "NaN"`, "eval.perplexity"},
		{"ratio that must improve", "confidence: 95%", "text: ./evals/freight.jsonl, perplexity: 0.01", "more than 1"},
		{"ratio without a text", "confidence: 95%", "perplexity: 1.02", "eval.text"},
		{"margin of everything", "margin: 3pt", "margin: 100pt", "margin"},
		{"share of nothing", "share: 5%", "share: 0%", "shadow.share"},
		{"no time", "for: 10s", "for: 0s", "shadow.for"},
		{"service level of nothing", "preset: interactive,", "preset: interactive, ttft: 0s,", "slo.ttft"},
		{"regression of nothing", "eval:", "benchmark: {regression: 0%}\neval:", "benchmark.regression"},
		{"regression without a unit", "eval:", "benchmark: {regression: 0.1}\neval:", "such as 10%"},
		{"errors always", "error_rate: 2%", "error_rate: 100%", "slo.error_rate"},
		{"refusals never", "refusal_rate: 2%", "refusal_rate: 0%", "slo.refusal_rate"},
		{"two documents", "standby: 2d", "standby: 2d\n---\nstandby: 3d", "one document"},
		{"long name", "name: freight\n", "name: " + strings.Repeat("n", 101) + "\n", "name"},
		{"name with a pin", "name: freight\n", "name: freight@v1\n", "@"},
		{"more tokens than fit", "input: 64", "input: 2040", "max_model_len"},
		{"no prompts to warm with", "pool: interactive}", "pool: interactive, warm: ./none.jsonl}", "placement.warm"},
		{"unknown fault", "max_num_seqs: 16}", "max_num_seqs: 16, fault: slow}", "engine.fault"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(good, c.old) {
				t.Fatalf("%q is not in the good file", c.old)
			}
			path := write(t, strings.Replace(good, c.old, c.new, 1))
			_, err := Model(path)
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "model.yaml") {
				t.Errorf("error is\n%v\nwant %q and the file's name in it", err, c.want)
			}
		})
	}
}

func TestModelBenchmark(t *testing.T) {
	for text, want := range map[string]float64{"": 0.1, "benchmark: {regression: 25%}\n": 0.25, "benchmark: {regression: 300%}\n": 3, "benchmark: {regression: off}\n": 0} {
		if s, err := Model(write(t, good+text)); err != nil || s.Benchmark.Regression != want {
			t.Errorf("%q: %+v, %v", text, s.Benchmark, err)
		}
	}
}

// A value may be written as a block.
func TestModelReadsBlocks(t *testing.T) {
	s, err := Model(write(t, strings.NewReplacer("name: freight\n", "name: |-\n  freight\n", "first: parent", "first: >-\n  parent").Replace(good)))
	if err != nil || s.Name != "freight" || s.First != "parent" {
		t.Errorf("name %q, first %q, %v", s.Name, s.First, err)
	}
}

func TestModelReportsAllAtOnce(t *testing.T) {
	_, err := Model(write(t, strings.NewReplacer("rate: 20/s", "rate: 20", "for: 10s", "for: ten", "max: 4x", "max: 4").Replace(good)))
	if err == nil || strings.Count(err.Error(), "want") != 3 {
		t.Errorf("three mistakes gave\n%v", err)
	}
}

func FuzzModel(f *testing.F) {
	f.Add(good)
	f.Add("a: &a [*a]")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "model.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Model(path); err == nil && (s.Name == "" || s.Traffic.Rate <= 0 || len(s.Eval.Suites) == 0) {
			t.Errorf("accepted %+v", s)
		}
	})
}
