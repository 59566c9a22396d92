package router

import (
	"net/http"
	"sync"
	"time"

	"llmops/serving/trace"
)

// records are used again, with the room of their blocks.
var records = sync.Pool{New: func() any { return &trace.Record{} }}

// record writes down what became of the request, when that is wanted: at its end, when
// the client has all it gets.
func (c *call) record(o outcome, version string) {
	to := c.r.o.Records
	if to == nil {
		return
	}
	now, wall := c.r.o.Now(), time.Now()
	f, h, key := &c.f, c.req.Header, to.Key()
	r := records.Get().(*trace.Record)
	defer records.Put(r)
	blocks := key.Blocks(r.Blocks[:0], c.wish.text, c.wish.model, c.wish.tools, c.wish.salt)
	*r = trace.Record{
		Time: wall, Arrived: wall.Add(f.arrived - now), Tenant: short(first(h, HeaderTenant)), Workload: short(first(h, HeaderWorkload)),
		Session: key.Session(c.q.Conversation), Model: c.q.Alias, Adapter: c.adapter, Version: version, Endpoint: c.req.URL.Path,
		Stream: c.wish.stream, Status: c.ended(o), Input: trace.Unknown, Cached: trace.Unknown, Output: trace.Unknown, Chunks: f.seen.Tokens,
		Queued: f.chosen - f.arrived, Took: now - f.arrived, PromptBytes: len(c.wish.text), Blocks: blocks,
	}
	if r.Tenant == "" {
		if secret := first(h, "Authorization"); secret != "" {
			r.Tenant = key.Tenant(secret)
		}
	}
	if f.begun && c.wish.stream {
		r.TTFT = f.first - f.arrived
	}
	if f.seen.Usage {
		r.Input, r.Output = f.seen.Prompt, f.seen.Output
		if f.seen.Told {
			r.Cached = min(f.seen.Cached, f.seen.Prompt)
		}
	}
	to.Add(r)
}

// ended is the status of the request as it ended: of a stream that had begun, what it
// would have had if the end had been known.
func (c *call) ended(o outcome) int {
	switch {
	case c.status >= 400:
		return c.status
	case o == cancelled:
		return trace.Gone
	case o == failed:
		return http.StatusBadGateway
	}
	return c.status
}

// short bounds a name that a client sends.
func short(name string) string { return name[:min(len(name), trace.MaxName)] }
