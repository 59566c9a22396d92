package roofline

import "sort"

// Work is what one step computes. The zero Work is nothing; a Roof adds to it.
type Work struct {
	DecodeRows     int     // sequences that get their next token
	PrefillTokens  int     // of prompts
	ContextTokens  float64 // read from the cache, summed over sequences, in the mean of the layers
	SquaredLengths float64 // end² - start², summed over pieces of prompts, in the mean of the layers
}

// Decode adds the next token of a sequence that has context tokens, itself included.
func (r *Roof) Decode(w *Work, context int) {
	w.DecodeRows++
	w.ContextTokens += r.Seen(float64(context))
}

// Prefill adds n tokens of a prompt of which start are computed.
func (r *Roof) Prefill(w *Work, start, n int) {
	w.PrefillTokens += n
	w.ContextTokens += r.Seen(float64(start + n))
	from, end := float64(start), float64(start+n)
	full := end*end - from*from
	w.SquaredLengths += (1-r.sliding)*full + r.sliding*r.slid(from, end)
}

// slid is end² - start² where no token looks further back than the window.
func (r *Roof) slid(from, end float64) float64 {
	look := float64(r.window)
	switch {
	case end <= look:
		return end*end - from*from
	case from >= look:
		return 2 * look * (end - from)
	}
	return look*look - from*from + 2*look*(end-look)
}

// Step is how long a step takes and of what.
type Step struct {
	MemorySeconds    float64 `json:"memory_seconds"` // reading weights and cache
	ComputeSeconds   float64 `json:"compute_seconds"`
	AllReduceSeconds float64 `json:"all_reduce_seconds"` // all collectives, hidden or not
	FixedSeconds     float64 `json:"fixed_seconds"`
	RooflineSeconds  float64 `json:"roofline_seconds"` // the larger of the first two, and the others
	Seconds          float64 `json:"seconds"`          // what is left of it end to end
}

// ComputeBound tells which roof the step stands on.
func (s Step) ComputeBound() bool { return s.ComputeSeconds > s.MemorySeconds }

// Step times w. Attention counts as arithmetic in prefill and as reading in
// decoding, where it does some FLOPs for each byte. Over the stages of a pipeline it
// is the way of one part of the batch through all of them.
func (r *Roof) Step(w Work) Step {
	tokens := w.DecodeRows + w.PrefillTokens
	if tokens == 0 {
		return Step{}
	}
	a := &r.d.Assume
	s := Step{
		MemorySeconds:  (r.ReadBytesGPU(float64(tokens)) + w.ContextTokens/r.parts*r.kvBytesGPU) / r.hbmBytesPerSec,
		ComputeSeconds: (2*r.active*float64(tokens) + r.attentionFLOPs*w.SquaredLengths) / r.parts / r.flopsPerSec,
		FixedSeconds:   a.FixedSeconds,
	}
	reduced := w.DecodeRows
	if a.PrefillCollectives {
		reduced = tokens
	}
	if reduced > 0 {
		s.AllReduceSeconds = r.collectives(float64(reduced))
	}
	hidden := a.OverlapShare * s.AllReduceSeconds
	s.RooflineSeconds = max(s.MemorySeconds, s.ComputeSeconds, hidden) + s.AllReduceSeconds - hidden + s.FixedSeconds
	s.Seconds = s.RooflineSeconds / a.EndToEndShare
	return s
}

func (r *Roof) collectives(tokens float64) float64 {
	return tokens/r.parts*r.collectiveSecPerTok + r.collectiveSecLatency
}

// DecodeStep is a step of batch sequences with context tokens each: its Seconds
// are the time per output token.
func (r *Roof) DecodeStep(batch, context int) Step {
	return r.Step(Work{DecodeRows: batch, ContextTokens: float64(batch) * r.Seen(float64(context))})
}

// CeilingsGPU are the two roofs of one GPU, as much of either as is taken to be reached.
func (r *Roof) CeilingsGPU() (bytesPerSecond, flopsPerSecond float64) {
	return r.hbmBytesPerSec, r.flopsPerSec / float64(r.d.TensorParallel)
}

// Intensity is how many operations s does for each byte that it reads.
func (r *Roof) Intensity(s Step) float64 {
	bytes, flops := r.CeilingsGPU()
	return s.ComputeSeconds * flops / (s.MemorySeconds * bytes)
}

// Knee is the batch at which reading the cache takes as long as reading the
// weights. Below it a larger batch is nearly free, above it each sequence is paid.
func (r *Roof) Knee(context int) float64 {
	weights := r.WeightBytesGPU() * float64(max(r.d.PipelineParallel, 1))
	return weights / (r.Seen(float64(context)) / r.parts * r.kvBytesGPU)
}

// LargestBatch is how many sequences of context tokens fit into the cache and get
// a token in at most tpotSeconds; 0 when not even one does.
func (r *Roof) LargestBatch(tpotSeconds float64, context int) int {
	most := int(min(r.KVPoolTokens()/r.Seen(float64(context)), 1<<20))
	return sort.Search(most, func(i int) bool { return r.DecodeStep(i+1, context).Seconds > tpotSeconds })
}
