// Package roofline says what a model on a GPU can reach: pure arithmetic from
// data-sheet figures, a model's shape and a handful of assumptions that it shows.
//
// A [GPU] is a row of the catalogue, every figure with its source and what it
// counts. A [Deployment] is one copy of a model over some GPUs; [New] prepares it
// and the [Roof] answers how long a step or a prefill takes and on which of the
// roofs it stands, how many tokens the cache holds, where batching stops being
// nearly free, and the largest batch under a bound of time. A [Reserve] is what an
// engine keeps of the memory, as vLLM computes it.
//
// Everything is a value or immutable, safe for concurrent use, and a step
// allocates nothing. Sizes are in bytes (decimal: 1 GB is 10⁹), times in seconds,
// and each name says so. It measures nothing, knows no queue and no price, and
// takes the experts of a mixture for evenly routed.
package roofline

import (
	"cmp"
	"fmt"
	"math"

	"llmops/model"
)

// Deployment is one copy of a model.
type Deployment struct {
	GPU            GPU
	TensorParallel int // GPUs that each layer is split over

	// PipelineParallel is how many stages the layers are cut into; 0: one. As many
	// parts of a batch are under way as there are stages, so that none idles.
	PipelineParallel int

	// ExpertParallel is how many GPUs the experts are dealt to; 0: one. Attention is
	// copied to each of them and serves its share of the batch. It goes with a
	// TensorParallel of 1.
	ExpertParallel int

	Shape         model.Shape
	Parameters    float64 // 0: the shape's
	WeightBytes   float64 // a parameter: 2 for bf16, 1 for fp8, about 0.53 for int4 with its scales
	KVBytes       float64 // an element of the cache
	FP8Arithmetic bool    // products at the GPU's fp8 rate, not its bf16 rate
	Reserve       Reserve // the zero value: Assume.ReserveShare of the memory
	LoRA          LoRA
	PoolBytes     float64 // of the cache over all GPUs, where it was measured; 0: computed
	Assume        Assumptions
}

// GPUs that the copy runs on.
func (d Deployment) GPUs() int {
	return d.TensorParallel * max(d.PipelineParallel, 1) * max(d.ExpertParallel, 1)
}

// Roof is a Deployment with its arithmetic prepared.
type Roof struct {
	d Deployment

	weightBytes    float64 // of the whole copy, what is on several GPUs counted once
	denseBytes     float64 // read by any step, over all GPUs
	expertBytes    float64 // of all experts, over all GPUs
	idle           float64 // share of the experts that one token leaves out
	active         float64 // parameters that a token is multiplied with
	kvBytes        float64 // a token, of one copy of the cache
	kvBytesGPU     float64 // a token, of the part of the heads that a GPU has
	attentionFLOPs float64 // times N², for a prompt of N
	window         int     // tokens that sliding layers look back; 0: none slides
	sliding        float64 // share of the layers that slide
	parts          float64 // that a batch is dealt to: stages, or GPUs with experts
	loraBytesGPU   float64
	hbmBytesPerSec float64 // reached, of one GPU
	flopsPerSec    float64 // reached, of one part's GPUs

	collectiveSecPerTok  float64 // of one part
	collectiveSecLatency float64
}

// New prepares d. It does not ask whether the weights fit: KVPoolBytes says by how
// much they do not.
func New(d Deployment) (*Roof, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	flops := d.GPU.BF16
	if d.FP8Arithmetic {
		flops = d.GPU.FP8
	}
	if d.GPU.Memory.Value <= 0 || d.GPU.Bandwidth.Value <= 0 || flops.Value <= 0 {
		return nil, fmt.Errorf("GPU %q has no figure for memory, bandwidth or this arithmetic", d.GPU.Name)
	}
	s, tp := d.Shape, float64(d.TensorParallel)
	r := &Roof{d: d, kvBytes: s.KVBytesPerToken(d.KVBytes), parts: float64(max(d.PipelineParallel, 1) * max(d.ExpertParallel, 1))}
	r.weigh()
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
	if n := slidingLayers(s); n > 0 {
		r.window, r.sliding = s.SlidingWindow, float64(n)/float64(s.Layers)
	}
	r.loraBytesGPU = d.LoRA.bytesGPU(s, tp) / float64(max(d.PipelineParallel, 1))
	r.hbmBytesPerSec = d.GPU.Bandwidth.Value * d.Assume.HBMShare
	r.flopsPerSec = tp * flops.Value * d.Assume.FLOPShare
	return r, r.collect()
}

