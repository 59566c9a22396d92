package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"llmops/internal/prom"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
)

// settling is how long a server's counters may take to have counted the last
// answer.
const settling = 2 * time.Second

// preflight bounds the questions that are asked of a server before and after.
const preflight = 10 * time.Second

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

// counterNames are the counters of tokens by engine: prompt, then output.
var counterNames = []struct{ engine, prompt, output string }{
	{"vllm", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"},
	{"llama.cpp", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"},
	{"sglang", "sglang:prompt_tokens_total", "sglang:generation_tokens_total"},
	{"tgi", "tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"}, // histograms of requests that ended
}

// counters reads what the server counts; nil where it counts nothing that is known.
func (x *bench) counters(ctx context.Context) (prom.Samples, error) {
	ctx, cancel := context.WithTimeout(ctx, preflight)
	defer cancel()
	return prom.Scrape(ctx, x.client.HTTP, x.base+"/metrics")
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
	res, err := x.client.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return openai.NewStatusError(res)
	}
	return json.NewDecoder(http.MaxBytesReader(nil, res.Body, 1<<20)).Decode(to)
}

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
