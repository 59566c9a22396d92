package exchange

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
)

// vllmFile is the JSON of vllm bench serve, arrays in seconds.
type vllmFile struct {
	Date        string          `json:"date"`
	Endpoint    string          `json:"endpoint_type"`
	Backend     string          `json:"backend"`
	Label       *string         `json:"label"`
	Model       string          `json:"model_id"`
	Tokenizer   string          `json:"tokenizer_id"`
	Prompts     int             `json:"num_prompts"`
	Rate        json.RawMessage `json:"request_rate"` // a number, or "inf"
	Burstiness  float64         `json:"burstiness"`
	Concurrency *int            `json:"max_concurrency"`

	Duration    float64     `json:"duration"`
	Completed   int         `json:"completed"`
	Failed      int         `json:"failed"`
	TotalIn     int         `json:"total_input_tokens"`
	TotalOut    int         `json:"total_output_tokens"`
	Throughput  float64     `json:"request_throughput"`
	Goodput     *float64    `json:"request_goodput"`
	OutputRate  float64     `json:"output_throughput"`
	TotalRate   float64     `json:"total_token_throughput"`
	Peak        float64     `json:"max_output_tokens_per_s"`
	PeakOpen    int         `json:"max_concurrent_requests,omitempty"`
	MeanTTFT    float64     `json:"mean_ttft_ms"`
	MedianTTFT  float64     `json:"median_ttft_ms"`
	StdTTFT     float64     `json:"std_ttft_ms"`
	P99TTFT     float64     `json:"p99_ttft_ms"`
	MeanTPOT    float64     `json:"mean_tpot_ms"`
	MedianTPOT  float64     `json:"median_tpot_ms"`
	StdTPOT     float64     `json:"std_tpot_ms"`
	P99TPOT     float64     `json:"p99_tpot_ms"`
	MeanITL     float64     `json:"mean_itl_ms"`
	MedianITL   float64     `json:"median_itl_ms"`
	StdITL      float64     `json:"std_itl_ms"`
	P99ITL      float64     `json:"p99_itl_ms"`
	MeanE2E     float64     `json:"mean_e2el_ms"`
	MedianE2E   float64     `json:"median_e2el_ms"`
	StdE2E      float64     `json:"std_e2el_ms"`
	P99E2E      float64     `json:"p99_e2el_ms"`
	InputLens   []int       `json:"input_lens"`
	OutputLens  []int       `json:"output_lens"`
	TTFTs       []float64   `json:"ttfts"`
	ITLs        [][]float64 `json:"itls"`
	Starts      []float64   `json:"start_times"`
	Errors      []string    `json:"errors"`
	Generations []string    `json:"generated_texts,omitempty"`
}

func readVLLM(b []byte) (*Run, error) {
	var f vllmFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("reading a vLLM file: %w", err)
	}
	n := len(f.TTFTs)
	for name, k := range map[string]int{"input_lens": len(f.InputLens), "output_lens": len(f.OutputLens), "itls": len(f.ITLs), "start_times": len(f.Starts), "errors": len(f.Errors)} {
		if k != n {
			return nil, fmt.Errorf("reading a vLLM file: %d ttfts and %d %s; it has to be of vLLM 0.11 or later, with --save-detailed", n, k, name)
		}
	}
	r := &Run{Tool: VLLM, Model: f.Model, Notes: []string{
		"vLLM does not record when a request was due: latencies count from sending",
		"vLLM's clock of the first token stops at the first event with a choice, which may be a role without text",
	}}
	for i := range n {
		sent := nanos(f.Starts[i])
		res := &load.Result{ID: i, Stream: true, Scheduled: sent, Sent: sent, Input: f.InputLens[i], Count: load.CountUnknown}
		switch {
		case f.Errors[i] != "":
			res.Kind, res.Error, res.End = load.KindStream, f.Errors[i], sent
		default:
			res.FirstToken = sent + nanos(f.TTFTs[i])
			res.LastToken, res.Events = res.FirstToken, 1+len(f.ITLs[i])
			for _, g := range f.ITLs[i] {
				res.Gaps = append(res.Gaps, nanos(g))
				res.LastToken += nanos(g)
			}
			res.FirstAnswer, res.End = res.FirstToken, res.LastToken
			res.Output, res.Count = f.OutputLens[i], load.CountUsage
		}
		r.Results = append(r.Results, res)
	}
	shift(r.Results)
	var rate float64
	if json.Unmarshal(f.Rate, &rate) == nil && rate > 0 {
		r.Load = &benchmark.Load{Shape: benchmark.Poisson, Rate: rate}
		if f.Burstiness != 1 && f.Burstiness > 0 {
			r.Load.Shape, r.Load.Burstiness = benchmark.Gamma, f.Burstiness
		}
	} else if f.Concurrency != nil {
		r.Load = &benchmark.Load{Shape: benchmark.Closed, Concurrency: *f.Concurrency}
	}
	if r.Load != nil {
		r.Load.Content = content(r.Results)
	}
	return r, nil
}

