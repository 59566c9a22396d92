package size

import (
	"fmt"
	"math"
	"sort"

	"llmops/roofline"
)

// together is how many nodes it takes when each of them prefills and decodes, as engines
// do that cut prompts into chunks: a step takes the next token of each stream and, when
// one waits, a piece of a prompt. Streams see the mean of both kinds of steps,
//
//	piece = min(input · (1 − hits), chunk)            of a prompt, in tokens
//	share = prompt tokens for each decoded · batch / piece   of the steps have one
//	TPOT  = share · step(batch, piece) + (1 − share) · step(batch, 0)
//	nodes = decode_demand · TPOT / (copies · batch)
//
// at the largest batch that keeps slo.tpot, less the headroom that is stated, and
//
//	hops + prompt / chunk · step(batch, chunk) ≤ slo.ttft
//
// Without the last it is byTPOT; stall is the longest step of the batch. Nodes are +Inf
// when no batch does. The simulator, which draws arrivals and lengths, has the TPOT of
// this for its batch to 3 %.
func (s *Sheet) together() (nodes, byTPOT, stall float64) {
	in, v := s.In, s.Value
	fits := int(v("kv.streams") / v("layout.copies"))
	most := sort.Search(fits, func(i int) bool { return s.mean(i+1) > in.Number("slo.tpot") })
	if edge := v("decode.limit_batch"); edge > in.Number("layout.batch") {
		most = int(float64(most) * in.Number("layout.batch") / edge)
	}
	chunk := min(in.Number("prefill.chunk"), in.Number("prefill.prompt"))
	quick := sort.Search(most, func(i int) bool {
		amid := in.Number("prefill.prompt") / chunk * s.mixed(i+1, chunk)
		return v("ttft.hops_p95")+in.Number("hops.prefill_spread")+amid > in.Number("slo.ttft")
	})
	// What was measured replaces the model by as much in any step.
	reached := v("decode.rate") / v("decode.modelled")
	of := func(batch int) float64 {
		if batch < 1 {
			return math.Inf(1)
		}
		return v("fleet.decode_demand") * s.mean(batch) / (v("layout.copies") * float64(batch) * reached)
	}
	return of(quick), of(most), s.mixed(max(quick, 1), chunk)
}

// mean is the time between tokens of a batch beside the prompts of its traffic.
func (s *Sheet) mean(batch int) float64 {
	in, v := s.In, s.Value
	piece := min(in.Number("traffic.input")*(1-in.Number("traffic.prefix_hits")), in.Number("prefill.chunk"))
	tokens := v("fleet.prefill_demand") / v("fleet.decode_demand") * float64(batch) * v("prefill.modelled") / v("prefill.rate")
	if tokens == 0 {
		return s.mixed(batch, 0)
	}
	piece = max(piece, tokens) // several in a step
	share := tokens / piece
	return share*s.mixed(batch, piece) + (1-share)*s.mixed(batch, 0)
}

// mixed is a step of a batch and some tokens of prompts, in seconds.
func (s *Sheet) mixed(batch int, tokens float64) float64 {
	r := s.decode
	var whole roofline.Work
	prompt := int(s.In.Number("prefill.prompt"))
	r.Prefill(&whole, 0, prompt)
	return r.Step(roofline.Work{
		DecodeRows: batch, PrefillTokens: int(math.Round(tokens)),
		ContextTokens:  float64(batch) * r.Seen(s.In.Number("traffic.context")),
		SquaredLengths: whole.SquaredLengths / float64(prompt) * tokens,
	}).Seconds
}

// The choices of Pools.
const (
	TwoPools = "two pools"
	OnePool  = "one pool"
	NoPools  = "neither" // keeps the service level of the first token
)

// Pools is whether prefill and decode should have nodes of their own.
type Pools struct {
	Choice   string  `json:"choice"`
	Nodes    float64 `json:"nodes_apart"`
	Together float64 `json:"nodes_together"`         // 0: no number of nodes keeps the service level
	ByTPOT   float64 `json:"nodes_together_by_tpot"` // without that of the first token; 0: none
	Saves    float64 `json:"saves"`                  // of the nodes together
	Reason   string  `json:"reason"`
	Flips    []Flip  `json:"flips"`
}

// pools decides: a second pool has to save the nodes that it is asked to, and the
// transfer has to leave the first token within its service level.
func (s *Sheet) pools() Pools {
	in := s.In
	p := Pools{Choice: OnePool, Nodes: s.Value("fleet.capacity"), Saves: 1}
	together, byTPOT, stall := s.together()
	nodes := fmt.Sprintf("%s nodes apart, %s together", digits(p.Nodes), digits(together))
	switch {
	case !math.IsInf(together, 1):
		p.Together, p.ByTPOT, p.Saves = together, byTPOT, 1-p.Nodes/together
		if together > byTPOT*(1+1e-9) {
			nodes += fmt.Sprintf(" (%s but for TTFT)", digits(byTPOT))
		}
		nodes += fmt.Sprintf(", where a prompt stalls streams for %s", Seconds.Format(stall))
	case !math.IsInf(byTPOT, 1):
		p.ByTPOT = byTPOT
		nodes = fmt.Sprintf("%s nodes apart; together no number keeps TTFT, and %s keep TPOT", digits(p.Nodes), digits(byTPOT))
	default:
		nodes = fmt.Sprintf("%s nodes apart; together no number keeps TPOT", digits(p.Nodes))
	}
	ttft, slo := s.Value("transfer.ttft_p95"), in.Number("slo.ttft")
	transfer := fmt.Sprintf("the transfer makes TTFT p95 %s of %s", Seconds.Format(ttft), Seconds.Format(slo))
	switch {
	case s.Value("fleet.prefill_demand") == 0:
		p.Reason = "nothing is prefilled"
	case p.Saves < in.Number("layout.gain"):
		p.Reason = fmt.Sprintf("%s: a second pool saves %s, less than the %s that it is worth", nodes, Share.Format(p.Saves), Share.Format(in.Number("layout.gain")))
	case ttft > slo && p.Together == 0:
		p.Choice, p.Reason = NoPools, fmt.Sprintf("%s; apart %s", nodes, transfer)
	case ttft > slo:
		p.Reason = fmt.Sprintf("%s, but %s: bring them closer, or send layers as they are done", nodes, transfer)
	default:
		p.Choice = TwoPools
		p.Reason = fmt.Sprintf("%s: a second pool saves %s; %s", nodes, Share.Format(p.Saves), transfer)
	}
	return p
}
