package cli

import (
	"encoding/json"
	"testing"
	"time"

	"llmops/pipeline"
	"llmops/serving/engine"
	"llmops/serving/slo"
)

// The report says what nobody was asked and what the command line changed.
func TestReportFacts(t *testing.T) {
	out, err := json.Marshal(pipeline.DeployOutput{First: true, Parent: pipeline.Arm{Version: pipeline.Version{Name: "v0", Scheme: "source"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := shown{Head: pipeline.Head{Stages: make([]pipeline.StageHead, 1), Options: pipeline.Options{RollbackOn: []string{"tpot"}}},
		Records: []pipeline.Record{{Stage: pipeline.StageDeploy, Output: out}}}
	spec := pipeline.Spec{SLO: slo.Class{ErrorRate: 0.07}, Canary: pipeline.Canary{RollbackOn: []string{"ttft"}}}
	facts := map[string]string{}
	for _, f := range reportOf(s, spec).Facts {
		facts[f.Name] = f.Value
	}
	for name, want := range map[string]string{
		"first version": "nothing was live before: the unquantised source went live as v0 without a gate",
		"service level": "TTFT none, TPOT none, errors 7%, refusals none",
		"guards":        "ttft; and tpot, as asked on the command line",
	} {
		if facts[name] != want {
			t.Errorf("%s: %q, want %q", name, facts[name], want)
		}
	}
	s.Options.Only = true
	for _, f := range reportOf(s, spec).Facts {
		if f.Name == "guards" && f.Value != "only tpot, as asked on the command line" {
			t.Errorf("guards: %q", f.Value)
		}
	}
}

func TestEngineFact(t *testing.T) {
	spec := pipeline.Spec{Placement: pipeline.Placement{GPU: "h100-sxm"}, Engine: pipeline.Engine{Kind: "vllm", Release: "0.32.0", MaxNumSeqs: 64, TensorParallel: 4,
		KVCache: engine.FP8, Speculative: engine.Speculative{Method: "ngram", Tokens: 3}, Drain: 90 * time.Second, Env: map[string]string{"TOKEN": "secret"}}}
	want := `vllm on h100-sxm, drain 1m30s, env TOKEN, kv_cache fp8, max_num_seqs 64, release 0.32.0, speculative {"method":"ngram","tokens":3}, tensor_parallel 4`
	if got := engineFact(spec); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
