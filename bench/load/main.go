// Command load is one side or the other of a bench of load generators: a server that
// streams answers of a fixed pace and stamps every chunk with the moment it was sent,
// and our generator, which says how far its own times are off those stamps.
//
//	load serve -listen 127.0.0.1:18800 -first 50ms -gap 10ms
//	load send -to http://127.0.0.1:18800 -rate 100 -for 20s -tokens 64
//	load send -to http://127.0.0.1:18800 -streams 10000 -for 30s
//
// Both read CLOCK_MONOTONIC, which all processes of a machine share. run.py runs it
// beside other generators.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: load serve|send ...")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(ctx, os.Args[2:])
	case "send":
		err = send(ctx, os.Args[2:])
	default:
		err = fmt.Errorf("%q is neither serve nor send", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// clock is CLOCK_MONOTONIC in nanoseconds.
func clock() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// Stamps are what the server knows of one answer, in clock nanoseconds.
type Stamps struct {
	Came   int64   `json:"came"`
	Chunks []int64 `json:"chunks"`
}

type server struct {
	first, gap time.Duration
	tokens     int
	mu         sync.Mutex // guards what follows
	stamps     map[string]*Stamps
	n          int
}

func serve(ctx context.Context, args []string) error {
	s := &server{stamps: map[string]*Stamps{}}
	f := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := f.String("listen", "127.0.0.1:18800", "")
	f.DurationVar(&s.first, "first", 50*time.Millisecond, "before the first chunk")
	f.DurationVar(&s.gap, "gap", 10*time.Millisecond, "between chunks")
	f.IntVar(&s.tokens, "tokens", 64, "chunks of an answer whose request names no number")
	if err := f.Parse(args); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.answer(true))
	mux.HandleFunc("POST /v1/completions", s.answer(false))
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"m","object":"model","owned_by":"bench","max_model_len":131072}]}`))
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	// What was stamped since the last call: each answer's, and the server's own CPU.
	mux.HandleFunc("GET /stamps", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		out := s.stamps
		s.stamps = map[string]*Stamps{}
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"cpu": cpu(), "answers": out})
	})
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mux}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func cpu() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func (s *server) answer(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, chat) }
}

const (
	chatHead  = `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":`
	textHead  = `data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":`
	chatFirst = chatHead + `{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	chatWord  = chatHead + `{"content":" word"},"finish_reason":null}]}` + "\n\n"
	chatLast  = chatHead + `{},"finish_reason":"length"}]}` + "\n\n"
	textWord  = textHead + `" word","finish_reason":null}]}` + "\n\n"
	textLast  = textHead + `"","finish_reason":"length"}]}` + "\n\n"
)

func (s *server) serve(w http.ResponseWriter, r *http.Request, chat bool) {
	st := &Stamps{Came: clock()}
	var q struct {
		MaxTokens     int  `json:"max_tokens"`
		MaxCompletion int  `json:"max_completion_tokens"`
		Stream        bool `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
			Each         bool `json:"continuous_usage_stats"`
		} `json:"stream_options"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n := max(q.MaxTokens, q.MaxCompletion)
	if n == 0 {
		n = s.tokens
	}
	s.mu.Lock()
	s.n++
	name := r.Header.Get("X-Conversation-Id")
	if name == "" {
		name = "unnamed-" + strconv.Itoa(s.n)
	}
	s.stamps[name] = st
	s.mu.Unlock()
	st.Chunks = make([]int64, 0, n)
	usage := fmt.Sprintf(`{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}`, n, n+8)
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"w"},"finish_reason":"length"}],"usage":%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	rc := http.NewResponseController(w)
	word, last := []byte(textWord), textLast
	if chat {
		word, last = []byte(chatWord), chatLast
		_, _ = w.Write([]byte(chatFirst))
	}
	due := time.Now().Add(s.first)
	for range n {
		timer := time.NewTimer(time.Until(due))
		select {
		case <-r.Context().Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		due = due.Add(s.gap)
		_, _ = w.Write(word)
		st.Chunks = append(st.Chunks, clock())
		if rc.Flush() != nil {
			return
		}
	}
	fmt.Fprintf(w, "%sdata: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", last, usage)
}

// Report is what sending came to.
type Report struct {
	Tool     string  `json:"tool"`
	Asked    float64 `json:"asked_rate,omitempty"`
	Rate     float64 `json:"rate"` // requests a second that left
	Streams  int     `json:"streams,omitempty"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	Chunks   int     `json:"chunks"`
	CPU      float64 `json:"cpu_us_per_chunk"`
	Memory   int64   `json:"memory_bytes"`
	Stream   float64 `json:"memory_bytes_per_stream,omitempty"`
	Chunk    Error   `json:"chunk_error_ms"` // client's time of a chunk after the server's stamp
	TTFT     Error   `json:"ttft_error_ms"`  // client's TTFT less the server's, per request
	TPOT     Error   `json:"tpot_error_ms"`
	Lag      Error   `json:"lag_ms"` // sent after due
	TTFTp50  float64 `json:"ttft_p50_ms"`
	TTFTp99  float64 `json:"ttft_p99_ms"`
	TPOTp50  float64 `json:"tpot_p50_ms"`
	TPOTp99  float64 `json:"tpot_p99_ms"`
}

