package route

import (
	"time"

	"llmops/evidence"
)

// Strata is the number of prompt-length classes that outcomes are counted in:
// up to 512 tokens, up to 4,096, and more. The class is fixed before the
// choice, from the length of the request's text, so that no version can
// influence it.
const Strata = 3

// StratumOf is the class of a prompt of about n tokens.
func StratumOf(n int) int {
	switch {
	case n <= 512:
		return 0
	case n <= 4096:
		return 1
	}
	return 2
}

// Report is what a router has counted since it started: Boot is new with each
// start. Mirrored counts the copies of requests, whose answers nobody got.
type Report struct {
	Router   string              `json:"router"`
	Boot     string              `json:"boot"`
	Rev      uint64              `json:"rev"`
	Versions map[string]Counters `json:"versions"`
	Mirrored map[string]Counters `json:"mirrored,omitempty"`
	InFlight map[string]int      `json:"in_flight"`
}

// Since is what r counted after old: r itself when the router was restarted
// in between, or old is empty.
func (r Report) Since(old Report) Report {
	if r.Boot != old.Boot {
		return r
	}
	r.Versions = since(r.Versions, old.Versions)
	r.Mirrored = since(r.Mirrored, old.Mirrored)
	return r
}

func since(now, old map[string]Counters) map[string]Counters {
	out := make(map[string]Counters, len(now))
	for v, c := range now {
		out[v] = c.Since(old[v])
	}
	return out
}

// Share is the measured share of version among the requests that were given
// to any version; ok is false when there were none.
func (r Report) Share(version string) (share float64, ok bool) {
	var sum, own uint64
	for v, c := range r.Versions {
		n := c.Total().Chosen
		sum += n
		if v == version {
			own = n
		}
	}
	if sum == 0 {
		return 0, false
	}
	return float64(own) / float64(sum), true
}

// Counters are the outcomes of one version by stratum. Mismatched counts
// answers that named another version than the one decided on.
type Counters struct {
	Strata     [Strata]Stratum `json:"strata"`
	Mismatched uint64          `json:"mismatched,omitempty"`
	// Compared and Equal count mirrored answers beside the live answer to the
	// same request: both complete, and of these byte for byte the same text.
	Compared uint64 `json:"compared,omitempty"`
	Equal    uint64 `json:"equal,omitempty"`
	// Dropped counts requests that were drawn for the mirror and not sent, for
	// want of a free slot or of a replica.
	Dropped uint64 `json:"dropped,omitempty"`
}

// Total adds up the strata.
func (c Counters) Total() Stratum {
	var t Stratum
	for i := range c.Strata {
		t.Merge(&c.Strata[i])
	}
	return t
}

// Merge adds o, as of another router.
func (c *Counters) Merge(o *Counters) {
	for i := range c.Strata {
		c.Strata[i].Merge(&o.Strata[i])
	}
	c.Mismatched += o.Mismatched
	c.Compared += o.Compared
	c.Equal += o.Equal
	c.Dropped += o.Dropped
}

// Since is what c counted after its earlier state old.
func (c Counters) Since(old Counters) Counters {
	for i := range c.Strata {
		c.Strata[i] = c.Strata[i].Since(old.Strata[i])
	}
	c.Mismatched -= old.Mismatched
	c.Compared -= old.Compared
	c.Equal -= old.Equal
	c.Dropped -= old.Dropped
	return c
}

// Stratum counts the requests of one version and prompt-length class, each for
// the version first chosen. Chosen = Done + Errors + Invalid + Cancelled + what
// is in flight.
type Stratum struct {
	Chosen    uint64 `json:"chosen"`
	Done      uint64 `json:"done"`
	Errors    uint64 `json:"errors"`    // 5xx, 429 of the engine, lost connections, truncated streams
	Invalid   uint64 `json:"invalid"`   // other 4xx: the engine refused the request
	Cancelled uint64 `json:"cancelled"` // the client left
	Refusals  uint64 `json:"refusals"`  // of Done: content_filter or a refusal
	Retried   uint64 `json:"retried"`   // needed a second replica

	// TTFT is counted from the choice, so that the wait in the shared queue
	// does not dilute a comparison of versions; Arrival from the arrival, which
	// is what a client sees.
	TTFT    Latency `json:"ttft"`
	Arrival Latency `json:"arrival"`
	// TPOT is (last − first token) / (tokens − 1); answers of one token have
	// none. TPOTChunks of them took the number of chunks for the number of
	// tokens, because the engine sent no usage.
	TPOT       evidence.Histogram `json:"tpot"`
	TPOTChunks uint64             `json:"tpot_chunks"`

	// Tokens are summed over the answers that came with usage.
	Counted      uint64 `json:"counted"`
	InputTokens  uint64 `json:"input_tokens"`
	CachedTokens uint64 `json:"cached_tokens"`
	OutputTokens uint64 `json:"output_tokens"`
}

