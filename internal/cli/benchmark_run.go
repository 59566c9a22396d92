package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"

	"llmops/evidence"
	"llmops/internal/prom"
	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/benchmark/prompt"
	"llmops/pipeline/benchmark/trace"
	"llmops/serving/openai"
	"llmops/serving/slo"
)

// preflight bounds the questions that are asked of a server before and after.
const preflight = 10 * time.Second

// bench is one benchmark under way.
type bench struct {
	e      *env
	b      *benchFlags
	class  slo.Class
	dir    string
	rec    *benchmark.Record
	base   string
	header http.Header
	client *http.Client
	source load.Source
	target load.Target
	live   *live
	ended  int // requests, and of them that failed
	failed int
	output int // tokens that clients were told
	input  int
	cached int
	events int
}

// benchmark measures the server at --url.
func (e *env) benchmark(ctx context.Context, b *benchFlags, changed func(string) bool) (err error) {
	x := &bench{e: e, b: b, header: http.Header{}, client: load.NewClient()}
	defer x.client.CloseIdleConnections()
	if err := x.prepare(ctx, changed); err != nil {
		return err
	}
	before, _ := x.counters(ctx)
	begun := usageNow()
	x.live = newLive(e)
	runErr := x.measure(ctx)
	x.live.close()
	spent := usageNow()
	x.rec.Client = benchmark.Client{CPU: spent.cpu - begun.cpu, Events: x.events, Memory: spent.memory}
	if x.events > 0 {
		x.rec.Client.Micros = 1e6 * x.rec.Client.CPU / float64(x.events)
	}
	// What was measured is kept and told though the caller is gone.
	stopped := ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	x.compareCounters(ctx, before)
	x.judge(stopped)
	if err := errors.Join(runErr, x.finish(stopped)); err != nil {
		return err
	}
	if err := e.answer(x.rec, func(w *tabwriter.Writer) { benchTable(w, x.rec) }); err != nil {
		return err
	}
	e.say("results: %s", x.dir)
	return x.exit(stopped)
}

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
	x.target = load.HTTP(x.base, x.client, x.header)
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

// ask finds out what serves, and that anything does.
func (x *bench) ask(ctx context.Context) error {
	b := x.b
	ctx, cancel := context.WithTimeout(ctx, preflight)
	defer cancel()
	// Of what engines add to a model, llama.cpp has numbers where we have texts.
	var models struct {
		Data []struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	err := x.get(ctx, "/v1/models", &models)
	var status *openai.StatusError
	switch {
	case err != nil && !errors.As(err, &status):
		return fmt.Errorf("asking the server for its models: %w", err)
	case b.model != "":
		b.system.Model = b.model
	case err != nil:
		return fmt.Errorf("asking the server for its models: %w; name one with --model", err)
	case len(models.Data) != 1:
		var names []string
		for _, m := range models.Data {
			names = append(names, m.ID)
		}
		return usage("the server has %d models: %s; choose one with --model", len(names), strings.Join(names, ", "))
	default:
		b.system.Model = models.Data[0].ID
	}
	b.prompt.Model = b.system.Model
	if b.system.Engine == "" && err == nil && len(models.Data) > 0 {
		b.system.Engine = models.Data[0].OwnedBy
	}
	if b.system.Engine == "" || b.system.Version == "" {
		name, version := x.engine(ctx)
		if b.system.Engine == "" {
			b.system.Engine = name
		}
		if b.system.Version == "" {
			b.system.Version = version
		}
	}
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
	x.source = prompt.Ahead(make, ahead, ctx.Done())
	return nil
}

// ahead is how many requests are made before they are due.
const ahead = 256

// replay reads the trace and completes the load.
func (x *bench) replay(m *prompt.Maker, changed func(string) bool) (load.Source, error) {
	b := x.b
	f, err := os.Open(b.trace)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("opening the trace: %w", err)}
	}
	defer f.Close()
	if messages(f) {
		return x.traffic(f, changed)
	}
	t, err := trace.Read(f, trace.Options{Format: b.traceFormat, Sort: b.traceSort})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.trace, err)
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

