package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"llmops/internal/config"
	"llmops/pipeline"
	"llmops/pipeline/benchmark"
	"llmops/pipeline/benchmark/prompt"
	"llmops/serving/slo"
)

// benchFlags is what `llmops benchmark --url` is asked.
type benchFlags struct {
	url, model, endpoint, tokenizer, out, page string
	load                                       benchmark.Load
	sweep                                      bool
	most, resolution                           float64
	trace, traceFormat                         string
	traceSort                                  bool
	slo, input, answer                         string
	adapters                                   []string
	prompt                                     prompt.Options
	timeout                                    time.Duration
	maxOpen                                    int
	system                                     benchmark.System
	batchWindow                                time.Duration
	batchRequests                              int
	noHistory                                  bool
}

func newBenchmarkCmd(e *env) *cobra.Command {
	var b benchFlags
	c := newStageCmd(e, pipeline.StageBenchmark, "Measure the candidate, or any server, under load")
	stage := c.RunE
	c.Use = "benchmark [--run RUN] | --url URL"
	c.Long = `Benchmark acts on the run that waits for it; when several do, it names them and
asks for --run. With --url it is a plain tool that offers load to any server of the
OpenAI API:

  llmops benchmark --url http://127.0.0.1:8000/v1 --model NAME --rate 5 --for 60s
  llmops benchmark --url http://127.0.0.1:8000/v1 --sweep --slo interactive
  llmops benchmark --url http://127.0.0.1:8000/v1 --trace mooncake.jsonl --speed 0.5
  llmops benchmark --url http://127.0.0.1:8000/v1 --concurrency 16 --for 60s

Arrivals never wait for answers (but for --concurrency), and latencies count from
when a request was due. Figures are of the steady window, from the end of --warmup to
the last arrival. Requests that fail are in the denominator of what is good. Each
result is written to --out as it ends; an interrupt loses none, and
llmops benchmark show reads them again.

--slo is a preset (` + strings.Join(presets(), ", ") + `) or bounds such as
ttft=800ms,tpot=50ms,errors=1%, of 95 % of the requests unless it says ttft@99=800ms.
With it the exit status is a verdict.

With --tokenizer, the folder of the weights that are served, and --gpu it says which part
of the roofline was reached, and which roof binds.

Lengths are tokens: 512, or 100-2000, or 512:0.9,32000:0.1. With --tokenizer, the
model's folder, prompts have exactly so many; without, a word is taken for a token.
The key of the API is read from $OPENAI_API_KEY.

Traces: ` + strings.Join(traceNames(), ", ") + `; docs/benchmark.md says what each has to have.

` + exitHelp
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if b.url == "" {
			for _, f := range []string{"rate", "sweep", "trace", "concurrency", "model", "slo"} {
				if cmd.Flags().Changed(f) {
					return usage("--%s is for a server that --url names", f)
				}
			}
			return stage(cmd, args)
		}
		if cmd.Flags().Changed("run") {
			return usage("--url measures a server and --run a run's candidate: give one of them")
		}
		return e.benchmark(cmd.Context(), &b, cmd.Flags().Changed)
	}
	b.flags(c)
	c.AddCommand(newBenchmarkShowCmd(e), newBenchmarkCompareCmd(e), newBenchmarkHistoryCmd(e), newBenchmarkConvertCmd(e))
	return c
}

