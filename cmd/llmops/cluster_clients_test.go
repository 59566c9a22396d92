//go:build faults

package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// asked is what became of one request, a stream, of a client of the cluster.
type asked struct {
	by, router       string // the client and the node of the router
	sent, first, end time.Time
	version          string
	long             bool
	err              string // empty: all of it came
}

// crowd are clients that send to every router of the cluster all the time, each
// request a conversation and a connection of its own.
type crowd struct {
	t    *testing.T
	end  chan struct{} // closed when all shall stop
	once sync.Once     // closes end
	wg   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	all  []asked
	open map[*asked]bool
}

// longEvery is how many short answers there are for a long one.
const longEvery = 8

// crowd begins with one client for each router, who comes from outside, each with
// rate requests a second.
func (c *cluster) crowd(rate float64) *crowd {
	w := &crowd{t: c.t, end: make(chan struct{}), open: map[*asked]bool{}}
	for _, n := range c.nodes {
		w.join("out-"+n.name, "", n.host, rate)
	}
	c.t.Cleanup(w.stop)
	return w
}

// local adds a client who is on a router's own node.
func (w *crowd) local(n host, rate float64) { w.join("in-"+n.name, n.space(), n, rate) }

func (w *crowd) join(name, space string, to host, rate float64) {
	client := &http.Client{Transport: &http.Transport{DialContext: dialer(space), DisableKeepAlives: true}}
	w.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		var under sync.WaitGroup
		defer under.Wait()
		defer cancel()
		for i := 0; ; i++ {
			select {
			case <-w.end:
				return
			case <-tick.C:
			}
			under.Go(func() {
				w.ask(ctx, client, asked{by: name, router: to.name, long: i%longEvery == 0}, to.ip, fmt.Sprint(name, "-", i))
			})
		}
	})
}

// ask sends one request and reads the stream to its end. What the end of the
// test breaks off is not recorded.
func (w *crowd) ask(ctx context.Context, client *http.Client, a asked, ip, conversation string) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	a.sent = time.Now()
	w.mu.Lock()
	w.open[&a] = true
	w.mu.Unlock()
	tokens := 4
	if a.long {
		tokens = 200
	}
	err := a.stream(ctx, client, ip, conversation, tokens)
	a.end = time.Now()
	if err != nil {
		a.err = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, &a)
	if err == nil || ctx.Err() != context.Canceled {
		w.all = append(w.all, a)
	}
}

func (a *asked) stream(ctx context.Context, client *http.Client, ip, conversation string, tokens int) error {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":true,"ignore_eos":true,"messages":[{"role":"user","content":"1"}]}`, quickAlias, tokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ip+":"+clusterPort+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Conversation-Id", conversation)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	a.first, a.version = time.Now(), res.Header.Get("Llmops-Version")
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "data: [DONE]":
			return nil
		case strings.HasPrefix(line, `data: {"error"`):
			return fmt.Errorf("the stream ends with %s", line)
		}
	}
	return fmt.Errorf("the stream breaks off: %v", lines.Err())
}

// stop ends the clients, and breaks off what they wait for.
func (w *crowd) stop() {
	w.once.Do(func() { close(w.end) })
	w.wg.Wait()
}

// requests are those so far of which ok holds, in the order of their sending.
func (w *crowd) requests(ok func(asked) bool) (out []asked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.all {
		if ok(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b asked) int { return a.sent.Compare(b.sent) })
	return out
}

// waiting counts the requests that are under way.
func (w *crowd) waiting(ok func(asked) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range w.open {
		if ok(*a) {
			n++
		}
	}
	return n
}

// begun is when every client of a router had had an answer.
func (w *crowd) begun() time.Time {
	first := map[string]time.Time{}
	for _, a := range w.requests(func(a asked) bool { return a.err == "" }) {
		if _, ok := first[a.router]; !ok {
			first[a.router] = a.end
		}
	}
	var all time.Time
	for _, at := range first {
		if at.After(all) {
			all = at
		}
	}
	return all
}

// failed are the requests sent since then that did not get all of their answer.
func (w *crowd) failed(since time.Time, ok func(asked) bool) []asked {
	return w.requests(func(a asked) bool { return a.err != "" && !a.sent.Before(since) && ok(a) })
}

// some is a few of them, for a message.
func some(all []asked) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", len(all))
	for _, a := range all[:min(5, len(all))] {
		fmt.Fprintf(&b, "\n\t%s %s to %s, version %q, long %v, after %v: %s", a.sent.Format("05.000"), a.by, a.router, a.version, a.long, a.end.Sub(a.sent).Round(time.Millisecond), a.err)
	}
	return b.String()
}

func anyone(asked) bool { return true }
