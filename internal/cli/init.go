package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/internal/config"
	"llmops/jobs"
)

// modelFile is what init writes. A key after a # without a space is one that
// may be left out; where it has a default, that is the value it stands with.
const modelFile = `# One model: where it comes from, where it runs, and what it must show before
# it serves. Paths are relative to this file. Unknown keys are refused. What
# stands behind a # without a space may be left out.
apiVersion: llmops/v1
kind: Model
name: ${NAME} # what clients put in "model"
change: infra # weights in fewer bits, another engine or other flags: answers must be the source's
first: ask # parent: the first version, which is the source as it is, goes live unasked
#task: generate # or embedding, or rerank, for an encoder of the BERT family
source: ${SOURCE} # the folder with config.json, the tokenizer and the safetensors files, or hf://org/name@revision

# What serves it. Another engine, in the place of this and of placement, is below.
engine:
  kind: embedded
  #max_model_len: 2048 # tokens of prompt and answer together
  #max_num_seqs: 16 # requests computed at once
  #fault: "slow-prompt:over=1000,per-token=1ms" # rehearse a bad release: the candidate alone gets it

quantise:
  scheme: fp8-dynamic # or fp8-block, fp8-block-ue8m0, fp8-static, int8, int8-weight, int4, or none to serve the source as it is
  #keep: [lm_head] # modules that stay as they are; "re:" begins a pattern
  # scales: ./scales.json, which llmops quantise scales measures, is what fp8-static needs

placement:
  #gpu: cpu
  #replicas: 1 # of each version
  #loads: 2 # of them that may start at once: they read their weights from one store
  # warm: ./warm.jsonl, a {"messages": [...]} a line, is what each answers before it is ready
  #pool: interactive # of nomad.pools in fleet.yaml

# Another engine, vllm, sglang, trtllm or tgi. An option that it does not have is refused
# (docs/engines.md lists them), and what is left out is left to the engine.
#
#   engine:
#     kind: vllm
#     release: 0.32.0 # whose flags are used
#     image: vllm/vllm-openai:v0.32.0 # of that release, where the cluster runs containers
#     max_model_len: 32768
#     max_num_seqs: 64
#     max_num_batched_tokens: 4096 # of one step: the budget of a prefill's chunk
#     tensor_parallel: 4 # GPUs that a layer is split over
#     pipeline_parallel: 1 # stages; the product of both is the GPUs of a replica
#     kv_cache: fp8 # the candidate's alone: its parent keeps the engine's choice
#     kv_offload: 80GiB # of host memory, for what the cache on the GPU cannot hold
#     speculative: {method: ngram, tokens: 3, max_batch: 8} # or draft, eagle3, mtp with model: ./folder; the candidate's alone
#     lora: {max: 4, max_rank: 16, runtime: true} # and modules: {name: ./folder}
#     sleep: true # can be put to sleep and woken
#     drain: 2m # how long it goes on with what it has begun when it is stopped
#     env: {VLLM_LOGGING_LEVEL: WARNING} # kept with the run: secrets belong into the job file
#   placement:
#     gpu: h100-sxm # ${GPUS}
#     replicas: 2
#     pool: interactive
#     zone: az1 # meta.zone of the nodes
#     near: r7 # meta.rack to be in, if it can be

# What to plan for. The benchmark sends this; plan says how long a canary needs
# at this rate.
traffic:
  rate: 5/s # requests; also /m and /h
  input: 512 # tokens of a prompt
  output: 64 # tokens of an answer
  #replay: ./traffic.jsonl # requests that stand in for clients, on one machine only

# What users may expect. interactive is TTFT p95 800ms and TPOT p95 50ms,
# interactive-strict 400ms and 30ms.
slo:
  preset: interactive
  #ttft: 800ms # in the place of the preset's; of an encoder, the whole answer's
  #tpot: 50ms
  error_rate: 1%
  refusal_rate: 1% # answers that end with content_filter or a refusal

# How much worse than the version before, as benchmarked then, each figure under load
# may be. The less, the longer the benchmark takes; off where the machine has other work.
benchmark:
  #regression: 10%

# How much worse than the source the candidate may be. A suite is a file with
# one question a line, ${ITEM}
# where kind is field (compared as text), number (by value) or json (as a
# document). The smaller the margin, the more items: llmops plan says how many.
eval:
  suites:
    - {name: questions, items: ./evals/questions.jsonl, margin: 1pt}
  #text: ./evals/text.jsonl # held-out text, {"id": "1", "text": "..."} a line
  #perplexity: 1.01 # with text: at most one per cent worse
  #canaries: ./evals/canaries.jsonl # items whose tokens are compared one by one
  #confidence: 95%

# Copies of live requests, before the candidate serves any.
shadow:
  #share: 5%
  #for: 7d

# The candidate's growing share of live traffic. A step ends after that much
# healthy time; the last one also needs each guard to be shown safe, which
# "nothing was seen" is not.
canary:
  steps: [{weight: 1%, bake: 24h}, {weight: 10%, bake: 2h}, {weight: 50%, bake: 2h}]
  #max: 4x # a step that is not decided after this many bakes ends inconclusive
  #harm: 1.25 # the ratio to the live version that is still tolerated
  #rollback_on: [ttft, tpot, errors, refusals]

#standby: 48h # how long the version before stays warm

# What routers let each replica have at a time. Without, it is what the benchmark showed
# to hold where it found an end, and what the plan gives for the GPU.
#   caps: {streams: 192, kv_tokens: 393216}

# With scale, replicas follow the load, and the standby with them: requests and share
# of the KV cache that each shall have, burn of the TTFT budget, and a schedule.
#   scale: {max: 8, streams: 192, kv: 80%, burn: 6x, up: 3m, down: 15m, ahead: 10m, zone: UTC,
#     schedule: [{days: mon-fri, from: "07:30", to: "19:00", min: 4}]}
`

