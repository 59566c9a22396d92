package router

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"llmops/serving/openai"
	"llmops/serving/route"
)

// Headers that the router reads.
const (
	HeaderConversation = "X-Conversation-Id"
	HeaderTenant       = "X-Tenant"
	// HeaderWorkload names what a request is for, in records of it.
	HeaderWorkload = "X-Workload"
	// HeaderVersion is in an engine's answer: the version that it is. The
	// router compares it with what it decided.
	HeaderVersion = "Llmops-Version"
)

// buffers hold request bodies and heads. Nothing refers to them any more when
// the handler returns: the engine's connection is written synchronously.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

func release(b *[]byte) {
	if cap(*b) <= 1<<20 {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// ServeHTTP is the tenants' API.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/v1/chat/completions", "/v1/completions":
		if allow(w, req, http.MethodPost) {
			r.generate(w, req, false)
		}
	case "/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score":
		if allow(w, req, http.MethodPost) {
			r.generate(w, req, true)
		}
	case "/v1/models":
		if allow(w, req, http.MethodGet) {
			r.models(w)
		}
	case "/health":
		if r.draining.Load() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	case "/metrics":
		if allow(w, req, http.MethodGet) {
			r.metrics(w)
		}
	default:
		openai.WriteError(w, http.StatusNotFound, &openai.Error{Message: "no such endpoint: " + req.URL.Path, Type: openai.TypeNotFound})
	}
}

func allow(w http.ResponseWriter, req *http.Request, method string) bool {
	if req.Method == method {
		return true
	}
	w.Header().Set("Allow", method)
	openai.WriteError(w, http.StatusMethodNotAllowed, &openai.Error{Message: req.URL.Path + " takes " + method, Type: openai.TypeInvalid})
	return false
}

// call is one request on its way through the router.
type call struct {
	r    *Router
	w    http.ResponseWriter
	req  *http.Request
	body []byte
	rest []byte // of the head to send, all that does not depend on the replica
	wish wish
	q    Request
	f    flight
	pair *pair // with a copy of the request, or nil
	sent bool  // a byte of an answer has gone to the client
	// asked: the router asked for usage at the end of the stream, the client did not.
	asked   bool
	status  int    // that the client got, as far as it got one
	adapter string // that was asked for in the model's place
	// encode: the answer is vectors or scores, all of it at once. What a client
	// waits for is its end, which is counted as a first token is.
	encode bool
}

func (r *Router) generate(w http.ResponseWriter, req *http.Request, encode bool) {
	buf := buffers.Get().(*[]byte)
	defer func() { release(buf) }()
	if e := r.readBody(w, req, buf); e != nil {
		status := http.StatusBadRequest
		if e.Code == "body_too_large" {
			status = http.StatusRequestEntityTooLarge
		}
		openai.WriteError(w, status, e)
		return
	}
	c := &call{r: r, w: w, req: req, body: *buf, encode: encode}
	var e *openai.Error
	if c.wish, e = scan(c.body); e != nil {
		openai.WriteError(w, http.StatusBadRequest, e)
		return
	}
	v := r.view.Load()
	a := v.routes[string(c.wish.model)]
	if a == nil {
		if a = v.adapters[string(c.wish.model)]; a != nil {
			c.adapter = string(c.wish.model)
		} else if a = c.pinned(v); a == nil {
			openai.WriteError(w, http.StatusNotFound, &openai.Error{
				Message: "the model " + strconv.Quote(string(c.wish.model)) + " does not exist", Type: openai.TypeNotFound, Param: "model", Code: "model_not_found"})
			return
		}
	}
	h := req.Header
	tenant := route.Sum([]byte(first(h, HeaderTenant, "Authorization")))
	c.q.Alias = a.doc.Alias
	c.q.Conversation = conversation(first(h, HeaderConversation), tenant, &c.wish)
	c.q.Prefix = route.Mix(tenant, route.Sum(c.wish.prefix))
	if c.adapter != "" { // which has a cache of its own
		c.q.Prefix = route.Mix(c.q.Prefix, route.Sum([]byte(c.adapter)))
	}

	c.q.Tokens = a.counts.tokens(c.wish.tokens)

	began := r.o.Now()
	d, rej := r.admit(req.Context(), &c.q)
	if rej != nil {
		a.counts.rejected.Add(1)
		if rej.Status != 0 {
			reject(w, rej)
		}
		c.status, c.f = rej.Status, flight{arrived: began, chosen: r.o.Now()}
		c.record(cancelled, "")
		return
	}
	c.serve(d, a)
}

