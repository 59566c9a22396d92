package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/fleet"
	"llmops/serving/openai"
)

// Options say how a version comes up.
type Options struct {
	Warm  Prompts // what each replica answers before it counts as ready
	Loads int     // replicas that may start at once, so that they do not read from one store together; 0: all
	Grow  bool    // a job that is there already grows to its count
}

// Prompts are what a fresh replica is warmed with after its first token.
type Prompts [][]openai.Message

// Ready is a replica that has produced a token, and how long that took after
// its process answered the health check.
type Ready struct {
	fleet.Replica
	FirstToken time.Duration `json:"first_token"`
	Cold       *Cold         `json:"cold,omitempty"` // nil: it was there before
}

// Cold are the parts of a cold start: from the call to a place on a node, from there to
// a started process, which is what an image and artefacts take, from there to the first
// answer of the health check, which is what the weights take, and the warming prompts.
// The first two are told by the clocks of those who did them.
type Cold struct {
	Place time.Duration `json:"place"`
	Fetch time.Duration `json:"fetch"`
	Load  time.Duration `json:"load"`
	Warm  time.Duration `json:"warm"`
}

func (r Ready) String() string {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	var parts []string
	if c := r.Cold; c != nil {
		parts = append(parts, fmt.Sprintf("placed in %v, started in %v, answered in %v", ms(c.Place), ms(c.Fetch), ms(c.Load)))
	}
	parts = append(parts, fmt.Sprintf("first token in %v", ms(r.FirstToken)))
	if c := r.Cold; c != nil && c.Warm > 0 {
		parts = append(parts, fmt.Sprintf("warmed in %v", ms(c.Warm)))
	}
	return r.ID + ": " + strings.Join(parts, ", ")
}

// cold is nil for a replica of which not all is known.
func cold(r fleet.Replica, began, answered time.Time) *Cold {
	if r.Placed.IsZero() || r.Started.Before(r.Placed) {
		return nil
	}
	return &Cold{Place: max(0, r.Placed.Sub(began)), Fetch: r.Started.Sub(r.Placed), Load: max(0, answered.Sub(r.Started))}
}

// ready gets a token of each replica that is not known yet, all at once, and warms it.
// Those that were there before began have had their cold start.
func ready(ctx context.Context, j fleet.Job, replicas []fleet.Replica, warm Prompts, seen sightings, before []fleet.Replica, began time.Time, known map[string]Ready) error {
	var mu sync.Mutex // guards known and errs
	var errs []error
	var wg sync.WaitGroup
	for _, r := range replicas {
		mu.Lock()
		_, ok := known[r.ID]
		mu.Unlock()
		if ok {
			continue
		}
		out := Ready{Replica: r}
		if !slices.ContainsFunc(before, func(b fleet.Replica) bool { return b.ID == r.ID }) {
			out.Cold = cold(r, began, seen[r.ID])
		}
		wg.Go(func() {
			err := out.token(ctx, j, warm)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			known[r.ID] = out
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// token asks the replica for one token, holds it to its version and warms it.
func (r *Ready) token(ctx context.Context, j fleet.Job, warm Prompts) error {
	began := time.Now()
	if err := Probe(ctx, r.Addr, j.Meta["alias"], j.Meta["version"], Task(j.Meta["task"])); err != nil {
		return fmt.Errorf("replica %s: %w", r.ID, err)
	}
	r.FirstToken = time.Since(began)
	began = time.Now()
	c := &openai.Client{BaseURL: "http://" + r.Addr}
	for _, m := range warm {
		if _, _, err := c.Chat(ctx, request(j.Meta["alias"], m), nil); err != nil {
			return fmt.Errorf("warming replica %s: %w", r.ID, err)
		}
	}
	if r.Cold != nil && len(warm) > 0 {
		r.Cold.Warm = time.Since(began)
	}
	return nil
}
