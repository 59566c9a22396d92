package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmops/internal/config"
	"llmops/roofline"
	sizing "llmops/roofline/size"
)

// sizeFlags say what is asked of a register of assumptions.
type sizeFlags struct {
	whatIf  []string
	name    string // of a case
	run     string
	usage   string
	roofs   string
	explain string
	sweep   string
	show    string
	tornado string
	claims  bool
	all     bool
	keys    bool
	gpus    bool
}

func newSizeCmd(e *env) *cobra.Command {
	var f sizeFlags
	c := &cobra.Command{
		Use:   "size ASSUMPTIONS",
		Short: "Size a deployment from a register of assumptions",
		Long: `Size computes what a deployment needs from a file of assumptions, each with its
source and what breaks if it is wrong: memory, decode and prefill by the roofline,
the first token, nodes, dollars, and what a router may let a replica have. Beside
each number stand the rows of the register that it rests on. It recommends a layout
and one or two pools, says where either choice flips, and holds what a document
claims against what the model gives.

  llmops size examples/assumptions.yaml
  llmops size examples/assumptions.yaml --explain decode.tpot
  llmops size examples/assumptions.yaml --what-if layout.tp=4 --what-if slo.tpot=40ms
  llmops size examples/assumptions.yaml --sweep traffic.prefix_hits=40%,60%,80%
  llmops size examples/assumptions.yaml --tornado=cost.output
  llmops size examples/assumptions.yaml --claims

Nothing is measured here. --measured takes the shares of bandwidth and arithmetic and
the fabric from what jobs/ceilings.nomad.hcl measured on a node, --run calibrates the
model with what a run measured, --usage takes the traffic from recorded usage.

` + exitHelp,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.keys {
				return e.sizeKeys()
			}
			if f.gpus {
				return e.sizeGPUs()
			}
			if len(args) != 1 {
				return usage("name a file of assumptions, such as examples/assumptions.yaml")
			}
			p, err := e.planSize(cmd.Context(), args[0], f)
			if err != nil {
				return err
			}
			return e.printSize(p, f)
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.whatIf, "what-if", nil, "KEY=VALUE, and what changes by it; may be repeated")
	fl.StringVar(&f.name, "case", "", "a case of the file as what-if")
	fl.StringVar(&f.run, "run", "", "a run, or the file of its JSON report, that measured the model on this GPU")
	fl.StringVar(&f.roofs, "measured", "", "a file of measured ceilings, which the job ceilings writes")
	fl.StringVar(&f.usage, "usage", "", "recorded usage, a file or a folder of routers' records, for the traffic")
	fl.StringVar(&f.explain, "explain", "", "KEY: its formula with values, and what it rests on")
	fl.StringVar(&f.sweep, "sweep", "", "KEY=VALUE,VALUE,…: the numbers for each")
	fl.StringVar(&f.show, "show", "", "KEY,KEY,…: the numbers of a sweep")
	fl.StringVar(&f.tornado, "tornado", "", "what moves a number most when each assumption goes through its range")
	fl.Lookup("tornado").NoOptDefVal = "fleet.capacity"
	fl.BoolVar(&f.claims, "claims", false, "each claim of the file against the model")
	fl.BoolVar(&f.all, "all", false, "with the numbers that others are made of")
	fl.BoolVar(&f.keys, "keys", false, "list all assumptions that may be made")
	fl.BoolVar(&f.gpus, "gpus", false, "list the catalogue, each figure with its source and what it counts")
	return c
}

// sizePlan is a register with what was asked of it.
type sizePlan struct {
	file   *sizing.Register
	of     sizing.Case      // the one that was asked for; none: the register itself
	whatIf []sizing.Setting // on top of it
	base   *sizing.Sheet    // without what-ifs
	sheet  *sizing.Sheet
}

// planSize reads the file and settles all assumptions.
func (e *env) planSize(ctx context.Context, path string, f sizeFlags) (*sizePlan, error) {
	bad := func(err error) error { return &exitError{exitUsage, err} }
	file, err := config.Assumptions(path)
	if err != nil {
		return nil, bad(err)
	}
	p := &sizePlan{file: file}
	if p.base, err = file.Sheet(""); err != nil {
		return nil, bad(err)
	}
	c, ok := file.FindCase(f.name)
	if !ok {
		return nil, usage("%s has no case %q; it has: %s", path, f.name, strings.Join(caseNames(file), ", "))
	}
	p.of = c
	for _, text := range f.whatIf {
		s, err := config.WhatIf(file, text)
		if err != nil {
			return nil, usage("--what-if %w", err)
		}
		p.whatIf = append(p.whatIf, s)
	}
	measured, err := e.measured(ctx, p, f)
	if err != nil {
		return nil, err
	}
	p.whatIf = append(p.whatIf, measured...)
	if p.sheet, err = file.Sheet(c.Name, p.whatIf...); err != nil {
		return nil, usage("%s: %w", path, err)
	}
	return p, nil
}

// set is what differs from the register, the later the stronger.
func (p *sizePlan) set() []sizing.Setting { return slices.Concat(p.of.Set, p.whatIf) }

func caseNames(r *sizing.Register) (out []string) {
	for _, c := range r.Cases {
		out = append(out, c.Name)
	}
	return out
}

// printSize prints the one answer that was asked for.
func (e *env) printSize(p *sizePlan, f sizeFlags) error {
	switch {
	case f.explain != "":
		return e.explain(p, f.explain)
	case f.sweep != "":
		return e.sweep(p, f.sweep, f.show)
	case f.tornado != "":
		return e.tornado(p, f.tornado)
	case f.claims:
		return e.claims(p)
	}
	return e.report(p, f.all)
}

