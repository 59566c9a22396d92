package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"llmops/fleet"
	"llmops/pipeline/canary"
	"llmops/serving/deploy"
)

// Live tells whether what spec asks for is what serves its alias now: a run of
// the same spec has promoted its candidate, that is still what is live, the
// source is still the same, and the version produces tokens. why says which
// version that is, or what stands against it.
func Live(ctx context.Context, d Deps, spec Spec) (live bool, why string, err error) {
	c := &canary.Control{Store: d.Store, Alias: spec.Name, Routers: d.Admins}
	doc, _, err := c.Read(ctx)
	if errors.Is(err, fleet.ErrNotFound) {
		return false, "nothing is live", nil
	}
	if err != nil {
		return false, "", err
	}
	heads, err := Runs(ctx, d.Store)
	if err != nil {
		return false, "", err
	}
	for _, h := range heads {
		if h.Alias != spec.Name || h.State != Done {
			continue
		}
		version, source, same, err := promotedBy(ctx, d, h, spec)
		if errors.Is(err, fleet.ErrNotFound) {
			continue // its records are gone, and with them what it proves
		}
		if err != nil {
			return false, "", err
		}
		if !same || version != doc.Live() {
			continue
		}
		now, err := d.Sources.Identify(ctx, spec.Source)
		if err != nil {
			return false, "", err
		}
		if now != source {
			return false, "the source has changed", nil
		}
		at, err := routerAddrs(ctx, d.Scheduler)
		if err != nil {
			return false, "", err
		}
		if n, err := deploy.Probes(ctx, at, spec.Name, version, spec.Task); n == 0 {
			return false, fmt.Sprintf("version %s does not answer through any of %d routers: %v", version, len(at), err), nil
		}
		return true, "version " + version + " from run " + h.Run, nil
	}
	return false, "version " + doc.Live() + " is live, which no run of this model file promoted", nil
}

// promotedBy reads which version a finished run promoted and from which source,
// and whether it was a run of the same spec.
func promotedBy(ctx context.Context, d Deps, h Head, spec Spec) (version, source string, same bool, err error) {
	old, err := ReadSpec(ctx, d.Blobs, h)
	if err != nil || string(mustJSON(old)) != string(mustJSON(spec)) {
		return "", "", false, err
	}
	rs, err := Records(ctx, d.Blobs, h)
	if err != nil {
		return "", "", false, err
	}
	var dep DeployOutput
	var src Weights
	for _, r := range rs {
		switch r.Stage {
		case StageDeploy:
			err = errors.Join(err, unmarshal(r.Output, &dep))
		case StageDownload:
			err = errors.Join(err, unmarshal(r.Output, &src))
		}
	}
	return dep.Candidate.Version.Name, cmp.Or(src.Source, src.Digest), err == nil, err
}
