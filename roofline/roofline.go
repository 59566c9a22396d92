// Package roofline says what a model on a GPU can reach: pure arithmetic from
// data-sheet figures, a model's shape and a handful of assumptions that it shows.
//
// A [GPU] is a row of the catalogue, every figure with its source and what it
// counts. A [Deployment] is one copy of a model over some GPUs; [New] prepares it
// and the [Roof] answers how long a step or a prefill takes and on which of the
// roofs it stands, how many tokens the cache holds, where batching stops being
// nearly free, and the largest batch under a bound of time.
//
// Everything is a value or immutable, safe for concurrent use, and allocates
// nothing. Sizes are in bytes (decimal: 1 GB is 10⁹), times in seconds, and each
// name says so. It measures nothing, knows no queue and no price; the layers of a
// mixture of experts are assumed to be routed evenly, and of models with sliding
// windows only those count whose layers all slide.
package roofline

import (
	"fmt"
	"math"
	"sort"

	"llmops/model"
)

// Assumptions stand between a data sheet and what is reached. Each is there to be
// measured and replaced.
type Assumptions struct {
	HBMShare      float64 // of the peak bandwidth that decoding reaches
	FLOPShare     float64 // of the peak arithmetic that large products reach
	LinkShare     float64 // of a link's peak that an all-reduce reaches
	EndToEndShare float64 // of the roofline that is left after gaps, ragged batches and sampling
	ReserveShare  float64 // of the memory that is kept for activations, workspace and fragmentation

	FixedSeconds      float64 // a step's scheduling, sampling and detokenising
	CollectiveSeconds float64 // latency of one all-reduce

	// LinkBytesPerSecond is what an all-reduce reaches in one direction, in the
	// place of the GPU's own link: across nodes, say. 0: the GPU's.
	LinkBytesPerSecond float64

	// PrefillCollectives charges prefill the all-reduces that decoding always
	// pays for. The published design that the other defaults are from leaves them
	// out, and takes a prefill for about a third shorter than its own formula says.
	PrefillCollectives bool
}

// Assumed are the assumptions of a published sizing of a 70B model on eight GPUs.
func Assumed() Assumptions {
	return Assumptions{
		HBMShare: 0.70, FLOPShare: 0.40, LinkShare: 0.67, EndToEndShare: 0.60, ReserveShare: 0.15,
		FixedSeconds: 1.5e-3, CollectiveSeconds: 8e-6,
	}
}

func (a Assumptions) check() error {
	for _, f := range []struct {
		name  string
		share float64
	}{{"HBM", a.HBMShare}, {"FLOP", a.FLOPShare}, {"link", a.LinkShare}, {"end-to-end", a.EndToEndShare}} {
		if !(f.share > 0 && f.share <= 1) {
			return fmt.Errorf("a %s share of %v: want more than 0 and at most 1", f.name, f.share)
		}
	}
	if !(a.ReserveShare >= 0 && a.ReserveShare < 1) {
		return fmt.Errorf("a reserve of %v of the memory: want at least 0 and less than 1", a.ReserveShare)
	}
	if !(a.FixedSeconds >= 0 && a.CollectiveSeconds >= 0 && a.LinkBytesPerSecond >= 0) {
		return fmt.Errorf("a fixed time of %v s, a latency of %v s and a link of %v B/s: none may be negative", a.FixedSeconds, a.CollectiveSeconds, a.LinkBytesPerSecond)
	}
	return nil
}

// Deployment is one copy of a model.
type Deployment struct {
	GPU            GPU
	TensorParallel int // GPUs that each layer is split over
	Shape          model.Shape
	Parameters     float64 // 0: the shape's
	WeightBytes    float64 // a parameter: 2 for bf16, 1 for fp8, about 0.53 for int4 with its scales
	KVBytes        float64 // an element of the cache
	FP8Arithmetic  bool    // products at the GPU's fp8 rate, not its bf16 rate
	Assume         Assumptions
}

// Roof is a Deployment with its arithmetic prepared.
type Roof struct {
	d Deployment

	weightBytes      float64 // of the whole copy
	denseBytes       float64 // read by any step, over all GPUs
	expertBytes      float64 // of all experts, over all GPUs
	idle             float64 // share of the experts that one token leaves out
	active           float64 // parameters that a token is multiplied with
	kvBytes          float64 // a token, of one copy of the cache
	kvBytesGPU       float64 // a token on each GPU
	attentionFLOPs   float64 // times N², for a prompt of N
	window           int     // tokens that attention looks back; 0: all
	hbmBytesPerSec   float64 // reached, of one GPU
	flopsPerSec      float64 // reached, of all GPUs
	reduceSecPerTok  float64
	reduceSecLatency float64
}