func (e *env) sizeKeys() error {
	type keyed struct {
		Key     string      `json:"key"`
		Unit    sizing.Unit `json:"unit"`
		Default string      `json:"default,omitempty"`
		Choices []string    `json:"choices,omitempty"`
		Is      string      `json:"is"`
	}
	var all []keyed
	for _, k := range sizing.Keys() {
		all = append(all, keyed{k.Name, k.Unit, k.Default, k.Choices, k.Is})
	}
	return e.answer(all, func(w *tabwriter.Writer) {
		p := page{w}
		rows := [][]string{{"KEY", "DEFAULT", "IS"}}
		for _, k := range all {
			is := k.Is
			if k.Choices != nil {
				is += ": " + strings.Join(k.Choices, ", ")
			}
			rows = append(rows, []string{k.Key, k.Default, is})
		}
		p.table(rows)
	})
}

// sizeGPUs prints the catalogue.
func (e *env) sizeGPUs() error {
	all := roofline.GPUs()
	return e.answer(all, func(w *tabwriter.Writer) {
		p := page{w}
		for _, g := range all {
			p.line("%s", g.Name)
			var rows [][]string
			for _, f := range []struct {
				name string
				unit sizing.Unit
				fig  roofline.Figure
			}{{"memory", sizing.Bytes, g.Memory}, {"bandwidth", sizing.Bandwidth, g.Bandwidth}, {"bf16", sizing.Arithmetic, g.BF16}, {"fp8", sizing.Arithmetic, g.FP8}, {"link", sizing.Bandwidth, g.Link}} {
				if f.fig.Value == 0 {
					rows = append(rows, []string{"  " + f.name, "none", "", ""})
					continue
				}
				rows = append(rows, []string{"  " + f.name, f.unit.Format(f.fig.Value), string(f.fig.Counts), f.fig.Source})
			}
			p.table(rows)
		}
	})
}

func (e *env) claims(p *sizePlan) error {
	if p.of.Name != "" {
		return usage("--case does not go with --claims: each claim names its own")
	}
	all, err := sizing.Check(p.file, p.whatIf...)
	if err != nil {
		return usage("%w", err)
	}
	return e.answer(all, func(w *tabwriter.Writer) { claimTables(page{w}, p, all) })
}

// sized is all that size knows; its names are an interface.
type sized struct {
	Name        string           `json:"name"`
	Assumptions []settled        `json:"assumptions"`
	Numbers     []numbered       `json:"numbers"`
	Changed     []changed        `json:"changed,omitempty"`
	Advice      sizing.Advice    `json:"advice"`
	Claims      []sizing.Checked `json:"claims"`
}

// settled is an assumption with its value.
type settled struct {
	Key     string      `json:"key"`
	Unit    sizing.Unit `json:"unit"`
	Value   float64     `json:"value"`
	Text    string      `json:"text"`
	Row     string      `json:"row"`
	Source  string      `json:"source"`
	IfWrong string      `json:"if_wrong,omitempty"`
}

type numbered struct {
	sizing.Number
	Text        string   `json:"text"`
	Substituted string   `json:"substituted"`
	RestsOn     []string `json:"rests_on"`
	Rows        []string `json:"rows"`
}

// changed is a number that what-ifs moved.
type changed struct {
	Key string  `json:"key"`
	Was float64 `json:"was"`
	Is  float64 `json:"is"`
}

func (e *env) report(p *sizePlan, all bool) error {
	p.base.Compare()
	p.sheet.Compare()
	out := sized{Name: p.file.Name, Assumptions: p.settled(), Advice: sizing.Recommend(p.sheet)}
	for _, n := range p.sheet.Numbers {
		out.Numbers = append(out.Numbers, numbered{n, n.Text(), p.sheet.Substituted(n), p.sheet.RestsOn(n.Key), p.sheet.RowsOf(n.Key)})
		if was, ok := p.base.Find(n.Key); ok && len(p.set()) > 0 && was.Value != n.Value {
			out.Changed = append(out.Changed, changed{n.Key, was.Value, n.Value})
		}
	}
	var err error
	if out.Claims, err = sizing.Check(p.file); err != nil {
		return usage("%w", err)
	}
	return e.answer(out, func(w *tabwriter.Writer) { reportPage(page{w}, p, out, all) })
}

// settled are all assumptions with their values, in the order of the keys.
func (p *sizePlan) settled() (out []settled) {
	wrong := map[string]string{}
	for _, r := range p.file.Rows {
		wrong[r.ID] = r.IfWrong
	}
	for _, k := range sizing.Keys() {
		if v, from, ok := p.sheet.In.Value(k.Name); ok {
			out = append(out, settled{k.Name, k.Unit, v.Number, k.Format(v), from.Row, from.Source, wrong[from.Row]})
		}
	}
	return out
}

// origin is where a value comes from, in brackets.
func origin(rows []string, order []string) string {
	return fmt.Sprintf("[%s]", strings.Join(ranges(rows, order), " "))
}

// ranges writes three and more rows that follow each other in the register as A1-A7.
func ranges(rows, order []string) (out []string) {
	at := func(row string) int { return slices.Index(order, row) }
	for i := 0; i < len(rows); {
		j := i
		for j+1 < len(rows) && at(rows[j]) >= 0 && at(rows[j+1]) == at(rows[j])+1 && rows[j+1][0] == rows[i][0] {
			j++
		}
		if j-i >= 2 {
			out = append(out, rows[i]+"-"+rows[j])
		} else {
			out = append(out, rows[i:j+1]...)
		}
		i = j + 1
	}
	return out
}
