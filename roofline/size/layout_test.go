package size_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"llmops/roofline/size"
)

// Nodes that do both: at their number the batch that the rest of the time allows makes
// what is asked for, and at one per cent fewer it does not.
func TestTogether(t *testing.T) {
	r := register(t)
	for _, whatIf := range [][]string{nil, {"layout.tp=4", "layout.batch=60"}, {"traffic.prefix_hits=90%"}, {"decode.measured=6000/s"}} {
		s := sheet(t, r, whatIf...)
		s.Compare()
		n, ok := s.Find("fleet.together")
		if !ok {
			t.Fatalf("%v: no number of nodes does both", whatIf)
		}
		makes := func(nodes float64) float64 {
			left := 1 - s.Value("fleet.prefill_nodes")/nodes
			tighter, err := s.In.With(size.Setting{Key: "slo.tpot", Value: size.Value{Number: s.In.Number("slo.tpot") * left}})
			if err != nil {
				t.Fatal(err)
			}
			slow, err := size.Compute(tighter)
			if err != nil {
				t.Fatal(err)
			}
			batch := math.Floor(slow.Value("decode.limit_batch") * s.In.Number("layout.batch") / s.Value("decode.limit_batch"))
			at, err := s.In.With(size.Setting{Key: "layout.batch", Value: size.Value{Number: batch}})
			if err != nil {
				t.Fatal(err)
			}
			b, err := size.Compute(at)
			if err != nil {
				t.Fatal(err)
			}
			return nodes * b.Value("decode.modelled") * left * s.Value("decode.rate") / s.Value("decode.modelled")
		}
		if got, few, want := makes(n.Value*(1+1e-9)), makes(n.Value*0.99), s.Value("fleet.decode_demand"); got < want*(1-1e-6) || few >= want {
			t.Errorf("%v: %v nodes make %v tokens/s, and 1 %% fewer %v, of %v", whatIf, n.Value, got, few, want)
		}
	}
}

func TestPools(t *testing.T) {
	r := register(t)
	for _, c := range []struct {
		whatIf []string
		apart  bool
		reason string
	}{
		{nil, true, "20.10 nodes apart, 28.59 together: a second pool saves 29.7%; the transfer makes TTFT p95 380.8 ms of 400.0 ms"},
		{[]string{"across.bandwidth=10GB/s"}, false, "but the transfer makes TTFT p95 421.1 ms of 400.0 ms: bring them closer"},
		{[]string{"layout.gain=30%"}, false, "saves 29.7%, less than the 30% that it is worth"},
		{[]string{"traffic.input=0"}, false, "nothing is prefilled"},
		{[]string{"slo.tpot=12ms"}, true, "together no number keeps TPOT"},
	} {
		a := size.Recommend(sheet(t, r, c.whatIf...))
		if a.Pools.Apart != c.apart || !strings.Contains(a.Pools.Reason, c.reason) {
			t.Errorf("%v: apart is %v, %s", c.whatIf, a.Pools.Apart, a.Pools.Reason)
		}
		if apart := a.Decode > 0 && a.Prefill > 0; apart != c.apart {
			t.Errorf("%v: replicas are %d, %d and %d", c.whatIf, a.Decode, a.Prefill, a.Together)
		}
	}
	if a := size.Recommend(sheet(t, r, "layout.gain=30%", "layout.tp=4", "layout.batch=60")); a.Together != 2*int(math.Ceil(1.25*a.Pools.Together)) {
		t.Errorf("%d replicas of half a node on %v nodes", a.Together, a.Pools.Together)
	}
}