// first is the first of the headers that is there.
func first(h http.Header, names ...string) string {
	for _, n := range names {
		if v := h[n]; len(v) > 0 && v[0] != "" {
			return v[0]
		}
	}
	return ""
}

// pinned takes a model alias@name for the version pinned under that name, and
// gives the engine the alias, which is the name it knows.
func (c *call) pinned(v *View) *aliasView {
	alias, name, ok := strings.Cut(string(c.wish.model), "@")
	if !ok {
		return nil
	}
	a := v.routes[alias]
	if a == nil || a.doc.Pins[name] == "" {
		return nil
	}
	c.q.Pin = a.doc.Pins[name]
	body := make([]byte, 0, len(c.body))
	body = append(body, c.body[:c.wish.at]...)
	body = strconv.AppendQuote(body, alias)
	c.body = append(body, c.body[c.wish.end:]...)
	c.wish, _ = scan(c.body) // which it passed before
	return a
}

func (r *Router) readBody(w http.ResponseWriter, req *http.Request, buf *[]byte) *openai.Error {
	tooLarge := &openai.Error{Message: "request body is larger than " + strconv.FormatInt(r.o.MaxBody, 10) + " bytes", Type: openai.TypeInvalid, Code: "body_too_large"}
	b := *buf
	if n := req.ContentLength; n > r.o.MaxBody {
		return tooLarge
	} else if n > int64(cap(b)) {
		b = make([]byte, 0, n)
	}
	for {
		if len(b) == cap(b) {
			// Full to the last byte may be all of it, which only one more read
			// can tell.
			if int64(len(b)) > r.o.MaxBody {
				return tooLarge
			}
			b = append(b, 0)[:len(b)]
		}
		n, err := req.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		*buf = b
		if int64(len(b)) > r.o.MaxBody {
			return tooLarge
		}
		if err == io.EOF || int64(len(b)) == req.ContentLength {
			return nil
		}
		if err != nil {
			return openai.Invalid("", "reading the request body: %v", err)
		}
	}
}

// admit waits for a replica. A Reject without status is a client that left.
func (r *Router) admit(ctx context.Context, q *Request) (Decision, *Reject) {
	r.mu.Lock()
	if rej := r.gate.Arrive(r.o.Now(), q); rej != nil {
		r.mu.Unlock()
		return Decision{}, rej
	}
	d, ok := r.next(q)
	if ok {
		r.mu.Unlock()
		return d, nil
	}
	q.ready = make(chan Decision, 1)
	r.mu.Unlock()

	t := time.NewTimer(r.o.QueueTime)
	defer t.Stop()
	rej := &Reject{}
	select {
	case d := <-q.ready:
		return d, nil
	case <-ctx.Done():
	case <-t.C:
		rej.Status, rej.Reason = http.StatusTooManyRequests, "queue_timeout"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gate.Cancel(q) {
		return <-q.ready, nil // decided in this very moment
	}
	rej.RetryAfter = r.gate.RetryAfter(r.o.Now())
	return Decision{}, rej
}

func reject(w http.ResponseWriter, rej *Reject) {
	e := &openai.Error{Message: "the model is busy, try again later", Type: openai.TypeRateLimit, Code: openai.Code(rej.Reason)}
	if rej.Status == http.StatusServiceUnavailable {
		e.Message, e.Type = "no replica of the model can take the request", openai.TypeUnavailable
	}
	if rej.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(rej.RetryAfter.Seconds()))))
	}
	openai.WriteError(w, rej.Status, e)
}

