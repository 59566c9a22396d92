// Package nomad is a fleet that HashiCorp Nomad schedules. Documents are Nomad
// variables written by compare-and-set; a job is registered from a job file that
// operators own, with what shall run as its variables; replicas are allocations.
//
// [Store] and [Scheduler] are safe for concurrent use. Revisions are Nomad's modify
// indexes, which grow with every change in the cluster. The package reads neither
// environment nor files: the caller makes the client, and with it address, token
// and TLS. Replicas count as healthy once their checks have passed in a deployment;
// whether they still answer is for those who send to them.
package nomad

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/nomad/api"
)

// explain adds to an error of the API what the reader of it can do.
func explain(err error, needs string) error {
	var res api.UnexpectedResponseError
	switch {
	case err == nil || !errors.As(err, &res):
		return err
	case res.StatusCode() == http.StatusForbidden:
		return fmt.Errorf("%w: the token lacks %s", err, needs)
	case res.StatusCode() == http.StatusNotFound:
		return fmt.Errorf("%w: the cluster knows no such endpoint or namespace; Nomad 1.8 or later is needed", err)
	}
	return err
}
