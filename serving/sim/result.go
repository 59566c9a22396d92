package sim

import (
	"math"
	"slices"
	"time"

	"llmops/evidence"
	"llmops/serving/embedded/core"
)

// Result is what a run showed. Times are in milliseconds where the name says so.
// Requests are counted when they came after the warm-up; tokens, when they were
// computed after it.
type Result struct {
	Seed          uint64  `json:"seed"`
	Seconds       float64 `json:"seconds"` // after the warm-up
	WarmupSeconds float64 `json:"warmup_seconds"`
	Nodes         int     `json:"nodes"`
	Engine        string  `json:"engine"`
	KVTokens      int     `json:"kv_tokens"` // of a replica
	TTFTLimitMs   float64 `json:"ttft_limit_ms,omitempty"`
	TPOTLimitMs   float64 `json:"tpot_limit_ms,omitempty"`

	Total    Group     `json:"total"`
	Tenants  []Group   `json:"tenants"`
	Engines  Engines   `json:"engines"` // all replicas
	Replicas []Replica `json:"replicas"`
	// HotSpot is how many requests the busiest replica got over the mean.
	HotSpot float64  `json:"hot_spot"`
	Series  []Moment `json:"series"`

	TTFT evidence.Histogram `json:"ttft_histogram"`
	TPOT evidence.Histogram `json:"tpot_histogram"`
}

// Group is what some requests met.
type Group struct {
	Name       string  `json:"name"`
	Arrived    int     `json:"arrived"`
	Finished   int     `json:"finished"`
	Rejected   int     `json:"rejected"`
	Failed     int     `json:"failed"`
	Retried    int     `json:"retried"`
	Unfinished int     `json:"unfinished"`
	TTFT       *Spread `json:"ttft_ms"` // null: no request ended
	TPOT       *Spread `json:"tpot_ms"`
	E2E        *Spread `json:"e2e_ms"`

	// Good requests kept both limits. Their share is of all that have ended or
	// are late already.
	Good          int     `json:"good"`
	GoodShare     float64 `json:"good_share"`
	GoodPerSecond float64 `json:"good_per_second"`

	PromptTokens    int     `json:"prompt_tokens"` // of finished requests, like the next two
	CachedShare     float64 `json:"cached_share"`  // of them, found in a prefix cache
	OutputTokens    int     `json:"output_tokens"`
	OutputPerSecond float64 `json:"output_per_second"`
}

// Spread is quantiles.
type Spread struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

// Engines is what engines did.
type Engines struct {
	OutputPerSecond     float64 `json:"output_per_second"`
	NodeOutputPerSecond float64 `json:"node_output_per_second"`
	PromptPerSecond     float64 `json:"prompt_per_second"` // computed for the first time
	Batch               float64 `json:"batch"`             // sequences in a step, in the mean over the time in steps
	Busy                float64 `json:"busy"`              // share of the time in steps
	KVUse               float64 `json:"kv_use"`            // in the mean over the time in steps
	KVPeak              float64 `json:"kv_peak"`
	PrefixHitShare      float64 `json:"prefix_hit_share"`
	Preemptions         uint64  `json:"preemptions"`
	RecomputedTokens    uint64  `json:"recomputed_tokens"`
	RecomputedShare     float64 `json:"recomputed_share"` // of all computed tokens
	Evictions           uint64  `json:"evictions"`        // blocks
	Steps               uint64  `json:"steps"`
}

// Replica is one engine.
type Replica struct {
	Name   string  `json:"name"`
	Routed uint64  `json:"routed"`
	TTFT   *Spread `json:"ttft_ms"`
	TPOT   *Spread `json:"tpot_ms"`
	Engines
}

