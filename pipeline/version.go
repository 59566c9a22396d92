package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/model"
	"llmops/roofline"
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
func deploymentDigest(w Weights, e Engine, p Placement) string {
	all := []any{w.Digest, e}
	if where := p.place(); where != nil {
		all = append(all, where)
	}
	return string(model.DigestOf(mustJSON(all)))
}

// planned is the version of these weights under this engine as version will have it,
// which need not be there yet.
func planned(ctx context.Context, a *Attempt, w Weights, e Engine) (Version, error) {
	vs, err := Versions(ctx, a.Deps.Store, a.Spec.Name)
	v := Version{Name: fmt.Sprintf("v%d", len(vs)), Digest: deploymentDigest(w, e, a.Spec.Placement), Dir: w.Dir}
	if i := slices.IndexFunc(vs, func(old Version) bool { return old.Digest == v.Digest }); i >= 0 {
		v = vs[i]
	}
	return v, err
}

// version finds or makes the version of these weights under this engine.
func version(ctx context.Context, a *Attempt, w Weights, e Engine) (Version, error) {
	digest := deploymentDigest(w, e, a.Spec.Placement)
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

// serve is what an engine is asked to serve v with.
func serve(s Spec, v Version, e Engine) engine.Serve {
	out := engine.Serve{
		Kind: e.Kind, Alias: s.Name, Version: v.Name, Release: e.Release, Image: e.Image, Dir: v.Dir, Fault: e.Fault,
		Replicas: s.Placement.Replicas, CPU: s.Placement.GPU == CPU,
		TensorParallel: e.TensorParallel, PipelineParallel: e.PipelineParallel,
		MaxModelLen: e.MaxModelLen, MaxNumSeqs: e.MaxNumSeqs, MaxNumBatchedTokens: e.MaxNumBatchedTokens,
		KVDtype: e.KVCache, KVOffload: e.KVOffload, LoRA: e.LoRA, Sleep: e.Sleep, Speculative: e.Speculative, Drain: e.Drain, Env: e.Env,
	}
	if e.Kind != "embedded" {
		out.Listen = "${LLMOPS_HOST}:${LLMOPS_PORT}"
	}
	if gpu, ok := roofline.Lookup(s.Placement.GPU); ok {
		out.Need = fleet.Need{Kind: gpu.Device, Count: e.gpus()}
	}
	return out
}

// CandidateJob is the job of a candidate of s as it would be registered, with a name and
// a folder that stand for its own. It is an error of package engine when the engine cannot
// be asked for what s says, be it for the candidate or for the parent beside it. Nothing
// is looked at but s.
func CandidateJob(s Spec) (fleet.Job, error) {
	v := Version{Name: "v0", Dir: "/weights"}
	if _, err := engineJob(s, v, s.Engine.reference()); err != nil {
		return fleet.Job{}, err
	}
	return engineJob(s, v, s.Engine)
}

// byName are the engines whose adapters requests ask for by name, in the model's place.
var byName = []string{"embedded", "vllm", "sglang"}

// engineJob is the job that serves v.
func engineJob(s Spec, v Version, e Engine) (fleet.Job, error) {
	g, err := engine.Group(serve(s, v, e))
	if err != nil {
		return fleet.Job{}, err
	}
	g.Near = s.Placement.Near
	meta := map[string]string{"alias": s.Name, "version": v.Name, "role": v.Scheme}
	if e.Kind != "embedded" {
		meta["engine"] = e.Kind
	}
	if named := slices.Sorted(maps.Keys(e.LoRA.Modules)); len(named) > 0 && slices.Contains(byName, e.Kind) {
		meta["adapters"] = strings.Join(named, ",") // no name has a comma
	}
	if s.Task != "" {
		meta["task"] = string(s.Task)
	}
	return fleet.Job{Name: JobName(s.Name, v.Name), Version: v.Name, Pool: s.Placement.Pool, Zone: s.Placement.Zone, Kind: fleet.Engine,
		Groups: []fleet.Group{g}, Meta: meta}, nil
}