// begin makes the folder and the record in it, so that a run that is killed can be
// told from what it left.
func (x *bench) begin(url string) (err error) {
	b := x.b
	now := time.Now().UTC()
	id := now.Format("20060102-150405.000")
	x.dir = b.out
	if x.dir == "" {
		home, err := x.e.stateDir()
		if err != nil {
			return &exitError{exitUsage, err}
		}
		x.dir = filepath.Join(home, "benchmarks", id)
	}
	if entries, err := os.ReadDir(x.dir); err == nil && len(entries) > 0 {
		return usage("--out %s is not empty; results of two runs are not mixed", x.dir)
	}
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		return unwritable(fmt.Errorf("making the results' folder: %w", err))
	}
	v := readVersion()
	warnings := []string(nil)
	if x.rec != nil {
		warnings = x.rec.Warnings
	}
	x.rec = &benchmark.Record{Format: benchmark.RecordFormat, ID: id, Began: now, State: benchmark.Running, Tool: strings.TrimSpace("llmops " + v.Version + " " + v.Revision), URL: url,
		System: b.system, SLO: x.class, Asked: &b.load, Warnings: warnings}
	if b.prompt.Tokenizer == nil && b.trace == "" || b.prompt.Tokenizer == nil && b.load.Shape == benchmark.Replay {
		x.rec.Warnings = append(x.rec.Warnings, "lengths of prompts are in words: without --tokenizer a word is taken for a token; the server's count is in the results")
	}
	return x.save()
}

func (x *bench) warn(format string, args ...any) {
	if x.rec == nil {
		x.rec = new(benchmark.Record)
	}
	x.rec.Warnings = append(x.rec.Warnings, fmt.Sprintf(format, args...))
}

// recordFile is a record's name within its folder.
const recordFile = "record.json"

func (x *bench) save() error {
	b, err := json.MarshalIndent(x.rec, "", " ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(x.dir, recordFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the record: %w", err)
	}
	return nil
}

// measure offers one load, or searches.
func (x *bench) measure(ctx context.Context) (err error) {
	b := x.b
	if !b.sweep {
		var p benchmark.Point
		p, err = x.point(ctx, b.load)
		x.rec.Points = append(x.rec.Points, p)
		return err
	}
	s := benchmark.Searching{Start: b.load.Rate, Most: b.most, Resolution: b.resolution, SLO: x.class}
	points, found, err := benchmark.Find(ctx, func(ctx context.Context, rate float64) (benchmark.Point, error) {
		l := b.load
		l.Rate = rate
		l.For = b.load.For
		if l.For == 0 {
			l.For = 2 * benchmark.Needs(x.class, rate) // so that a few slow ones do not leave it open
			l.Warmup = l.For / 10
		}
		p, err := x.point(ctx, l)
		if err == nil {
			x.live.say("%.4g/s: %s%s", rate, p.Describe(), saturated(p))
			// A sweep that is killed shall not begin anew at nothing.
			x.rec.Points = append(x.rec.Points, p)
			err = x.save()
		}
		return p, err
	}, s)
	x.rec.Points, x.rec.Found = points, &found
	return err
}

func saturated(p benchmark.Point) string {
	if p.Saturated {
		return ", not kept up with"
	}
	return ""
}

