package size

import (
	"fmt"

	"llmops/roofline"
	"llmops/roofline/cost"
)

// Measured is what a load test saw of one copy: the mean time between tokens while so
// many streams of so many tokens were under way.
type Measured struct {
	TPOT    float64 // seconds
	Streams int
	Context int
	Source  string // the run
}

// Calibrate is the end-to-end share at which the model gives what was measured. One
// number cannot show which assumption was wrong, so the one is moved that stands for
// all that the roofline leaves out. More than the roofline itself is refused: then
// another assumption is too low, or the run was on something else. What prompts took of
// the steps is in the share too, so that it is rather too low than too high.
func Calibrate(in Inputs, m Measured) (Setting, error) {
	if err := in.check(); err != nil {
		return Setting{}, err
	}
	if !(m.TPOT > 0) || m.Streams < 1 || m.Context < 1 {
		return Setting{}, fmt.Errorf("%s measured no time between tokens", m.Source)
	}
	r, err := roofline.New(in.deployment("decode.arithmetic"))
	if err != nil {
		return Setting{}, err
	}
	step := r.DecodeStep(m.Streams, m.Context).RooflineSeconds
	share := step / m.TPOT
	if share > 1 {
		return Setting{}, fmt.Errorf("%s measured %s a token at %d streams of %d tokens, and the roofline of these assumptions is %s: share.hbm, share.flops or the node's figures are too low, or the run was on another GPU or model",
			m.Source, Seconds.Format(m.TPOT), m.Streams, m.Context, Seconds.Format(step))
	}
	return Setting{Key: "share.end_to_end", Value: Value{Number: share}, Measured: m.Source}, nil
}

// Observed are the traffic assumptions that recorded usage replaces: the mean request,
// the share of the input that was cached, the rate of the busiest hour, and the mean
// hour's part of it.
func Observed(t *cost.Tally, c cost.Capacity, source string) ([]Setting, error) {
	if t.Total.Requests == 0 || t.Total.Output == 0 {
		return nil, fmt.Errorf("%s has no output tokens", source)
	}
	n := t.Total.Requests
	peak, mean := t.PeakHour(c)
	set := func(key string, v float64) Setting {
		return Setting{Key: key, Value: Value{Number: v}, Measured: source}
	}
	return []Setting{
		set("traffic.input", t.Total.Input/n), set("traffic.output", t.Total.Output/n), set("traffic.prefix_hits", t.Total.HitShare()),
		set("traffic.rate", peak.Requests/3600), set("traffic.load", mean.Requests/peak.Requests),
	}, nil
}
