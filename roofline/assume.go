package roofline

import "fmt"

// Assumptions stand between a data sheet and what is reached. Each is there to be
// measured and replaced.
type Assumptions struct {
	HBMShare      float64 // of the peak bandwidth that decoding reaches
	FLOPShare     float64 // of the peak arithmetic that large products reach
	LinkShare     float64 // of a link's peak that an all-reduce reaches
	EndToEndShare float64 // of the roofline that is left after gaps, ragged batches and sampling
	ReserveShare  float64 // of the memory that is kept for activations, workspace and fragmentation
	OverlapShare  float64 // of collectives that runs beside reading and arithmetic; 0: all wait for each other

	FixedSeconds      float64 // a step's scheduling, sampling and detokenising
	CollectiveSeconds float64 // latency of one all-reduce

	// LinkBytesPerSecond is what an all-reduce reaches in one direction, in the
	// place of the GPU's own link: across nodes, say. 0: the GPU's.
	LinkBytesPerSecond float64

	// StageLinkBytesPerSecond and StageSeconds are of the way from stage to stage of a
	// pipeline where they lie on other nodes; 0: as within one.
	StageLinkBytesPerSecond float64
	StageSeconds            float64

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
	if !(a.OverlapShare >= 0 && a.OverlapShare <= 1) {
		return fmt.Errorf("an overlap of %v of the collectives: want at least 0 and at most 1", a.OverlapShare)
	}
	if !(a.FixedSeconds >= 0 && a.CollectiveSeconds >= 0 && a.LinkBytesPerSecond >= 0 && a.StageLinkBytesPerSecond >= 0 && a.StageSeconds >= 0) {
		return fmt.Errorf("a fixed time of %v s, latencies of %v and %v s, links of %v and %v B/s: none may be negative",
			a.FixedSeconds, a.CollectiveSeconds, a.StageSeconds, a.LinkBytesPerSecond, a.StageLinkBytesPerSecond)
	}
	return nil
}
