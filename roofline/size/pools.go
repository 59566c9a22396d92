package size

import (
	"fmt"
	"math"
	"sort"

	"llmops/roofline"
)

// together is how many nodes it takes when each of them prefills and decodes, as engines
// do that cut prompts into chunks: a step takes the next token of each stream and some
// tokens of prompts, which share the reading of the weights. With chunk tokens of
// prompts for each that is decoded, the batch is the largest for which
//
//	step(batch, chunk · batch) ≤ slo.tpot, less the headroom that is stated, and
//	hops + prompt / most · slo.tpot ≤ slo.ttft, most: step(batch, most) = slo.tpot
//
// and nodes = decode_demand · step(batch, chunk · batch) / (copies · batch). The second
// is what one pool pays for a prompt: it may not go faster than the streams beside it
// allow. Without the second it is byTPOT. Both are +Inf when no batch does.
func (s *Sheet) together() (nodes, byTPOT float64) {
	in, v := s.In, s.Value
	limit, prompt := in.Number("slo.tpot"), in.Number("prefill.prompt")
	// What was measured replaces the model by as much in any step.
	reached := v("decode.rate") / v("decode.modelled")
	chunk := v("fleet.prefill_demand") / v("fleet.decode_demand") * v("prefill.modelled") / v("prefill.rate")
	fits := int(v("kv.streams") / v("layout.copies"))
	step := func(batch int) float64 { return s.mixed(batch, chunk*float64(batch)).Seconds }
	most := sort.Search(fits, func(i int) bool { return step(i+1) > limit })
	if edge := v("decode.limit_batch"); edge > in.Number("layout.batch") {
		most = int(float64(most) * in.Number("layout.batch") / edge)
	}
	quick := sort.Search(most, func(i int) bool {
		return v("ttft.hops_p95")+in.Number("hops.prefill_spread")+s.amid(i+1, prompt, limit) > in.Number("slo.ttft")
	})
	of := func(batch int) float64 {
		if batch < 1 {
			return math.Inf(1)
		}
		return v("fleet.decode_demand") * step(batch) / (v("layout.copies") * float64(batch) * reached)
	}
	return of(quick), of(most)
}

// mixed is a step of a batch and some tokens of prompts.
func (s *Sheet) mixed(batch int, tokens float64) roofline.Step {
	r := s.decode
	var whole roofline.Work
	prompt := int(s.In.Number("prefill.prompt"))
	r.Prefill(&whole, 0, prompt)
	return r.Step(roofline.Work{
		DecodeRows: batch, PrefillTokens: int(math.Round(tokens)),
		ContextTokens:  float64(batch) * r.Seen(s.In.Number("traffic.context")),
		SquaredLengths: whole.SquaredLengths / float64(prompt) * tokens,
	})
}

// amid is how long a prompt takes beside a batch whose steps may take limit.
func (s *Sheet) amid(batch int, prompt, limit float64) float64 {
	chunk := sort.Search(int(prompt), func(i int) bool { return s.mixed(batch, float64(i+1)).Seconds > limit })
	switch {
	case chunk == 0:
		return math.Inf(1)
	case chunk >= int(prompt):
		return s.mixed(batch, prompt).Seconds
	}
	return prompt / float64(chunk) * limit
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
	together, byTPOT := s.together()
	nodes := fmt.Sprintf("%s nodes apart, %s together", digits(p.Nodes), digits(together))
	switch {
	case !math.IsInf(together, 1):
		p.Together, p.ByTPOT, p.Saves = together, byTPOT, 1-p.Nodes/together
		if together > byTPOT*(1+1e-9) {
			nodes += fmt.Sprintf(" (%s but for TTFT: beside streams a prompt is slower)", digits(byTPOT))
		}
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
