// Package exchange reads and writes the result files of other load generators:
// `vllm bench serve`, guidellm and aiperf.
//
// Files are mapped by what a figure is and never by its name: guidellm's "TPOT" has
// the TTFT in it, aiperf's "ITL" is what others call TPOT, vLLM's "ITL" is the gap
// between events. So what is read are the times of each request, of which our own
// definitions are computed, and a file that has only aggregates is refused with the
// option that makes it whole. [Run.Notes] says what the other tool does not record.
//
// Writing gives the parts that readers of those files use, in the units and names
// that the tools have. All functions are pure but for reading and writing.
package exchange

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

// Formats that are read and written.
const (
	VLLM     = "vllm"     // --save-result --save-detailed
	GuideLLM = "guidellm" // kind=json
	AIPerf   = "aiperf"   // profile_export.jsonl

	// AIPerfSummary is written alone, since it has aggregates only.
	AIPerfSummary = "aiperf-summary" // profile_export_aiperf.json
)

// Run is what another tool measured.
type Run struct {
	Tool    string
	Model   string
	Load    *benchmark.Load // nil: the file does not say
	Results []*load.Result
	Notes   []string // what the figures are not
}

// MaxSize bounds a file: a hundred thousand answers of a thousand tokens.
const MaxSize = 4 << 30

// Read reads a file of any of the formats. run chooses among several benchmarks of
// a guidellm file, 0 the first.
func Read(in io.Reader, run int) (*Run, error) {
	b, err := io.ReadAll(io.LimitReader(in, MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(b) > MaxSize {
		return nil, fmt.Errorf("the file is larger than %d bytes", MaxSize)
	}
	var keys map[string]json.RawMessage
	first, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	err = json.Unmarshal(b, &keys)
	if err != nil && json.Unmarshal(first, &keys) != nil {
		return nil, fmt.Errorf("the file is neither JSON nor lines of it: %w", err)
	}
	has := func(names ...string) bool {
		for _, n := range names {
			if _, ok := keys[n]; !ok {
				return false
			}
		}
		return true
	}
	var r *Run
	switch {
	case has("metadata", "metrics"):
		r, err = readAIPerf(b)
	case has("aiperf_version"):
		err = errors.New("an aiperf summary has aggregates only, of which no interval can be computed: give the profile_export.jsonl beside it")
	case has("benchmarks", "metadata"):
		r, err = readGuideLLM(b, run)
	case has("request_throughput", "num_prompts", "ttfts"):
		r, err = readVLLM(b)
	case has("request_throughput", "num_prompts"):
		err = errors.New("the vLLM file has aggregates only, of which no interval can be computed: run vllm bench serve with --save-detailed")
	default:
		err = errors.New("the file is of none of these tools: vllm bench serve, guidellm, aiperf")
	}
	if err != nil {
		return nil, err
	}
	if len(r.Results) == 0 {
		return nil, fmt.Errorf("the %s file has no requests", r.Tool)
	}
	return r, nil
}

// Write writes a run in format.
func Write(w io.Writer, format string, r *Run, s load.Summary) error {
	switch format {
	case VLLM:
		return writeVLLM(w, r, s)
	case GuideLLM:
		return writeGuideLLM(w, r, s)
	case AIPerf:
		return writeAIPerf(w, r)
	case AIPerfSummary:
		return writeAIPerfSummary(w, r, s)
	}
	return fmt.Errorf("format %q is not known; there are %s, %s, %s and %s", format, VLLM, GuideLLM, AIPerf, AIPerfSummary)
}

// nanos is seconds as a duration; 0 of what is no time.
func nanos(s float64) time.Duration {
	if !(math.Abs(s) < math.MaxInt64/2e9) {
		return 0
	}
	return time.Duration(math.Round(s * 1e9))
}

// shift moves all times so that the run begins at 1 ns: 0 is "did not happen".
func shift(rs []*load.Result) {
	start := time.Duration(math.MaxInt64)
	for _, r := range rs {
		start = min(start, r.Scheduled)
	}
	for _, r := range rs {
		r.Scheduled -= start - 1
		for _, t := range []*time.Duration{&r.Sent, &r.FirstToken, &r.FirstAnswer, &r.LastToken, &r.End} {
			if *t != 0 {
				*t -= start - 1
			}
		}
	}
}

// content says of what lengths the requests were, so that two runs can be told
// apart.
func content(rs []*load.Result) string {
	in, out, n := 0, 0, 0
	for _, r := range rs {
		if r.OK() {
			in, out, n = in+r.Input, out+r.Output, n+1
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d tokens in and %d out in the mean", in/n, out/n)
}
