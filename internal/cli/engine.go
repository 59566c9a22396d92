package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"llmops/model"
	"llmops/serving/embedded"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
)

func newEngineCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "engine",
		Short: "Serve a model on this machine's CPU",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newEngineServeCmd(e), newEngineSimulateCmd(e))
	return c
}

func newEngineServeCmd(e *env) *cobra.Command {
	var o embedded.Options
	var listen, fault string
	var est embedded.Estimate
	c := &cobra.Command{
		Use:   "serve --model DIR",
		Short: "Serve a checkpoint over an OpenAI-compatible API",
		Long: `Serve answers /v1/chat/completions, /v1/completions, /v1/models, /health and
/metrics for the checkpoint in --model: Llama, Mistral, Qwen2 and Qwen3 in bf16,
f16, f32 or compressed-tensors fp8, int8 or int4, computed on the CPU. For an
encoder of the BERT family it is /v1/embeddings, /v1/rerank and /v1/score.

  llmops engine serve --model examples/freight/weights --listen 127.0.0.1:8000

Faults make it worse on purpose, so that gates, guards and drills can be tried. A
share is of the requests, drawn by the seed; without one a fault hits all.

` + embedded.FaultHelp() + `
` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.ModelDir == "" {
				return usage("engine serve needs --model")
			}
			var err error
			if o.Fault, err = embedded.ParseFault(fault); err != nil {
				return &exitError{exitUsage, err}
			}
			if o.KVTransfer.Role != "" {
				o.KVTransfer.Address = cmp.Or(o.KVTransfer.Address, listen)
			}
			if est.GPU != "" {
				est.KV, o.KV = o.KV, ""
				o.Estimate = &est
			}
			o.Crash = func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
			return e.serveEngine(cmd.Context(), o, listen)
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "the address to serve on")
	f.StringVar(&o.ModelDir, "model", "", "the checkpoint's folder")
	f.StringVar(&o.Name, "name", "", "what clients put in \"model\"; default: the folder's name")
	f.StringVar(&o.Version, "version-name", "", "the version to name in every response")
	f.IntVar(&o.MaxModelLen, "max-model-len", 0, "tokens of prompt and answer together; default: the model's own")
	f.IntVar(&o.MaxNumSeqs, "max-num-seqs", 0, fmt.Sprintf("sequences computed at once; default: %d, with --estimate 256", embedded.DefaultMaxNumSeqs))
	f.IntVar(&o.MaxBatchedTokens, "max-num-batched-tokens", 0, fmt.Sprintf("tokens in one step; default: %d, or as many as sequences, with --estimate 2048", embedded.DefaultMaxBatchedTokens))
	f.IntVar(&o.Chunk, "long-prefill-token-threshold", 0, "tokens of one prompt in a step; default: as many as fit")
	f.IntVar(&o.KVBlocks, "num-gpu-blocks-override", 0, fmt.Sprintf("cache blocks of %d tokens; default: enough for every sequence at its longest", core.BlockSize))
	f.BoolVar(&o.Overcommit, "overcommit", false, "admit more than the cache can hold to the end, and preempt when it is full")
	f.IntVar(&o.Threads, "threads", 1, "threads that compute")
	f.StringVar(&est.GPU, "estimate", "", "compute nothing and take the time of a GPU: "+strings.Join(estimate.GPUs(), ", "))
	f.IntVar(&est.TensorParallel, "tensor-parallel-size", 1, "GPUs of --estimate")
	f.StringVar(&est.Weights, "dtype", "bf16", "weights of --estimate: bf16, fp8, int8 or int4")
	f.StringVar(&o.KV, "kv-cache-dtype", "", "the cache: float32, bf16 or fp8; default: the checkpoint's, else float32, with --estimate bf16")
	f.IntVar(&est.AnswerTokens, "answer-tokens", 0, "mean length of an answer of --estimate; default: up to its limit")
	f.IntVar(&o.LoRA.Max, "max-loras", 0, "LoRA adapters running at once; default: none may")
	f.IntVar(&o.LoRA.MaxRank, "max-lora-rank", embedded.DefaultMaxLoRARank, "the highest rank of an adapter")
	f.IntVar(&o.LoRA.MaxLoaded, "max-cpu-loras", 0, "adapters in memory; default: as many as run at once")
	f.StringToStringVar(&o.LoRA.Modules, "lora-modules", nil, "adapters to know from the start: NAME=DIR,…")
	f.StringVar(&o.KVTransfer.Role, "kv-role", "", "hand keys and values over: kv_producer (prefill), kv_consumer (decode) or kv_both")
	f.StringVar(&o.KVTransfer.Address, "kv-address", "", "where consumers reach this engine; default: --listen")
	f.StringVar(&o.KVEvents.Endpoint, "kv-events-endpoint", "", "publish changes of the prefix cache over ZeroMQ, as on tcp://*:5557")
	f.StringVar(&o.KVEvents.Replay, "kv-events-replay-endpoint", "", "where missed ones can be asked for, as on tcp://*:5558")
	f.StringVar(&o.KVEvents.Topic, "kv-events-topic", "", "the topic that they carry")
	f.StringVar(&fault, "fault", "", "faults to rehearse, as listed above: KIND:KEY=VALUE,…;KIND…;seed=N")
	return c
}

func (e *env) serveEngine(ctx context.Context, o embedded.Options, listen string) error {
	shape, err := model.LoadShape(o.ModelDir)
	if err != nil {
		return err
	}
	if embedded.IsEncoder(shape) {
		s, err := embedded.NewEncoder(o)
		if err != nil {
			return err
		}
		return errors.Join(e.serveHTTP(ctx, listen, s, s.Drain), s.Close())
	}
	s, err := embedded.New(o)
	if err != nil {
		return err
	}
	return errors.Join(e.serveHTTP(ctx, listen, s, s.Drain), s.Close())
}
