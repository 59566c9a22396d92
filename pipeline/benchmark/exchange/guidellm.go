package exchange

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

// guideFile is the part of guidellm's JSON, version 2, that is read and written.
// Times are Unix seconds.
type guideFile struct {
	Metadata struct {
		Version  int    `json:"version"`
		Guidellm string `json:"guidellm_version"`
	} `json:"metadata"`
	Benchmarks []guideRun `json:"benchmarks"`
}

type guideRun struct {
	Type   string `json:"type_"`
	Config struct {
		Strategy struct {
			Type    string  `json:"type_"`
			Rate    float64 `json:"rate,omitempty"`
			Streams int     `json:"streams,omitempty"`
		} `json:"strategy"`
		Backend json.RawMessage `json:"backend,omitempty"`
	} `json:"config"`
	Metrics  map[string]guideMetric `json:"metrics"`
	Requests struct {
		Successful []guideRequest `json:"successful"`
		Errored    []guideRequest `json:"errored"`
		Incomplete []guideRequest `json:"incomplete"`
	} `json:"requests"`
	Start    float64 `json:"start_time"`
	End      float64 `json:"end_time"`
	Duration float64 `json:"duration"`
}

type guideRequest struct {
	ID     string     `json:"request_id"`
	Info   guideInfo  `json:"info"`
	Input  guideCount `json:"input_metrics"`
	Output guideCount `json:"output_metrics"`
}

type guideInfo struct {
	Status  string       `json:"status"`
	Timings guideTimings `json:"timings"`
	Error   any          `json:"error"` // a text, or an object with one
}

type guideTimings struct {
	Targeted    *float64 `json:"targeted_start"`
	Start       *float64 `json:"request_start"`
	FirstToken  *float64 `json:"first_token_iteration"`
	FirstOutput *float64 `json:"first_output_token_iteration"`
	LastToken   *float64 `json:"last_token_iteration"`
	Iterations  int      `json:"token_iterations"`
	End         *float64 `json:"request_end"`
}

type guideCount struct {
	Text   *int `json:"text_tokens"`
	Cached *int `json:"cached_tokens"`
	Total  *int `json:"total_tokens"`
}

func (c guideCount) tokens() (int, bool) {
	for _, n := range []*int{c.Total, c.Text} {
		if n != nil {
			return *n, true
		}
	}
	return 0, false
}

type guideMetric map[string]*guideDist

type guideDist struct {
	Mean        float64            `json:"mean"`
	Median      float64            `json:"median"`
	StdDev      float64            `json:"std_dev"`
	Min         float64            `json:"min"`
	Max         float64            `json:"max"`
	Count       int                `json:"count"`
	Percentiles map[string]float64 `json:"percentiles"`
}