func writeVLLM(w io.Writer, r *Run, s load.Summary) error {
	f := vllmFile{Date: time.Now().UTC().Format("20060102-150405"), Endpoint: "openai-chat", Backend: "openai-chat", Model: r.Model, Prompts: s.Attempted, Burstiness: 1,
		Duration: s.Window.Seconds(), Completed: s.Done, Failed: s.Attempted - s.Done, TotalIn: s.InputTokens, TotalOut: s.OutputTokens, Throughput: s.RequestRate,
		OutputRate: s.OutputRate, TotalRate: s.OutputRate, Peak: s.PeakRate, Rate: json.RawMessage(`"inf"`),
		InputLens: []int{}, OutputLens: []int{}, TTFTs: []float64{}, ITLs: [][]float64{}, Starts: []float64{}, Errors: []string{}}
	if sec := s.Window.Seconds(); sec > 0 {
		f.TotalRate = s.OutputRate + float64(s.InputTokens)/sec
	}
	if s.SLO != (load.SLO{}) {
		f.Goodput = &s.Goodput
	}
	if l := r.Load; l != nil && l.Shape == benchmark.Closed {
		f.Concurrency = &l.Concurrency
	} else if l != nil && l.Rate > 0 {
		f.Rate, _ = json.Marshal(l.Rate)
		if l.Shape == benchmark.Gamma {
			f.Burstiness = l.Burstiness
		}
	}
	ms := func(d load.Dist, mean, median, std, p99 *float64) {
		*mean, *median, *std, *p99 = d.Mean/1e6, d.P50/1e6, d.Std/1e6, d.P99/1e6
	}
	// What vLLM calls these counts from sending.
	ms(s.TTFTSent, &f.MeanTTFT, &f.MedianTTFT, &f.StdTTFT, &f.P99TTFT)
	ms(s.TPOT, &f.MeanTPOT, &f.MedianTPOT, &f.StdTPOT, &f.P99TPOT)
	ms(s.ICL, &f.MeanITL, &f.MedianITL, &f.StdITL, &f.P99ITL)
	ms(s.E2ESent, &f.MeanE2E, &f.MedianE2E, &f.StdE2E, &f.P99E2E)
	for _, x := range r.Results {
		gaps := []float64{}
		for _, g := range x.Gaps {
			gaps = append(gaps, g.Seconds())
		}
		ttft, _ := x.TTFTSent()
		why := x.Error
		if !x.OK() {
			ttft, gaps = 0, []float64{}
			if why == "" {
				why = string(x.Kind)
			}
		}
		f.InputLens, f.OutputLens, f.TTFTs, f.ITLs = append(f.InputLens, x.Input), append(f.OutputLens, x.Output), append(f.TTFTs, ttft.Seconds()), append(f.ITLs, gaps)
		f.Starts, f.Errors = append(f.Starts, x.Sent.Seconds()), append(f.Errors, why)
	}
	return json.NewEncoder(w).Encode(f)
}
