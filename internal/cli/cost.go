package cli

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/roofline/cost"
	sizing "llmops/roofline/size"
)

type costFlags struct {
	sizeFlags
	below float64
	of    string
	nodes float64
}

func newCostCmd(e *env) *cobra.Command {
	var f costFlags
	c := &cobra.Command{
		Use:   "cost ASSUMPTIONS",
		Short: "Price a deployment, modelled or by recorded usage",
		Long: `Cost splits what a fleet costs over what it served, by the nodes that decode and
the nodes that prefill: a million output tokens, a million input tokens, a request.
Without usage that is the traffic of the assumptions. With --usage it is what was
recorded, by tenant, workload and adapter, and the bill is that of the hours from the
first record to the last. It compares with the prices of an API, people included, and
says at which load both cost the same.

  llmops cost examples/assumptions.yaml
  llmops cost examples/assumptions.yaml --what-if cost.spot=50% --what-if cost.spot_discount=60%
  llmops cost examples/assumptions.yaml --usage /var/lib/llmops/records --nodes 1
  llmops cost examples/assumptions.yaml --below 2.50

Usage is what routers write with --records, or a file in which each line is a JSON object
with time, input_tokens and output_tokens, and where known tenant, workload, adapter and
cached_tokens. --below exits 3 when a million
output tokens (--of: input tokens, or a request) cost that much or more, and 5 when the
usage is too short to tell.

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(priceNames, f.of) {
				return usage("--of is %q, want one of: %s", f.of, strings.Join(priceNames, ", "))
			}
			gate := cmd.Flags().Changed("below")
			if gate && f.below <= 0 || f.nodes < 0 {
				return usage("--below and --nodes want more than 0")
			}
			recorded := f.sizeFlags.usage
			f.sizeFlags.usage = "" // it is billed, and not made an assumption
			p, err := e.planSize(cmd.Context(), args[0], f.sizeFlags)
			if err != nil {
				return err
			}
			out := p.modelled()
			if recorded != "" {
				t, err := readUsage(recorded)
				if err != nil {
					return err
				}
				out.recorded(p, t, f.nodes)
			} else if f.nodes > 0 {
				return usage("--nodes goes with --usage: without, the fleet is the one that the assumptions need")
			}
			err = e.answer(out, func(w *tabwriter.Writer) { costPage(page{w}, p, out) })
			if err != nil || !gate {
				return err
			}
			return out.below(f.of, f.below)
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.whatIf, "what-if", nil, "KEY=VALUE; may be repeated")
	fl.StringVar(&f.name, "case", "", "a case of the file as what-if")
	fl.StringVar(&f.run, "run", "", "a run, or the file of its JSON report, that measured the model on this GPU")
	fl.StringVar(&f.sizeFlags.usage, "usage", "", "recorded usage: a file of JSON Lines, or a folder of routers' records")
	fl.Float64Var(&f.nodes, "nodes", 0, "nodes that were paid for; default: fleet.nodes of the assumptions")
	fl.Float64Var(&f.below, "below", 0, "dollars that the price has to be below, else exit 3")
	fl.StringVar(&f.of, "of", priceNames[0], "which price --below is about: "+strings.Join(priceNames, ", "))
	return c
}

// priceNames are what --of may be.
var priceNames = []string{"output", "input", "request"}

// priced is what cost prints; its names are an interface.
type priced struct {
	Name     string           `json:"name"`
	Nodes    float64          `json:"nodes"`
	Hour     float64          `json:"dollars_per_hour"`
	Modelled cost.Price       `json:"modelled"`
	Rows     []string         `json:"rows"` // of the register that the modelled prices rest on
	API      *cost.API        `json:"api_dollars_per_million,omitempty"`
	Compared *cost.Comparison `json:"compared,omitempty"`
	Recorded *cost.Bill       `json:"recorded,omitempty"`
	People   float64          `json:"recorded_people_dollars,omitempty"` // of the same hours
	LeftOut  *cost.Left       `json:"left_out,omitempty"`                // of what was recorded
	Warnings []string         `json:"warnings,omitempty"`
	capacity cost.Capacity    // of a node
	perNode  float64          // dollars an hour
}

// modelled prices the traffic of the assumptions.
func (p *sizePlan) modelled() *priced {
	s := p.sheet
	out := &priced{
		Name: p.file.Name, Nodes: s.Value("fleet.nodes"), Hour: s.Value("cost.hour"), Rows: s.RowsOf("cost.output"), capacity: s.Capacity(),
		perNode:  s.In.Number("node.gpus") * s.In.Number("cost.gpu_hour"),
		Modelled: cost.Price{PerMillionOutput: s.Value("cost.output"), PerRequest: s.Value("cost.request")},
	}
	if n, ok := s.Find("cost.input"); ok {
		out.Modelled.PerMillionInput = n.Value
	}
	if a, ok := s.API(); ok {
		c := s.BreakEven(a)
		out.API, out.Compared = &a, &c
	}
	return out
}

// busyTooLow is a share of the nodes' time below which prices are mostly idle time.
const busyTooLow = 0.2

// recorded bills the usage.
func (o *priced) recorded(p *sizePlan, t *cost.Tally, nodes float64) {
	if nodes > 0 {
		o.Nodes, o.Hour = nodes, nodes*o.perNode
	}
	b := t.Bill(o.Hour, o.Nodes, o.capacity)
	if o.API != nil {
		b.Compare(*o.API)
	}
	o.Recorded, o.People = &b, p.sheet.In.Number("cost.team")*b.Hours/p.sheet.In.Number("cost.month")
	warn := func(format string, args ...any) { o.Warnings = append(o.Warnings, fmt.Sprintf(format, args...)) }
	switch {
	case b.Total.Requests == 0:
		warn("the usage has no record: nothing is priced")
	case b.PeakBusy > 1:
		warn("the busiest hour takes %.2f times the %g nodes: the rates of the assumptions are too low, or more nodes were paid for (--nodes)", b.PeakBusy, o.Nodes)
	case b.Busy < busyTooLow:
		warn("the nodes are busy for %s of the time: what idle ones cost is shared by use", percent(b.Busy))
	}
	o.Warnings = append(o.Warnings, leftOut(t.Left)...)
	if t.Left != (cost.Left{}) {
		o.LeftOut = &t.Left
	}
	if b.Hours > 0 && b.Hours < fewestHours {
		warn("%g hours are less than a day, and load follows the day", b.Hours)
	}
}

// fewestHours of usage see a night and a day.
const fewestHours = 24

// below is the gate.
func (o *priced) below(of string, limit float64) error {
	price := o.Modelled
	basis := "modelled"
	if b := o.Recorded; b != nil {
		price, basis = b.Price, "recorded"
		if b.Total.Requests == 0 || b.Hours < fewestHours {
			return &exitError{exitInconclusive, fmt.Errorf("--below: %g hours of usage with %g requests are not enough; want a day", b.Hours, b.Total.Requests)}
		}
	}
	got, unit := map[string]float64{"output": price.PerMillionOutput, "input": price.PerMillionInput, "request": price.PerRequest}[of], "1M "+of+" tokens"
	if of == "request" {
		unit = "a request"
	}
	switch {
	case got == 0:
		return &exitError{exitInconclusive, fmt.Errorf("--below: there is no price of %s, since none were served", unit)}
	case got >= limit:
		return &exitError{exitRefused, fmt.Errorf("%s cost %s, %s, which is not below %s", unit, sizing.Dollars.Format(got), basis, sizing.Dollars.Format(limit))}
	}
	return nil
}

func costPage(pg page, p *sizePlan, o *priced) {
	usd := sizing.Dollars.Format
	pg.line("%s", o.Name)
	rows := func(key string) string { return origin(p.sheet.RowsOf(key), p.order()) }
	if o.Recorded == nil {
		pg.line("nodes: %g, at %s an hour, %s a month %s", o.Nodes, usd(o.Hour), p.text("cost.month_total"), rows("cost.month_total"))
	} else {
		pg.line("nodes: %g, at %s an hour", o.Nodes, usd(o.Hour))
	}
	pg.head("MODELLED, at a load of " + p.text("traffic.load") + " of the peak")
	pg.table([][]string{
		{"1M output tokens", usd(o.Modelled.PerMillionOutput), fmt.Sprintf("%s of the nodes decode %s", p.text("cost.decode_share"), rows("cost.output"))},
		{"1M input tokens", p.text("cost.input"), fmt.Sprintf("%s prefill what no cache had; all input is counted %s", p.text("cost.prefill_share"), rows("cost.output"))},
		{"a request", usd(o.Modelled.PerRequest), rows("cost.request")},
		{"1M output, alone", p.text("cost.all_output"), "if output pays for the input too " + rows("cost.all_output")},
	})
	compared(pg, p, o)
	if _, ok := p.sheet.Find("batch.cost"); ok {
		pg.head("BATCH JOB")
		pg.line("%s of a GPU to decode and %s to prefill, %s: %s %s", p.text("batch.decode_hours"), p.text("batch.prefill_hours"), p.text("batch.hours"), p.text("batch.cost"), rows("batch.cost"))
	}
	if b := o.Recorded; b != nil {
		billed(pg, p, o, b)
	}
	for _, w := range o.Warnings {
		pg.line("warning: %s", w)
	}
}

func compared(pg page, p *sizePlan, o *priced) {
	pg.head("AGAINST AN API")
	if o.API == nil {
		pg.line("no price is given: set api.input and api.output, dollars for 1M tokens")
		return
	}
	usd, c := sizing.Dollars.Format, o.Compared
	rows := origin(p.sheet.RowsOf("cost.even_load"), p.order())
	cheaper := "the API"
	if c.Cheaper() {
		cheaper = "the fleet"
	}
	spot := ""
	if p.sheet.In.Number("cost.spot") > 0 {
		spot = fmt.Sprintf(", %s of them interruptible and %s less", p.text("cost.spot"), p.text("cost.spot_discount"))
	}
	batch := ""
	if p.sheet.In.Number("cost.backfill") > 0 {
		batch = " and " + p.text("cost.backfill") + " of batch work"
	}
	pg.table([][]string{
		{"fleet, a month", usd(c.Self), fmt.Sprintf("GPUs %s%s, and people %s %s", p.text("cost.month_total"), spot, p.text("cost.team"), origin(p.sheet.RowsOf("cost.self"), p.order()))},
		{"API, a month", usd(c.API), fmt.Sprintf("%s input, %s cached, %s output, at a load of %s%s %s", usd(o.API.Input), usd(o.API.Cached), usd(o.API.Output),
			p.text("traffic.load"), batch, origin(p.sheet.RowsOf("cost.api"), p.order()))},
	})
	switch {
	case c.Load > 1:
		pg.line("%s is cheaper; the fleet is dearer at any load %s", cheaper, rows)
	case c.Load <= 0:
		pg.line("%s is cheaper; the batch work alone pays for the fleet %s", cheaper, rows)
	default:
		pg.line("%s is cheaper; both cost the same at a load of %s, a peak of %.2f times the mean %s", cheaper, sizing.Share.Format(c.Load), c.PeakToAverage, rows)
	}
}

func billed(pg page, p *sizePlan, o *priced, b *cost.Bill) {
	usd := sizing.Dollars.Format
	tokens := sizing.Tokens.Format
	pg.head("RECORDED")
	if b.Total.Requests == 0 {
		return
	}
	pg.line("%s from %s to %s: %g hours, %s requests, %s of the input cached", usd(b.Dollars), b.First.UTC().Format(time.RFC3339), b.Last.UTC().Format(time.RFC3339), b.Hours, tokens(b.Total.Requests), percent(b.HitShare))
	pg.line("nodes busy %s in the mean and %s in the busiest hour, by %s and %s of a node %s", percent(b.Busy), percent(b.PeakBusy),
		sizing.TokenRate.Format(o.capacity.Decode), sizing.TokenRate.Format(o.capacity.Prefill), origin(p.sheet.RowsOf("cost.decode_share"), p.order()))
	for _, kind := range []struct {
		title string
		lines []cost.Line
	}{{"TENANT", b.Tenants}, {"WORKLOAD", b.Workloads}, {"ADAPTER", b.Adapters}} {
		if len(kind.lines) == 1 && kind.lines[0].Name == "" {
			continue
		}
		_, _ = fmt.Fprintln(pg.w)
		table := [][]string{{kind.title, "COST", "API", "REQUESTS", "INPUT", "OUTPUT", "1M IN", "1M OUT", "A REQUEST"}}
		for _, l := range kind.lines {
			name, api := l.Name, "-"
			if name == "" {
				name = "(none)"
			}
			if o.API != nil {
				api = usd(l.API)
			}
			table = append(table, []string{name, usd(l.Dollars), api, tokens(l.Requests), millions(l.Input), millions(l.Output), usd(l.PerMillionInput), usd(l.PerMillionOutput), usd(l.PerRequest)})
		}
		pg.table(table)
	}
	_, _ = fmt.Fprintln(pg.w)
	if o.API != nil {
		pg.line("the API would have asked %s; the fleet cost %s and its people %s", usd(b.API), usd(b.Dollars), usd(o.People))
	}
	pg.line("1M output tokens %s, 1M input tokens %s, a request %s", usd(b.Price.PerMillionOutput), usd(b.Price.PerMillionInput), usd(b.Price.PerRequest))
}

// millions shortens large counts of tokens.
func millions(v float64) string {
	if v < 1e6 {
		return sizing.Tokens.Format(v)
	}
	return fmt.Sprintf("%.1fM", v/1e6)
}
