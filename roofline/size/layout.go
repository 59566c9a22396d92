package size

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"llmops/roofline"
)

// Option is a way to lay copies of the model out on a node, at the edge of the service
// level: the largest batch that keeps its TPOT.
type Option struct {
	TP     int     `json:"tp"`
	PP     int     `json:"pp"`
	EP     int     `json:"ep"`
	Copies float64 `json:"copies"` // on a node; below 1 a copy takes several
	Why    string  `json:"why,omitempty"`

	Weights float64 `json:"weight_bytes"` // on a node, all copies
	Pool    float64 `json:"pool_bytes"`   // on a node
	Long    bool    `json:"holds_longest_prompt"`
	Batch   int     `json:"batch"` // of a copy; 0: not one keeps the TPOT
	TPOT    float64 `json:"tpot_seconds"`
	Rate    float64 `json:"tokens_per_second"` // of a node
}

// Name of the option: TP 8, TP 4 × 2, PP 2 × TP 8, EP 8.
func (o Option) Name() string {
	var parts []string
	if o.PP > 1 {
		parts = append(parts, fmt.Sprintf("PP %d", o.PP))
	}
	if o.EP > 1 {
		parts = append(parts, fmt.Sprintf("EP %d", o.EP))
	}
	if o.TP > 1 || len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("TP %d", o.TP))
	}
	s := strings.Join(parts, " × ")
	if o.Copies > 1 {
		s += fmt.Sprintf(", %g copies", o.Copies)
	}
	return s
}

// Keeps tells whether the service level can be kept at all.
func (o Option) Keeps() bool { return o.Batch > 0 }

// options are all layouts of a node, and of several for a model that none holds.
func (in Inputs) options() []Option {
	gpus := int(in.Number("node.gpus"))
	var out []Option
	fits := false
	for tp := 1; tp <= gpus; tp++ {
		if gpus%tp != 0 {
			continue
		}
		if o, ok := in.option(tp, 1, 1); ok {
			out = append(out, o)
			fits = fits || o.Pool > 0
		}
	}
	if gpus > 1 {
		if o, ok := in.option(1, 1, gpus); ok {
			out = append(out, o)
			fits = fits || o.Pool > 0
		}
	}
	for pp := 2; !fits && pp <= 8; pp *= 2 {
		if o, ok := in.option(gpus, pp, 1); ok {
			out = append(out, o)
			fits = o.Pool > 0
		}
	}
	return out
}

// option is one layout; not ok when the model cannot be cut so.
func (in Inputs) option(tp, pp, ep int) (Option, bool) {
	d := in.deployment("decode.arithmetic")
	d.TensorParallel, d.PipelineParallel, d.ExpertParallel = tp, pp, ep
	if in.Text("reserve.model") == "vllm" && !in.Has("reserve.others") {
		d.Reserve.OtherBytes = roofline.VLLMReserve(d.Shape, tp).OtherBytes
	}
	gpus := in.Number("node.gpus")
	if float64(d.GPUs()) > gpus {
		d.Assume.StageLinkBytesPerSecond, d.Assume.StageSeconds = in.Number("across.bandwidth"), in.Number("across.latency")
	}
	r, err := roofline.New(d)
	if err != nil {
		return Option{}, false
	}
	o := Option{TP: tp, PP: pp, EP: ep, Copies: gpus / float64(d.GPUs())}
	if o.Copies > 1 {
		o.Copies = math.Floor(o.Copies)
	}
	o.Weights, o.Pool = o.Copies*float64(d.GPUs())*r.WeightBytesGPU(), o.Copies*r.KVPoolBytes()
	if o.Pool <= 0 {
		o.Why = "the weights do not fit"
		return o, true
	}
	context := int(in.Number("traffic.context"))
	o.Long = r.KVPoolTokens() >= r.Seen(in.Number("slo.long_prompt"))
	o.Batch = r.LargestBatch(in.Number("slo.tpot"), context)
	if o.Batch == 0 {
		o.TPOT = r.DecodeStep(1, context).Seconds
		o.Why = fmt.Sprintf("one stream already takes %s a token", Seconds.Format(o.TPOT))
		if r.KVPoolTokens() < r.Seen(float64(context)) {
			o.Why = "its cache holds no stream"
		}
		return o, true
	}
	o.TPOT = r.DecodeStep(o.Batch, context).Seconds
	o.Rate = o.Copies * float64(o.Batch) / o.TPOT
	return o, true
}