func (d Deployment) check() error {
	s := d.Shape
	pp, ep := max(d.PipelineParallel, 1), max(d.ExpertParallel, 1)
	switch {
	case d.TensorParallel < 1:
		return fmt.Errorf("a model over %d GPUs: want at least 1", d.TensorParallel)
	case d.PipelineParallel < 0 || d.ExpertParallel < 0:
		return fmt.Errorf("%d stages and experts over %d GPUs: want neither below 0", d.PipelineParallel, d.ExpertParallel)
	case s.Layers < 1 || s.Hidden < 1 || s.Heads < 1 || s.KVHeads < 1 || s.HeadDim < 1:
		return fmt.Errorf("a shape of %d layers, %d wide, %d and %d heads of %d: want each at least 1", s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim)
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("%d query heads cannot share %d KV heads evenly", s.Heads, s.KVHeads)
	case s.Heads%d.TensorParallel != 0:
		return fmt.Errorf("%d heads cannot be split over %d GPUs", s.Heads, d.TensorParallel)
	case max(s.KVHeads, d.TensorParallel)%min(s.KVHeads, d.TensorParallel) != 0 && s.Latent.KVRank == 0:
		return fmt.Errorf("%d KV heads cannot be split over %d GPUs", s.KVHeads, d.TensorParallel)
	case pp > s.Layers:
		return fmt.Errorf("%d layers cannot be cut into %d stages", s.Layers, pp)
	case ep > 1 && s.Experts.Count == 0:
		return fmt.Errorf("experts over %d GPUs: the model has none", ep)
	case ep > 1 && s.Experts.Count%ep != 0:
		return fmt.Errorf("%d experts cannot be dealt to %d GPUs evenly", s.Experts.Count, ep)
	case ep > 1 && (d.TensorParallel > 1 || pp > 1):
		return fmt.Errorf("experts over %d GPUs with layers split over %d and cut into %d stages: want one kind at a time", ep, d.TensorParallel, pp)
	case !(d.PoolBytes >= 0):
		return fmt.Errorf("a cache of %v bytes: want it not below 0", d.PoolBytes)
	case !(d.WeightBytes > 0 && d.KVBytes > 0 && d.Parameters >= 0):
		return fmt.Errorf("%v bytes a weight, %v bytes an element of the cache, %v parameters: want the first two above 0, the last not below", d.WeightBytes, d.KVBytes, d.Parameters)
	}
	if err := d.Reserve.check(); err != nil {
		return err
	}
	if err := d.LoRA.check(); err != nil {
		return err
	}
	return d.Assume.check()
}

// weigh counts what is stored and what is read.
func (r *Roof) weigh() {
	s, d := r.d.Shape, r.d
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
}

// slidingLayers counts the layers that see only the last positions. Configurations
// without layer_types leave the pattern to the model's class, by its family.
func slidingLayers(s model.Shape) (n int) {
	if s.SlidingWindow == 0 {
		return 0
	}
	for _, slides := range s.SlidingLayers {
		if slides {
			n++
		}
	}
	if s.SlidingLayers != nil {
		return n
	}
	switch s.Family {
	case "mistral", "mixtral", "phi3", "starcoder2":
		return s.Layers
	case "gemma2", "gpt_oss": // every second
		return (s.Layers + 1) / 2
	case "gemma3", "gemma3_text": // all but each sixth
		return s.Layers - s.Layers/6
	case "cohere2": // all but each fourth
		return s.Layers - s.Layers/4
	}
	return 0
}

// collect prepares what GPUs wait for each other.
func (r *Roof) collect() error {
	d := r.d
	if d.GPUs() == 1 {
		return nil
	}
	link, err := d.link()
	if err != nil {
		return err
	}
	s, tp := d.Shape, float64(d.TensorParallel)
	width := float64(s.Hidden) * 2 // bytes of a token's activations
	if d.TensorParallel > 1 {
		// Two all-reduces a layer, each of a ring over 2(n-1)/n of its bytes.
		each := 2 * float64(s.Layers)
		r.collectiveSecPerTok = each * 2 * (tp - 1) / tp * width / link
		r.collectiveSecLatency = each * d.Assume.CollectiveSeconds
	}
	if n := float64(d.PipelineParallel); n > 1 {
		// From stage to stage, once each.
		far, late := cmp.Or(d.Assume.StageLinkBytesPerSecond, link), cmp.Or(d.Assume.StageSeconds, d.Assume.CollectiveSeconds)
		r.collectiveSecPerTok += (n - 1) * width / far
		r.collectiveSecLatency += (n - 1) * late
	}
	if n := float64(d.ExpertParallel); n > 1 {
		// To the chosen experts and back in each layer that has some. A token goes
		// once for each expert, also when two of them are on one GPU.
		each := 2 * float64(s.Layers-min(s.Experts.DenseLayers, s.Layers))
		r.collectiveSecPerTok = each * float64(s.Experts.PerToken) * (n - 1) / n * width / link
		r.collectiveSecLatency = each * d.Assume.CollectiveSeconds
	}
	return nil
}