// Moment is one interval of the series, up to Seconds after the beginning of the run.
type Moment struct {
	Seconds          float64 `json:"seconds"`
	Arrived          int     `json:"arrived"`
	Finished         int     `json:"finished"`
	Good             int     `json:"good"`
	Rejected         int     `json:"rejected"`
	Failed           int     `json:"failed"`
	OutputTokens     uint64  `json:"output_tokens"`
	PromptTokens     uint64  `json:"prompt_tokens"`
	RecomputedTokens uint64  `json:"recomputed_tokens"`
	Preemptions      uint64  `json:"preemptions"`
	Running          int     `json:"running"` // these four are of its end
	Waiting          int     `json:"waiting"` // in engines
	Queued           int     `json:"queued"`  // in the router
	KVUse            float64 `json:"kv_use"`
	TTFTp95          float64 `json:"ttft_p95_ms"` // 0: nothing finished
	TPOTp95          float64 `json:"tpot_p95_ms"`
}

// entry is a finished request.
type entry struct {
	ttft, tpot, e2e float32 // ms
	replica, tenant uint16
	counted, good   bool
	many            bool // more than one token, so that there is a time between them
}

// recorder notes what happens.
type recorder struct {
	warmup     time.Duration
	ttft, tpot time.Duration // limits
	log        []entry       // in the order of finishing
	tenants    []Group
	series     []Moment
	current    Moment
	from       int          // the first entry of the current moment
	seen       []core.Stats // by replica, at the end of the last moment
	warmStats  []core.Stats
	warmUse    []use
	histTTFT   evidence.Histogram
	histTPOT   evidence.Histogram
}

func (c *recorder) begin(m *simulation) {
	c.warmup, c.ttft, c.tpot = m.s.Warmup, m.s.SLO.TTFT.Limit, m.s.SLO.TPOT.Limit
	for _, t := range m.s.Tenants {
		c.tenants = append(c.tenants, Group{Name: t.Name})
	}
	c.seen = make([]core.Stats, len(m.replicas))
	c.warm(m)
}

// warm is the end of the warm-up.
func (c *recorder) warm(m *simulation) {
	c.warmStats, c.warmUse = c.warmStats[:0], c.warmUse[:0]
	for _, r := range m.replicas {
		c.warmStats, c.warmUse = append(c.warmStats, r.stats()), append(c.warmUse, r.use)
		r.use.mostBlock = 0
	}
}

// count is where a request counts; what came in the warm-up counts nowhere.
func (c *recorder) count(q *request) *Group {
	if q.arrived < c.warmup {
		return &Group{}
	}
	return &c.tenants[q.tenant]
}

func (c *recorder) arrived(q *request) {
	c.current.Arrived++
	c.count(q).Arrived++
}

func (c *recorder) rejected(q *request) {
	c.current.Rejected++
	c.count(q).Rejected++
}

func (c *recorder) failed(q *request) {
	c.current.Failed++
	c.count(q).Failed++
}

func (c *recorder) retried(q *request) { c.count(q).Retried++ }

func (c *recorder) finished(m *simulation, q *request) {
	ttft, e2e, n := q.first-q.arrived, m.now-q.arrived, len(q.seq.Output())
	tpot := time.Duration(0)
	if n > 1 {
		tpot = (m.now - q.first) / time.Duration(n-1)
	}
	e := entry{
		ttft: ms(ttft), tpot: ms(tpot), e2e: ms(e2e), replica: uint16(q.replica.index), tenant: uint16(q.tenant), many: n > 1,
		counted: q.arrived >= c.warmup, good: (c.ttft == 0 || ttft <= c.ttft) && (c.tpot == 0 || tpot <= c.tpot),
	}
	c.log = append(c.log, e)
	c.current.Finished++
	if e.good {
		c.current.Good++
	}
	if !e.counted {
		return
	}
	g := &c.tenants[q.tenant]
	g.Finished++
	g.PromptTokens += len(q.seq.Prompt)
	g.CachedShare += float64(q.seq.Cached()) // a share at the end
	g.OutputTokens += n
	if e.good {
		g.Good++
	}
	c.histTTFT.Add(ttft)
	if n > 1 {
		c.histTPOT.Add(tpot)
	}
}

func ms(d time.Duration) float32 { return float32(float64(d) / float64(time.Millisecond)) }

