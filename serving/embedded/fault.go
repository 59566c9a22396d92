package embedded

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"llmops/serving/embedded/core"
)

// slow is an executor that takes longer over long prompts.
type slow struct {
	core.Executor
	fault SlowPrompt
}

func (s slow) Step(ctx context.Context, b *core.Batch, out []core.Token) (time.Duration, error) {
	took, err := s.Executor.Step(ctx, b, out)
	if err != nil {
		return took, err
	}
	var extra time.Duration
	for _, r := range b.Rows {
		if p := len(r.Seq.Prompt); p > s.fault.Over && r.Start < p {
			extra += time.Duration(min(len(r.Tokens), p-r.Start)) * s.fault.PerToken
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

// ParseFault reads a fault as a flag has it: "slow-prompt:over=200,per-token=4ms",
// or nothing.
func ParseFault(s string) (Fault, error) {
	if s == "" {
		return Fault{}, nil
	}
	var f Fault
	kind, fields, _ := strings.Cut(s, ":")
	if kind != "slow-prompt" {
		return f, fmt.Errorf("parsing fault %q: %q is not one of: slow-prompt", s, kind)
	}
	for field := range strings.SplitSeq(fields, ",") {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "over":
			f.SlowPrompt.Over, err = strconv.Atoi(value)
		case "per-token":
			f.SlowPrompt.PerToken, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return Fault{}, fmt.Errorf("parsing fault %q: %w", s, err)
		}
	}
	if f.SlowPrompt.Over < 0 || f.SlowPrompt.PerToken <= 0 {
		return Fault{}, fmt.Errorf("parsing fault %q: want over (tokens) and per-token (a duration above 0)", s)
	}
	return f, nil
}

// String is what ParseFault reads.
func (f Fault) String() string {
	if f.SlowPrompt.PerToken == 0 {
		return ""
	}
	return fmt.Sprintf("slow-prompt:over=%d,per-token=%s", f.SlowPrompt.Over, f.SlowPrompt.PerToken)
}
