// Package terraform changes the machines of a fleet by HashiCorp Terraform, and says
// beforehand what that means: which nodes come and go, with their GPUs and price.
//
// A [Workspace] is a folder with a configuration over the contract module. [Workspace.Plan]
// writes a plan file and reads it into a [Summary]; [Workspace.Apply] applies that file
// and nothing else, and only if no [Refusal] stands against it: a node that still works is
// not taken away. [Workspace.Inventory] is what there is. What a plan means and what
// speaks against it are pure functions, [Summarise] and [Guard].
//
// A node is known by its record in the contract, and whatever Terraform keeps for it by
// the node's name as its key. A Workspace is not safe for concurrent use; two of them on
// one state are, by the state's lock. The package does not run terraform init, which
// downloads and decides where the state lives, and it never breaks a lock.
package terraform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// wantVersion are the versions of Terraform that will do: a validation may look at other
// variables since 1.9, and 2 may change what a plan says.
const wantVersion = "1.9 or later, below 2.0"

// stopGrace is how long Terraform may take to end after an interrupt. It waits for the
// machines that are being made, whose ids would be lost with it.
const stopGrace = 15 * time.Minute

var (
	// ErrMissing reports that there is no terraform to run.
	ErrMissing = errors.New("terraform is not installed: " + wantVersion + " must be on PATH")
	// ErrVersion reports a terraform of another version.
	ErrVersion = errors.New("another version of terraform: want " + wantVersion)
	// ErrNotInitialised reports a folder in which terraform init has not been run, or
	// not since its modules or providers changed.
	ErrNotInitialised = errors.New("the folder is not initialised: run terraform init in it")
	// ErrStale reports that the state has changed since the plan was made.
	ErrStale = errors.New("the state has changed since the plan was made: plan again")
	// ErrNoNode reports a node to replace that the state does not have.
	ErrNoNode = errors.New("the state has no such node")
	// ErrStopped reports an apply that was interrupted. What it had done is in the state.
	ErrStopped = errors.New("stopped before the plan was done: what was done is in the state, plan again for the rest")
)

// LockedError reports that somebody else holds the lock of the state, or died with it.
type LockedError struct {
	ID, Who, Operation, Created string
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("the state is locked by %s since %s for %s (lock %s): wait for it, or, if that process is gone, terraform force-unlock %[4]s",
		orUnknown(e.Who), orUnknown(e.Created), orUnknown(e.Operation), orUnknown(e.ID))
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// Options say how to run Terraform.
type Options struct {
	// Path is the program; empty: terraform on PATH.
	Path string
	// Progress gets what Terraform says while it works; nil: nobody.
	Progress io.Writer
}

// Workspace is a folder with a Terraform configuration.
type Workspace struct {
	tf       *tfexec.Terraform
	dir      string
	progress io.Writer
}

// Open finds Terraform and checks its version. Terraform gets this process's environment.
func Open(ctx context.Context, dir string, o Options) (*Workspace, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("opening the configuration: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("opening the configuration: %s is not a folder", dir)
	}
	path := o.Path
	if path == "" {
		path = "terraform"
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	tf, err := tfexec.NewTerraform(dir, path)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", dir, err)
	}
	v, _, err := tf.Version(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("asking %s for its version: %w", path, err)
	}
	if seg := v.Segments(); seg[0] != 1 || seg[1] < 9 {
		return nil, fmt.Errorf("%w; %s is %s", ErrVersion, path, v)
	}
	return &Workspace{tf: tf, dir: dir, progress: o.Progress}, nil
}

// aloud runs a command whose output is for people. Others print documents.
func (w *Workspace) aloud(run func() error) error {
	if w.progress != nil {
		w.tf.SetStdout(w.progress)
		defer w.tf.SetStdout(io.Discard)
	}
	return run()
}

var lockField = regexp.MustCompile(`(?m)^[│|\s]*(ID|Who|Operation|Created):[ \t]*(.*?)[ \t]*$`)

// explain turns what Terraform wrote into an error that a caller can tell from others.
func explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	case strings.Contains(text, "Error acquiring the state lock"):
		locked := &LockedError{}
		for _, m := range lockField.FindAllStringSubmatch(text, -1) {
			switch m[1] {
			case "ID":
				locked.ID = m[2]
			case "Who":
				locked.Who = m[2]
			case "Operation":
				locked.Operation = strings.TrimPrefix(m[2], "OperationType")
			case "Created":
				locked.Created = m[2]
			}
		}
		return fmt.Errorf("%s: %w", doing, locked)
	case strings.Contains(text, "Saved plan is stale"), strings.Contains(text, "Saved plan does not match the given state"):
		return fmt.Errorf("%s: %w", doing, ErrStale)
	case strings.Contains(text, "Module not installed"), strings.Contains(text, "Backend initialization required"), strings.Contains(text, "Inconsistent dependency lock file"),
		strings.Contains(text, "Required plugins are not installed"), strings.Contains(text, "terraform init"):
		return fmt.Errorf("%s: %w", doing, ErrNotInitialised)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
