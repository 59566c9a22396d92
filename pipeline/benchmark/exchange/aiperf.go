package exchange

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"llmops/pipeline/benchmark/load"
)

// aiperfLine is a line of aiperf's profile_export.jsonl. Times are Unix nanoseconds.
type aiperfLine struct {
	Metadata struct {
		Number    int    `json:"session_num"`
		RequestID string `json:"x_request_id"`
		Talk      string `json:"conversation_id,omitempty"`
		Turn      int    `json:"turn_index"`
		Due       int64  `json:"credit_issued_ns,omitempty"`
		Start     int64  `json:"request_start_ns"`
		End       int64  `json:"request_end_ns"`
		Phase     string `json:"benchmark_phase"`
		Cancelled bool   `json:"was_cancelled"`
	} `json:"metadata"`
	Metrics map[string]aiperfMetric `json:"metrics"`
	Error   *aiperfError            `json:"error"`
}

type aiperfMetric struct {
	Value json.RawMessage `json:"value"`
	Unit  string          `json:"unit"`
}

type aiperfError struct {
	Code    int    `json:"code,omitempty"`
	Type    string `json:"type,omitempty"`
	Message string `json:"message"`
}

// units of time, whose name is authoritative and not the metric's.
var units = map[string]float64{"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}

func (l *aiperfLine) time(name string) (time.Duration, bool, error) {
	m, ok := l.Metrics[name]
	if !ok {
		return 0, false, nil
	}
	var v float64
	unit, known := units[m.Unit]
	if err := json.Unmarshal(m.Value, &v); err != nil || !known {
		return 0, false, fmt.Errorf("%s is %.40s in %q", name, m.Value, m.Unit)
	}
	return nanos(v * unit / 1e9), true, nil
}

func (l *aiperfLine) count(names ...string) (int, bool) {
	for _, n := range names {
		var v float64
		if m, ok := l.Metrics[n]; ok && json.Unmarshal(m.Value, &v) == nil && v >= 0 && v < 1e9 {
			return int(v), true
		}
	}
	return 0, false
}

func readAIPerf(b []byte) (*Run, error) {
	r := &Run{Tool: AIPerf, Notes: []string{"the arrivals that were asked for are in aiperf's other file"}}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		res, err := aiperfResult(line)
		if err != nil {
			return nil, fmt.Errorf("reading an aiperf file: line %d: %w", n, err)
		}
		if res != nil {
			res.ID = len(r.Results)
			r.Results = append(r.Results, res)
		}
	}
	shift(r.Results)
	return r, nil
}

// aiperfResult is nil for a request of the warm-up.
func aiperfResult(line []byte) (*load.Result, error) {
	var l aiperfLine
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, err
	}
	m := l.Metadata
	if m.Phase != "" && m.Phase != "profiling" {
		return nil, nil
	}
	if m.Start <= 0 || m.End < m.Start || m.Due < 0 {
		return nil, fmt.Errorf("the request runs from %d to %d", m.Start, m.End)
	}
	res := &load.Result{Stream: true, Scheduled: time.Duration(m.Start), Sent: time.Duration(m.Start), End: time.Duration(m.End), Conversation: m.Talk, Turn: m.Turn, Count: load.CountUnknown}
	if m.Due > 0 {
		res.Scheduled = time.Duration(m.Due)
	}
	switch {
	case m.Cancelled:
		res.Kind, res.Error = load.KindCancelled, "cancelled"
	case l.Error != nil:
		res.Kind, res.Error = load.KindStream, l.Error.Message
	}
	ttft, ok, err := l.time("time_to_first_token")
	if err != nil || !ok {
		return res, err
	}
	res.FirstToken = res.Sent + ttft
	if d, ok, err := l.time("time_to_first_output_token"); err != nil {
		return nil, err
	} else if ok {
		res.FirstAnswer = res.Sent + d
	}
	latency, ok, err := l.time("request_latency")
	if err != nil {
		return nil, err
	}
	res.LastToken, res.Events = res.FirstToken, 1
	if ok {
		res.LastToken = res.Sent + latency
	}
	if gaps, ok := l.Metrics["inter_chunk_latency"]; ok {
		var values []float64
		unit, known := units[gaps.Unit]
		if err := json.Unmarshal(gaps.Value, &values); err != nil || !known {
			return nil, fmt.Errorf("inter_chunk_latency in %q: %v", gaps.Unit, err)
		}
		last := res.FirstToken
		for _, v := range values {
			d := nanos(v * unit / 1e9)
			res.Gaps = append(res.Gaps, d)
			last += d
		}
		res.LastToken, res.Events = last, 1+len(values)
	}
	res.Input, _ = l.count("usage_prompt_tokens", "input_sequence_length")
	// The server's own count goes before that of a tokenizer which may not be the
	// server's.
	if n, ok := l.count("usage_completion_tokens", "output_sequence_length"); ok && res.OK() {
		res.Output, res.Count = n, load.CountUsage
	}
	res.End = max(res.End, res.LastToken)
	return res, nil
}

func writeAIPerf(w io.Writer, r *Run) error {
	enc := json.NewEncoder(w)
	for _, x := range r.Results {
		l := aiperfLine{Metrics: map[string]aiperfMetric{}}
		m := &l.Metadata
		m.Number, m.RequestID, m.Talk, m.Turn, m.Phase, m.Cancelled = x.ID, strconv.Itoa(x.ID), x.Conversation, x.Turn, "profiling", x.Kind == load.KindCancelled
		m.Due, m.Start, m.End = int64(x.Scheduled), int64(max(x.Sent, 1)), int64(max(x.End, x.Sent, 1))
		put := func(name string, v any, unit string) {
			raw, _ := json.Marshal(v)
			l.Metrics[name] = aiperfMetric{raw, unit}
		}
		if !x.OK() && x.Kind != load.KindCancelled {
			l.Error = &aiperfError{Code: x.Status, Type: string(x.Kind), Message: x.Error}
		}
		if x.OK() {
			if d, ok := x.TTFTSent(); ok {
				put("time_to_first_token", float64(d)/1e6, "ms")
			}
			if x.FirstAnswer > 0 {
				put("time_to_first_output_token", float64(x.FirstAnswer-x.Sent)/1e6, "ms")
			}
			if d, ok := x.E2ESent(); ok {
				put("request_latency", float64(d)/1e6, "ms")
			}
			if len(x.Gaps) > 0 {
				gaps := make([]float64, len(x.Gaps))
				for i, g := range x.Gaps {
					gaps[i] = float64(g) / 1e6
				}
				put("inter_chunk_latency", gaps, "ms")
			}
			if d, _, ok := x.TPOT(); ok {
				put("inter_token_latency", float64(d)/1e6, "ms")
			}
			if x.Count == load.CountUsage {
				put("usage_prompt_tokens", x.Input, "tokens")
				put("usage_completion_tokens", x.Output, "tokens")
				put("input_sequence_length", x.Input, "tokens")
				put("output_sequence_length", x.Output, "tokens")
			}
		}
		if err := enc.Encode(l); err != nil {
			return err
		}
	}
	return nil
}