// link is what a collective reaches in one direction.
func (d *Deployment) link() (float64, error) {
	switch {
	case d.Assume.LinkBytesPerSecond > 0:
		return d.Assume.LinkBytesPerSecond, nil
	case d.GPU.Link.Value <= 0:
		return 0, fmt.Errorf("GPU %q has no figure for a link, which %d of them need", d.GPU.Name, d.GPUs())
	case d.GPU.Link.Counts == Reached:
		return d.GPU.Link.Value, nil
	}
	return d.GPU.Link.Value * d.Assume.LinkShare, nil
}

// Deployment is what the Roof was made from.
func (r *Roof) Deployment() Deployment { return r.d }

// WeightBytes are those of the whole model, counted once.
func (r *Roof) WeightBytes() float64 { return r.weightBytes }

// WeightBytesGPU are those on each GPU.
func (r *Roof) WeightBytesGPU() float64 {
	if ep := float64(r.d.ExpertParallel); ep > 1 {
		return r.denseBytes + r.expertBytes/ep
	}
	return r.weightBytes / float64(r.d.GPUs())
}

// ReadBytesGPU are the bytes of weights that a GPU reads for a step of so many
// tokens, the stages of a pipeline together: an expert is read when a token of the
// batch chose it, which of evenly routed ones is 1-(1-k/n)^tokens.
func (r *Roof) ReadBytesGPU(tokens float64) float64 {
	d := r.d
	if r.expertBytes == 0 {
		return r.denseBytes / float64(d.TensorParallel)
	}
	if ep := float64(d.ExpertParallel); ep > 1 { // experts see the whole batch
		return r.denseBytes + r.expertBytes/ep*(1-math.Pow(r.idle, tokens))
	}
	return (r.denseBytes + r.expertBytes*(1-math.Pow(r.idle, tokens/r.parts))) / float64(d.TensorParallel)
}

// ActiveParameters are those that a token is multiplied with.
func (r *Roof) ActiveParameters() float64 { return r.active }

// KVBytesPerToken is what a token costs in one copy of the cache over all layers.
func (r *Roof) KVBytesPerToken() float64 { return r.kvBytes }

// KVBytesPerTokenGPU is the part of it that is on each of the GPUs that a layer is
// split over, copies included.
func (r *Roof) KVBytesPerTokenGPU() float64 { return r.kvBytesGPU }

// ReserveBytesGPU is what is kept of each GPU's memory.
func (r *Roof) ReserveBytesGPU() float64 {
	memory := r.d.GPU.Memory.Value
	if r.d.Reserve == (Reserve{}) {
		return memory * r.d.Assume.ReserveShare
	}
	return r.d.Reserve.bytesGPU(memory)
}

// LoRABytesGPU is the room for adapters on each GPU.
func (r *Roof) LoRABytesGPU() float64 { return r.loraBytesGPU }

// KVPoolBytes is the memory for the cache over all GPUs of the copy; below 0 when
// the weights do not fit.
func (r *Roof) KVPoolBytes() float64 {
	if r.d.PoolBytes > 0 {
		return r.d.PoolBytes
	}
	memory := r.d.GPU.Memory.Value
	return float64(r.d.GPUs()) * (memory - r.ReserveBytesGPU() - r.WeightBytesGPU() - r.loraBytesGPU)
}

// KVPoolTokens is how many tokens the cache holds that all layers look at.
func (r *Roof) KVPoolTokens() float64 {
	return max(0, r.KVPoolBytes()/float64(r.d.TensorParallel)/r.kvBytesGPU)
}

// Seen is how many tokens a sequence of context tokens holds and reads in the mean
// of the layers: those that slide keep no more than their window.
func (r *Roof) Seen(context float64) float64 {
	if r.window == 0 {
		return context
	}
	return (1-r.sliding)*context + r.sliding*min(context, float64(r.window))
}