func TestLayouts(t *testing.T) {
	r := register(t)
	of := func(whatIf ...string) size.Advice { return size.Recommend(sheet(t, r, whatIf...)) }
	names := func(a size.Advice) string {
		name := func(o *size.Option) string {
			if o == nil {
				return "none"
			}
			return o.Name()
		}
		return fmt.Sprintf("%s, then %s; %s holds, %s keeps", name(a.Best), name(a.RunnerUp), name(a.Holds), name(a.Keeps))
	}
	for want, whatIf := range map[string][]string{
		"TP 8, then TP 4, 2 copies; TP 1, 8 copies holds, TP 4, 2 copies keeps": nil,
		"TP 4, 2 copies, then TP 8; TP 1, 8 copies holds, TP 2, 4 copies keeps": {"slo.tpot=45ms"},
		"none, then none; TP 1, 8 copies holds, none keeps":                     {"slo.tpot=10ms"},
		"TP 8, then TP 4, 2 copies; TP 4, 2 copies holds, TP 4, 2 copies keeps": {"node.memory=80GB", "slo.tpot=22ms"},
		"PP 4 × TP 8, then none; none holds, none keeps":                        {"model.config=testdata/deepseek.json", "node.memory=80GB", "layout.pp=4", "layout.batch=20", "fabric.bandwidth=600GB/s"},
		"EP 8, then TP 8; TP 8 holds, TP 8 keeps":                               {"model.config=testdata/deepseek.json", "weights.dtype=fp8", "node.memory=141GB", "slo.tpot=80ms", "layout.batch=20"},
		"TP 4, 2 copies, then TP 8; TP 1, 8 copies holds, TP 1, 8 copies keeps": {"model.config=testdata/gemma2.json", "layout.batch=100", "slo.tpot=60ms"},
	} {
		if got := names(of(whatIf...)); got != want {
			t.Errorf("%v: %s, want %s", whatIf, got, want)
		}
	}
	// On the near side of each flip the choice is as it was, on the far side it is not.
	a := of()
	if len(a.Flips) == 0 {
		t.Fatal("nothing flips the layout")
	}
	for _, f := range a.Flips {
		for side, same := range map[float64]bool{math.Sqrt(f.From * f.At): true, f.At * math.Pow(f.At/f.From, 1e-3): false} {
			in, err := sheet(t, r).In.With(size.Setting{Key: f.Key, Value: size.Value{Number: side}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := size.Compute(in)
			if err != nil {
				continue // the batch of the register may not fit there
			}
			now := "none"
			if b := size.Recommend(s).Best; b != nil {
				now = b.Name()
			}
			if (now == a.Best.Name()) != same || !same && now != f.To {
				t.Errorf("%s at %v: %s; it was to flip to %s at %v", f.Key, side, now, f.To, f.At)
			}
		}
	}
}

func TestTornado(t *testing.T) {
	s := sheet(t, register(t))
	bars, err := size.Tornado(s, "fleet.capacity")
	if err != nil {
		t.Fatal(err)
	}
	first := bars[0]
	if first.Key != "traffic.rate" || first.Guessed || math.Abs(*first.AtLow-s.Value("fleet.capacity")*2/3) > 1e-9 || math.Abs(*first.AtHigh-s.Value("fleet.capacity")*2) > 1e-9 {
		t.Errorf("the widest is %+v", first)
	}
	for i, b := range bars {
		if i > 0 && b.Swing() > bars[i-1].Swing() {
			t.Errorf("%s is wider than what is before it", b.Key)
		}
		if b.Key == "model.layers" || b.Key == "layout.tp" {
			t.Errorf("a fifth of %s was taken", b.Key)
		}
	}
	// A range whose end is impossible comes first and says so.
	r := register(t)
	lo, hi := size.Value{Number: 100}, size.Value{Number: 1e5}
	in, err := s.In.With(size.Setting{Key: "layout.batch", Value: size.Value{Number: 192}, Low: &lo, High: &hi})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = size.Compute(in); err != nil {
		t.Fatal(err)
	}
	if bars, err = size.Tornado(s, "fleet.capacity"); err != nil || bars[0].Key != "layout.batch" || bars[0].AtHigh != nil || bars[0].AtLow == nil {
		t.Errorf("%v, the first is %+v", err, bars[0])
	}
	if _, err := size.Tornado(sheet(t, r), "fleet.node"); err == nil {
		t.Error("a number that is not there was moved")
	}
}
