package size

import (
	"fmt"
	"math"
)

// together is how many nodes it takes when each of them prefills and decodes. A node
// decodes for what its share of the prefill leaves of the time, so that tokens come so
// much later, and its batch must be the smaller: the least N for which
//
//	prefill = prefill_nodes / N
//	batch   = largest with step(batch) ≤ slo.tpot · (1 − prefill), less the headroom
//	N · copies · batch / step(batch) · (1 − prefill) ≥ decode_demand
//
// +Inf when no number does. Only the mean is kept so: a prompt that is not cut into
// chunks stalls a stream for its whole time.
func (s *Sheet) together() float64 {
	in, r := s.In, s.decode
	prefill, demand, copies := s.Value("fleet.prefill_nodes"), s.Value("fleet.decode_demand"), s.Value("layout.copies")
	context := int(in.Number("traffic.context"))
	keep := 1.0
	if limit := s.Value("decode.limit_batch"); limit > in.Number("layout.batch") {
		keep = in.Number("layout.batch") / limit
	}
	// What was measured replaces the model by as much at any batch.
	reached := s.Value("decode.rate") / s.Value("decode.modelled")
	enough := func(n float64) bool {
		left := 1 - prefill/n
		if left <= 0 {
			return false
		}
		batch := int(keep * float64(r.LargestBatch(in.Number("slo.tpot")*left, context)))
		if batch < 1 {
			return false
		}
		return n*copies*float64(batch)/r.DecodeStep(batch, context).Seconds*left*reached >= demand
	}
	lo, hi := 0.0, 1.0
	for ; !enough(hi); hi *= 2 {
		if hi > 1e9 {
			return math.Inf(1)
		}
		lo = hi
	}
	for range 60 {
		if mid := (lo + hi) / 2; enough(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// Pools is whether prefill and decode should have nodes of their own.
type Pools struct {
	Apart    bool    `json:"apart"`
	Nodes    float64 `json:"nodes_apart"`
	Together float64 `json:"nodes_together"` // 0: no number of nodes keeps the service level
	Saves    float64 `json:"saves"`          // of the nodes together
	Reason   string  `json:"reason"`
	Flips    []Flip  `json:"flips"`
}

// pools decides: a second pool has to save the nodes that it is asked to, and the
// transfer has to leave the first token within its service level.
func (s *Sheet) pools() Pools {
	in := s.In
	p := Pools{Nodes: s.Value("fleet.capacity"), Together: s.together()}
	ttft, slo := s.Value("transfer.ttft_p95"), in.Number("slo.ttft")
	never := math.IsInf(p.Together, 1)
	p.Saves = 1
	if !never {
		p.Saves = 1 - p.Nodes/p.Together
	}
	nodes := fmt.Sprintf("%s nodes apart, %s together", digits(p.Nodes), digits(p.Together))
	if never {
		p.Together, nodes = 0, fmt.Sprintf("%s nodes apart; together no number keeps TPOT", digits(p.Nodes))
	}
	transfer := fmt.Sprintf("the transfer makes TTFT p95 %s of %s", Seconds.Format(ttft), Seconds.Format(slo))
	switch {
	case s.Value("fleet.prefill_demand") == 0:
		p.Reason = "nothing is prefilled"
	case p.Saves < in.Number("layout.gain"):
		p.Reason = fmt.Sprintf("%s: a second pool saves %s, less than the %s that it is worth; prefill in chunks instead", nodes, Share.Format(p.Saves), Share.Format(in.Number("layout.gain")))
	case ttft > slo:
		p.Reason = fmt.Sprintf("%s, but %s: bring them closer, or send layers as they are done", nodes, transfer)
	default:
		p.Apart = true
		p.Reason = fmt.Sprintf("%s: a second pool saves %s; %s", nodes, Share.Format(p.Saves), transfer)
	}
	return p
}

func (p Pools) name() string {
	if p.Apart {
		return "two pools"
	}
	return "one pool"
}