// serve sends the request where it was decided and its answer to the client.
func (c *call) serve(d Decision, a *aliasView) {
	r := c.r
	if d.Version == "" { // the alias went away while the request waited
		c.status, c.f = http.StatusServiceUnavailable, flight{arrived: c.q.At, chosen: d.At}
		reject(c.w, &Reject{c.status, time.Second, "no_route"})
		c.record(failed, "")
		return
	}
	c.f = flight{stratum: route.StratumOf(c.wish.tokens), stream: c.wish.stream || c.encode, arrived: c.q.At, chosen: d.At}
	a.counts.of(d.Version).begin(&c.f)
	o := failed
	defer func() {
		now := r.o.Now()
		if c.encode && o == done {
			c.f.encoded(now)
		}
		c.f.end(now, o)
		if c.f.seen.Usage && c.f.seen.Prompt > 0 && c.wish.tokens > 0 {
			a.counts.learn(c.wish.tokens, c.f.seen.Prompt)
		}
		if d.Replica != nil {
			r.release(d, Usage{c.f.seen.Prompt, c.f.seen.Output})
		}
		if c.pair != nil {
			c.pair.end(0, o == done, c.f.seen.Text)
		}
		c.record(o, d.Version)
	}()
	if d.Replica == nil {
		c.status = http.StatusServiceUnavailable
		reject(c.w, &Reject{c.status, time.Second, "no_replica"})
		return
	}
	if r.o.Records != nil && !c.encode {
		c.body, c.asked = c.wish.askUsage(c.body)
	}
	buf := buffers.Get().(*[]byte)
	defer func() { release(buf) }()
	*buf = appendHead((*buf)[:0], c.req, len(c.body))
	c.rest = *buf
	for _, m := range d.mirror {
		if c.q.Pin == "" && m.version != d.Version && route.Mirrored(m.share, d.hash) {
			c.copyTo(a, m.version)
		}
	}

	for try := 0; ; try++ {
		ans, err := d.Replica.ask(c.req.Context(), c.req.URL.Path, c.rest, c.body, r.o.Wait)
		if err == nil && try == 0 && busy(ans.Status) {
			if e, ok := r.again(c, d); ok {
				ans.close()
				d = e
				continue
			}
		}
		if err == nil {
			o, err = c.relay(ans, &d)
		}
		if err == nil {
			return
		}
		if c.req.Context().Err() != nil {
			o = cancelled
			return
		}
		d.Replica.lost(err)
		if try == 0 && !c.sent && !waited(err) {
			e, ok := r.again(c, d)
			if ok {
				d = e
			}
			// Without another replica a connection that had been idle is worth
			// a new one to the same: the engine may only have closed it.
			var te *transportError
			if ok || errors.As(err, &te) && te.reused {
				continue
			}
		}
		o = failed
		c.fail(err)
		return
	}
}

// busy tells the statuses for which another replica may be asked.
func busy(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// waited tells an engine that took the request and kept silent until patience
// ended. Asking another would make the client wait as long again.
func waited(err error) bool {
	var te *transportError
	return isTimeout(err) && !gone(err) && !(errors.As(err, &te) && te.dialling)
}

// gone tells a connection that the system gave up, with the machine at its end.
func gone(err error) bool { return errors.Is(err, syscall.ETIMEDOUT) }

// again gives d's stream back and books another replica of the same version.
func (r *Router) again(c *call, d Decision) (Decision, bool) {
	c.q.Avoid = d.Replica
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.gate.Take(r.o.Now(), r.view.Load(), &c.q, d.Version)
	if ok {
		c.f.retried = true
		r.gate.Done(r.o.Now(), d, Usage{})
		r.next(nil)
	}
	return e, ok
}

// lost marks the replica as dead when its connection failed, so that the next
// request does not find that out again, and has it probed at once.
func (m *Replica) lost(err error) {
	var te *transportError
	if errors.As(err, &te) && (!isTimeout(err) || gone(err)) {
		if m.Health() == Up {
			m.SetHealth(Suspect)
		}
		kick(m.failed)
	}
}

// relay passes an answer on. With an error it broke off; c.sent tells whether
// the client has any of it.
func (c *call) relay(ans *answer, d *Decision) (o outcome, err error) {
	defer ans.close()
	ctx, f := c.req.Context(), &c.f
	var s sniffer
	s.begin(ans)
	defer s.end()
	if c.asked {
		s.cut = &cutter{}
	}
	c.status = ans.Status
	piece, err := ans.next(ctx)
	if err != nil && (err != io.EOF || s.sse) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return failed, err
	}
	if v := ans.Header[HeaderVersion]; len(v) > 0 && v[0] != d.Version {
		f.mismatched = true
	}
	h := c.w.Header()
	for k, v := range ans.Header {
		h[k] = v
	}
	c.w.WriteHeader(ans.Status)
	c.sent = true
	if s.sse {
		// Each event goes out when the engine has no more to give, and never
		// waits for the next.
		dirty, rc := false, http.NewResponseController(c.w)
		ans.beforeRead = func() error {
			if !dirty {
				return nil
			}
			dirty = false
			return rc.Flush()
		}
		for ; err == nil; piece, err = ans.next(ctx) {
			before := f.seen.Tokens
			out, token := s.feed(&f.seen, piece)
			if token {
				d.Grow(f.seen.Tokens - before)
				f.token(c.r.o.Now())
				ans.patience = c.r.o.Stall
			}
			if len(out) == 0 {
				continue
			}
			if _, werr := c.w.Write(out); werr != nil {
				return s.left(&f.seen), nil
			}
			dirty = true
		}
		if out := s.rest(); len(out) > 0 {
			_, _ = c.w.Write(out) // that the client is gone, the end tells
		}
	} else {
		for ; err == nil; piece, err = ans.next(ctx) {
			s.feed(&f.seen, piece)
			if _, werr := c.w.Write(piece); werr != nil {
				return cancelled, nil
			}
		}
	}
	if err != io.EOF {
		if ctx.Err() != nil {
			return s.left(&f.seen), nil
		}
		return failed, err
	}
	o = s.outcome(&f.seen, ans.Status)
	if o == failed && s.sse && !f.seen.Failed && ans.Status < 400 {
		return failed, io.ErrUnexpectedEOF
	}
	return o, nil
}