// point offers one load and writes each result down as it ends.
func (x *bench) point(ctx context.Context, l benchmark.Load) (p benchmark.Point, err error) {
	name := fmt.Sprintf("results-%02d.jsonl", len(x.rec.Points)+1)
	f, err := os.OpenFile(filepath.Join(x.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return p, fmt.Errorf("writing results: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	x.live.begin(l)
	var lost error
	run, stop := context.WithCancel(ctx)
	defer stop()
	p, _, err = benchmark.Measure(run, x.target, x.source, l, benchmark.Measuring{SLO: x.class, Timeout: x.b.timeout, MaxOpen: x.b.maxOpen, Emit: func(r *load.Result) {
		if werr := load.Write(f, r); werr != nil && lost == nil {
			// Results that are not kept are no results; a full disk fills no further.
			lost = fmt.Errorf("writing results: %w", werr)
			stop()
		}
		x.count(r)
		x.live.result(r)
	}})
	p.File = name
	if ctx.Err() != nil && err != nil {
		err = nil // the source ends with the run
	}
	return p, errors.Join(lost, err)
}

func (x *bench) count(r *load.Result) {
	x.ended++
	x.events += r.Events
	x.output += r.Output
	x.input += r.Input
	x.cached += r.Cached
	if !r.OK() {
		x.failed++ // cancelled ones too: tokens of theirs were counted by the server alone
	}
}

// judge says what the points come to.
func (x *bench) judge(stopped bool) {
	rec := x.rec
	rec.State = benchmark.Done
	if stopped {
		rec.State = benchmark.Stopped
	}
	if len(rec.Points) == 0 {
		return
	}
	last := rec.Points[len(rec.Points)-1]
	var parts []evidence.Verdict
	claim := "the service level holds at " + last.Load.String()
	switch {
	case rec.Found != nil && rec.Found.Verdict.Claim != "":
		parts = append(parts, rec.Found.Verdict)
		claim = rec.Found.Verdict.Claim
	case rec.Found == nil && (x.class.TTFT.Set() || x.class.TPOT.Set() || x.class.ErrorRate > 0):
		parts = append(parts, benchmark.Holds(last, x.class, claim))
	}
	if x.b.batchWindow > 0 {
		for _, p := range rec.Points { // batches want the most, whatever the latency
			if p.Summary.RequestRate > last.Summary.RequestRate {
				last = p
			}
		}
		rec.Batch = benchmark.NewBatch(last, x.b.system.GPUs, x.b.batchWindow, x.b.batchRequests)
		if x.b.batchRequests > 0 {
			parts = append(parts, rec.Batch.Verdict(last))
		}
	}
	switch len(parts) {
	case 0:
	case 1:
		rec.Verdict = &parts[0]
	default:
		v := evidence.All(claim, parts...)
		rec.Verdict = &v
	}
}

// finish writes the record, the page and the line in the history.
func (x *bench) finish(stopped bool) error {
	x.rec.Ended = time.Now().UTC()
	err := x.save()
	if x.b.page != "" {
		err = errors.Join(err, x.e.writePage(x.b.page, x.dir, x.rec))
	}
	if !x.b.noHistory && !stopped {
		err = errors.Join(err, x.e.remember(x.rec, x.dir))
	}
	return err
}

// exit is the run's exit status.
func (x *bench) exit(stopped bool) error {
	rec := x.rec
	switch {
	case x.ended > 0 && x.failed == x.ended && !stopped:
		p := rec.Points[0]
		return fmt.Errorf("none of %d requests was answered, the first failed with %s", x.ended, p.Failure)
	case rec.Verdict != nil:
		return outcome(rec.Verdict.Outcome)
	case stopped:
		return &exitError{exitInconclusive, errors.New("stopped before its end: what had been measured until then is above")}
	}
	return nil
}

// spent is what this process has used so far.
type spent struct {
	cpu    float64
	memory int64
}

func usageNow() spent {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return spent{}
	}
	return spent{float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, u.Maxrss << 10}
}

// live prints how a measurement goes.
type live struct {
	mu   sync.Mutex // guards what follows
	p    *progress
	at   time.Time
	l    benchmark.Load
	done int
	bad  int
	out  int
	last int // tokens when the last line was printed
	ttft []time.Duration
}

func newLive(e *env) *live { return &live{p: newProgress(e)} }

func (v *live) begin(l benchmark.Load) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.l, v.at = l, time.Now()
	v.done, v.bad, v.out, v.last, v.ttft = 0, 0, 0, 0, nil
	v.p.last = time.Now()
}

func (v *live) result(r *load.Result) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done++
	v.out += r.Output
	if !r.OK() {
		v.bad++
	}
	if d, ok := r.TTFT(); ok {
		v.ttft = append(v.ttft, d)
	}
	pause := quiet
	if v.p.terminal {
		pause = 200 * time.Millisecond
	}
	now := time.Now()
	if now.Sub(v.p.last) < pause {
		return
	}
	text := fmt.Sprintf("%s: %.0fs, %d ended, %d failed, %.0f tokens/s", v.l, now.Sub(v.at).Seconds(), v.done, v.bad, float64(v.out-v.last)/now.Sub(v.p.last).Seconds())
	if len(v.ttft) > 0 {
		text += fmt.Sprintf(", TTFT p50 %.0f p95 %.0f ms", load.NewDist(v.ttft).P50/1e6, load.NewDist(v.ttft).P95/1e6)
	}
	v.p.last, v.last, v.ttft = now, v.out, v.ttft[:0]
	v.p.status(text)
}