// Error is a distribution of differences in milliseconds.
type Error struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func spread(ms []float64) Error {
	if len(ms) == 0 {
		return Error{}
	}
	slices.Sort(ms)
	at := func(q float64) float64 { return ms[int(q*float64(len(ms)-1))] }
	return Error{at(0.5), at(0.99), ms[len(ms)-1]}
}

func send(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("send", flag.ExitOnError)
	to := f.String("to", "http://127.0.0.1:18800", "")
	rate := f.Float64("rate", 10, "requests a second, Poisson")
	even := f.Bool("even", false, "at equal distances instead")
	streams := f.Int("streams", 0, "keep so many streams open instead")
	length := f.Duration("for", 10*time.Second, "")
	tokens := f.Int("tokens", 64, "of an answer")
	profile := f.String("cpuprofile", "", "write a profile of the run")
	results := f.String("results", "", "where to write each result as the tool does")
	if err := f.Parse(args); err != nil {
		return err
	}
	source := func(i int) (*load.Request, error) {
		r, err := load.Chat(openai.ChatRequest{Sampling: openai.Sampling{Model: "m", MaxTokens: tokens}, Messages: []openai.Message{{Role: "user", Content: openai.Text("the quick brown fox " + strconv.Itoa(i))}}}, false)
		if err == nil {
			r.Conversation = strconv.Itoa(i)
		}
		return r, err
	}
	emit := func(r *load.Result) error { return nil }
	if *results != "" {
		out, err := os.Create(*results)
		if err != nil {
			return err
		}
		defer out.Close()
		emit = func(r *load.Result) error { return load.Write(out, r) }
	}
	client := load.NewClient()
	defer client.Close()
	if _, err := stampsOf(client.HTTP, *to); err != nil { // and forget those of a run before
		return err
	}
	var all []*load.Result
	var lost error
	keep := func(r *load.Result) {
		all = append(all, r)
		if err := emit(r); err != nil {
			lost = err
		}
	}
	if *profile != "" {
		out, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	runtime.GC()
	began, spent := clock(), cpu()
	var stats load.Stats
	var err error
	if *streams > 0 {
		stats, err = load.Closed(ctx, client.Target(*to, nil), *streams, *length/3, *length, *streams, source, load.Options{}, keep)
	} else {
		p := load.Poisson(*rate, 1)
		if *even {
			p = load.Constant(*rate)
		}
		p = load.Limit(p, 0, *length)
		stats, err = load.Run(ctx, client.Target(*to, nil), p, source, load.Options{}, keep)
	}
	if err != nil || lost != nil {
		return fmt.Errorf("%v %v", err, lost)
	}
	spent = cpu() - spent
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	stamps, err := stampsOf(client.HTTP, *to)
	if err != nil {
		return err
	}
	rep := Report{Tool: "llmops", Asked: *rate, Streams: stats.PeakOpen, Requests: len(all), Memory: u.Maxrss << 10}
	if *streams > 0 {
		rep.Asked, rep.Stream = 0, float64(rep.Memory)/float64(stats.PeakOpen)
	} else {
		rep.Streams = 0
	}
	var chunk, ttft, tpot, lag []float64
	last := time.Duration(0)
	for _, r := range all {
		rep.Chunks += r.Events
		last = max(last, r.Sent)
		if d, ok := r.Lag(); ok {
			lag = append(lag, float64(d)/1e6)
		}
		st := stamps[r.Conversation]
		if !r.OK() || st == nil || len(st.Chunks) != r.Events {
			rep.Failed++
			continue
		}
		at := began + int64(r.FirstToken)
		chunk = append(chunk, float64(at-st.Chunks[0])/1e6)
		for i, g := range r.Gaps {
			at += int64(g)
			chunk = append(chunk, float64(at-st.Chunks[i+1])/1e6)
		}
		d, _ := r.TTFTSent()
		ttft = append(ttft, float64(int64(d)-(st.Chunks[0]-st.Came))/1e6)
		if d, _, ok := r.TPOT(); ok {
			tpot = append(tpot, float64(int64(d)-(st.Chunks[len(st.Chunks)-1]-st.Chunks[0])/int64(len(st.Chunks)-1))/1e6)
		}
	}
	s := load.Summarise(all, stats, load.SLO{})
	rep.Rate = float64(len(all)-1) / last.Seconds()
	rep.CPU = 1e6 * spent / float64(max(1, rep.Chunks))
	rep.Chunk, rep.TTFT, rep.TPOT, rep.Lag = spread(chunk), spread(ttft), spread(tpot), spread(lag)
	rep.TTFTp50, rep.TTFTp99, rep.TPOTp50, rep.TPOTp99 = s.TTFT.P50/1e6, s.TTFT.P99/1e6, s.TPOT.P50/1e6, s.TPOT.P99/1e6
	return json.NewEncoder(os.Stdout).Encode(rep)
}

func stampsOf(c *http.Client, base string) (map[string]*Stamps, error) {
	res, err := c.Get(base + "/stamps")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var s struct {
		Answers map[string]*Stamps `json:"answers"`
	}
	return s.Answers, json.NewDecoder(res.Body).Decode(&s)
}
