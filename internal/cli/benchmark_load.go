package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/benchmark/prompt"
	"llmops/pipeline/benchmark/trace"
	"llmops/serving/openai"
	records "llmops/serving/trace"
)

// ahead is how many requests are made before they are due.
const ahead = 256

// prepare checks everything that can be wrong before a request is sent.
func (x *bench) prepare(ctx context.Context, changed func(string) bool) (err error) {
	b := x.b
	if x.class, err = sloOf(b.slo); err != nil {
		return err
	}
	u, err := url.Parse(b.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usage("--url %q: want http://host:port/v1", b.url)
	}
	x.base = strings.TrimSuffix(strings.TrimSuffix(b.url, "/"), "/v1")
	if key := x.e.getenv("OPENAI_API_KEY"); key != "" {
		x.header.Set("Authorization", "Bearer "+key)
	}
	if err := x.shape(changed); err != nil {
		return err
	}
	if err := x.contents(changed); err != nil {
		return err
	}
	if !b.sweep && b.trace == "" {
		if err := b.load.Check(); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	if err := x.ask(ctx); err != nil {
		return err
	}
	if err := x.makeSource(ctx, changed); err != nil {
		return err
	}
	x.target = x.client.Target(x.base, x.header)
	return x.begin(openai.Redact(u))
}

// shape completes the load.
func (x *bench) shape(changed func(string) bool) error {
	b := x.b
	l := &b.load
	for _, pair := range [][2]string{{"rate", "concurrency"}, {"rate", "trace"}, {"concurrency", "trace"}, {"sweep", "concurrency"}, {"sweep", "trace"}, {"arrivals", "concurrency"}, {"sweep", "ramp"}, {"sweep", "requests"}} {
		if changed(pair[0]) && changed(pair[1]) && !(pair == [2]string{"rate", "trace"}) {
			return usage("--%s and --%s exclude each other", pair[0], pair[1])
		}
	}
	switch {
	case changed("concurrency"):
		l.Shape, l.Rate = benchmark.Closed, 0
	case l.Shape != benchmark.Constant && l.Shape != benchmark.Poisson && l.Shape != benchmark.Gamma:
		return usage("--arrivals is %q, want constant, poisson or gamma", l.Shape)
	case b.sweep && !changed("rate"):
		l.Rate = 1
	case b.trace == "" && !changed("rate"):
		return usage("how much load? give one of --rate, --concurrency, --sweep and --trace")
	}
	if l.Shape != benchmark.Gamma {
		if changed("burstiness") {
			return usage("--burstiness is of --arrivals gamma")
		}
		l.Burstiness = 0
	}
	if !changed("for") && !b.sweep && b.trace == "" && (l.Requests == 0 || l.Shape == benchmark.Closed) {
		l.For = time.Minute
	}
	if !changed("warmup") && b.trace == "" {
		l.Warmup = l.For/10 + l.Ramp
		if l.For > 0 && l.Warmup >= l.For {
			return usage("--ramp %v leaves nothing of --for %v to be measured", l.Ramp, l.For)
		}
	}
	if b.trace == "" {
		l.Speed = 0
	} else if !(l.Speed > 0 && l.Speed < 1e6) {
		return usage("--speed %v: want a positive number", l.Speed)
	}
	if b.batchRequests > 0 && b.batchWindow == 0 || x.class.Name == batchPreset && b.batchWindow == 0 {
		b.batchWindow = 4 * time.Hour
	}
	if x.class.Name == batchPreset && b.batchRequests <= 0 {
		return usage("--slo batch is about a number of requests: give --batch-requests")
	}
	return nil
}

// contents completes what is asked.
func (x *bench) contents(changed func(string) bool) error {
	b, o := x.b, &x.b.prompt
	o.Endpoint = prompt.Endpoint(b.endpoint)
	encodes := false
	switch o.Endpoint {
	case prompt.Chat, prompt.Complete:
	case prompt.Embed, prompt.Rerank:
		encodes = true
	default:
		return usage("--endpoint is %q, want chat, completions, embeddings or rerank", b.endpoint)
	}
	var err error
	if o.Input, err = prompt.ParseMix(b.input); err != nil {
		return usage("--input-tokens: %w", err)
	}
	if o.Output, err = prompt.ParseMix(b.answer); err != nil {
		return usage("--output-tokens: %w", err)
	}
	if encodes {
		if changed("output-tokens") {
			return usage("%s has no answer of a length: --output-tokens is for chat and completions", b.endpoint)
		}
		o.Output = nil
	}
	for _, a := range b.adapters {
		name, share, ok := strings.Cut(a, "=")
		f, err := strconv.ParseFloat(share, 64)
		if !ok || err != nil {
			return usage("--lora %q: want NAME=SHARE, as in french=0.3", a)
		}
		o.Adapters = append(o.Adapters, prompt.Adapter{Name: name, Share: f})
	}
	o.Seed = b.load.Seed
	if b.tokenizer != "" {
		if o.Tokenizer, err = tokenizer.Load(b.tokenizer); err != nil {
			return err
		}
		if o.Endpoint == prompt.Chat {
			if o.Template, err = chat.Load(b.tokenizer); err != nil {
				return err
			}
		}
	}
	words := []string{b.endpoint}
	if b.trace != "" {
		words = append(words, "trace "+filepath.Base(b.trace))
	} else {
		words = append(words, b.input+" tokens in")
		if !encodes {
			words = append(words, b.answer+" out")
		}
	}
	if o.Prefix > 0 {
		words = append(words, fmt.Sprintf("%d shared by %d groups", o.Prefix, o.Prefixes))
	}
	if o.Turns > 1 {
		words = append(words, fmt.Sprintf("%d turns", o.Turns))
	}
	if o.Natural {
		words = append(words, "natural ends")
	}
	if len(b.adapters) > 0 {
		words = append(words, "adapters "+strings.Join(b.adapters, " "))
	}
	b.load.Content = strings.Join(words, ", ")
	return nil
}

// makeSource makes what gives requests.
func (x *bench) makeSource(ctx context.Context, changed func(string) bool) error {
	b := x.b
	m, err := prompt.New(b.prompt)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	make := m.Next
	if b.trace != "" {
		if make, err = x.replay(m, changed); err != nil {
			return err
		}
		if err := b.load.Check(); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	if b.trace == "" {
		// Lengths that cannot be are told before anything is sent.
		if _, err := m.Next(0); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	x.source = benchmark.Sampled(prompt.Ahead(make, ahead, ctx.Done()), b.prompt.Tokenizer)
	return nil
}

// replay reads the trace and completes the load.
func (x *bench) replay(m *prompt.Maker, changed func(string) bool) (load.Source, error) {
	b := x.b
	names, err := records.Files(b.trace)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("opening the trace: %w", err)}
	}
	var files []io.Reader
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, &exitError{exitUsage, fmt.Errorf("opening the trace: %w", err)}
		}
		defer f.Close()
		if len(names) == 1 && messages(f) {
			return x.traffic(f, changed)
		}
		files = append(files, f)
	}
	t, err := trace.Read(trace.Options{Format: b.traceFormat, Sort: b.traceSort}, files...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.trace, err)
	}
	if t.Cut > 0 {
		x.warn("%s", cutLines(t.Cut))
	}
	b.load.Content += fmt.Sprintf(" (%s, %d requests)", t.Format, len(t.Rows))
	if t.Dropped > 0 {
		x.warn("%d rows of the trace are left out: %s", t.Dropped, t.Why)
	}
	switch {
	case t.Unit == "" && !changed("rate"):
		return nil, usage("a %s trace has no times: give --rate", t.Format)
	case t.Unit == "":
		if !changed("for") && b.load.Requests == 0 {
			b.load.Requests = len(t.Rows)
		}
		b.load.Speed = 0
	case changed("rate"):
		return nil, usage("a %s trace has times: --speed makes it faster, --rate is of nothing", t.Format)
	default:
		b.load.Shape, b.load.Rate = benchmark.Replay, t.Rate()*b.load.Speed
		b.load.Times = t.Times(b.load.Speed)
	}
	return func(i int) (*load.Request, error) {
		r := t.Rows[i%len(t.Rows)]
		if r.Text == "" {
			q, err := m.Sized(r.Input, r.Output, r.Class, r.Blocks, r.Size)
			if err == nil && r.Session != "" {
				q.Conversation = "bench-" + r.Session
			}
			return q, err
		}
		output := r.Output
		if tok := b.prompt.Tokenizer; tok != nil && output == 0 {
			output = len(tok.Encode(r.Reply, false))
		}
		return m.Said(r.Text, output)
	}, nil
}

