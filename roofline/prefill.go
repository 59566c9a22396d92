package roofline

// PrefillTime is what one prompt alone costs.
type PrefillTime struct {
	LinearFLOPs      float64 `json:"linear_flops"`
	AttentionFLOPs   float64 `json:"attention_flops"`
	ComputeSeconds   float64 `json:"compute_seconds"`
	AllReduceSeconds float64 `json:"all_reduce_seconds"` // 0 unless prefill is charged for it
	Seconds          float64 `json:"seconds"`            // what is left of both end to end
}

// AttentionShare is the attention's of all FLOPs.
func (p PrefillTime) AttentionShare() float64 {
	return p.AttentionFLOPs / (p.LinearFLOPs + p.AttentionFLOPs)
}

// PrefillPrompt times a prompt of n tokens. It goes through the stages of a pipeline
// one after the other, and is computed by one of the GPUs that experts are dealt to:
// both gain throughput by it, which PrefillRate counts, and no time.
func (r *Roof) PrefillPrompt(n int) PrefillTime {
	var w Work
	r.Prefill(&w, 0, n)
	a := &r.d.Assume
	p := PrefillTime{LinearFLOPs: 2 * r.active * float64(n), AttentionFLOPs: r.attentionFLOPs * w.SquaredLengths}
	p.ComputeSeconds = (p.LinearFLOPs + p.AttentionFLOPs) / r.flopsPerSec
	if a.PrefillCollectives {
		p.AllReduceSeconds = float64(n)*r.collectiveSecPerTok + r.collectiveSecLatency
	}
	hidden := a.OverlapShare * p.AllReduceSeconds
	p.Seconds = (max(p.ComputeSeconds, hidden) + p.AllReduceSeconds - hidden) / a.EndToEndShare
	return p
}

// PrefillRate is how many tokens a second of prompts of n the copy computes when it
// always has some.
func (r *Roof) PrefillRate(n int) float64 {
	return r.parts * float64(n) / r.PrefillPrompt(n).Seconds
}