// Merge adds o.
func (s *Stratum) Merge(o *Stratum) {
	for _, f := range []struct{ to, from *uint64 }{
		{&s.Chosen, &o.Chosen}, {&s.Done, &o.Done}, {&s.Errors, &o.Errors}, {&s.Invalid, &o.Invalid},
		{&s.Cancelled, &o.Cancelled}, {&s.Refusals, &o.Refusals}, {&s.Retried, &o.Retried},
		{&s.TPOTChunks, &o.TPOTChunks}, {&s.Counted, &o.Counted}, {&s.InputTokens, &o.InputTokens},
		{&s.CachedTokens, &o.CachedTokens}, {&s.OutputTokens, &o.OutputTokens},
	} {
		*f.to += *f.from
	}
	s.TTFT.merge(&o.TTFT)
	s.Arrival.merge(&o.Arrival)
	s.TPOT.Merge(&o.TPOT)
}

// Since is what s counted after its earlier state old.
func (s Stratum) Since(old Stratum) Stratum {
	s.Chosen -= old.Chosen
	s.Done -= old.Done
	s.Errors -= old.Errors
	s.Invalid -= old.Invalid
	s.Cancelled -= old.Cancelled
	s.Refusals -= old.Refusals
	s.Retried -= old.Retried
	s.TPOTChunks -= old.TPOTChunks
	s.Counted -= old.Counted
	s.InputTokens -= old.InputTokens
	s.CachedTokens -= old.CachedTokens
	s.OutputTokens -= old.OutputTokens
	s.TTFT = s.TTFT.since(old.TTFT)
	s.Arrival = s.Arrival.since(old.Arrival)
	s.TPOT, _ = s.TPOT.Since(&old.TPOT)
	return s
}

// Latency counts a waiting time by admission, so that a version that hangs
// does not look clean: Seen are the times that ended, Gave the waits that were
// broken off by the client or by an error, Waiting those that went on when the
// report was made. The latter two are lower bounds of the time.
//
// Seen and Gave only grow; Waiting is a state. In the difference of two reports
// Before holds the older one's Waiting, which it had already counted, so that
// the differences of successive reports add up.
type Latency struct {
	Seen    evidence.Histogram `json:"seen"`
	Gave    evidence.Histogram `json:"gave"`
	Waiting evidence.Histogram `json:"waiting"`
	Before  evidence.Histogram `json:"before,omitzero"`
}

// Over counts the requests that are known to have taken longer than bound,
// among n that are decided: a wait below the bound that was broken off or goes
// on says nothing yet and is in neither. Both numbers only grow from report to
// report when bound is an edge of the histogram, which edge then equals.
func (l *Latency) Over(bound time.Duration) (over, n uint64, edge time.Duration) {
	for _, h := range []*evidence.Histogram{&l.Seen, &l.Gave, &l.Waiting} {
		var o uint64
		o, edge = h.Over(bound)
		over += o
	}
	before, _ := l.Before.Over(bound)
	over -= min(before, over)
	seenOver, _ := l.Seen.Over(bound)
	return over, l.Seen.N() - seenOver + over, edge
}

func (l *Latency) merge(o *Latency) {
	l.Seen.Merge(&o.Seen)
	l.Gave.Merge(&o.Gave)
	l.Waiting.Merge(&o.Waiting)
	l.Before.Merge(&o.Before)
}

func (l Latency) since(old Latency) Latency {
	l.Seen, _ = l.Seen.Since(&old.Seen)
	l.Gave, _ = l.Gave.Since(&old.Gave)
	l.Before.Merge(&old.Waiting)
	return l
}
