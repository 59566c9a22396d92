package embedded

import (
	"context"
	"time"

	"llmops/serving/embedded/core"
)

// slow is an executor that takes longer, as a fault has it.
type slow struct {
	core.Executor
	faults []fault
}

// Step waits after the computation: tokens of the same step wait with the slow
// ones, as they would with a slow kernel.
func (s slow) Step(ctx context.Context, b *core.Batch, out []core.Token) (time.Duration, error) {
	took, err := s.Executor.Step(ctx, b, out)
	if err != nil {
		return took, err
	}
	var extra time.Duration
	for _, f := range s.faults {
		switch f.kind {
		case "slow-prompt":
			for _, r := range b.Rows {
				if p := len(r.Seq.Prompt); p > f.over && r.Start < p {
					extra += time.Duration(min(len(r.Tokens), p-r.Start)) * f.perToken
				}
			}
		case "slow-tokens":
			extra += f.by
		case "slow-load":
			extra += time.Duration(max(0, len(b.Rows)-f.over)) * f.by
		case "slow":
			extra += time.Duration(float64(took) * (f.factor - 1))
		}
	}
	if extra == 0 {
		return took, nil
	}
	t := time.NewTimer(extra)
	defer t.Stop()
	select {
	case <-t.C:
		return took + extra, nil
	case <-ctx.Done():
		return took, ctx.Err()
	}
}
