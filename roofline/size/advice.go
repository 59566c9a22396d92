package size

import (
	"fmt"
	"math"
)

// Compare adds what the comparison of layouts and pools comes to, once. It costs more
// than all other numbers together, which most uses of a sheet do not need.
func (s *Sheet) Compare() {
	if s.compared {
		return
	}
	s.compared = true
	all := s.In.options()
	if best := ranked(all); len(best) > 0 {
		s.prose("layout.best_tp", Count, float64(best[0].TP), "GPUs a layer that give the most output", "the layout.tp with the most decode.limit_rate of a node within slo.tpot")
		s.prose("layout.best_rate", TokenRate, best[0].Rate, "that output", "decode.limit_rate with a layout.tp of layout.best_tp")
	}
	if holds, keeps := smallest(all); holds != nil {
		s.prose("layout.smallest_tp", Count, float64(holds.TP), "GPUs a layer that hold it, at least", "the least layout.tp that leaves kv.pool_tokens for a prompt of kv.seen_long")
		if keeps != nil {
			s.prose("layout.smallest_keeping_tp", Count, float64(keeps.TP), "and keep the service level", "the least layout.tp from layout.smallest_tp on with a decode.limit_batch within slo.tpot")
		}
	}
	for _, f := range s.In.flips([]string{"slo.tpot"}, Inputs.bestName) {
		if f.At > f.From {
			s.prose("layout.flip_tpot", Seconds, f.At, "TPOT from which "+f.To+" gives more", "the slo.tpot at which the layout.tp of most decode.limit_rate changes")
		}
	}
	const names = "steps of streams, of which some have a piece of a prompt, by fleet.decode_demand, fleet.prefill_demand, prefill.chunk, decode.rate, prefill.rate, the headroom of decode.limit_batch, prefill.collectives and slo.tpot"
	nodes, byTPOT, stall := s.together()
	if !math.IsInf(byTPOT, 1) {
		s.prose("fleet.together_tpot", Count, byTPOT, "nodes that do both and keep TPOT", "least nodes for "+names)
	}
	if !math.IsInf(nodes, 1) {
		s.prose("fleet.together", Count, nodes, "nodes that do both and keep TTFT too", "least nodes for "+names+", and for ttft.p95 of a prompt amid streams within slo.ttft")
		s.prose("fleet.together_stall", Seconds, stall, "the longest gap between tokens there", "a step of that batch and of prefill.chunk tokens of prefill.prompt, for fleet.together")
		s.add("fleet.apart_saves", Share, 1-s.Value("fleet.capacity")/nodes, "saved by two pools", "1 - fleet.capacity / fleet.together")
	}
}

// Advice is what to deploy, and what would change it.
type Advice struct {
	Options  []Option `json:"options"`
	Best     *Option  `json:"best,omitempty"`
	RunnerUp *Option  `json:"runner_up,omitempty"`
	Holds    *Option  `json:"smallest_that_holds,omitempty"`
	Keeps    *Option  `json:"smallest_that_keeps,omitempty"`
	Reason   string   `json:"reason"`
	Flips    []Flip   `json:"flips"`
	Pools    Pools    `json:"pools"`

	// Replicas are the copies to run, of all nodes: Decode of them and Prefill apart,
	// or Together.
	Decode   int `json:"decode_replicas,omitempty"`
	Prefill  int `json:"prefill_replicas,omitempty"`
	Together int `json:"replicas,omitempty"`
}

// replicas deals the fleet's nodes to both pools by what each needs.
func (a *Advice) replicas(s *Sheet) {
	copies := s.Value("layout.copies")
	nodes, need := s.Value("fleet.nodes"), s.Value("fleet.decode_nodes")
	if a.Pools.Choice == NoPools {
		return
	}
	if a.Pools.Choice == OnePool {
		if t := a.Pools.Together; t > 0 {
			a.Together = int(copies * (math.Ceil(s.In.Number("fleet.headroom")*t) + s.In.Number("fleet.spare")))
		}
		return
	}
	decode := max(math.Round(nodes*need/s.Value("fleet.capacity")), math.Ceil(need))
	a.Decode, a.Prefill = int(copies*decode), int(copies*(nodes-decode))
}

// Recommend compares layouts, and one pool with two.
func Recommend(s *Sheet) Advice {
	a := Advice{Options: s.In.options()}
	best := ranked(a.Options)
	a.Holds, a.Keeps = smallest(a.Options)
	limit := Seconds.Format(s.In.Number("slo.tpot"))
	switch len(best) {
	case 0:
		a.Reason = "no layout keeps a TPOT of " + limit + ": fewer bits, a faster GPU or a slower promise"
	case 1:
		a.Best, a.Reason = &best[0], fmt.Sprintf("the only layout that keeps a TPOT of %s", limit)
	default:
		a.Best, a.RunnerUp = &best[0], &best[1]
		a.Reason = fmt.Sprintf("%s a node within %s, %s for the runner-up, %s", TokenRate.Format(best[0].Rate), limit, TokenRate.Format(best[1].Rate), best[1].Name())
	}
	if len(best) > 0 {
		a.Flips = s.In.flips(layoutKeys, Inputs.bestName)
	}
	a.Pools = s.pools()
	a.replicas(s)
	a.Pools.Flips = s.In.flips(poolKeys, func(in Inputs) string {
		t, err := Compute(in)
		if err != nil {
			return "nothing that fits"
		}
		return t.pools().Choice
	})
	return a
}
