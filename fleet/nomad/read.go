package nomad

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// LintFile reads a job file as the cluster's own parser does and finds its mistakes.
// vars is the content of a variables file, for files that have variables without
// defaults.
func (s *Scheduler) LintFile(hcl, vars string, c Cluster) ([]Finding, error) {
	job, err := s.client.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: hcl, Variables: vars, Canonicalize: true})
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", s.explain(err, s.needs("parse-job")))
	}
	return Lint(job, c), nil
}

// LintJob finds the known mistakes of what Apply would register.
func (s *Scheduler) LintJob(j fleet.Job, c Cluster) ([]Finding, error) {
	job, err := s.parse(j)
	if err != nil {
		return nil, err
	}
	return Lint(job, c), nil
}