// New prepares d. It does not ask whether the weights fit: KVPoolBytes says by how
// much they do not.
func New(d Deployment) (*Roof, error) {
	s := d.Shape
	switch {
	case d.TensorParallel < 1:
		return nil, fmt.Errorf("a model over %d GPUs: want at least 1", d.TensorParallel)
	case s.Layers < 1 || s.Hidden < 1 || s.Heads < 1 || s.KVHeads < 1 || s.HeadDim < 1:
		return nil, fmt.Errorf("a shape of %d layers, %d wide, %d and %d heads of %d: want each at least 1", s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim)
	case s.Heads%d.TensorParallel != 0:
		return nil, fmt.Errorf("%d heads cannot be split over %d GPUs", s.Heads, d.TensorParallel)
	case !(d.WeightBytes > 0 && d.KVBytes > 0 && d.Parameters >= 0):
		return nil, fmt.Errorf("%v bytes a weight, %v bytes an element of the cache, %v parameters: want the first two above 0, the last not below", d.WeightBytes, d.KVBytes, d.Parameters)
	}
	if err := d.Assume.check(); err != nil {
		return nil, err
	}
	flops := d.GPU.BF16
	if d.FP8Arithmetic {
		flops = d.GPU.FP8
	}
	link, err := d.link()
	if err != nil {
		return nil, err
	}
	if d.GPU.Memory.Value <= 0 || d.GPU.Bandwidth.Value <= 0 || flops.Value <= 0 {
		return nil, fmt.Errorf("GPU %q has no figure for memory, bandwidth or this arithmetic", d.GPU.Name)
	}

	tp := float64(d.TensorParallel)
	r := &Roof{d: d, kvBytes: s.KVBytesPerToken(d.KVBytes)}
	all, active := float64(s.Parameters()), float64(s.ActiveParameters())
	if d.Parameters > 0 {
		active *= d.Parameters / all
		all = d.Parameters
		if s.Experts.Count == 0 {
			active = all // a published count is taken for both
		}
	}
	r.active, r.weightBytes, r.denseBytes = active, all*d.WeightBytes, all*d.WeightBytes
	if n := s.Experts.Count; n > 0 {
		// all - active are the experts that a token does not choose (and the
		// table of the input, small beside them).
		r.idle = 1 - float64(s.Experts.PerToken)/float64(n)
		r.expertBytes = (all - active) / r.idle * d.WeightBytes
		r.denseBytes = r.weightBytes - r.expertBytes
	}
	// Heads of the cache are split until one is left, then copied; a latent
	// vector belongs to all heads and is copied from the start.
	split := min(d.TensorParallel, s.KVHeads)
	perPair := 4 * float64(s.HeadDim)
	if l := s.Latent; l.KVRank > 0 {
		split = 1
		perPair = 2 * float64(l.NopeDim+l.RopeDim+l.ValDim)
	}
	r.kvBytesGPU = r.kvBytes / float64(split)
	r.attentionFLOPs = float64(s.Layers) * float64(s.Heads) * perPair
	switch s.Family {
	case "mistral", "mixtral", "phi3", "starcoder2": // all layers slide
		r.window = s.SlidingWindow
	}
	r.hbmBytesPerSec = d.GPU.Bandwidth.Value * d.Assume.HBMShare
	r.flopsPerSec = tp * flops.Value * d.Assume.FLOPShare
	if d.TensorParallel > 1 {
		// Two all-reduces a layer, each of a ring over 2(n-1)/n of its bytes; an
		// activation has two.
		each := 2 * float64(s.Layers)
		r.reduceSecPerTok = each * 2 * (tp - 1) / tp * float64(s.Hidden) * 2 / link
		r.reduceSecLatency = each * d.Assume.CollectiveSeconds
	}
	return r, nil
}

// link is what an all-reduce reaches in one direction.
func (d *Deployment) link() (float64, error) {
	switch {
	case d.TensorParallel == 1:
		return 0, nil
	case d.Assume.LinkBytesPerSecond > 0:
		return d.Assume.LinkBytesPerSecond, nil
	case d.GPU.Link.Value <= 0:
		return 0, fmt.Errorf("GPU %q has no figure for a link, which %d of them need", d.GPU.Name, d.TensorParallel)
	case d.GPU.Link.Counts == Reached:
		return d.GPU.Link.Value, nil
	}
	return d.GPU.Link.Value * d.Assume.LinkShare, nil
}

// Deployment is what the Roof was made from.
func (r *Roof) Deployment() Deployment { return r.d }

// WeightBytes are those of the whole copy.
func (r *Roof) WeightBytes() float64 { return r.weightBytes }

// KVBytesPerToken is what a token costs in one copy of the cache over all layers.
func (r *Roof) KVBytesPerToken() float64 { return r.kvBytes }

// KVPoolBytes is the memory for the cache over all GPUs of the copy; below 0 when
// the weights do not fit.
func (r *Roof) KVPoolBytes() float64 {
	memory := float64(r.d.TensorParallel) * r.d.GPU.Memory.Value
	return memory - r.weightBytes - memory*r.d.Assume.ReserveShare
}

// KVPoolTokens is how many tokens the cache holds.
func (r *Roof) KVPoolTokens() float64 {
	return max(0, r.KVPoolBytes()/float64(r.d.TensorParallel)/r.kvBytesGPU)
}

