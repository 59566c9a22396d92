// Package eval says whether a candidate still answers like its parent.
//
// [Ask] asks both arms the same items and [Judge] compares them pair by pair:
// parity is shown when the loss of score is shown to be below a margin, and never
// by a difference that was merely not found. [Perplexity] compares the likelihood
// of held-out text, [Canaries] the tokens that both arms would choose along the
// parent's own answers: a choice that differs where the parent was sure is no
// rounding. Every answer is kept as a [Sample], so that a verdict can be looked
// into and judged again.
//
// Both arms get every sampling parameter explicitly, since a server's defaults
// come from files that a quantised copy may lack. The functions are
// synchronous and safe for concurrent use.
package eval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"llmops/serving/openai"
)

// Arm is a deployment that answers.
type Arm struct {
	Name   string // for errors and warnings
	Model  string // what it is called in requests
	Client *openai.Client
}

const (
	// retries and pause bound what is tried again when an engine is busy or a
	// connection breaks: that says nothing about the model.
	retries = 3
	pause   = 250 * time.Millisecond
	// patience is above the longest answer that anybody waits for: an engine that
	// takes longer hangs.
	patience = 10 * time.Minute
	seed     = 1234
)

var errHung = fmt.Errorf("no answer within %v", patience)

// greedy are sampling parameters that leave nothing to a server's defaults.
func greedy(model string, maxTokens int) openai.Sampling {
	zero, one, none := 0.0, 1.0, 0
	s := int64(seed)
	return openai.Sampling{Model: model, MaxTokens: &maxTokens, Temperature: &zero, TopP: &one, TopK: &none, MinP: &zero,
		RepetitionPenalty: &one, PresencePenalty: &zero, FrequencyPenalty: &zero, Seed: &s}
}

// try calls fn again while its failure is one that passes.
func try(ctx context.Context, fn func(context.Context) error) error {
	for n := 0; ; n++ {
		err := within(ctx, fn)
		if err == nil || !passes(err) || n == retries || ctx.Err() != nil {
			return err
		}
		wait := time.NewTimer(pause << n)
		select {
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		case <-wait.C:
		}
	}
}

func within(ctx context.Context, fn func(context.Context) error) error {
	once, cancel := context.WithTimeoutCause(ctx, patience, errHung)
	defer cancel()
	err := fn(once)
	if err != nil && errors.Is(context.Cause(once), errHung) {
		return errHung
	}
	return err
}

// passes tells failures that say nothing about the model: a busy server, a
// broken connection.
func passes(err error) bool {
	var se *openai.StatusError
	if errors.As(err, &se) {
		return se.Temporary()
	}
	var oe *net.OpError
	return errors.As(err, &oe) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// each calls fn for 0 to n−1, at most width at once and in order of start, and
// returns the first error, after which no more are started.
func each(ctx context.Context, n, width int, fn func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(width, n) {
		wg.Go(func() {
			for i := range next {
				if err := fn(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// ErrArm is an arm that did not answer as it must.
type ErrArm struct {
	Arm, Item string
	Err       error
}

func (e *ErrArm) Error() string { return fmt.Sprintf("asking %s for %s: %v", e.Arm, e.Item, e.Err) }

func (e *ErrArm) Unwrap() error { return e.Err }