// sample ends an interval of the series.
func (c *recorder) sample(m *simulation) {
	cur := &c.current
	cur.Seconds = m.now.Seconds()
	used, all := 0, 0
	for i, r := range m.replicas {
		s, old := r.stats(), &c.seen[i]
		cur.OutputTokens += s.Generated - old.Generated
		cur.PromptTokens += s.Prompt - old.Prompt
		cur.RecomputedTokens += s.Recomputed - old.Recomputed
		cur.Preemptions += s.Preemptions - old.Preemptions
		if !r.dead {
			cur.Running += s.Running
			cur.Waiting += s.Waiting
			used += s.UsedBlocks
		}
		all += r.limits.Blocks
		c.seen[i] = s
	}
	cur.Queued, cur.KVUse = m.gate.Waiting(), round(ratio(float64(used), float64(all)))
	ended := c.log[c.from:]
	if s := spread(values(ended, func(e *entry) (float32, bool) { return e.ttft, true })); s != nil {
		cur.TTFTp95 = s.P95
	}
	if s := spread(values(ended, func(e *entry) (float32, bool) { return e.tpot, e.many })); s != nil {
		cur.TPOTp95 = s.P95
	}
	c.series = append(c.series, *cur)
	c.current, c.from = Moment{}, len(c.log)
}

func (c *recorder) result(m *simulation) *Result {
	if n := len(c.series); n == 0 || c.series[n-1].Seconds < m.now.Seconds() {
		c.sample(m)
	}
	s := m.s
	seconds := (s.Duration - s.Warmup).Seconds()
	first := m.replicas[0]
	r := &Result{
		Seed: s.Seed, Seconds: seconds, WarmupSeconds: s.Warmup.Seconds(), Nodes: s.Fleet.Nodes, Engine: first.exec.Describe(),
		KVTokens:    first.limits.Blocks * first.limits.BlockSize,
		TTFTLimitMs: float64(ms(c.ttft)), TPOTLimitMs: float64(ms(c.tpot)), Series: c.series, TTFT: c.histTTFT, TPOT: c.histTPOT,
	}
	late := make([]int, len(c.tenants))
	for _, q := range m.requests {
		if q.state == free || q.arrived < s.Warmup {
			continue
		}
		c.tenants[q.tenant].Unfinished++
		waited := q.first
		if waited == 0 {
			waited = m.now
		}
		if c.ttft > 0 && waited-q.arrived > c.ttft {
			late[q.tenant]++
		}
	}
	counted := slices.DeleteFunc(c.log, func(e entry) bool { return !e.counted })
	r.Total.Name = "total"
	allLate := 0
	for i := range c.tenants {
		t := &c.tenants[i]
		r.Total.add(t)
		allLate += late[i]
		t.finish(counted, func(e *entry) bool { return int(e.tenant) == i }, late[i], seconds)
	}
	r.Tenants = c.tenants
	r.Total.finish(counted, func(*entry) bool { return true }, allLate, seconds)
	c.engines(r, m, counted, seconds)
	return r
}

func (g *Group) add(o *Group) {
	g.Arrived += o.Arrived
	g.Finished += o.Finished
	g.Rejected += o.Rejected
	g.Failed += o.Failed
	g.Retried += o.Retried
	g.Unfinished += o.Unfinished
	g.Good += o.Good
	g.PromptTokens += o.PromptTokens
	g.CachedShare += o.CachedShare
	g.OutputTokens += o.OutputTokens
}

func (g *Group) finish(log []entry, mine func(*entry) bool, late int, seconds float64) {
	g.TTFT = spread(values(log, func(e *entry) (float32, bool) { return e.ttft, mine(e) }))
	g.TPOT = spread(values(log, func(e *entry) (float32, bool) { return e.tpot, e.many && mine(e) }))
	g.E2E = spread(values(log, func(e *entry) (float32, bool) { return e.e2e, mine(e) }))
	g.CachedShare = round(ratio(g.CachedShare, float64(g.PromptTokens)))
	g.GoodShare = round(ratio(float64(g.Good), float64(g.Finished+g.Rejected+g.Failed+late)))
	g.GoodPerSecond = round(float64(g.Good) / seconds)
	g.OutputPerSecond = round(float64(g.OutputTokens) / seconds)
}

