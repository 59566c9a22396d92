// Package slo holds service levels: what users of a model may expect, as
// bounds that can be counted against. Pure data; nothing here measures.
package slo

import (
	"fmt"
	"time"
)

// Bound says that at least the share Quantile of requests stays at or below
// Limit: p95 of 800 ms is Bound{0.95, 800 * time.Millisecond}. The zero Bound
// promises nothing.
type Bound struct {
	Quantile float64       `json:"quantile"`
	Limit    time.Duration `json:"limit"`
}

// Set tells whether the bound promises anything.
func (b Bound) Set() bool { return b.Limit > 0 }

func (b Bound) String() string {
	if !b.Set() {
		return "none"
	}
	return fmt.Sprintf("p%g %v", 100*b.Quantile, b.Limit)
}

// Class is the service level of prompts of up to MaxPrompt tokens (0: all).
// A rate of 0 is not stated.
type Class struct {
	Name        string  `json:"name"`
	MaxPrompt   int     `json:"max_prompt,omitempty"`
	TTFT        Bound   `json:"ttft"`
	TPOT        Bound   `json:"tpot"`
	ErrorRate   float64 `json:"error_rate,omitempty"`
	RefusalRate float64 `json:"refusal_rate,omitempty"`
}

// Presets returns the classes that model.yaml may name. The first two come
// from two published designs of LLM platforms with these targets for prompts
// of up to 4k tokens.
func Presets() map[string]Class {
	p95 := func(ms int) Bound { return Bound{0.95, time.Duration(ms) * time.Millisecond} }
	return map[string]Class{
		"interactive-strict": {Name: "interactive-strict", MaxPrompt: 4096, TTFT: p95(400), TPOT: p95(30)},
		"interactive":        {Name: "interactive", MaxPrompt: 4096, TTFT: p95(800), TPOT: p95(50)},
	}
}