// Work is what one step computes. The zero Work is nothing; a Roof adds to it.
type Work struct {
	DecodeRows     int     // sequences that get their next token
	PrefillTokens  int     // of prompts
	ContextTokens  int     // read from the cache, summed over sequences
	SquaredLengths float64 // end² - start², summed over pieces of prompts
}

// Decode adds the next token of a sequence that has context tokens, itself included.
func (r *Roof) Decode(w *Work, context int) {
	w.DecodeRows++
	w.ContextTokens += r.seen(context)
}

// Prefill adds n tokens of a prompt of which start are computed.
func (r *Roof) Prefill(w *Work, start, n int) {
	end := float64(start + n)
	from, look := float64(start), float64(r.window)
	w.PrefillTokens += n
	w.ContextTokens += r.seen(start + n)
	switch {
	case r.window == 0 || end <= look:
		w.SquaredLengths += end*end - from*from
	case from >= look:
		w.SquaredLengths += 2 * look * (end - from)
	default:
		w.SquaredLengths += look*look - from*from + 2*look*(end-look)
	}
}

func (r *Roof) seen(context int) int {
	if r.window > 0 {
		return min(context, r.window)
	}
	return context
}

// Step is how long a step takes and of what.
type Step struct {
	MemorySeconds    float64 `json:"memory_seconds"` // reading weights and cache
	ComputeSeconds   float64 `json:"compute_seconds"`
	AllReduceSeconds float64 `json:"all_reduce_seconds"`
	FixedSeconds     float64 `json:"fixed_seconds"`
	RooflineSeconds  float64 `json:"roofline_seconds"` // the larger of the first two, and the others
	Seconds          float64 `json:"seconds"`          // what is left of it end to end
}

// ComputeBound tells which roof the step stands on.
func (s Step) ComputeBound() bool { return s.ComputeSeconds > s.MemorySeconds }

// Step times w. Attention counts as arithmetic in prefill and as reading in
// decoding, where it does some FLOPs for each byte.
func (r *Roof) Step(w Work) Step {
	tokens := w.DecodeRows + w.PrefillTokens
	if tokens == 0 {
		return Step{}
	}
	tp := float64(r.d.TensorParallel)
	weights := r.denseBytes
	if r.expertBytes > 0 {
		weights += r.expertBytes * (1 - math.Pow(r.idle, float64(tokens)))
	}
	s := Step{
		MemorySeconds:  (weights/tp + float64(w.ContextTokens)*r.kvBytesGPU) / r.hbmBytesPerSec,
		ComputeSeconds: (2*r.active*float64(tokens) + r.attentionFLOPs*w.SquaredLengths) / r.flopsPerSec,
		FixedSeconds:   r.d.Assume.FixedSeconds,
	}
	reduced := w.DecodeRows
	if r.d.Assume.PrefillCollectives {
		reduced = tokens
	}
	if reduced > 0 {
		s.AllReduceSeconds = float64(reduced)*r.reduceSecPerTok + r.reduceSecLatency
	}
	s.RooflineSeconds = max(s.MemorySeconds, s.ComputeSeconds) + s.AllReduceSeconds + s.FixedSeconds
	s.Seconds = s.RooflineSeconds / r.d.Assume.EndToEndShare
	return s
}

// DecodeStep is a step of batch sequences with context tokens each: its Seconds
// are the time per output token.
func (r *Roof) DecodeStep(batch, context int) Step {
	return r.Step(Work{DecodeRows: batch, ContextTokens: batch * r.seen(context)})
}

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

// PrefillPrompt times a prompt of n tokens.
func (r *Roof) PrefillPrompt(n int) PrefillTime {
	var w Work
	r.Prefill(&w, 0, n)
	p := PrefillTime{LinearFLOPs: 2 * r.active * float64(n), AttentionFLOPs: r.attentionFLOPs * w.SquaredLengths}
	p.ComputeSeconds = (p.LinearFLOPs + p.AttentionFLOPs) / r.flopsPerSec
	if r.d.Assume.PrefillCollectives {
		p.AllReduceSeconds = float64(n)*r.reduceSecPerTok + r.reduceSecLatency
	}
	p.Seconds = (p.ComputeSeconds + p.AllReduceSeconds) / r.d.Assume.EndToEndShare
	return p
}

// Knee is the batch at which reading the cache takes as long as reading the
// weights. Below it a larger batch is nearly free, above it each sequence is paid.
func (r *Roof) Knee(context int) float64 {
	return r.weightBytes / float64(r.d.TensorParallel) / (float64(r.seen(context)) * r.kvBytesGPU)
}

// LargestBatch is how many sequences of context tokens fit into the cache and get
// a token in at most tpotSeconds; 0 when not even one does.
func (r *Roof) LargestBatch(tpotSeconds float64, context int) int {
	most := int(min(r.KVPoolTokens()/float64(context), 1<<20))
	return sort.Search(most, func(i int) bool { return r.DecodeStep(i+1, context).Seconds > tpotSeconds })
}
