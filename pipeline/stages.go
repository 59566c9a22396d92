package pipeline

import (
	"encoding/json"
	"fmt"
)

// The names of the stages, in order.
const (
	StageDownload  = "download"
	StageQuantise  = "quantise"
	StagePlan      = "plan"
	StageDeploy    = "deploy"
	StageBenchmark = "benchmark"
	StageEval      = "eval"
	StageShadow    = "shadow"
	StageCanary    = "canary"
	StagePromote   = "promote"
)

// Stages are all stages of an onboarding, in order.
func Stages() []Stage {
	return []Stage{
		{Name: StageDownload, Format: 1, Artefact: true, Input: downloadInput, Kept: snapshotKept, Run: runDownload},
		{Name: StageQuantise, Format: 1, Artefact: true, Input: quantiseInput, Kept: snapshotKept, Run: runQuantise},
		{Name: StagePlan, Run: runPlan},
		{Name: StageDeploy, World: true, Run: runDeploy},
		{Name: StageBenchmark, Run: runBenchmark},
		{Name: StageEval, Run: runEval},
		{Name: StageShadow, Run: runShadow},
		{Name: StageCanary, Run: runCanary},
		{Name: StagePromote, Run: runPromote},
	}
}

// Weights are a folder of weights: what download and quantise leave.
type Weights struct {
	Dir    string `json:"dir"`
	Digest string `json:"digest"`
	Source string `json:"source,omitempty"` // of a repository, with its commit; of a folder the digest says it
	Bytes  int64  `json:"bytes"`
	Scheme string `json:"scheme,omitempty"`
	Detail any    `json:"detail,omitempty"` // what the stage's own library reports
}

func unmarshal(b json.RawMessage, v any) error {
	if len(b) == 0 {
		return fmt.Errorf("the record has no output")
	}
	return json.Unmarshal(b, v)
}