// ranked are the options that keep the service level, the most throughput first. Of
// equals the fewer GPUs a copy takes the less is lost with one.
func ranked(all []Option) []Option {
	out := slices.DeleteFunc(slices.Clone(all), func(o Option) bool { return !o.Keeps() })
	slices.SortStableFunc(out, func(a, b Option) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.TP, b.TP)) })
	return out
}

// smallest is the second rule: the smallest TP that holds weights and the longest
// prompt, whatever its TPOT, and the smallest that keeps the service level too.
func smallest(all []Option) (holds, keeps *Option) {
	for i, o := range all {
		if o.PP > 1 || o.EP > 1 || !o.Long {
			continue
		}
		if holds == nil {
			holds = &all[i]
		}
		if keeps == nil && o.Keeps() {
			keeps = &all[i]
		}
	}
	return holds, keeps
}

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
var poolKeys = []string{"traffic.input", "traffic.output", "traffic.prefix_hits", "traffic.context", "slo.tpot", "slo.ttft", "across.bandwidth", "share.flops", "layout.gain"}

func (in Inputs) bestName() string {
	if all := ranked(in.options()); len(all) > 0 {
		return all[0].Name()
	}
	return "none"
}

// together is how many nodes it takes when each of them prefills and decodes. A node
// decodes for what its share of the prefill leaves of the time, so that tokens come so
// much later, and its batch must be the smaller: the least N for which
//
//	prefill = prefill_nodes / N
//	batch   = largest with step(batch) ≤ slo.tpot · (1 − prefill), less the headroom
//	N · copies · batch / step(batch) · (1 − prefill) ≥ decode_demand
//
// +Inf when no number does. Only the mean is kept so: a prompt that is not cut into
// chunks stalls a stream for its whole time.
func (s *Sheet) together() float64 {
	in, r := s.In, s.decode
	prefill, demand, copies := s.Value("fleet.prefill_nodes"), s.Value("fleet.decode_demand"), s.Value("layout.copies")
	context := int(in.Number("traffic.context"))
	keep := 1.0
	if limit := s.Value("decode.limit_batch"); limit > in.Number("layout.batch") {
		keep = in.Number("layout.batch") / limit
	}
	// What was measured replaces the model by as much at any batch.
	reached := s.Value("decode.rate") / s.Value("decode.modelled")
	enough := func(n float64) bool {
		left := 1 - prefill/n
		if left <= 0 {
			return false
		}
		batch := int(keep * float64(r.LargestBatch(in.Number("slo.tpot")*left, context)))
		if batch < 1 {
			return false
		}
		return n*copies*float64(batch)/r.DecodeStep(batch, context).Seconds*left*reached >= demand
	}
	lo, hi := 0.0, 1.0
	for ; !enough(hi); hi *= 2 {
		if hi > 1e9 {
			return math.Inf(1)
		}
		lo = hi
	}
	for range 60 {
		if mid := (lo + hi) / 2; enough(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// Pools is whether prefill and decode should have nodes of their own.
type Pools struct {
	Apart    bool    `json:"apart"`
	Nodes    float64 `json:"nodes_apart"`
	Together float64 `json:"nodes_together"` // 0: no number of nodes keeps the service level
	Saves    float64 `json:"saves"`          // of the nodes together
	Reason   string  `json:"reason"`
	Flips    []Flip  `json:"flips"`
}

// pools decides: a second pool has to save the nodes that it is asked to, and the
// transfer has to leave the first token within its service level.
func (s *Sheet) pools() Pools {
	in := s.In
	p := Pools{Nodes: s.Value("fleet.capacity"), Together: s.together()}
	ttft, slo := s.Value("transfer.ttft_p95"), in.Number("slo.ttft")
	never := math.IsInf(p.Together, 1)
	p.Saves = 1
	if !never {
		p.Saves = 1 - p.Nodes/p.Together
	}
	nodes := fmt.Sprintf("%s nodes apart, %s together", digits(p.Nodes), digits(p.Together))
	if never {
		p.Together, nodes = 0, fmt.Sprintf("%s nodes apart; together no number keeps TPOT", digits(p.Nodes))
	}
	transfer := fmt.Sprintf("the transfer makes TTFT p95 %s of %s", Seconds.Format(ttft), Seconds.Format(slo))
	switch {
	case s.Value("fleet.prefill_demand") == 0:
		p.Reason = "nothing is prefilled"
	case p.Saves < in.Number("layout.gain"):
		p.Reason = fmt.Sprintf("%s: a second pool saves %s, less than the %s that it is worth; prefill in chunks instead", nodes, Share.Format(p.Saves), Share.Format(in.Number("layout.gain")))
	case ttft > slo:
		p.Reason = fmt.Sprintf("%s, but %s: bring them closer, or send layers as they are done", nodes, transfer)
	default:
		p.Apart = true
		p.Reason = fmt.Sprintf("%s: a second pool saves %s; %s", nodes, Share.Format(p.Saves), transfer)
	}
	return p
}

func (p Pools) name() string {
	if p.Apart {
		return "two pools"
	}
	return "one pool"
}

// Compare adds what the comparison of layouts and pools comes to, once. It costs more
// than all other numbers together, which most uses of a sheet do not need.
func (s *Sheet) Compare() {
	if s.compared {
		return
	}
	s.compared = true
	all := s.In.options()
	if best := ranked(all); len(best) > 0 {
		s.prose("layout.best_tp", Count, float64(best[0].TP), "GPUs a layer that give the most output", "the layout.tp with the most decode.limit_rate of a node within slo.tpot")
		s.prose("layout.best_rate", TokenRate, best[0].Rate, "that output", "decode.limit_rate with a layout.tp of layout.best_tp")
	}
	if holds, keeps := smallest(all); holds != nil {
		s.prose("layout.smallest_tp", Count, float64(holds.TP), "GPUs a layer that hold it, at least", "the least layout.tp that leaves kv.pool_tokens for a prompt of kv.seen_long")
		if keeps != nil {
			s.prose("layout.smallest_keeping_tp", Count, float64(keeps.TP), "and keep the service level", "the least layout.tp from layout.smallest_tp on with a decode.limit_batch within slo.tpot")
		}
	}
	for _, f := range s.In.flips([]string{"slo.tpot"}, Inputs.bestName) {
		if f.At > f.From {
			s.prose("layout.flip_tpot", Seconds, f.At, "TPOT from which "+f.To+" gives more", "the slo.tpot at which the layout.tp of most decode.limit_rate changes")
		}
	}
	if t := s.together(); !math.IsInf(t, 1) {
		s.prose("fleet.together", Count, t, "nodes that the peak takes if each does both",
			"least nodes whose decode.rate, in what fleet.prefill_nodes leave of slo.tpot and at the headroom of decode.limit_batch, is fleet.decode_demand")
		s.add("fleet.apart_saves", Share, 1-s.Value("fleet.capacity")/t, "saved by two pools", "1 - fleet.capacity / fleet.together")
	}
}

// Advice is what to deploy, and what would change it.
type Advice struct {
	Options  []Option `json:"options"`
	Best     *Option  `json:"best,omitempty"`
	RunnerUp *Option  `json:"runner_up,omitempty"`
	Holds    *Option  `json:"smallest_that_holds,omitempty"`
	Keeps    *Option  `json:"smallest_that_keeps,omitempty"`
	Reason   string   `json:"reason"`
	Flips    []Flip   `json:"flips"`
	Pools    Pools    `json:"pools"`

	// Replicas are the copies to run, of all nodes: Decode of them and Prefill apart,
	// or Together.
	Decode   int `json:"decode_replicas,omitempty"`
	Prefill  int `json:"prefill_replicas,omitempty"`
	Together int `json:"replicas,omitempty"`
}

// replicas deals the fleet's nodes to both pools by what each needs.
func (a *Advice) replicas(s *Sheet) {
	copies := s.Value("layout.copies")
	nodes, need := s.Value("fleet.nodes"), s.Value("fleet.decode_nodes")
	if !a.Pools.Apart {
		if t := a.Pools.Together; t > 0 {
			a.Together = int(copies * (math.Ceil(s.In.Number("fleet.headroom")*t) + s.In.Number("fleet.spare")))
		}
		return
	}
	decode := max(math.Round(nodes*need/s.Value("fleet.capacity")), math.Ceil(need))
	a.Decode, a.Prefill = int(copies*decode), int(copies*(nodes-decode))
}

// Recommend compares layouts, and one pool with two.
func Recommend(s *Sheet) Advice {
	a := Advice{Options: s.In.options()}
	best := ranked(a.Options)
	a.Holds, a.Keeps = smallest(a.Options)
	limit := Seconds.Format(s.In.Number("slo.tpot"))
	switch len(best) {
	case 0:
		a.Reason = "no layout keeps a TPOT of " + limit + ": fewer bits, a faster GPU or a slower promise"
	case 1:
		a.Best, a.Reason = &best[0], fmt.Sprintf("the only layout that keeps a TPOT of %s", limit)
	default:
		a.Best, a.RunnerUp = &best[0], &best[1]
		a.Reason = fmt.Sprintf("%s a node within %s, %s for the runner-up, %s", TokenRate.Format(best[0].Rate), limit, TokenRate.Format(best[1].Rate), best[1].Name())
	}
	if len(best) > 0 {
		a.Flips = s.In.flips(layoutKeys, Inputs.bestName)
	}
	a.Pools = s.pools()
	a.replicas(s)
	a.Pools.Flips = s.In.flips(poolKeys, func(in Inputs) string {
		t, err := Compute(in)
		if err != nil {
			return "nothing that fits"
		}
		return t.pools().name()
	})
	return a
}

// Bar is how far a number moves with one assumption.
type Bar struct {
	Key  string  `json:"key"`
	Low  float64 `json:"low"` // of the assumption
	High float64 `json:"high"`
	Row  string  `json:"row"`
	// AtLow and AtHigh are the number's there; nil where the model is impossible.
	AtLow  *float64 `json:"at_low"`
	AtHigh *float64 `json:"at_high"`
	// Guessed says that nobody gave a range, and a fifth to either side was taken.
	Guessed bool `json:"guessed"`
}

// Swing is the distance between both ends; +Inf where one is impossible.
func (b Bar) Swing() float64 {
	if b.AtLow == nil || b.AtHigh == nil {
		return math.Inf(1)
	}
	return math.Abs(*b.AtHigh - *b.AtLow)
}

// guess is the range of an assumption that gives none, to either side.
const guess = 0.2

// Tornado moves each assumption that a number rests on through its range, the others
// as they are, the widest first. Counts of things are moved only where a range is
// given, since a fifth of a layer is none. An assumption whose end makes the model
// impossible has none there, and comes first.
func Tornado(s *Sheet, key string) ([]Bar, error) {
	if !s.has(key) {
		return nil, fmt.Errorf("there is no number %q", key)
	}
	var out []Bar
	for _, name := range s.RestsOn(key) {
		k, _ := FindKey(name)
		v, from, _ := s.In.Value(name)
		if k.Unit == Text || v.Number == 0 && from.Low == nil {
			continue
		}
		b := Bar{Key: name, Row: from.Row, Low: v.Number * (1 - guess), High: v.Number * (1 + guess), Guessed: true}
		switch {
		case from.Low != nil:
			b.Low, b.High, b.Guessed = from.Low.Number, from.High.Number, false
		case k.Whole || k.Unit == Count:
			continue
		case k.Unit == Tokens:
			b.Low, b.High = math.Round(b.Low), math.Round(b.High)
		}
		if k.Max > 0 {
			b.High = min(b.High, k.Max)
		}
		b.AtLow, b.AtHigh = s.moved(name, b.Low, key), s.moved(name, b.High, key)
		out = append(out, b)
	}
	slices.SortStableFunc(out, func(a, b Bar) int { return cmp.Compare(b.Swing(), a.Swing()) })
	return out, nil
}

// moved is a number when one assumption is x.
func (s *Sheet) moved(name string, x float64, key string) *float64 {
	in, err := s.In.With(Setting{Key: name, Value: Value{Number: x}})
	if err != nil {
		return nil
	}
	t, err := Compute(in)
	if err != nil {
		return nil
	}
	if !t.has(key) {
		t.Compare()
	}
	if n, ok := t.Find(key); ok {
		return &n.Value
	}
	return nil
}
