package pipeline

import (
	"context"
	"errors"

	"llmops/fleet"
	"llmops/pipeline/canary"
	"llmops/pipeline/download"
	"llmops/serving/deploy"
)

// Live tells whether what spec asks for is what serves its alias now: the last
// run of the same spec has promoted its candidate, the source is still the
// same, and the version produces tokens. why says which version that is, or
// what stands against it.
func Live(ctx context.Context, d Deps, spec Spec) (live bool, why string, err error) {
	h, err := Last(ctx, d.Store, spec.Name)
	if errors.Is(err, fleet.ErrNotFound) {
		return false, "nothing was onboarded yet", nil
	}
	if err != nil {
		return false, "", err
	}
	old, err := ReadSpec(ctx, d.Blobs, h)
	if err != nil {
		return false, "", err
	}
	if h.State != Done || string(mustJSON(old)) != string(mustJSON(spec)) {
		return false, "the last run was another one", nil
	}
	c := &canary.Control{Store: d.Store, Alias: spec.Name, Routers: d.Admins}
	doc, _, err := c.Read(ctx)
	if errors.Is(err, fleet.ErrNotFound) {
		return false, "nothing is live", nil
	}
	if err != nil {
		return false, "", err
	}
	rs, err := Records(ctx, d.Blobs, h)
	if err != nil {
		return false, "", err
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
	if err != nil {
		return false, "", err
	}
	v := dep.Candidate.Version.Name
	if doc.Live() != v {
		return false, "version " + doc.Live() + " is live, not " + v, nil
	}
	now, err := download.Inspect(ctx, spec.Source)
	if err != nil {
		return false, "", err
	}
	if string(now.Digest) != src.Digest {
		return false, "the source has changed", nil
	}
	if err := deploy.Probe(ctx, d.Listen, spec.Name, v); err != nil {
		return false, "version " + v + " does not answer: " + err.Error(), nil
	}
	return true, "version " + v + " from run " + h.Run, nil
}