// itemExample is a line of a suite's file.
const itemExample = `{"id": "1", "messages": [{"role": "user", "content": "2 + 2 = ?"}], "answer": "4", "kind": "number", "max_tokens": 4}`

func newInitCmd(e *env) *cobra.Command {
	var out, name, source, files string
	c := &cobra.Command{
		Use:   "init",
		Short: "Write a commented model.yaml",
		Long: `Init writes a model.yaml to fill in, with every key explained. It never
overwrites a file.

  llmops init --name support-8b --source ./weights

With --jobs it writes the Nomad job files instead, to be edited and named as
nomad.engines.KIND.file of a fleet.yaml.

  llmops init --jobs ./jobs

` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if files != "" {
				for _, other := range []string{"out", "name", "source"} {
					if cmd.Flags().Changed(other) {
						return usage("--%s is for a model.yaml, and --jobs writes none", other)
					}
				}
				return e.writeJobs(files)
			}
			from, err := besides(out, source)
			if err != nil {
				return err
			}
			text := strings.NewReplacer("${NAME}", plainOrQuoted(name), "${SOURCE}", plainOrQuoted(from), "${ITEM}", itemExample, "${GPUS}", strings.Join(config.GPUs(), ", ")).Replace(modelFile)
			if err := create(out, text, "--out"); err != nil {
				return err
			}
			e.say("put the questions of the eval into %s, then: llmops onboard --until plan %s", filepath.Join(filepath.Dir(out), "evals", "questions.jsonl"), out)
			return e.answer(map[string]string{"file": out}, func(w *tabwriter.Writer) { row(w, out) })
		},
	}
	c.Flags().StringVar(&out, "out", "model.yaml", "the file to write")
	c.Flags().StringVar(&files, "jobs", "", "the folder to write the Nomad job files into, in the place of a model.yaml")
	c.Flags().StringVar(&name, "name", "my-model", "what clients put in \"model\"")
	c.Flags().StringVar(&source, "source", "", "the folder with the weights; default: weights beside the file")
	return c
}

// writeJobs writes the job files that llmops brings into a folder.
func (e *env) writeJobs(dir string) error {
	names, err := fs.Glob(jobs.Files, "*.nomad.hcl")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return &exitError{exitUsage, fmt.Errorf("writing job files: %w", err)}
	}
	var wrote []string
	for _, name := range names {
		text, err := fs.ReadFile(jobs.Files, name)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, name)
		if err := create(path, string(text), "--jobs"); err != nil {
			return err
		}
		wrote = append(wrote, path)
	}
	return e.answer(map[string][]string{"files": wrote}, func(w *tabwriter.Writer) {
		for _, path := range wrote {
			row(w, path)
		}
	})
}

// besides turns a path that was given for the working directory into one for
// the folder of the file out.
func besides(out, source string) (string, error) {
	if source == "" {
		return "./weights", nil
	}
	if filepath.IsAbs(source) || strings.Contains(source, "://") {
		return source, nil
	}
	from, err := filepath.Abs(filepath.Dir(out))
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(from, to)
	if err != nil {
		return "", fmt.Errorf("finding %s from %s: %w", source, out, err)
	}
	if !strings.HasPrefix(rel, ".") {
		rel = "./" + rel
	}
	return rel, nil
}

var plainText = regexp.MustCompile(`^[./]*[A-Za-z][\w./-]*$`)

// plainOrQuoted writes s as YAML, in quotes where YAML could read it as
// something other than text.
func plainOrQuoted(s string) string {
	switch strings.ToLower(s) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return strconv.QuoteToASCII(s)
	}
	if plainText.MatchString(s) {
		return s
	}
	return strconv.QuoteToASCII(s)
}

// create writes a file that must not be there yet; flag says where.
func create(path, text, flag string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return usage("%s is there already; choose another %s", path, flag)
	}
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("writing a file: %w", err)}
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing a file: %w", err), os.Remove(path))
	}
	return nil
}
