package size

import (
	"cmp"
	"math"
	"slices"
)

// Flip is where a choice changes when one assumption moves.
type Flip struct {
	Key  string  `json:"key"`
	From float64 `json:"from"`
	At   float64 `json:"at"`
	To   string  `json:"to"`
	Text string  `json:"text"`
}

// reach is how far, and step how finely, an assumption is moved to find a flip.
const (
	reach = 4.0
	step  = 1.05
)

// flips moves each key up and down and finds where choose says something else first.
func (in Inputs) flips(moved []string, choose func(Inputs) string) []Flip {
	now := choose(in)
	var out []Flip
	for _, key := range moved {
		k, err := FindKey(key)
		v := in.Number(key)
		if err != nil || !in.Has(key) || v == 0 {
			continue
		}
		at := func(f float64) (Inputs, float64, bool) {
			x := v * f
			if k.Whole || k.Unit == Tokens {
				x = math.Round(x)
			}
			if k.Max > 0 && x > k.Max || x <= 0 {
				return in, x, false
			}
			moved, err := in.With(Setting{Key: key, Value: Value{Number: x}})
			return moved, x, err == nil
		}
		for _, by := range []float64{step, 1 / step} {
			last := 1.0
			for f := by; f <= reach && f >= 1/reach; f *= by {
				there, _, ok := at(f)
				if !ok {
					break
				}
				if choose(there) == now {
					last = f
					continue
				}
				for range 40 { // between last, where it still holds, and f
					mid := math.Sqrt(last * f)
					if m, _, ok := at(mid); ok && choose(m) == now {
						last = mid
					} else {
						f = mid
					}
				}
				there, x, _ := at(f)
				out = append(out, Flip{key, v, x, choose(there), k.Format(Value{Number: x})})
				break
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Flip) int {
		return cmp.Compare(math.Abs(math.Log(a.At/a.From)), math.Abs(math.Log(b.At/b.From)))
	})
	return out
}

// layoutKeys are those that the choice of a layout hangs on.
var layoutKeys = []string{"slo.tpot", "traffic.context", "fabric.bandwidth", "fabric.latency", "node.bandwidth", "node.memory", "share.hbm", "share.flops", "share.end_to_end", "decode.fixed"}

// poolKeys are those that the choice of two pools hangs on.
var poolKeys = []string{"traffic.input", "traffic.output", "traffic.prefix_hits", "traffic.context", "slo.tpot", "slo.ttft", "across.bandwidth", "prefill.chunk", "share.flops", "layout.gain"}

func (in Inputs) bestName() string {
	if all := ranked(in.options()); len(all) > 0 {
		return all[0].Name()
	}
	return "none"
}
