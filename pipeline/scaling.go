package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"llmops/fleet"
	"llmops/serving/scale"
	"llmops/serving/slo"
)

const (
	scalingPrefix = "index/scale/"
	scaledPrefix  = "index/scaled/"
)

// Scaling is how an alias's replicas follow its load, and what must be known to see
// that load.
type Scaling struct {
	Alias  string       `json:"alias"`
	Policy scale.Policy `json:"policy"`
	Engine string       `json:"engine"` // whose metrics the replicas have
	TTFT   slo.Bound    `json:"ttft"`   // whose budget burns
}

// Scaled is what was last seen and done about it.
type Scaled struct {
	State   scale.State   `json:"state"`
	Last    *scale.Action `json:"last,omitempty"`
	Missing string        `json:"missing,omitempty"` // what could not be seen
}

// keepScaling writes down how the alias scales, or that it does not any more.
func keepScaling(ctx context.Context, a *Attempt) error {
	name := scalingPrefix + fleet.Escape(a.Spec.Name)
	for {
		d, err := a.Deps.Store.Get(ctx, name)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
		switch {
		case a.Spec.Scale != nil:
			body := mustJSON(Scaling{Alias: a.Spec.Name, Policy: *a.Spec.Scale, Engine: a.Spec.Engine.Kind, TTFT: a.Spec.SLO.TTFT})
			if string(body) == string(d.Body) {
				return nil
			}
			_, err = a.Deps.Store.Put(ctx, name, body, d.Rev)
		case err == nil:
			err = a.Deps.Store.Delete(ctx, name, d.Rev)
		default:
			return nil
		}
		if errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keeping how %s scales: %w", a.Spec.Name, err)
		}
		return nil
	}
}

// Scalings lists the aliases that scale.
func Scalings(ctx context.Context, s fleet.Store) (out []Scaling, err error) {
	docs, err := s.List(ctx, scalingPrefix)
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		var sc Scaling
		if _, err := readDoc(ctx, s, d.Name, &sc); err != nil {
			if errors.Is(err, fleet.ErrNotFound) {
				continue
			}
			return nil, err
		}
		out = append(out, sc)
	}
	return out, nil
}

// ReadScaled returns what was last done about an alias's load, with its revision; 0
// when nothing was yet.
func ReadScaled(ctx context.Context, s fleet.Store, alias string) (out Scaled, rev uint64, err error) {
	rev, err = readDoc(ctx, s, scaledPrefix+fleet.Escape(alias), &out)
	if errors.Is(err, fleet.ErrNotFound) {
		return Scaled{}, 0, nil
	}
	return out, rev, err
}

// WriteScaled keeps what was done, if nobody else has since.
func WriteScaled(ctx context.Context, s fleet.Store, alias string, sc Scaled, rev uint64) error {
	_, err := s.Put(ctx, scaledPrefix+fleet.Escape(alias), mustJSON(sc), rev)
	return err
}

func readDoc(ctx context.Context, s fleet.Store, name string, into any) (uint64, error) {
	d, err := s.Get(ctx, name)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(d.Body, into); err != nil {
		return 0, fmt.Errorf("reading %s: %w", name, err)
	}
	return d.Rev, nil
}
