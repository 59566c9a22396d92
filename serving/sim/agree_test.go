package sim

import (
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"llmops/model"
	"llmops/serving/embedded"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
	"llmops/serving/openai"
)

// outcome is what one request met.
type outcome struct {
	id         uint64
	tokens     []int
	finish     string
	ttft, last time.Duration // after its arrival
}

// outcomes simulates s, of one replica, and gives its requests in the order in which
// they finished, by number.
func outcomes(t *testing.T, s Scenario) []outcome {
	t.Helper()
	m, err := prepare(s)
	if err != nil {
		t.Fatal(err)
	}
	var all []outcome
	r := m.replicas[0]
	r.emit = func(e core.Event) {
		q := m.of(e.Seq.ID)
		o := outcome{id: q.id >> slotBits, tokens: slices.Clone(e.Seq.Output()), finish: e.Finish, ttft: q.first - q.arrived, last: m.now - q.arrived}
		r.event(e)
		if e.Finish != "" {
			if len(o.tokens) == 1 {
				o.ttft = o.last
			}
			all = append(all, o)
		}
	}
	res, err := m.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Fleet.Overcommit && res.Engines.Preemptions == 0 {
		t.Error("nothing was preempted")
	}
	return all
}

// arrivals are the requests of s and when they come, as the simulation draws them.
func arrivals(s Scenario) (requests []*request, at []time.Duration) {
	s = s.withDefaults()
	c, tr := newClock(s.Arrivals, rand.New(rand.NewPCG(s.Seed, 4))), newTraffic(s)
	for t := c.next(); t < s.Duration; t = c.next() {
		q := &request{}
		tr.fill(q, uint64(len(requests)+1)<<slotBits)
		requests, at = append(requests, q), append(at, t)
	}
	return requests, at
}

// wall serves the requests of s with a loop on the wall clock, as a server has it.
func wall(t *testing.T, s Scenario) []outcome {
	t.Helper()
	m, err := prepare(s)
	if err != nil {
		t.Fatal(err)
	}
	o := m.s.Fleet.Engine
	o.Seed, o.RealTime = s.Seed, true
	exec, err := estimate.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.New(m.replicas[0].limits)
	if err != nil {
		t.Fatal(err)
	}
	requests, at := arrivals(s)
	start := time.Now()
	inbox := make(chan *request, len(requests))
	go func() {
		for i, q := range requests {
			<-time.After(time.Until(start.Add(at[i])))
			inbox <- q
		}
	}()
	add := func(q *request) {
		if err := c.Add(time.Since(start), &q.seq); err != nil {
			t.Error(err)
		}
	}
	var all []outcome
	first := map[uint64]time.Duration{}
	var b core.Batch
	out := make([]core.Token, c.Limits().Sequences)
	for len(all) < len(requests) {
		for range len(inbox) {
			add(<-inbox)
		}
		if !c.Next(time.Since(start), &b) {
			add(<-inbox)
			continue
		}
		if _, err := exec.Step(t.Context(), &b, out); err != nil {
			t.Fatal(err)
		}
		now := time.Since(start)
		c.Commit(now, &b, out, func(e core.Event) {
			q := requests[e.Seq.ID>>slotBits-1]
			if _, ok := first[e.Seq.ID]; !ok {
				first[e.Seq.ID] = now - e.Seq.Arrived()
			}
			if e.Finish != "" {
				arrived := at[e.Seq.ID>>slotBits-1]
				all = append(all, outcome{id: q.id >> slotBits, tokens: slices.Clone(e.Seq.Output()), finish: e.Finish,
					ttft: first[e.Seq.ID] + e.Seq.Arrived() - arrived, last: now - arrived})
			}
		})
	}
	return all
}

