package cli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/internal/config"
	"llmops/serving/sim"
)

func newEngineSimulateCmd(e *env) *cobra.Command {
	var seed uint64
	c := &cobra.Command{
		Use:   "simulate SCENARIO",
		Short: "Run a fleet of estimated engines on a virtual clock",
		Long: `Simulate runs the engine's scheduler and the router's choice over replicas whose
steps take what a named GPU would need, under the traffic and the faults of a
scenario, and says what requests and replicas met. An hour of a fleet takes
seconds; the same scenario and seed give the same answer to the last digit.

  llmops engine simulate examples/simulate/fleet.yaml
  llmops engine simulate examples/simulate/fleet.yaml --seed 2 --output json

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := config.Scenario(args[0])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if cmd.Flags().Changed("seed") {
				s.Seed = seed
			}
			begun := time.Now()
			r, err := sim.Run(cmd.Context(), s)
			if err != nil {
				return fmt.Errorf("simulating %s: %w", args[0], err)
			}
			e.say("simulated %v of traffic and %d steps in %.1f s", s.Duration, r.Engines.Steps, time.Since(begun).Seconds())
			return e.answer(r, func(w *tabwriter.Writer) { simulated(w, r) })
		},
	}
	c.Flags().Uint64Var(&seed, "seed", 1, "of everything that is drawn; default: the scenario's")
	return c
}

// seriesRows is how many moments of a series a table shows.
const seriesRows = 12

func simulated(w *tabwriter.Writer, r *sim.Result) {
	row(w, fmt.Sprintf("%d nodes, %d replicas: %s", r.Nodes, len(r.Replicas), r.Engine))
	row(w, fmt.Sprintf("%d tokens of cache a replica; %.0f s after %.0f s of warm-up; seed %d", r.KVTokens, r.Seconds, r.WarmupSeconds, r.Seed))
	row(w)
	row(w, "TENANT", "ARRIVED", "FINISHED", "REJECTED", "FAILED", "OPEN", "TTFT p50/p95/p99", "TPOT p50/p95/p99", "E2E p50/p95/p99", "GOOD", "GOOD/S", "CACHED", "TOKENS/S")
	groups := r.Tenants
	if len(groups) > 1 {
		groups = append(groups[:len(groups):len(groups)], r.Total)
	}
	for _, g := range groups {
		row(w, g.Name, g.Arrived, g.Finished, g.Rejected, g.Failed, g.Unfinished, millis(g.TTFT, 0), millis(g.TPOT, 2), millis(g.E2E, 0),
			percent(g.GoodShare), fmt.Sprintf("%.1f", g.GoodPerSecond), percent(g.CachedShare), fmt.Sprintf("%.0f", g.OutputPerSecond))
	}
	row(w)
	x := r.Engines
	row(w, "ENGINES", "TOKENS/S", "A NODE", "PROMPT/S", "BATCH", "BUSY", "KV MEAN", "KV PEAK", "PREFIX HITS", "PREEMPTED", "RECOMPUTED", "HOT SPOT")
	row(w, "all", fmt.Sprintf("%.0f", x.OutputPerSecond), fmt.Sprintf("%.0f", x.NodeOutputPerSecond), fmt.Sprintf("%.0f", x.PromptPerSecond), fmt.Sprintf("%.1f", x.Batch),
		percent(x.Busy), percent(x.KVUse), percent(x.KVPeak), percent(x.PrefixHitShare), x.Preemptions,
		fmt.Sprintf("%d (%s)", x.RecomputedTokens, percent(x.RecomputedShare)), fmt.Sprintf("%.2f", r.HotSpot))
	row(w)
	row(w, "AT", "ARRIVED", "FINISHED", "GOOD", "REJECTED", "RUNNING", "WAITING", "QUEUED", "KV", "TOKENS", "RECOMPUTED", "PREEMPTED", "TTFT p95", "TPOT p95")
	every := max(1, (len(r.Series)+seriesRows-1)/seriesRows)
	for i := every - 1; i < len(r.Series); i += every {
		m := r.Series[i]
		row(w, time.Duration(m.Seconds*float64(time.Second)).Round(time.Millisecond), m.Arrived, m.Finished, m.Good, m.Rejected, m.Running, m.Waiting, m.Queued, percent(m.KVUse),
			m.OutputTokens, m.RecomputedTokens, m.Preemptions, fmt.Sprintf("%.0f ms", m.TTFTp95), fmt.Sprintf("%.1f ms", m.TPOTp95))
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

func millis(s *sim.Spread, digits int) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f/%.*f/%.*f ms", digits, s.P50, digits, s.P95, digits, s.P99)
}