func (v *live) say(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.p.line(format, args...)
}

func (v *live) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.p.end()
}

// counterNames are the counters of tokens by engine: prompt, then output.
var counterNames = []struct{ engine, prompt, output string }{
	{"vllm", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"},
	{"llama.cpp", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"},
	{"sglang", "sglang:prompt_tokens_total", "sglang:generation_tokens_total"},
}

// counters reads what the server counts; nil where it counts nothing that is known.
func (x *bench) counters(ctx context.Context) (prom.Samples, error) {
	ctx, cancel := context.WithTimeout(ctx, preflight)
	defer cancel()
	return prom.Scrape(ctx, x.client, x.base+"/metrics")
}

// engine is what answers, by what it says of itself.
func (x *bench) engine(ctx context.Context) (name, version string) {
	if s, err := x.counters(ctx); err == nil {
		for _, c := range counterNames {
			if _, ok := s.Sum(c.output); ok {
				name = c.engine
				break
			}
		}
	}
	var v struct {
		Version string `json:"version"`
		Build   string `json:"build_info"`
	}
	for _, path := range []string{"/version", "/props"} {
		if x.get(ctx, path, &v) == nil && v.Version+v.Build != "" {
			return name, v.Version + v.Build
		}
	}
	return name, ""
}

func (x *bench) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, x.base+path, nil)
	if err != nil {
		return err
	}
	req.Header = x.header.Clone()
	res, err := x.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return openai.NewStatusError(res)
	}
	return json.NewDecoder(http.MaxBytesReader(nil, res.Body, 1<<20)).Decode(to)
}

// settling is how long a server's counters may take to have counted the last
// answer.
const settling = 2 * time.Second

// compareCounters holds the clients' count against the server's.
func (x *bench) compareCounters(ctx context.Context, before prom.Samples) {
	if before == nil || x.ended == 0 {
		return
	}
	for _, c := range counterNames {
		was, ok := before.Sum(c.output)
		if !ok {
			continue
		}
		prompts, _ := before.Sum(c.prompt)
		settled, stop := context.WithTimeout(ctx, settling)
		defer stop()
		for {
			after, err := x.counters(ctx)
			if err != nil {
				x.warn("the server's counters could not be read after the run: %v", err)
				return
			}
			now, _ := after.Sum(c.output)
			read, counted := after.Sum(c.prompt)
			checks := []load.Check{benchmark.Counter("output", x.output, now-was, x.failed)}
			if counted && x.input > 0 {
				in := benchmark.Counter("prompt", x.input, read-prompts, x.failed)
				if fresh := benchmark.Counter("prompt", x.input-x.cached, read-prompts, x.failed); !in.OK && fresh.OK {
					fresh.Note += ", without cached ones"
					in = fresh
				}
				checks = append(checks, in)
			}
			x.rec.Checks = checks
			if checks[0].OK {
				return
			}
			select {
			case <-settled.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}
