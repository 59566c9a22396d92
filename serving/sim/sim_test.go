package sim

import (
	"testing"
	"time"

	"llmops/model"
	"llmops/serving/embedded/estimate"
	"llmops/serving/slo"
)

var shape70B = model.Shape{Family: "llama", Hidden: 8192, Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128, Intermediate: 28672, Vocab: 128256}

func node70B() estimate.Options {
	return estimate.Options{GPU: "assumed-192gb", TensorParallel: 8, Shape: shape70B, Parameters: 70e9, BlockSize: 128}
}

func limits(ttft, tpot time.Duration) slo.Class {
	return slo.Class{TTFT: slo.Bound{Quantile: 0.95, Limit: ttft}, TPOT: slo.Bound{Quantile: 0.95, Limit: tpot}}
}

// hour is the fleet of the published sizing under its traffic.
func hour(d time.Duration) Scenario {
	return Scenario{
		Seed: 1, Duration: d, Warmup: d / 12,
		Fleet:    Fleet{Nodes: 26, GPUs: 8, Engine: node70B(), StepTokens: 1024},
		Arrivals: Arrivals{Process: Poisson, Rate: 300},
		Tenants: []Tenant{{
			Name: "chat", Share: 1, Prompt: Lengths{Mean: 1500}, Output: Lengths{Mean: 250},
			Prefix: Prefix{Groups: 2000, Tokens: 960, Zipf: 1},
		}},
		SLO: limits(400*time.Millisecond, 30*time.Millisecond),
	}
}

func BenchmarkHour(b *testing.B) {
	for b.Loop() {
		r, err := Run(b.Context(), hour(6*time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(r.Engines.OutputPerSecond*360), "ns/token")
		b.Logf("%+v %+v %+v %+v", r.Total, r.Total.TTFT, r.Total.TPOT, r.Engines)
	}
}