func (b *benchFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.url, "url", "", "the server, as http://host:port/v1")
	f.StringVar(&b.model, "model", "", "the model to ask for; default: the only one that the server has")
	f.Float64Var(&b.load.Rate, "rate", 0, "requests a second; with --sweep the first rate, default 1")
	f.DurationVar(&b.load.For, "for", 0, "how long to send; default 60s, of a sweep as long as its verdict needs")
	f.IntVar(&b.load.Requests, "requests", 0, "send at most so many")
	f.StringVar(&b.load.Shape, "arrivals", benchmark.Poisson, "constant, poisson or gamma")
	f.Float64Var(&b.load.Burstiness, "burstiness", 1, "shape of gamma's gaps: 1 is Poisson, less comes in bursts")
	f.IntVar(&b.load.Concurrency, "concurrency", 0, "a closed loop: so many clients, each waiting for its answer")
	f.DurationVar(&b.load.Ramp, "ramp", 0, "how long the rate rises from --ramp-from, or clients begin one after the other")
	f.Float64Var(&b.load.From, "ramp-from", 0, "requests a second at the start of a ramp")
	f.DurationVar(&b.load.Warmup, "warmup", 0, "how much of the beginning is in no figure; default: a tenth of --for, and all of --ramp")
	f.Uint64Var(&b.load.Seed, "seed", 1, "of arrivals and prompts")
	f.BoolVar(&b.sweep, "sweep", false, "find the knee, and the highest rate that holds --slo")
	f.Float64Var(&b.most, "most", 0, "the highest rate of a sweep; default: until the server does not keep up")
	f.Float64Var(&b.resolution, "resolution", 0.1, "how close a sweep comes to a limit, as a share of the rate")
	f.StringVar(&b.trace, "trace", "", "a recording to replay: a file, or a folder of routers' records")
	f.StringVar(&b.traceFormat, "trace-format", "", "its format; default: the one whose columns it has")
	f.BoolVar(&b.traceSort, "trace-sort", false, "put its requests in the order of their times")
	f.Float64Var(&b.load.Speed, "speed", 1, "how many times faster than recorded")
	f.StringVar(&b.slo, "slo", "", "a preset, or bounds such as ttft=800ms,tpot=50ms,errors=1%")
	f.StringVar(&b.endpoint, "endpoint", string(prompt.Chat), "chat, completions, embeddings or rerank")
	f.StringVar(&b.input, "input-tokens", "512", "lengths of prompts")
	f.StringVar(&b.answer, "output-tokens", "128", "lengths of answers")
	f.BoolVar(&b.prompt.Natural, "natural", false, "let answers end where the model ends them, --output-tokens at most")
	f.StringVar(&b.tokenizer, "tokenizer", "", "the folder with the model's tokenizer.json, for exact lengths")
	f.IntVar(&b.prompt.Prefix, "prefix-tokens", 0, "leading tokens that prompts share")
	f.IntVar(&b.prompt.Prefixes, "prefixes", 1, "how many such prefixes there are")
	f.IntVar(&b.prompt.Turns, "turns", 1, "turns of a session, each with all before it")
	f.DurationVar(&b.prompt.Pause, "pause", 0, "between an answer and the session's next turn")
	f.StringSliceVar(&b.adapters, "lora", nil, "an adapter and its share of the requests, as NAME=0.3; may be repeated")
	f.IntVar(&b.prompt.Passages, "passages", 10, "that a rerank request ranks")
	f.BoolVar(&b.prompt.PerChunk, "chunk-usage", false, "ask for usage on each event, as vLLM and SGLang can: makes the latency of each token known")
	f.DurationVar(&b.timeout, "timeout", 10*time.Minute, "of one request")
	f.IntVar(&b.maxOpen, "max-open", 0, "requests under way at most; what is due beyond fails; default 20000")
	f.StringVar(&b.out, "out", "", "the folder for record and results; default: below the state directory")
	f.StringVar(&b.page, "report", "", "write a page of HTML with load curve, distributions and timeline")
	f.StringVar(&b.system.Engine, "engine", "", "the engine, for the history; default: what it says of itself")
	f.StringVar(&b.system.Version, "engine-version", "", "its version; default: what it says of itself")
	f.StringVar(&b.system.Flags, "engine-flags", "", "what it was started with, for the history")
	f.StringVar(&b.system.GPU, "gpu", "", "the GPU: for the history, and with --tokenizer for the roofline"+gpuNames())
	f.IntVar(&b.system.GPUs, "gpus", 0, "how many a copy of the model takes: for tokens/s of each, and the roofline")
	f.DurationVar(&b.batchWindow, "batch-window", 0, "say how many such requests are done within; default 4h where anything of a batch is asked")
	f.IntVar(&b.batchRequests, "batch-requests", 0, "say whether so many are")
	f.BoolVar(&b.noHistory, "no-history", false, "leave no line in the history")
}

func gpuNames() string {
	return "; one of " + strings.Join(config.GPUs(), ", ") + ", or cpu for this machine"
}

// presets are the names that --slo knows. The class of batches has no bound on
// latency.
func presets() []string {
	return []string{"interactive", "interactive-strict", batchPreset}
}

const batchPreset = "batch"

// sloOf reads --slo.
func sloOf(s string) (slo.Class, error) {
	if s == "" || s == batchPreset {
		return slo.Class{Name: s}, nil
	}
	if c, ok := slo.Presets()[s]; ok {
		return c, nil
	}
	c := slo.Class{Name: s}
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		name, at, _ := strings.Cut(name, "@")
		quantile := 95.0
		if at != "" {
			var err error
			if quantile, err = strconv.ParseFloat(at, 64); err != nil || !(quantile > 0 && quantile < 100) {
				return c, usage("--slo %q: %q is no percentile between 0 and 100", s, at)
			}
		}
		bound := slo.Bound{Quantile: quantile / 100}
		var err error
		switch name {
		case "ttft":
			bound.Limit, err = time.ParseDuration(value)
			c.TTFT = bound
		case "tpot":
			bound.Limit, err = time.ParseDuration(value)
			c.TPOT = bound
		case "errors":
			number, percent := strings.CutSuffix(value, "%")
			c.ErrorRate, err = strconv.ParseFloat(number, 64)
			c.ErrorRate /= 100
			ok = percent && c.ErrorRate > 0 && c.ErrorRate < 1
		default:
			ok = false
		}
		if !ok || err != nil || name != "errors" && bound.Limit <= 0 {
			return c, usage("--slo %q: %q is neither a preset (%s) nor a bound such as ttft=800ms, tpot@99=50ms or errors=1%%", s, part, strings.Join(presets(), ", "))
		}
	}
	return c, nil
}
