package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"llmops/pipeline/benchmark/load"
)

// newTrafficCmd is what a run on one machine starts to stand in for clients.
func newTrafficCmd(e *env) *cobra.Command {
	var replay, name, results string
	var to []string
	var speed float64
	c := &cobra.Command{
		Use:    "traffic --replay FILE --to URL --name MODEL",
		Short:  "Replay a recording of requests until interrupted",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if replay == "" || len(to) == 0 || name == "" {
				return usage("traffic needs --replay, --to and --name")
			}
			return e.replay(cmd.Context(), replay, to, name, results, speed)
		},
	}
	c.Flags().StringVar(&replay, "replay", "", "a file of requests with their times")
	c.Flags().StringSliceVar(&to, "to", nil, "where to send them; of several, one after the other")
	c.Flags().StringVar(&name, "name", "", "the model to ask for")
	c.Flags().StringVar(&results, "results", "", "a file for what happened to each request")
	c.Flags().Float64Var(&speed, "speed", 1, "how many times faster than recorded")
	return c
}

// inTurn sends each request to the next target, as what stands before routers does.
func inTurn(all []load.Target) load.Target {
	var next atomic.Uint64
	return func(ctx context.Context, r *load.Request, now func() time.Duration, res *load.Result) {
		all[(next.Add(1)-1)%uint64(len(all))](ctx, r, now, res)
	}
}

func (e *env) replay(ctx context.Context, path string, to []string, name, results string, speed float64) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening traffic: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	t, err := load.ReadTraffic(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	pacer, source, err := t.Replay(name, strconv.FormatInt(time.Now().UnixNano(), 36), speed)
	if err != nil {
		return err
	}
	record := func(*load.Result) error { return nil }
	if results != "" {
		out, err := os.Create(results)
		if err != nil {
			return fmt.Errorf("recording results: %w", err)
		}
		defer func() { _ = out.Close() }()
		record = func(r *load.Result) error { return load.Write(out, r) }
	}
	client := load.NewClient()
	defer client.Close()
	ok, failed := 0, 0
	var targets []load.Target
	for _, base := range to {
		targets = append(targets, client.Target(base, nil))
	}
	_, err = load.Run(ctx, inTurn(targets), pacer, source, load.Options{MaxOpen: 1000, Timeout: time.Minute}, func(r *load.Result) {
		if err := record(r); err != nil {
			failed++
			e.say("recording request %d: %v", r.ID, err)
		}
		switch {
		case r.OK():
			ok++
		case r.Kind != load.KindCancelled:
			failed++
			if failed <= 20 {
				e.say("request %d: %s: %s", r.ID, r.Kind, r.Error)
			}
		}
	})
	e.say("%d answered, %d failed", ok, failed)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}