// messages tells whether f is a recording of our own with messages in it.
func messages(f *os.File) bool {
	line, _ := bufio.NewReader(f).ReadBytes('\n')
	_, _ = f.Seek(0, 0)
	var l map[string]json.RawMessage
	if json.Unmarshal(line, &l) != nil || l["at"] == nil {
		return false
	}
	return l["messages"] != nil || l["documents"] != nil || len(l["input"]) > 0 && l["input"][0] == '"'
}

func (x *bench) traffic(f *os.File, changed func(string) bool) (load.Source, error) {
	b := x.b
	if changed("rate") {
		return nil, usage("the trace has times: --speed makes it faster, --rate is of nothing")
	}
	t, err := load.ReadTraffic(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.trace, err)
	}
	pacer, source, err := t.Replay(b.system.Model, strconv.FormatInt(time.Now().UnixNano(), 36), b.load.Speed)
	if err != nil {
		return nil, err
	}
	b.load.Shape, b.load.Rate = benchmark.Replay, t.Rate()*b.load.Speed
	n := t.Len()
	if b.load.Requests > 0 {
		n = b.load.Requests
	}
	for range n {
		at, _ := pacer.Next()
		b.load.Times = append(b.load.Times, at)
	}
	b.load.Content += fmt.Sprintf(" (messages, %d requests)", t.Len())
	return source, nil
}
