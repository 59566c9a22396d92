package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/quantise"
)

func newQuantiseCmd(e *env) *cobra.Command {
	var o quantise.Options
	var cal quantise.Calibration
	var out, memory, scales string
	var dry bool
	c := &cobra.Command{
		Use:   "quantise DIR --scheme SCHEME --out DIR",
		Short: "Write a checkpoint in fewer bits",
		Long: `Quantise writes the checkpoint in DIR in compressed-tensors layout, which
vLLM and SGLang load as it is. Nothing is written to --out until all of it is
there.

  llmops quantise ./weights --scheme fp8-dynamic --keep lm_head --out ./weights-fp8

  fp8-dynamic      E4M3, a scale an output channel, activations token by token
  fp8-block        E4M3, a scale for 128 x 128 weights, activations in groups of 128
  fp8-block-ue8m0  the same with powers of two as scales, which Blackwell GPUs want
  fp8-static       E4M3, a scale a matrix, activations with the scales of --scales
  int8             8 bits, a scale an output channel, activations token by token
  int8-weight      8 bits, a scale for 128 columns of a row, activations as they are
  int4             4 bits, otherwise as int8-weight
  int4-tensor      4 bits, a scale a matrix: the smallest and the worst

The report has the error of each tensor, the root mean square of what was lost over
that of the weights, the worst first.

Norms, embeddings, the output head, routers, vision and audio towers and heads
that predict several tokens stay as they are. --keep names more modules; "re:"
begins a regular expression. What engines compute as one product shares a
verdict. --dry-run lists every tensor with its verdict and reason, and reads
headers only. --tp refuses what an engine could not split over so many GPUs.

--scales is a table in JSON: {"activations": {MODULE: SCALE}, "kv": {ATTENTION:
{"k": SCALE, "v": SCALE}}}. A table with "kv" makes engines keep their cache in
fp8. llmops quantise scales measures one.

--method gptq or awq chooses codes by what they do to the output. llm-compressor does
it, in the Python that --python names, over the texts of --data; it wants a GPU. What it
makes is held against the source before it appears.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := quantiseOptions(&o, memory, scales); err != nil {
				return err
			}
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
			rep, err := e.quantise(cmd.Context(), args[0], out, o, cal)
			if err != nil {
				return err
			}
			return e.answer(rep, func(w *tabwriter.Writer) { quantiseTable(w, rep) })
		},
	}
	c.Flags().StringVar(&o.Scheme, "scheme", quantise.FP8Dynamic, "the scheme: "+strings.Join(quantise.Schemes(), ", "))
	c.Flags().StringArrayVar(&o.Keep, "keep", nil, "a module to leave as it is, or re: and a pattern; may be repeated")
	c.Flags().StringVar(&out, "out", "", "the folder to write")
	c.Flags().StringVar(&scales, "scales", "", "a table of measured scales")
	c.Flags().StringVar(&memory, "memory", "1GiB", "the most that buffers may take")
	c.Flags().IntVar(&o.TensorParallel, "tp", 1, "over how many GPUs the engine will split each matrix")
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would become of each tensor")
	c.Flags().StringVar(&cal.Method, "method", "", "gptq or awq; default: the nearest code")
	calibrationFlags(c, &cal)
	c.AddCommand(newQuantiseDiffCmd(e), newQuantiseScalesCmd(e))
	return c
}

func calibrationFlags(c *cobra.Command, cal *quantise.Calibration) {
	c.Flags().StringVar(&cal.Data, "data", "", "texts to run the model over: JSON lines with \"text\" or \"messages\"")
	c.Flags().StringVar(&cal.Python, "python", "python3", "an interpreter that has llmcompressor")
	c.Flags().IntVar(&cal.Samples, "samples", 512, "how many lines of --data")
	c.Flags().IntVar(&cal.Length, "length", 2048, "tokens of each")
}

// quantise finds the nearest codes, or has a method find others.
func (e *env) quantise(ctx context.Context, src, out string, o quantise.Options, cal quantise.Calibration) (quantise.Report, error) {
	if cal.Method == "" {
		if cal.Data != "" {
			return quantise.Report{}, usage("--data is for a --method: the nearest code needs none")
		}
		return quantise.Run(ctx, src, out, o, e.bytes())
	}
	if cal.Data == "" {
		return quantise.Report{}, usage("--method %s needs --data", cal.Method)
	}
	cal.Log = e.err
	return quantise.Calibrate(ctx, src, out, o, cal)
}

func newQuantiseScalesCmd(e *env) *cobra.Command {
	var o quantise.Options
	var cal quantise.Calibration
	var kv bool
	c := &cobra.Command{
		Use:   "scales DIR --data FILE",
		Short: "Measure scales of activations and of the cache",
		Long: `Scales runs the model in DIR over the texts of --data and prints a table for --scales
of llmops quantise. The embedded engine does it, on the processor and with all weights
in memory; other models than it computes, and where there is a GPU, llm-compressor does
it in the Python that --python names.

  llmops quantise scales ./weights --data traffic.jsonl --kv > scales.json
  llmops quantise ./weights --scheme fp8-static --scales scales.json --out ./weights-fp8

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cal.Data == "" {
				return usage("quantise scales needs --data")
			}
			if !cmd.Flags().Changed("python") {
				cal.Python = ""
			}
			cal.Log = e.err
			s, err := quantise.MeasureScales(cmd.Context(), args[0], o, kv, cal)
			if err != nil {
				return err
			}
			enc := json.NewEncoder(e.out)
			enc.SetIndent("", "  ")
			return enc.Encode(s)
		},
	}
	calibrationFlags(c, &cal)
	c.Flags().StringArrayVar(&o.Keep, "keep", nil, "a module that will stay as it is, or re: and a pattern; may be repeated")
	c.Flags().BoolVar(&kv, "kv", false, "of the cache as well")
	return c
}

func newQuantiseDiffCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the weights of two checkpoints",
		Long: `Diff compares two checkpoints weight by weight, as the numbers that an engine
computes with: a model and what it was quantised to, or two quantised models. Errors
are the root mean square of the difference over that of A, the largest first.

  llmops quantise diff ./weights ./weights-fp8

It says no, exit 3, if the two cannot be one model: a weight is missing or has another
shape, is NaN in one only, or has other bytes that are no floats.

` + exitHelp,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			diff, err := quantise.Diff(cmd.Context(), args[0], args[1], e.bytes())
			if err != nil {
				return err
			}
			faults := 0
			for _, d := range diff {
				if d.Fault != "" {
					faults++
				}
			}
			if err := e.answer(diff, func(w *tabwriter.Writer) { diffTable(w, diff) }); err != nil || faults == 0 {
				return err
			}
			return &exitError{exitRefused, fmt.Errorf("%s and %s are not one model: %d of %d weights do not fit together", args[0], args[1], faults, len(diff))}
		},
	}
}

func quantiseTable(w *tabwriter.Writer, rep quantise.Report) {
	row(w, "TENSOR", "SHAPE", "ERROR", "ZERO ROWS")
	for _, t := range rep.Worst() {
		row(w, t.Name, dims(t.Shape), lost(t.Error), t.ZeroRows)
	}
	row(w, fmt.Sprintf("%d kept", len(rep.Kept)), "", "", "")
	row(w, "total", fmt.Sprintf("%d -> %d bytes", rep.Before, rep.After), rep.Digest.Short(), rep.Dir)
}

func diffTable(w *tabwriter.Writer, diff []quantise.Difference) {
	row(w, "WEIGHT", "A", "B", "ERROR", "LARGEST")
	same := 0
	for _, d := range diff {
		switch {
		case d.Fault != "":
			row(w, d.Name, dash(d.A), dash(d.B), d.Fault, "")
		case d.Error == 0:
			same++
		default:
			row(w, d.Name, d.A, d.B, lost(d.Error), lost(d.Largest))
		}
	}
	row(w, fmt.Sprintf("%d the same", same), "", "", "", "")
}

func lost(share float64) string { return fmt.Sprintf("%.2f%%", 100*share) }

// quantiseOptions reads what flags give as text.
func quantiseOptions(o *quantise.Options, memory, scales string) (err error) {
	if o.TensorParallel < 1 {
		return usage("--tp %d: want 1 or more", o.TensorParallel)
	}
	if o.Memory, err = bytesOf("--memory", memory); err != nil {
		return err
	}
	if scales != "" {
		o.Scales, err = quantise.ReadScales(scales)
	}
	return err
}

// bytesOf reads a size that a flag gives as text.
func bytesOf(flag, text string) (int64, error) {
	number, unit := text, int64(1)
	for suffix, n := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = before, n
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 1 {
		return 0, usage("%s %q: want a size such as 512MiB", flag, text)
	}
	return n * unit, nil
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
	steps, refusal := quantise.Plan(c, shape, o)
	if len(steps) == 0 {
		return refusal
	}
	before, after := quantise.Sizes(steps, o.Scheme)
	count := map[string]int{}
	return errors.Join(refusal, e.answer(steps, func(w *tabwriter.Writer) {
		row(w, "TENSOR", "TYPE", "SHAPE", "BECOMES", "REASON")
		for _, s := range steps {
			becomes := "stays"
			switch {
			case s.Refused:
				becomes = "refused"
			case s.Quantise:
				becomes = o.Scheme
			}
			count[becomes]++
			row(w, s.Name, s.From, dims(s.Shape), becomes, s.Reason)
		}
		row(w, "total", "", fmt.Sprintf("%d -> %d bytes", before, after), fmt.Sprintf("%d %s, %d stay, %d refused", count[o.Scheme], o.Scheme, count["stays"], count["refused"]), "")
	}))
}
