package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"

	"llmops/evidence"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/embedded/ceiling"
	"llmops/serving/slo"
)

// bench is one benchmark under way.
type bench struct {
	e      *env
	b      *benchFlags
	class  slo.Class
	dir    string
	rec    *benchmark.Record
	base   string
	header http.Header
	client *load.Client
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
	defer x.client.Close()
	if err := x.prepare(ctx, changed); err != nil {
		return err
	}
	before, _ := x.counters(ctx)
	begun := usageNow()
	x.live = newLive(ctx, x)
	defer x.live.close()
	x.target = x.live.counted(x.target)
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
	warnings := []string(nil)
	if x.rec != nil {
		warnings = x.rec.Warnings
	}
	x.rec = &benchmark.Record{Format: benchmark.RecordFormat, ID: id, Began: now, State: benchmark.Running, Tool: build(), URL: url,
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
	p, _, err = benchmark.Measure(run, x.target, x.source, l, benchmark.Measuring{SLO: x.class, Timeout: x.b.timeout, MaxOpen: x.b.maxOpen, Tokenizer: x.b.prompt.Tokenizer, Emit: func(r *load.Result) {
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
	x.roofline()
	err := x.save()
	if x.b.page != "" {
		err = errors.Join(err, x.e.writePage(x.b.page, x.dir, x.rec))
	}
	if !x.b.noHistory && !stopped {
		err = errors.Join(err, x.e.remember(x.rec, x.dir))
	}
	return err
}

// roofline places what was measured under the roofs, where it was said what was measured on
// what.
func (x *bench) roofline() {
	b := x.b
	if b.system.GPU == "" || b.tokenizer == "" || b.prompt.Output == nil {
		return
	}
	var c *ceiling.Ceilings
	if dir, err := x.e.stateDir(); err == nil && b.system.GPU == pipeline.CPU {
		c, _ = ceilings(dir) // doctor tells what is wrong with them
	}
	r, err := pipeline.RooflineOf(b.tokenizer, b.system, x.rec.Points, c)
	if err != nil { // what was measured is measured nonetheless
		x.warn("no roofline: %v", err)
		return
	}
	x.rec.Roofline = r
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
