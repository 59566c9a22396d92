package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"llmops/fleet"
	"llmops/fleet/objects"
	"llmops/model"
	"llmops/pipeline/download/registry"
)

// Shared is how nodes that do not see this machine's files get weights: from a registry,
// to a folder that each of them has.
type Shared struct {
	Registry *objects.Bucket
	Dir      string // on every node
	By       string // the program that pushes
}

// share sees to it that the weights of v are in the registry, and returns where nodes
// have them and what brings them there.
func (a *Attempt) share(ctx context.Context, v Version) (dir string, fetch []string, err error) {
	s := a.Deps.Shared
	made, err := Making(ctx, a.Deps, v)
	m, gerr := registry.Get(ctx, s.Registry, a.Spec.Name, v.Name)
	switch {
	case gerr == nil && (err != nil || string(m.Digest) == made.Digest):
		// It is there; the records of an older version may be on another machine.
	case err != nil:
		return "", nil, fmt.Errorf("sharing the weights of %s: %w", v.Name, err)
	case gerr != nil && !errors.Is(gerr, fleet.ErrNotFound):
		return "", nil, fmt.Errorf("sharing the weights of %s: %w", v.Name, gerr)
	default:
		if err := a.Intent(ctx, "store the weights of "+v.Name+" in "+s.Registry.String(), nil); err != nil {
			return "", nil, err
		}
		m = registry.Manifest{
			Name: a.Spec.Name, Version: v.Name, Scheme: v.Scheme, Source: made.Source, License: made.License, Base: made.Base, Run: v.Run, By: s.By, Made: a.Deps.Now(),
		}
		m, _, err = registry.Push(ctx, s.Registry, v.Dir, m, model.Digest(made.Digest), func(done, total int64) { a.Progress("weights to the bucket", done, total) })
		if err != nil {
			return "", nil, fmt.Errorf("sharing the weights of %s: %w", v.Name, err)
		}
	}
	ref := a.Spec.Name + "@" + v.Name
	return filepath.Join(s.Dir, m.Digest.Hex()), []string{"${LLMOPS_BIN}", "models", "pull", ref, "--registry", s.Registry.String(), "--out", s.Dir}, nil
}