// engines fills in what replicas did since the warm-up.
func (c *recorder) engines(r *Result, m *simulation, log []entry, seconds float64) {
	ttft, tpot := make([][]float32, len(m.replicas)), make([][]float32, len(m.replicas))
	for i := range log {
		e := &log[i]
		ttft[e.replica] = append(ttft[e.replica], e.ttft)
		if e.many {
			tpot[e.replica] = append(tpot[e.replica], e.tpot)
		}
	}
	var all core.Stats
	var used use
	var routed, most uint64
	blocks := m.replicas[0].limits.Blocks
	for i, rep := range m.replicas {
		s, u := since(rep.stats(), c.warmStats[i]), rep.use.since(c.warmUse[i])
		one := Replica{Name: rep.name, Routed: u.routed, TTFT: spread(ttft[i]), TPOT: spread(tpot[i])}
		one.Engines = engines(s, u, blocks, 1, seconds)
		one.NodeOutputPerSecond = one.OutputPerSecond * float64(len(m.replicas)/m.s.Fleet.Nodes)
		r.Replicas = append(r.Replicas, one)
		routed, most = routed+u.routed, max(most, u.routed)
		all = plus(all, s)
		used.busy += u.busy
		used.rows += u.rows
		used.blocks += u.blocks
		used.mostBlock = max(used.mostBlock, u.mostBlock)
	}
	r.Engines = engines(all, used, blocks, len(m.replicas), seconds)
	r.Engines.NodeOutputPerSecond = round(r.Engines.OutputPerSecond / float64(m.s.Fleet.Nodes))
	r.HotSpot = round(ratio(float64(most)*float64(len(m.replicas)), float64(routed)))
}

func engines(s core.Stats, u use, blocks, replicas int, seconds float64) Engines {
	busy := u.busy.Seconds()
	return Engines{
		OutputPerSecond: round(float64(s.Generated) / seconds), PromptPerSecond: round(float64(s.Prompt) / seconds),
		Batch: round(ratio(u.rows, busy)), Busy: round(busy / seconds / float64(replicas)),
		KVUse: round(ratio(u.blocks, busy*float64(blocks))), KVPeak: round(float64(u.mostBlock) / float64(blocks)),
		PrefixHitShare: round(ratio(float64(s.PrefixHits), float64(s.PrefixQueries))),
		Preemptions:    s.Preemptions, RecomputedTokens: s.Recomputed, Evictions: s.Evictions, Steps: s.Steps,
		RecomputedShare: round(ratio(float64(s.Recomputed), float64(s.Recomputed+s.Prompt+s.Generated))),
	}
}

func since(s, old core.Stats) core.Stats {
	s.PrefixQueries -= old.PrefixQueries
	s.PrefixHits -= old.PrefixHits
	s.Prompt -= old.Prompt
	s.Generated -= old.Generated
	s.Recomputed -= old.Recomputed
	s.Preemptions -= old.Preemptions
	s.Evictions -= old.Evictions
	s.Steps -= old.Steps
	return s
}

func plus(s, o core.Stats) core.Stats {
	s.PrefixQueries += o.PrefixQueries
	s.PrefixHits += o.PrefixHits
	s.Prompt += o.Prompt
	s.Generated += o.Generated
	s.Recomputed += o.Recomputed
	s.Preemptions += o.Preemptions
	s.Evictions += o.Evictions
	s.Steps += o.Steps
	return s
}

func (u use) since(old use) use {
	u.busy -= old.busy
	u.rows -= old.rows
	u.blocks -= old.blocks
	u.routed -= old.routed
	return u
}

func values(log []entry, pick func(*entry) (float32, bool)) []float32 {
	var out []float32
	for i := range log {
		if v, ok := pick(&log[i]); ok {
			out = append(out, v)
		}
	}
	return out
}

// spread sorts v. A quantile is the smallest value that its share is at or below.
func spread(v []float32) *Spread {
	if len(v) == 0 {
		return nil
	}
	slices.Sort(v)
	at := func(q float64) float64 { return round(float64(v[max(0, int(math.Ceil(q*float64(len(v))))-1)])) }
	return &Spread{at(0.50), at(0.95), at(0.99)}
}

// ratio is 0 of nothing.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// round keeps four digits after the point, so that results can be read.
func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }
