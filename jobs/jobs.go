// Package jobs holds the Nomad job files that operators read and edit. A file owns
// placement: driver, constraints, resources, restarts and how a job is updated. What
// runs, its arguments and environment, comes from llmops in the file's variables, so
// that an edited file still starts what was meant.
package jobs

import "embed"

// Files are the job files, by name.
//
//go:embed *.nomad.hcl
var Files embed.FS
