package benchmark

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"llmops/evidence"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/slo"
)

// RecordFormat is the version of a Record's JSON.
const RecordFormat = 1

// States of a record.
const (
	Running = "running" // or killed, if nobody runs it
	Done    = "done"
	Stopped = "stopped"
)

// Record is what a run of the plain tool leaves: what was asked of what, and what
// it came to. The results of each point are in a file beside it.
type Record struct {
	Format   int               `json:"format"`
	ID       string            `json:"id"`
	Began    time.Time         `json:"began"`
	Ended    time.Time         `json:"ended"`
	State    string            `json:"state"`
	Tool     string            `json:"tool"`
	URL      string            `json:"url,omitempty"`
	System   System            `json:"system"`
	SLO      slo.Class         `json:"slo"`
	Asked    *Load             `json:"asked,omitempty"` // of a search, its first rate
	Points   []Point           `json:"points"`
	Found    *Found            `json:"found,omitempty"`
	Batch    *Batch            `json:"batch,omitempty"`
	Roofline *Roofline         `json:"roofline,omitempty"` // nil: none is known
	Verdict  *evidence.Verdict `json:"verdict,omitempty"`  // nil: nothing was to be judged
	Checks   []load.Check      `json:"checks,omitempty"`   // against the server's own counters
	Client   Client            `json:"client"`
	Warnings []string          `json:"warnings,omitempty"`
}

// System is what was measured, as far as it is known or was said.
type System struct {
	Model    string `json:"model"`
	Release  string `json:"model_version,omitempty"` // of the model
	Weights  string `json:"weights,omitempty"`       // the scheme that they are in
	Engine   string `json:"engine,omitempty"`
	Version  string `json:"engine_version,omitempty"`
	GPU      string `json:"gpu,omitempty"`
	GPUs     int    `json:"gpus,omitempty"`
	Replicas int    `json:"replicas,omitempty"`
	Machine  string `json:"machine,omitempty"` // where there is no GPU, what computes instead
	Flags    string `json:"flags,omitempty"`   // the engine's
}

// apart says in what the two are not the same kind of thing, so that figures of one say
// nothing about the other. What of either is not known makes no difference.
func (s System) apart(o System) (out []string) {
	return slices.Concat(unlike("engine", s.Engine, o.Engine), unlike("GPU", s.GPU, o.GPU), unlike("number of GPUs", number(s.GPUs), number(o.GPUs)),
		unlike("number of replicas", number(s.Replicas), number(o.Replicas)), unlike("machine", s.Machine, o.Machine))
}

// beside says in what else the two differ: what a change is about.
func (s System) beside(o System) (out []string) {
	return slices.Concat(unlike("weights", s.Weights, o.Weights), unlike("engine version", s.Version, o.Version), unlike("flags", except(s.Flags, o.Flags), except(o.Flags, s.Flags)))
}

// except are the flags that the other has not, each being one part of a list.
func except(flags, other string) string {
	if flags == "" || other == "" {
		return ""
	}
	theirs := strings.Split(other, ", ")
	left := slices.DeleteFunc(strings.Split(flags, ", "), func(f string) bool { return slices.Contains(theirs, f) })
	if len(left) == 0 {
		return "none"
	}
	return strings.Join(left, ", ")
}

func unlike(what, a, b string) []string {
	if a == b || a == "" || b == "" {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s and %s", what, a, b)}
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Client is what generating the load cost.
type Client struct {
	CPU    float64 `json:"cpu_seconds"`
	Events int     `json:"events"`
	Micros float64 `json:"cpu_us_per_event,omitempty"`
	Memory int64   `json:"peak_memory_bytes,omitempty"`
}

// ReadRecord reads the JSON of a record.
func ReadRecord(in io.Reader) (*Record, error) {
	r := new(Record)
	if err := json.NewDecoder(in).Decode(r); err != nil {
		return nil, fmt.Errorf("reading a benchmark's record: %w", err)
	}
	if r.Format != RecordFormat {
		return nil, fmt.Errorf("reading a benchmark's record: its format is %d, and %d is understood", r.Format, RecordFormat)
	}
	return r, nil
}

// Counter holds the tokens that clients were told against those that the server
// counted meanwhile. Within 2 % is well; above 5 % one of the two is wrong or
// others were served as well (thresholds as in aiperf's research notes, 2025-10).
// requests that failed have tokens that nobody told the client.
func Counter(name string, client int, server float64, failed int) load.Check {
	c := load.Check{Name: "server " + name}
	if client == 0 && server == 0 {
		c.Note = "neither side counted any"
		return c
	}
	off := math.Abs(float64(client)-server) / max(server, float64(client))
	c.OK = off <= 0.02
	c.Note = fmt.Sprintf("clients were told %d %s tokens, the server counted %.0f: %.2f %% apart, at most 2", client, name, server, 100*off)
	switch {
	case off > 0.5:
		c.Note += "; the two measure different things"
	case failed > 0 && !c.OK:
		c.Note += fmt.Sprintf("; %d requests failed, whose tokens no client was told", failed)
	case off > 0.05:
		c.Note += "; others may be served as well"
	}
	return c
}

// Batch is what a run says of work that only has to be done in time.
type Batch struct {
	TokensPerGPU float64       `json:"output_tokens_per_second_per_gpu,omitempty"` // 0: how many GPUs is not known
	Window       time.Duration `json:"window_ns"`
	Fits         float64       `json:"requests_in_window"` // as many as were asked for in this load, at its rate
	Requests     int           `json:"requests,omitempty"` // that are to be done
	Takes        time.Duration `json:"takes_ns,omitempty"`
}

// NewBatch is what p comes to over a window: how many such requests it completes,
// and how long the given number takes.
func NewBatch(p Point, gpus int, window time.Duration, requests int) *Batch {
	b := &Batch{Window: window, Requests: requests, Fits: p.Summary.RequestRate * window.Seconds()}
	if gpus > 0 {
		b.TokensPerGPU = p.Summary.OutputRate / float64(gpus)
	}
	if rate := p.Summary.RequestRate; requests > 0 && rate > 0 {
		b.Takes = time.Duration(min(float64(requests)/rate*1e9, math.MaxInt64/2))
	}
	return b
}

// Verdict says whether the requests are done within the window at the rate that p
// shows. The rate's error is that of a count, √n, which leaves out that a server
// may be slower at another hour.
func (b *Batch) Verdict(p Point) evidence.Verdict {
	v := evidence.Verdict{Claim: fmt.Sprintf("%d requests are done within %v", b.Requests, b.Window), Unit: "requests", N: p.Summary.Done, Confidence: level, Estimate: b.Fits}
	done := float64(p.Summary.Done)
	if done == 0 || b.Requests <= 0 {
		v.Warnings = append(v.Warnings, "no request was completed")
		return v
	}
	const z = 1.645 // one-sided, 95 %
	v.Lo, v.Hi = b.Fits*max(0, 1-z/math.Sqrt(done)), b.Fits*(1+z/math.Sqrt(done))
	switch {
	case p.Stats.Stopped:
		v.Warnings = append(v.Warnings, "the run was stopped before its end")
	case v.Lo >= float64(b.Requests):
		v.Outcome = evidence.Pass
	case v.Hi < float64(b.Requests):
		v.Outcome = evidence.Fail
	}
	return v
}