func readGuideLLM(b []byte, run int) (*Run, error) {
	// Metrics have more shapes than what is needed of them.
	var f struct {
		Benchmarks []struct {
			Config   json.RawMessage `json:"config"`
			Requests struct {
				Successful, Errored, Incomplete []guideRequest
			} `json:"requests"`
		} `json:"benchmarks"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("reading a guidellm file: %w", err)
	}
	if run < 0 || run >= len(f.Benchmarks) {
		return nil, fmt.Errorf("reading a guidellm file: it has %d benchmarks, and number %d is asked for", len(f.Benchmarks), run+1)
	}
	g := f.Benchmarks[run]
	r := &Run{Tool: GuideLLM, Notes: []string{
		"guidellm keeps no times of single events: there is no latency between them",
		"guidellm's clock is the machine's, which may be set while it runs",
	}}
	var cfg struct {
		Strategy struct {
			Type    string  `json:"type_"`
			Rate    float64 `json:"rate"`
			Streams int     `json:"streams"`
		} `json:"strategy"`
		Backend struct {
			Model string `json:"model"`
		} `json:"backend"`
	}
	if json.Unmarshal(g.Config, &cfg) == nil {
		r.Model = cfg.Backend.Model
		switch cfg.Strategy.Type {
		case benchmark.Poisson, benchmark.Constant:
			r.Load = &benchmark.Load{Shape: cfg.Strategy.Type, Rate: cfg.Strategy.Rate}
		case "concurrent":
			r.Load = &benchmark.Load{Shape: benchmark.Closed, Concurrency: cfg.Strategy.Streams}
		}
	}
	for _, group := range []struct {
		kind load.Kind
		rows []guideRequest
	}{{"", g.Requests.Successful}, {load.KindStream, g.Requests.Errored}, {load.KindCancelled, g.Requests.Incomplete}} {
		for _, q := range group.rows {
			t := q.Info.Timings
			if t.Start == nil {
				continue // it never left: guidellm ended before
			}
			res := &load.Result{ID: len(r.Results), Stream: true, Kind: group.kind, Count: load.CountUnknown, Sent: nanos(*t.Start), Events: t.Iterations}
			res.Scheduled, res.End = res.Sent, res.Sent
			for from, to := range map[*float64]*time.Duration{t.Targeted: &res.Scheduled, t.FirstToken: &res.FirstToken, t.FirstOutput: &res.FirstAnswer, t.LastToken: &res.LastToken, t.End: &res.End} {
				if from != nil {
					*to = nanos(*from)
				}
			}
			res.End = max(res.End, res.LastToken)
			if q.Info.Error != nil {
				res.Error = fmt.Sprint(q.Info.Error)
			}
			res.Input, _ = q.Input.tokens()
			if n, ok := q.Output.tokens(); ok && group.kind == "" {
				res.Output, res.Count = n, load.CountUsage
			}
			r.Results = append(r.Results, res)
		}
	}
	shift(r.Results)
	if r.Load != nil {
		r.Load.Content = content(r.Results)
	}
	return r, nil
}

func writeGuideLLM(w io.Writer, r *Run, s load.Summary) error {
	var f guideFile
	f.Metadata.Version, f.Metadata.Guidellm = 2, "written by llmops"
	g := guideRun{Type: "generative_benchmark", Metrics: map[string]guideMetric{}, Duration: s.Window.Seconds(), Start: s.From.Seconds(), End: (s.From + s.Window).Seconds()}
	if l := r.Load; l != nil {
		g.Config.Strategy.Type, g.Config.Strategy.Rate = l.Shape, l.Rate
		if l.Shape == benchmark.Closed {
			g.Config.Strategy.Type, g.Config.Strategy.Streams = "concurrent", l.Concurrency
		}
	}
	g.Config.Backend, _ = json.Marshal(map[string]string{"model": r.Model})
	dist := func(name string, d load.Dist, unit float64) {
		if d.N == 0 {
			return
		}
		v := func(ns float64) float64 { return ns / unit }
		g.Metrics[name] = guideMetric{"successful": {Mean: v(d.Mean), Median: v(d.P50), StdDev: v(d.Std), Min: v(d.Min), Max: v(d.Max), Count: d.N,
			Percentiles: map[string]float64{"p50": v(d.P50), "p90": v(d.P90), "p95": v(d.P95), "p99": v(d.P99), "p999": v(d.P999)}}}
	}
	// Under the names that guidellm has for what these are. Its time_per_output_token
	// has the TTFT in it and is left out: nobody should read ours for that.
	dist("request_latency", s.E2ESent, 1e9)
	dist("time_to_first_token_ms", s.TTFTSent, 1e6)
	dist("time_to_first_output_token_ms", s.TTFO, 1e6)
	dist("inter_token_latency_ms", s.TPOT, 1e6)
	g.Requests.Successful, g.Requests.Errored, g.Requests.Incomplete = []guideRequest{}, []guideRequest{}, []guideRequest{}
	at := func(d time.Duration) *float64 {
		if d == 0 {
			return nil
		}
		v := d.Seconds()
		return &v
	}
	for _, x := range r.Results {
		in, out := x.Input, x.Output
		due := x.Scheduled.Seconds()
		q := guideRequest{ID: fmt.Sprint(x.ID), Input: guideCount{Text: &in, Total: &in}, Output: guideCount{Text: &out, Total: &out},
			Info: guideInfo{Status: "completed", Timings: guideTimings{Targeted: &due, Start: at(x.Sent), FirstToken: at(x.FirstToken), FirstOutput: at(x.FirstAnswer), LastToken: at(x.LastToken), Iterations: x.Events, End: at(x.End)}}}
		if x.Count != load.CountUsage {
			q.Output = guideCount{}
		}
		switch {
		case x.OK():
			g.Requests.Successful = append(g.Requests.Successful, q)
		case x.Kind == load.KindCancelled:
			q.Info.Status, q.Info.Error = "cancelled", x.Error
			g.Requests.Incomplete = append(g.Requests.Incomplete, q)
		default:
			q.Info.Status, q.Info.Error = "errored", x.Error
			g.Requests.Errored = append(g.Requests.Errored, q)
		}
	}
	f.Benchmarks = []guideRun{g}
	return json.NewEncoder(w).Encode(f)
}