// On one replica whose router has room, the virtual clock and the wall clock give each
// request the same tokens, in the same order and after the same time.
func TestVirtualClockIsTheWallClock(t *testing.T) {
	for name, edit := range map[string]func(*Scenario){
		"plain":      func(*Scenario) {},
		"bursts":     func(s *Scenario) { s.Arrivals.Bursts = Bursts{Every: 5 * time.Second, For: time.Second, Times: 4} },
		"overcommit": func(s *Scenario) { s.Fleet.Overcommit, s.Fleet.KVTokens = true, 40*128 },
		"chunks":     func(s *Scenario) { s.Fleet.Chunk = 200 },
		"priorities": func(s *Scenario) {
			s.Tenants = append(s.Tenants, s.Tenants[0])
			s.Tenants[1].Name, s.Tenants[1].Priority = "first", -1
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fleet(1, 20*time.Second)
			s.Warmup, s.Router = 0, Router{Streams: 10_000}
			s.Tenants[0].Prompt, s.Tenants[0].Output = Lengths{Mean: 800, CV: 1, Max: 1500}, Lengths{Mean: 60, CV: 1, Max: 600}
			s.Tenants[0].Prefix = Prefix{Groups: 5, Tokens: 256, Zipf: 1}
			edit(&s)
			virtual := outcomes(t, s)
			synctest.Test(t, func(t *testing.T) {
				real := wall(t, s)
				if n := len(virtual); n < 100 || n > len(real) {
					t.Fatalf("%d requests by the virtual clock, %d by the wall clock", n, len(real))
				}
				// The simulation ends with its traffic, the loop with its last answer.
				for i, v := range virtual {
					if w := real[i]; v.id != w.id || !slices.Equal(v.tokens, w.tokens) || v.finish != w.finish || v.ttft != w.ttft || v.last != w.last {
						t.Fatalf("place %d: request %d with %d tokens, first after %v, last after %v; by the wall clock %d with %d, %v, %v",
							i, v.id, len(v.tokens), v.ttft, v.last, w.id, len(w.tokens), w.ttft, w.last)
					}
				}
			})
		})
	}
}

// The same few requests through the HTTP server on the real clock: what does not depend
// on a machine's speed is the same.
func TestVirtualClockIsTheServer(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join("..", "embedded", "llama", "testdata", "llama")
	for _, f := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		b, err := os.ReadFile(filepath.Join(from, f))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := Scenario{
		Seed: 1, Duration: 700 * time.Millisecond,
		Fleet:    Fleet{Nodes: 1, GPUs: 1, Engine: estimate.Options{GPU: "h100-sxm", Shape: shape}, KVTokens: 1 << 16},
		Arrivals: Arrivals{Process: Poisson, Rate: 60},
		Tenants:  []Tenant{{Name: "a", Share: 1, Prompt: Lengths{Mean: 40, CV: 0.5, Max: 100}, Output: Lengths{Mean: 20, CV: 0.5, Max: 50}}},
	}
	server, err := embedded.New(embedded.Options{ModelDir: dir, Name: "m", Estimate: &embedded.Estimate{GPU: "h100-sxm"}, KVBlocks: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(server)
	t.Cleanup(func() {
		h.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	requests, at := arrivals(s)
	s.Duration = 1500 * time.Millisecond // so that those all finish
	virtual := map[uint64]outcome{}
	for _, o := range outcomes(t, s) {
		virtual[o.id] = o
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var real, simulated []float64 // ms to the first token
	client := openai.Client{BaseURL: h.URL}
	start := time.Now()
	for i, q := range requests {
		wg.Go(func() {
			<-time.After(time.Until(start.Add(at[i])))
			prompt := make([]int, len(q.prompt))
			for j := range prompt {
				prompt[j] = (i + j) % shape.Vocab
			}
			begun, first := time.Now(), time.Duration(0)
			r, _, err := client.Complete(t.Context(), &openai.CompletionRequest{
				Sampling: openai.Sampling{Model: "m", MaxTokens: &q.output, Stream: true, StreamOptions: &openai.StreamOptions{IncludeUsage: true}},
				Prompt:   openai.Prompt{Tokens: [][]int{prompt}},
			}, func(*openai.CompletionResponse) error {
				if first == 0 {
					first = time.Since(begun)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			v := virtual[uint64(i+1)]
			if c := r.Choices[0]; c.FinishReason == nil || r.Usage.CompletionTokens != len(v.tokens) || r.Usage.PromptTokens != len(q.prompt) || *c.FinishReason != v.finish {
				t.Errorf("request %d: %+v by the server; %d and %d tokens, %q simulated",
					i, r, len(q.prompt), len(v.tokens), v.finish)
			}
			mu.Lock()
			defer mu.Unlock()
			real, simulated = append(real, first.Seconds()*1e3), append(simulated, v.ttft.Seconds()*1e3)
		})
	}
	wg.Wait()
	if len(real) < 20 {
		t.Fatalf("%d requests", len(real))
	}
	slices.Sort(real)
	slices.Sort(simulated)
	t.Logf("TTFT p50 of %d requests: %.2f ms by the server, %.2f ms simulated", len(real), real[len(real)/2], simulated[len(real)/2])
}
