package router

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"llmops/serving/route"
)

// The benchmarks run client, proxy and engine in this process and report the
// CPU time of all of them for a request or a chunk. What a proxy costs is the
// difference to direct: wall time says nothing where all share two cores.

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// proxies are the ways to the engine at target.
func proxies(b *testing.B, target string) map[string]string {
	u, err := url.Parse(target)
	if err != nil {
		b.Fatal(err)
	}
	rp := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(u) },
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	}
	std := httptest.NewServer(rp)
	b.Cleanup(std.Close)
	s := newStore(b)
	putRoute(b, s, route.New("m", "run", "v1"))
	deploy(b, s, "m", "v1", u.Host)
	_, own := start(b, Options{Store: s}, "m/v1")
	rec := startRecording(b, Options{Store: s}, "m/v1")
	return map[string]string{"direct": target, "httputil": std.URL, "router": own.URL, "records": rec.url}
}

var ways = []string{"direct", "httputil", "router", "records"}

func benchClient(b *testing.B) *http.Client {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	b.Cleanup(c.CloseIdleConnections)
	return c
}

func ask(b *testing.B, c *http.Client, url, body string) {
	res, err := c.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		b.Error(err)
		return
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
		b.Error(res.StatusCode, err)
	}
}

// BenchmarkRequest is a request of 4 KiB with an answer in one piece.
func BenchmarkRequest(b *testing.B) {
	answer := []byte(`{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"four"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":1,"total_tokens":1001}}`)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
	}))
	b.Cleanup(srv.Close)
	body := chatBody("m", strings.Repeat("a bill of lading ", 240), false)
	to := proxies(b, srv.URL)
	for _, name := range ways {
		b.Run(name, func(b *testing.B) {
			c := benchClient(b)
			b.ReportAllocs()
			ask(b, c, to[name], body)
			before := cpu()
			for b.Loop() {
				ask(b, c, to[name], body)
			}
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/req")
		})
	}
}

// BenchmarkChunk is 32 streams at a time of 100 chunks, each sent on its own:
// 5 ms apart, as an engine's steps are.
func BenchmarkChunk(b *testing.B) {
	const streams, chunks = 32, 100
	line := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		step := time.NewTicker(5 * time.Millisecond)
		defer step.Stop()
		for range chunks {
			<-step.C
			w.Write(line)
			rc.Flush()
		}
		io.WriteString(w, "data: [DONE]\n\n")
	}))
	b.Cleanup(srv.Close)
	body := chatBody("m", "hi", true)
	to := proxies(b, srv.URL)
	for _, name := range ways {
		b.Run(name, func(b *testing.B) {
			c := benchClient(b)
			before := cpu()
			for b.Loop() {
				var wg sync.WaitGroup
				for range streams {
					wg.Go(func() { ask(b, c, to[name], body) })
				}
				wg.Wait()
			}
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N*streams*chunks), "cpu-µs/chunk")
		})
	}
}

// BenchmarkAdmit is admission and choice alone, at 64 replicas.
func BenchmarkAdmit(b *testing.B) {
	v, _ := fleetOf(0, 64, route.New("m", "run", "v1"), 0)
	g := Gate{Queue: 4}
	r := &Request{Alias: "m", Conversation: 1, Prefix: 2}
	b.ReportAllocs()
	for b.Loop() {
		g.Arrive(1, r)
		_, d, ok := g.Next(1, v)
		if !ok {
			b.Fatal(fmt.Sprint(d))
		}
		g.Done(2, d, Usage{})
	}
}
