package size_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"llmops/roofline/size"
)

// Nodes that do both, searched batch by batch with steps written out by hand: 70B in
// bf16 over eight GPUs of 192 GB, 600 tokens of each prompt to compute.
func TestTogether(t *testing.T) {
	r := register(t)
	for _, c := range []struct {
		whatIf      []string
		ttft, tpot  float64
		piece, most float64 // tokens of a prompt in a step, in the mean and at most
		each        float64 // tokens of prompts for each that is decoded
		charged     float64 // of prefill's tokens in the all-reduces
	}{
		{nil, 0.400, 0.030, 600, 2048, 2.4, 0},
		{[]string{"slo.ttft=800ms", "slo.tpot=50ms"}, 0.800, 0.050, 600, 2048, 2.4, 0},
		{[]string{"slo.ttft=700ms", "prefill.collectives=yes"}, 0.700, 0.030, 600, 2048, 2.4, 1},
		{[]string{"slo.ttft=430ms", "prefill.chunk=512"}, 0.430, 0.030, 512, 512, 2.4, 0},
		// Half of the prefill rate is twice the tokens.
		{[]string{"prefill.measured=8584.9/s"}, 0.400, 0.030, 600, 2048, 4.8, 0},
	} {
		step := func(batch, prompt float64) float64 {
			memory := (17.5e9 + batch*2048*40960) / (5.3e12 * 0.7)
			flops := 2*70e9*(batch+prompt) + 4*80*8192*2048*prompt
			reduced := (batch+c.charged*prompt)*160*1.75*8192*2/300e9 + 160*8e-6
			return (max(memory, flops/(8*1300e12*0.4)) + reduced + 1.5e-3) / 0.6
		}
		mean := func(batch float64) float64 {
			piece := max(c.piece, c.each*batch)
			share := c.each * batch / piece
			return share*step(batch, piece) + (1-share)*step(batch, 0)
		}
		s := sheet(t, r, c.whatIf...)
		edge := 0.0
		for mean(edge+1) <= c.tpot {
			edge++
		}
		edge = math.Floor(edge * 192 / s.Value("decode.limit_batch"))
		quick := edge
		for 0.179+0.0557+2048/c.most*step(quick, c.most) > c.ttft {
			quick--
		}
		s.Compare()
		nodes := func(b float64) float64 { return 75000 * mean(b) / b }
		if got, want := s.Value("fleet.together_tpot"), nodes(edge); math.Abs(got/want-1) > 1e-3 {
			t.Errorf("%v: %v nodes keep TPOT, want %v at %v streams", c.whatIf, got, want, edge)
		}
		if got, want := s.Value("fleet.together"), nodes(quick); math.Abs(got/want-1) > 1e-3 {
			t.Errorf("%v: %v nodes keep TTFT, want %v at %v streams", c.whatIf, got, want, quick)
		}
		if got, want := s.Value("fleet.together_stall"), step(quick, c.most); math.Abs(got/want-1) > 1e-3 {
			t.Errorf("%v: a prompt stalls streams for %v, want %v", c.whatIf, got, want)
		}
	}
	// What a node was measured to do less, more nodes make up for.
	all, fewer := sheet(t, r), sheet(t, r, "decode.measured=3898/s", "prefill.measured=17170/s")
	all.Compare()
	fewer.Compare()
	if got := fewer.Value("fleet.together") / all.Value("fleet.together"); math.Abs(got-2) > 0.01 {
		t.Errorf("half of the output takes %.3f times the nodes", got)
	}
}

func TestPools(t *testing.T) {
	r := register(t)
	for _, c := range []struct {
		whatIf []string
		choice string
		reason string
	}{
		{nil, size.TwoPools, "20.10 nodes apart, 27.22 together, where a prompt stalls streams for 129.4 ms: a second pool saves 26.1%; the transfer makes TTFT p95 380.8 ms of 400.0 ms"},
		{[]string{"across.bandwidth=10GB/s"}, size.OnePool, "but the transfer makes TTFT p95 421.1 ms of 400.0 ms: bring them closer"},
		{[]string{"layout.gain=30%"}, size.OnePool, "saves 26.1%, less than the 30% that it is worth"},
		{[]string{"traffic.input=250"}, size.OnePool, "11.37 nodes apart, 10.69 together"},
		{[]string{"traffic.input=0"}, size.OnePool, "nothing is prefilled"},
		{[]string{"prefill.chunk=256"}, size.TwoPools, "together (22.58 but for TTFT), where a prompt stalls streams for 20.60 ms"},
		{[]string{"slo.tpot=12ms"}, size.TwoPools, "together no number keeps TPOT"},
		{[]string{"prefill.collectives=yes"}, size.NoPools, "together no number keeps TTFT, and 36.47 keep TPOT; apart the transfer makes TTFT p95 435.1 ms of 400.0 ms"},
	} {
		a := size.Recommend(sheet(t, r, c.whatIf...))
		if a.Pools.Choice != c.choice || !strings.Contains(a.Pools.Reason, c.reason) {
			t.Errorf("%v: %s: %s", c.whatIf, a.Pools.Choice, a.Pools.Reason)
		}
		if (a.Decode > 0 && a.Prefill > 0) != (c.choice == size.TwoPools) || (a.Together > 0) != (c.choice == size.OnePool) {
			t.Errorf("%v: replicas are %d, %d and %d", c.whatIf, a.Decode, a.Prefill, a.Together)
		}
	}
	if a := size.Recommend(sheet(t, r, "layout.gain=90%", "slo.ttft=1s", "layout.tp=4", "layout.batch=60")); a.Together != 2*int(math.Ceil(1.25*a.Pools.Together)) {
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
	for _, f := range a.Flips[:5] {
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
