package load

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"llmops/evidence"
)

// Method names how quantiles are computed: linear interpolation between the
// two closest ranks at q·(n−1), as numpy's default and most load generators do.
const Method = "numpy-linear"

// Dist is a distribution in nanoseconds. N is 0 when nothing was measured, and
// the rest then means nothing.
type Dist struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean_ns"`
	Std  float64 `json:"std_ns"` // of the population
	Min  float64 `json:"min_ns"`
	P50  float64 `json:"p50_ns"`
	P90  float64 `json:"p90_ns"`
	P95  float64 `json:"p95_ns"`
	P99  float64 `json:"p99_ns"`
	P999 float64 `json:"p999_ns"`
	Max  float64 `json:"max_ns"`

	// Upper are bounds that the true quantiles lie below with 99 % confidence:
	// what so many samples support. A quantile that they cannot bound is missing.
	Upper95  float64 `json:"p95_upper_ns,omitempty"`
	Upper99  float64 `json:"p99_upper_ns,omitempty"`
	Upper999 float64 `json:"p999_upper_ns,omitempty"`
}

// NewDist takes samples in any order and sorts them.
func NewDist(samples []time.Duration) Dist {
	n := len(samples)
	if n == 0 {
		return Dist{}
	}
	slices.Sort(samples)
	var sum, square float64
	for _, s := range samples {
		sum += float64(s)
	}
	mean := sum / float64(n)
	for _, s := range samples {
		square += (float64(s) - mean) * (float64(s) - mean)
	}
	q := func(q float64) float64 { return Quantile(samples, q) }
	upper := func(q float64) float64 {
		over, ok := Supported(n, q)
		if !ok {
			return 0
		}
		return float64(samples[n-1-over])
	}
	return Dist{
		Upper95: upper(0.95), Upper99: upper(0.99), Upper999: upper(0.999),
		N: n, Mean: mean, Std: math.Sqrt(square / float64(n)),
		Min: float64(samples[0]), P50: q(0.50), P90: q(0.90), P95: q(0.95), P99: q(0.99), P999: q(0.999), Max: float64(samples[n-1]),
	}
}

// supportLevel is the confidence at which a quantile must be supported, MLPerf's.
const supportLevel = 0.99

// Supported is how many of n samples may lie above a bound so that the q-quantile
// is shown to lie at or below it; ok is false when n is too small even for none.
// It is MLPerf's early-stopping test with d = 0 and c = 0.99, I(q; h, t+1) ≤ 1−c
// for t above and h = n−t not (inference rules, 2026-07), which is the exact
// binomial bound of a share.
func Supported(n int, q float64) (over int, ok bool) {
	shown := func(t int) bool { return evidence.AtMost("", t, n, 1-q, supportLevel).Outcome == evidence.Pass }
	if !shown(0) {
		return 0, false
	}
	over = sort.Search(int(float64(n)*(1-q))+1, func(t int) bool { return !shown(t + 1) })
	return over, true
}

// Quantile is the q-quantile of sorted samples in nanoseconds, by Method; NaN
// of none.
func Quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	lo := int(at)
	hi := min(lo+1, len(sorted)-1)
	return float64(sorted[lo]) + (at-float64(lo))*float64(sorted[hi]-sorted[lo])
}

// SLO are the bounds that a good request keeps; 0 asks for nothing.
type SLO struct {
	TTFT time.Duration `json:"ttft_ns,omitempty"`
	TPOT time.Duration `json:"tpot_ns,omitempty"`
	E2E  time.Duration `json:"e2e_ns,omitempty"`
}

// Good tells whether r is complete and keeps every bound. What could not be
// measured is not kept; an answer that is known to be too short for a TPOT
// breaks no bound on it.
func (s SLO) Good(r *Result) bool {
	within := func(bound time.Duration, d time.Duration, ok bool) bool { return bound == 0 || ok && d <= bound }
	ttft, ok1 := r.TTFT()
	e2e, ok2 := r.E2E()
	tpot, _, ok3 := r.TPOT()
	short := r.Stream && r.Count == CountUsage && r.Output <= max(r.FirstTokens, 1)
	return r.OK() && within(s.TTFT, ttft, ok1) && within(s.E2E, e2e, ok2) && (short || within(s.TPOT, tpot, ok3))
}

