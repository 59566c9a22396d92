package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/quantise"
)

func newQuantiseCmd(e *env) *cobra.Command {
	var o quantise.Options
	var out string
	var dry bool
	c := &cobra.Command{
		Use:   "quantise DIR --scheme SCHEME --out DIR",
		Short: "Write a checkpoint in fewer bits",
		Long: `Quantise writes the checkpoint in DIR in compressed-tensors layout, which
vLLM and SGLang load as it is. Nothing is written to --out until all of it is
there.

  llmops quantise ./weights --scheme fp8-dynamic --keep lm_head --out ./weights-fp8

--keep names modules that stay as they are; "re:" begins a regular expression.
--dry-run lists every tensor with its verdict and reason, and reads headers only.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dry {
				return dryRun(e, args[0], o)
			}
			if out == "" {
				return usage("quantise needs --out")
			}
			if _, err := os.Stat(out); err == nil {
				return usage("%s is there already; remove it or choose another --out", out)
			}
			out, err := filepath.Abs(out)
			if err != nil {
				return err
			}
			rep, err := quantise.Run(cmd.Context(), args[0], out, o, func(int64, int64) {})
			if err != nil {
				return err
			}
			return e.answer(rep, func(w *tabwriter.Writer) {
				row(w, "TENSOR", "SHAPE", "ERROR", "ZERO ROWS")
				for _, t := range rep.Tensors {
					row(w, t.Name, dims(t.Shape), fmt.Sprintf("%.2f%%", 100*t.Error), t.ZeroRows)
				}
				row(w, fmt.Sprintf("%d kept", len(rep.Kept)), "", "", "")
				row(w, "total", fmt.Sprintf("%d -> %d bytes", rep.Before, rep.After), rep.Digest.Short(), rep.Dir)
			})
		},
	}
	c.Flags().StringVar(&o.Scheme, "scheme", quantise.FP8Dynamic, "the scheme: "+quantise.FP8Dynamic+" or "+quantise.Int4)
	c.Flags().StringArrayVar(&o.Keep, "keep", nil, "a module to leave as it is, or re: and a pattern; may be repeated")
	c.Flags().StringVar(&out, "out", "", "the folder to write")
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would become of each tensor")
	return c
}

func dims(shape []int64) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = fmt.Sprint(d)
	}
	return strings.Join(parts, "x")
}

func dryRun(e *env, dir string, o quantise.Options) (err error) {
	shape, err := model.LoadShape(dir)
	if err != nil {
		return err
	}
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	steps, err := quantise.Plan(c, shape, o)
	if err != nil {
		return err
	}
	return e.answer(steps, func(w *tabwriter.Writer) {
		row(w, "TENSOR", "TYPE", "SHAPE", "BECOMES", "REASON")
		for _, s := range steps {
			becomes := "stays"
			if s.Quantise {
				becomes = o.Scheme
			}
			row(w, s.Name, s.From, dims(s.Shape), becomes, s.Reason)
		}
	})
}
