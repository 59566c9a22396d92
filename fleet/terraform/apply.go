package terraform

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"
)

// Plan plans the configuration into the file at out, and says what that means. Nodes in
// replace are planned to be made anew. A plan that cannot be read leaves no file.
func (w *Workspace) Plan(ctx context.Context, out string, replace []string) (*Summary, error) {
	out, err := filepath.Abs(out)
	if err != nil {
		return nil, fmt.Errorf("naming the plan file: %w", err)
	}
	// The file appears whole or not at all: half a plan is one that nobody has read.
	part := out + ".part"
	opts := []tfexec.PlanOption{tfexec.Out(part), tfexec.Lock(true)}
	if len(replace) > 0 {
		addresses, err := w.addresses(ctx, replace)
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			opts = append(opts, tfexec.Replace(a))
		}
	}
	err = w.aloud(func() error {
		_, err := w.tf.Plan(ctx, opts...)
		return err
	})
	if err != nil {
		return nil, errors.Join(explain("planning "+w.dir, err), remove(part))
	}
	// A plan holds the values of variables, secret ones too.
	if err := os.Chmod(part, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("closing the plan file to others: %w", err), remove(part))
	}
	_, s, err := w.read(ctx, part)
	if err != nil {
		return nil, errors.Join(err, remove(part))
	}
	if err := os.Rename(part, out); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the plan file: %w", err), remove(part))
	}
	return s, nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// addresses are those of everything that the state keeps for the nodes.
func (w *Workspace) addresses(ctx context.Context, nodes []string) ([]string, error) {
	state, err := w.tf.Show(ctx)
	if err != nil {
		return nil, explain("reading the state of "+w.dir, err)
	}
	names, found := map[string]bool{}, map[string]bool{}
	for _, n := range nodes {
		names[n] = true
	}
	var out []string
	var walk func(m *tfjson.StateModule)
	walk = func(m *tfjson.StateModule) {
		for _, r := range m.Resources {
			if name := owner(r.Address, names); name != "" && r.Mode == tfjson.ManagedResourceMode {
				found[name] = true
				out = append(out, r.Address)
			}
		}
		for _, c := range m.ChildModules {
			walk(c)
		}
	}
	if state.Values != nil && state.Values.RootModule != nil {
		walk(state.Values.RootModule)
	}
	for _, n := range nodes {
		if !found[n] {
			return nil, fmt.Errorf("replacing node %q: %w", n, ErrNoNode)
		}
	}
	return out, nil
}

// Read says what the plan file at path means.
func (w *Workspace) Read(ctx context.Context, path string) (*Summary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("naming the plan file: %w", err)
	}
	_, s, err := w.read(ctx, path)
	return s, err
}

func (w *Workspace) read(ctx context.Context, path string) (stamp, *Summary, error) {
	at, err := stampOf(path)
	if err != nil {
		return at, nil, err
	}
	p, err := w.tf.ShowPlanFile(ctx, path)
	if err != nil {
		return at, nil, explain("reading the plan "+path, err)
	}
	s, err := Summarise(p)
	if err != nil {
		return at, nil, fmt.Errorf("reading the plan %s: %w", path, err)
	}
	return at, s, nil
}

// stamp is which state a plan was made from.
type stamp struct {
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
}

// maxState bounds what is read of a plan file, which may come from anywhere.
const maxState = 1 << 30

// stampOf reads the state's serial that a plan file carries.
func stampOf(path string) (s stamp, err error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return s, fmt.Errorf("reading the plan %s: it is no plan file: %w", path, err)
	}
	defer func() { _ = z.Close() }()
	i := slices.IndexFunc(z.File, func(f *zip.File) bool { return f.Name == "tfstate" })
	if i < 0 {
		return s, fmt.Errorf("reading the plan %s: it carries no state, and so was not made by terraform plan -out", path)
	}
	f, err := z.File[i].Open()
	if err != nil {
		return s, fmt.Errorf("reading the plan %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	if err := json.NewDecoder(io.LimitReader(f, maxState)).Decode(&s); err != nil {
		return s, fmt.Errorf("reading the state in the plan %s: %w", path, err)
	}
	return s, nil
}

// current is the stamp of the state as it is.
func (w *Workspace) current(ctx context.Context) (s stamp, err error) {
	text, err := w.tf.StatePull(ctx)
	if err != nil {
		return s, explain("reading the state of "+w.dir, err)
	}
	if text == "" {
		return s, nil // nothing was ever applied
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("reading the state of %s: %w", w.dir, err)
	}
	return s, nil
}

// ApplyOptions say under which conditions a plan is applied.
type ApplyOptions struct {
	// Fleet is asked what runs on the nodes; nil: no node may go.
	Fleet  Fleet
	Permit Permit
	// Confirm sees the summary and decides; nil: go on.
	Confirm func(*Summary) (bool, error)
}

// RefusedError reports a plan that was not applied, with all that speaks against it.
type RefusedError struct{ Refusals []Refusal }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the plan is refused for %d reasons, the first: %s", len(e.Refusals), e.Refusals[0])
}

// ErrDeclined reports that Confirm said no.
var ErrDeclined = errors.New("not confirmed: nothing was changed")

// Apply applies the plan file at path and nothing else. A plan that was made from another
// state is ErrStale, one that takes away what works a RefusedError. When it fails or is
// stopped in the middle, what was done is in the state: a new plan holds the rest.
func (w *Workspace) Apply(ctx context.Context, path string, o ApplyOptions) (*Summary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("naming the plan file: %w", err)
	}
	made, s, err := w.read(ctx, path)
	if err != nil {
		return nil, err
	}
	now, err := w.current(ctx)
	if err != nil {
		return s, err
	}
	if now != made {
		return s, fmt.Errorf("applying %s, which was made from serial %d when the state is at %d: %w", path, made.Serial, now.Serial, ErrStale)
	}
	if err := w.guard(ctx, s, o); err != nil {
		return s, err
	}
	if o.Confirm != nil {
		yes, err := o.Confirm(s)
		if err != nil {
			return s, err
		}
		if !yes {
			return s, ErrDeclined
		}
		// A person takes time, in which a scheduler places.
		if err := w.guard(ctx, s, o); err != nil {
			return s, err
		}
	}
	if err := w.tf.SetWaitDelay(stopGrace); err != nil {
		return s, fmt.Errorf("applying %s: %w", path, err)
	}
	err = w.aloud(func() error { return w.tf.Apply(ctx, tfexec.DirOrPlan(path), tfexec.Lock(true)) })
	if err != nil && ctx.Err() != nil {
		return s, fmt.Errorf("applying %s: %w (%w)", path, ErrStopped, ctx.Err())
	}
	return s, explain("applying "+path, err)
}

func (w *Workspace) guard(ctx context.Context, s *Summary, o ApplyOptions) error {
	var u *Use
	if o.Fleet != nil {
		var err error
		if u, err = Observe(ctx, o.Fleet); err != nil {
			return err
		}
	}
	if r := Guard(s, u, o.Permit); len(r) > 0 {
		return &RefusedError{r}
	}
	return nil
}