// Window is the part of a run that is summed up: requests due in it count, and
// tokens that came in it. The zero Window is the whole run, from the first arrival
// due to the last end.
type Window struct {
	From time.Duration `json:"from_ns"`
	To   time.Duration `json:"to_ns"`
}

func (w Window) holds(at time.Duration) bool { return at >= w.From && at < w.To }

// Summary is what a run comes to. Latencies are of complete answers only;
// shares are of everything attempted.
type Summary struct {
	Method    string        `json:"method"`
	Window    time.Duration `json:"window_ns"`
	From      time.Duration `json:"from_ns,omitempty"` // where the window begins
	Attempted int           `json:"attempted"`         // without those that the run's own stop cut off
	Done      int           `json:"done"`
	Failed    map[Kind]int  `json:"failed,omitempty"` // with them, as KindCancelled

	TTFT     Dist `json:"ttft"`      // from the scheduled arrival
	TTFTSent Dist `json:"ttft_sent"` // from sending
	TTFO     Dist `json:"ttfo"`
	E2E      Dist `json:"e2e"`
	E2ESent  Dist `json:"e2e_sent"`
	TPOT     Dist `json:"tpot"`
	ICL      Dist `json:"icl"` // gaps between events, pooled over all requests: no per-token latency
	ITL      Dist `json:"itl"` // gaps between tokens, an event's gap in equal parts; where each event is counted
	Lag      Dist `json:"lag"` // sent after scheduled

	// TPOTAssumed of TPOT's samples took one token for the first event.
	TPOTAssumed int `json:"tpot_assumed"`
	// Uncounted complete answers came without a token count and are in no
	// token rate.
	Uncounted    int     `json:"uncounted"`
	InputTokens  int     `json:"input_tokens"`
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`
	RequestRate  float64 `json:"request_rate"`     // complete answers a second
	OutputRate   float64 `json:"output_rate"`      // output tokens a second
	PeakRate     float64 `json:"peak_output_rate"` // of the best second; 0: the window is shorter

	SLO       SLO     `json:"slo"`
	Good      int     `json:"good"`
	GoodShare float64 `json:"good_share"` // of the attempted
	Goodput   float64 `json:"goodput"`    // good requests a second

	Checks []Check `json:"checks"`
}

// Check is a comparison of the run's figures with each other. One that is not
// OK means that a figure is wrong or was not measured under the load that was
// asked for.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Note string `json:"note"`
}

// Summarise computes what results of one run come to as a whole.
func Summarise(results []*Result, stats Stats, slo SLO) Summary {
	return SummariseIn(Window{}, results, stats, slo)
}

// SummariseIn computes what results of one run come to in a window of it. The
// checks look at the whole run. Requests due in the window count however late they
// end, so that none is left out for being slow; those due before it count in
// nothing but the tokens and answers that came in it.
func SummariseIn(w Window, results []*Result, stats Stats, slo SLO) Summary {
	s := Summary{Method: Method, SLO: slo, Failed: map[Kind]int{}}
	whole := w == Window{}
	if whole {
		w = spanOf(results)
	}
	var ttft, ttftSent, ttfo, e2e, e2eSent, tpot, icl, itl, lag []time.Duration
	add := func(to *[]time.Duration, d time.Duration, ok bool) {
		if ok {
			*to = append(*to, d)
		}
	}
	ended, tokens := 0, 0.0
	for _, r := range results {
		if r.OK() && (whole || w.holds(r.End)) {
			ended++
		}
		if whole && r.OK() {
			tokens += float64(r.Output)
		} else if r.OK() {
			r.arrivals(func(at time.Duration, n float64) {
				if w.holds(at) {
					tokens += n
				}
			})
		}
		if !whole && !w.holds(r.Scheduled) {
			continue
		}
		if r.Kind == KindCancelled {
			s.Failed[r.Kind]++
			continue
		}
		s.Attempted++
		d, ok := r.Lag()
		add(&lag, d, ok)
		if slo.Good(r) {
			s.Good++
		}
		if !r.OK() {
			s.Failed[r.Kind]++
			continue
		}
		s.Done++
		d, ok = r.TTFT()
		add(&ttft, d, ok)
		d, ok = r.TTFTSent()
		add(&ttftSent, d, ok)
		d, ok = r.TTFO()
		add(&ttfo, d, ok)
		d, ok = r.E2E()
		add(&e2e, d, ok)
		d, ok = r.E2ESent()
		add(&e2eSent, d, ok)
		d, exact, ok := r.TPOT()
		add(&tpot, d, ok)
		if ok && !exact {
			s.TPOTAssumed++
		}
		icl = append(icl, r.Gaps...)
		if r.counted() {
			for i, n := range r.Steps {
				for range n {
					itl = append(itl, r.Gaps[i]/time.Duration(n))
				}
			}
		}
		if r.Count != CountUsage {
			s.Uncounted++
		}
		s.InputTokens += r.Input
		s.CachedTokens += r.Cached
		s.OutputTokens += r.Output
	}
	s.TTFT, s.TTFTSent, s.TTFO, s.E2E, s.E2ESent = NewDist(ttft), NewDist(ttftSent), NewDist(ttfo), NewDist(e2e), NewDist(e2eSent)
	s.TPOT, s.ICL, s.ITL, s.Lag = NewDist(tpot), NewDist(icl), NewDist(itl), NewDist(lag)
	if s.Attempted > 0 {
		s.GoodShare = float64(s.Good) / float64(s.Attempted)
	}
	s.From, s.Window = w.From, w.To-w.From
	if sec := s.Window.Seconds(); sec > 0 {
		s.RequestRate = float64(ended) / sec
		s.OutputRate = tokens / sec
		s.Goodput = float64(s.Good) / sec
	}
	s.PeakRate = peak(results, w)
	s.Checks = checks(results, stats, &s)
	return s
}

// spanOf is the whole of a run.
func spanOf(results []*Result) (w Window) {
	for i, r := range results {
		if i == 0 {
			w.From = r.Scheduled
		}
		w.From, w.To = min(w.From, r.Scheduled), max(w.To, r.End)
	}
	return w
}

// peak is the most tokens of a second of the window. Tokens are counted and not
// events, of which one may have several.
func peak(results []*Result, w Window) float64 {
	seconds := int((w.To-w.From)/time.Second) + 1
	if w.To-w.From < time.Second || seconds > maxSeconds {
		return 0
	}
	bins := make([]float64, seconds)
	for _, r := range results {
		if r.OK() {
			r.arrivals(func(at time.Duration, n float64) {
				if i := int((at - w.From) / time.Second); at >= w.From && i < seconds {
					bins[i] += n
				}
			})
		}
	}
	return slices.Max(bins)
}

// ownCount holds what the server says it sent against the text that came, where some of
// it was counted. An answer that ended by itself has a token without text, its end. One
// that was held to a length may have run over more of them, so that of it only half is
// too few.
func ownCount(results []*Result) Check {
	var own, told, n [2]int // of answers that ended by themselves, and of others
	for _, r := range results {
		if !r.OK() || r.Own == 0 || r.Count != CountUsage {
			continue
		}
		kind, end := 1, 0
		if r.Finish == "stop" {
			kind, end = 0, 1
		}
		own[kind], told[kind], n[kind] = own[kind]+r.Own+end, told[kind]+r.Output, n[kind]+1
	}
	if n[0]+n[1] == 0 {
		return Check{}
	}
	c := Check{Name: "own count", OK: true, Note: fmt.Sprintf("%d output tokens told of %d answers, %d by the tokenizer", told[0]+told[1], n[0]+n[1], own[0]+own[1])}
	for kind, least := range []float64{0.9, 0.5} {
		if t, o := float64(told[kind]), float64(own[kind]); n[kind] > 0 && (o > 1.1*t || o < least*t) {
			c.OK = false
			c.Note += fmt.Sprintf("; of the %d that were %s %.0f and %.0f, want %.1f to 1.1 times as many", n[kind], [2]string{"ended by the model", "held to a length"}[kind], t, o, least)
		}
	}
	return c
}

// maxSeconds bounds the seconds that are counted one by one: ten days.
const maxSeconds = 864_000

func checks(results []*Result, stats Stats, s *Summary) []Check {
	var out []Check
	check := func(name string, ok bool, format string, args ...any) {
		out = append(out, Check{name, ok, fmt.Sprintf(format, args...)})
	}
	var disordered, identity, gaps, steps, unended int
	var open float64
	worstDisorder := -1
	for _, r := range results {
		open += float64(r.End - r.opened)
		at := r.Scheduled
		for _, t := range []time.Duration{r.Sent, r.FirstByte, r.FirstToken, r.LastToken, r.End} {
			if t != 0 && t < at {
				disordered++
				worstDisorder = r.ID
				break
			}
			at = max(at, t)
		}
		if r.Unended {
			unended++
		}
		if r.FirstToken == 0 {
			continue
		}
		if r.OK() && r.counted() {
			n := r.FirstTokens
			for _, k := range r.Steps {
				n += k
			}
			if n != r.Output {
				steps++
			}
		}
		if d, _, ok := r.TPOT(); ok {
			// Rounding loses less than a nanosecond a token.
			n := r.Output - max(r.FirstTokens, 1)
			if off := r.FirstToken + d*time.Duration(n) - r.LastToken; off > 0 || off <= -time.Duration(n) {
				identity++
			}
		}
		sum := time.Duration(0)
		for _, g := range r.Gaps {
			sum += g
		}
		// Files of other tools may have no times of single events.
		if recorded := len(r.Gaps) > 0 || r.Events <= 1; recorded && (sum != r.LastToken-r.FirstToken || len(r.Gaps) != max(0, r.Events-1)) {
			gaps++
		}
	}
	check("order", disordered == 0, "%d requests have times out of order (last: %d)", disordered, worstDisorder)
	check("identity", identity == 0, "%d requests where TTFT + TPOT·(n−n₁) is not E2E", identity)
	check("gaps", gaps == 0, "%d requests whose gaps do not add up to E2E − TTFT", gaps)
	check("steps", steps == 0, "%d answers whose counted events do not add up to their usage", steps)
	check("ended", unended == 0, "%d answers ended with the connection and without [DONE]", unended)
	if stats.Wall > 0 {
		// Little's law: what the results say of concurrency against what was
		// counted while they ran.
		mean := open / float64(stats.Wall)
		check("little", math.Abs(mean-stats.MeanOpen) <= 0.02*stats.MeanOpen+0.05, "mean concurrency %.2f by the results, %.2f counted", mean, stats.MeanOpen)
	}
	if s.PeakRate > 0 {
		check("peak", s.PeakRate >= s.OutputRate*s.Window.Seconds()/(math.Floor(s.Window.Seconds())+1)*(1-1e-9), "peak of %.0f tokens/s, mean %.0f", s.PeakRate, s.OutputRate)
	}
	check("lag", s.Lag.N == 0 || s.Lag.P50 < 10e6 && s.Lag.P99 < 500e6,
		"sent %.2f ms late at the median, %.2f ms at p99: at most 10 and 500", s.Lag.P50/1e6, s.Lag.P99/1e6)
	check("counted", s.Uncounted == 0, "%d of %d answers came without usage", s.Uncounted, s.Done)
	var short, wanted int
	for _, r := range results {
		if r.OK() && r.Want > 0 && r.Count == CountUsage {
			wanted++
			if diff := math.Abs(float64(r.Output - r.Want)); diff > min(0.05*float64(r.Want), 50) {
				short++
			}
		}
	}
	if c := ownCount(results); c.Name != "" {
		out = append(out, c)
	}
	check("length", short == 0, "%d of %d answers differ from the length asked for by more than 5 %% or 50 tokens", short, wanted)
	return out
}
