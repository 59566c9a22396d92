package cli

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"llmops/serving/embedded"
)

func newEngineCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "engine",
		Short: "Serve a model on this machine's CPU",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newEngineServeCmd(e))
	return c
}

func newEngineServeCmd(e *env) *cobra.Command {
	var o embedded.Options
	var listen, fault string
	c := &cobra.Command{
		Use:   "serve --model DIR",
		Short: "Serve a checkpoint over an OpenAI-compatible API",
		Long: `Serve answers /v1/chat/completions, /v1/completions, /v1/models, /health and
/metrics for the checkpoint in --model: the Llama family in bf16, f16, f32,
compressed-tensors fp8 or int4, computed on the CPU.

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
			o.Crash = func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
			return e.serveEngine(cmd.Context(), o, listen)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8000", "the address to serve on")
	c.Flags().StringVar(&o.ModelDir, "model", "", "the checkpoint's folder")
	c.Flags().StringVar(&o.Name, "name", "", "what clients put in \"model\"; default: the folder's name")
	c.Flags().StringVar(&o.Version, "version-name", "", "the version to name in every response")
	c.Flags().IntVar(&o.MaxModelLen, "max-model-len", 0, "tokens of prompt and answer together; default: the model's own")
	c.Flags().IntVar(&o.MaxNumSeqs, "max-num-seqs", embedded.DefaultMaxNumSeqs, "sequences computed at once")
	c.Flags().IntVar(&o.Threads, "threads", 1, "threads that compute")
	c.Flags().StringVar(&fault, "fault", "", "faults to rehearse, as listed above: KIND:KEY=VALUE,…;KIND…;seed=N")
	return c
}

func (e *env) serveEngine(ctx context.Context, o embedded.Options, listen string) error {
	s, err := embedded.New(o)
	if err != nil {
		return err
	}
	return errors.Join(e.serveHTTP(ctx, listen, s, s.Drain), s.Close())
}
