package nomad

import (
	"fmt"

	"github.com/hashicorp/nomad/api"
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