// fail tells the client that there is no answer, or no more of it.
func (c *call) fail(err error) {
	status, e := http.StatusBadGateway, &openai.Error{Message: "the engine broke off", Type: openai.TypeServer, Code: "upstream_failed"}
	if isTimeout(err) && !gone(err) {
		status, e.Message, e.Code = http.StatusGatewayTimeout, "the engine did not answer in time", "upstream_timeout"
	}
	c.status = status
	if !c.sent {
		openai.WriteError(c.w, status, e)
		return
	}
	if !strings.HasPrefix(c.w.Header().Get("Content-Type"), "text/event-stream") {
		// Only a broken connection tells that a body is not whole.
		panic(http.ErrAbortHandler)
	}
	// An event may be cut: end it first. No [DONE] follows an error.
	_, _ = io.WriteString(c.w, "\n\n")
	_ = openai.NewWriter(c.w).Error(e)
}

// ask sends one request to the replica.
func (m *Replica) ask(ctx context.Context, path string, rest, body []byte, wait time.Duration) (*answer, error) {
	buf := buffers.Get().(*[]byte)
	defer func() { release(buf) }()
	b := append((*buf)[:0], "POST "...)
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, m.Addr...)
	b = append(b, "\r\n"...)
	b = append(b, rest...)
	// A small body rides along in the same segment without a second buffer.
	if len(body) <= 4<<10 {
		b = append(b, body...)
		body = nil
	}
	*buf = b
	return m.conns.ask(ctx, b, body, wait)
}

// appendHead writes the headers that go on to the engine, and the blank line.
// What belongs to the client's connection stays, and so does the wish for
// compression: the router reads what passes through.
func appendHead(b []byte, req *http.Request, length int) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(length), 10)
	b = append(b, "\r\n"...)
	listed := req.Header["Connection"]
	for k, values := range req.Header {
		switch k {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding",
			"Upgrade", "Host", "Content-Length", "Accept-Encoding", "Expect":
			continue
		}
		if len(listed) > 0 && hopByHop(listed, k) {
			continue
		}
		for _, v := range values {
			b = append(b, k...)
			b = append(b, ": "...)
			b = append(b, v...)
			b = append(b, "\r\n"...)
		}
	}
	return append(b, "\r\n"...)
}

func hopByHop(listed []string, key string) bool {
	for _, l := range listed {
		for name := range strings.SplitSeq(l, ",") {
			if strings.EqualFold(strings.TrimSpace(name), key) {
				return true
			}
		}
	}
	return false
}
