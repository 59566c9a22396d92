package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"llmops/fleet"
	"llmops/model"
	"llmops/serving/engine"
)

// Version is one deployable state of an alias: weights and how they are served.
// Names count up from v0; the same digest always has the same name.
type Version struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Scheme  string    `json:"scheme"`
	Dir     string    `json:"dir"`
	Run     string    `json:"run"`
	Created time.Time `json:"created"`
}

func versionsName(alias string) string { return "index/version/" + fleet.Escape(alias) }

// Versions lists the versions an alias has had, oldest first.
func Versions(ctx context.Context, s fleet.Store, alias string) ([]Version, error) {
	vs, _, err := versions(ctx, s, alias)
	return vs, err
}

func versions(ctx context.Context, s fleet.Store, alias string) (vs []Version, rev uint64, err error) {
	d, err := s.Get(ctx, versionsName(alias))
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return vs, d.Rev, json.Unmarshal(d.Body, &vs)
}

// deploymentDigest is of all that a version's answers and speed depend on.
func deploymentDigest(w Weights, e Engine) string {
	return string(model.DigestOf(mustJSON([]any{w.Digest, e})))
}

// version finds or makes the version of these weights under this engine.
func version(ctx context.Context, a *Attempt, w Weights, e Engine) (Version, error) {
	digest := deploymentDigest(w, e)
	for {
		vs, rev, err := versions(ctx, a.Deps.Store, a.Spec.Name)
		if err != nil {
			return Version{}, err
		}
		for _, v := range vs {
			if v.Digest == digest {
				return v, nil
			}
		}
		scheme := w.Scheme
		if scheme == "" {
			scheme = "source"
		}
		v := Version{Name: fmt.Sprintf("v%d", len(vs)), Digest: digest, Scheme: scheme, Dir: w.Dir, Run: a.Run, Created: a.Deps.Now().UTC()}
		body, err := json.Marshal(append(vs, v))
		if err != nil {
			return Version{}, err
		}
		if _, err = a.Deps.Store.Put(ctx, versionsName(a.Spec.Name), body, rev); !errors.Is(err, fleet.ErrConflict) {
			return v, err
		}
	}
}

// JobName is the job that serves a version.
func JobName(alias, version string) string { return fleet.Escape(alias) + "-" + version }

// engineJob is the job that serves v.
func engineJob(s Spec, v Version, e Engine) (fleet.Job, error) {
	g, err := engine.Group(engine.Serve{Kind: e.Kind, Alias: s.Name, Version: v.Name, Dir: v.Dir,
		MaxModelLen: e.MaxModelLen, MaxNumSeqs: e.MaxNumSeqs, Fault: e.Fault, Replicas: s.Placement.Replicas})
	if err != nil {
		return fleet.Job{}, err
	}
	meta := map[string]string{"alias": s.Name, "version": v.Name, "role": v.Scheme}
	if s.Task != "" {
		meta["task"] = string(s.Task)
	}
	return fleet.Job{Name: JobName(s.Name, v.Name), Version: v.Name, Pool: s.Placement.Pool, Kind: fleet.Engine,
		Groups: []fleet.Group{g}, Meta: meta}, nil
}
