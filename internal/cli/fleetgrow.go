package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet/terraform"
)

// growPlan is where grow leaves its plan, so that it is not taken for somebody's own.
const growPlan = "grow.plan"

// grown is what llmops fleet grow prints; its names are an interface.
type grown struct {
	Dir string `json:"dir"`
	terraform.Growth
	Summary  *terraform.Summary  `json:"summary,omitempty"`
	Refusals []terraform.Refusal `json:"refusals"`
	Applied  bool                `json:"applied"`
}

// growing is how nodes are added.
type growing struct {
	dir          string
	most         map[string]int
	after, every time.Duration
	yes          bool
}

func newFleetGrowCmd(e *env) *cobra.Command {
	var g growing
	var most []string
	c := &cobra.Command{
		Use:   "grow DIR --most POOL=N",
		Short: "Add the nodes that replicas wait for",
		Long: `Grow asks the fleet that --fleet names which replicas have no place for want of room,
and adds as many nodes to their pools as would take them: it writes the variable
more_nodes into DIR/` + terraform.MoreFile + `, plans, and applies that plan if it does nothing
but add those nodes. --most says how many nodes beside its plan a pool may ever have.

  llmops fleet grow infra/prod --fleet prod.yaml --most interactive=4
  llmops fleet grow infra/prod --fleet prod.yaml --most interactive=4 --every 1m --after 10m --yes

Nodes that were made and have not joined yet are waited for. A constraint that no node
meets is not helped by one more, and adds none. Nothing is ever taken away: to give
nodes back, drain them, lower more_nodes, plan and apply.

Exit status is 3 when a replica waits that gets no node, and says why. With --every it
looks again until it is stopped.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			g.dir = args[0]
			if g.most, err = mostNodes(most); err != nil {
				return err
			}
			switch {
			case g.every < 0 || g.after < 0:
				return usage("--every %v, --after %v: want no negative times", g.every, g.after)
			case g.after > 0 && g.every == 0:
				return usage("--after needs --every: one look does not see how long a replica has waited")
			case !g.yes && (g.every > 0 || !isTerminal(e.in)):
				return usage("fleet grow needs --yes with --every and without a terminal")
			}
			return e.fleetGrow(cmd.Context(), g)
		},
	}
	c.Flags().StringArrayVar(&most, "most", nil, "POOL=N: the most nodes that the pool may have beside its plan; may be repeated")
	c.Flags().DurationVar(&g.every, "every", 0, "look again so often; default: once")
	c.Flags().DurationVar(&g.after, "after", 0, "how long room must have been short before nodes are added")
	c.Flags().BoolVar(&g.yes, "yes", false, "do not ask")
	return c
}

func mostNodes(flags []string) (map[string]int, error) {
	if len(flags) == 0 {
		return nil, usage("fleet grow needs --most POOL=N: how many nodes it may add to a pool")
	}
	out := map[string]int{}
	for _, f := range flags {
		pool, text, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || pool == "" {
			return nil, usage("--most %s: want POOL=N with N of 1 or more", f)
		}
		out[pool] = n
	}
	return out, nil
}

func (e *env) fleetGrow(ctx context.Context, g growing) error {
	h, err := e.named()
	if err != nil {
		return err
	}
	if h == nil {
		return usage("fleet grow needs --fleet: the fleet knows which replicas have no place")
	}
	w, err := e.openTerraform(ctx, g.dir, &beforeOutputs{to: e.err})
	if err != nil {
		return err
	}
	if g.every == 0 {
		out, err := e.growOnce(ctx, w, h, g, nil)
		if out == nil {
			return err
		}
		return errors.Join(e.answerGrown(*out), err)
	}
	patience, said := terraform.Patience{}, ""
	tick := time.NewTicker(g.every)
	defer tick.Stop()
	for {
		// What one look could not do, another may: a lock is given back, a zone has
		// machines again. What is refused stays so until somebody acts, and is said.
		out, err := e.growOnce(ctx, w, h, g, patience)
		var wrong *exitError
		if said == "" && errors.As(err, &wrong) && wrong.code == exitUsage {
			return err // and stays so at the next look
		}
		shown, _ := json.Marshal(out) // a struct of plain data
		if now := fmt.Sprintf("%s %v", shown, err); now != said && ctx.Err() == nil {
			said = now
			if out != nil {
				if err := e.answerGrown(*out); err != nil {
					return err
				}
			}
			if err != nil {
				e.say("%v", err)
			}
		}
		select {
		case <-ctx.Done():
			return &exitError{exitGoesOn, fmt.Errorf("stopped looking for replicas without room: %w", ctx.Err())}
		case <-tick.C:
		}
	}
}

// growOnce looks, decides and acts. Patience is nil where nothing is waited for. The
// result is nil when it did not come to a decision.
func (e *env) growOnce(ctx context.Context, w *terraform.Workspace, h *home, g growing, patience terraform.Patience) (*grown, error) {
	inv, err := w.Inventory(ctx)
	if err != nil {
		return nil, fleetError(err)
	}
	for pool := range g.most {
		if _, ok := inv.Pools[pool]; !ok {
			return nil, usage("--most %s: %s has the pools %s", pool, g.dir, strings.Join(slices.Sorted(maps.Keys(inv.Pools)), ", "))
		}
	}
	u, err := terraform.Observe(ctx, h.scheduler)
	if err != nil {
		return nil, err
	}
	out := &grown{Dir: g.dir, Growth: terraform.Grow(inv, u, g.most), Refusals: []terraform.Refusal{}}
	if patience != nil {
		out.Growth = patience.Wait(out.Growth, time.Now(), g.after)
	}
	if len(out.Add) > 0 {
		if err := e.addNodes(ctx, w, h, g, out); err != nil {
			return out, err
		}
	}
	switch {
	case len(out.Refusals) > 0:
		return out, &exitError{exitRefused, fmt.Errorf("no node was added: %d reasons stand against the plan", len(out.Refusals))}
	case len(out.Left) > 0:
		return out, &exitError{exitRefused, errors.New("replicas wait for room and no node was added for them")}
	}
	return out, nil
}

func (e *env) answerGrown(out grown) error {
	return e.answer(out, func(w *tabwriter.Writer) { grownTable(w, out) })
}

// addNodes plans and applies. What was planned and not begun is taken back.
func (e *env) addNodes(ctx context.Context, w *terraform.Workspace, h *home, g growing, out *grown) (err error) {
	restore, err := w.SetMore(out.More)
	if err != nil {
		return err
	}
	begun := false
	defer func() {
		if !begun {
			err = errors.Join(err, restore())
		}
	}()
	path := filepath.Join(g.dir, growPlan)
	if out.Summary, err = w.Plan(ctx, path, nil); err != nil {
		return fleetError(err)
	}
	if out.Refusals = terraform.OnlyGrows(out.Summary, out.Growth); len(out.Refusals) > 0 {
		return nil
	}
	o := terraform.ApplyOptions{Fleet: h.scheduler, Confirm: func(s *terraform.Summary) (bool, error) {
		if g.yes {
			begun = true
			return true, nil
		}
		for _, line := range s.Words() {
			e.say("%s", line)
		}
		yes, err := e.ask(ctx, "Go on?")
		begun = yes && err == nil
		return yes, err
	}}
	_, err = w.Apply(ctx, path, o)
	var refused *terraform.RefusedError
	if errors.As(err, &refused) {
		begun, out.Refusals = false, refused.Refusals
		return nil
	}
	out.Applied = err == nil
	return fleetError(err)
}

func grownTable(w *tabwriter.Writer, g grown) {
	for _, pool := range slices.Sorted(maps.Keys(g.Add)) {
		row(w, fmt.Sprintf("pool %s: %d more nodes, for %s", pool, g.Add[pool], strings.Join(g.Why[pool], ", ")))
	}
	if g.Summary != nil {
		for _, line := range g.Summary.Words() {
			row(w, line)
		}
	}
	for _, r := range g.Refusals {
		row(w, "refused: "+r.String())
	}
	for _, l := range g.Left {
		row(w, l)
	}
	switch {
	case g.Applied:
		row(w, "applied")
	case len(g.Add)+len(g.Left) == 0:
		row(w, "no replica waits for room")
	}
}
