package cli

import (
	"slices"
	"strings"

	sizing "llmops/roofline/size"
)

// order is the register's rows.
func (p *sizePlan) order() (out []string) {
	for _, r := range p.file.Rows {
		out = append(out, r.ID)
	}
	return out
}

// rowsOf are the rows behind any of some numbers.
func (p *sizePlan) rowsOf(keys ...string) (out []string) {
	behind := map[string]bool{}
	for _, k := range keys {
		for _, row := range p.sheet.RowsOf(k) {
			behind[row] = true
		}
	}
	for _, row := range append(p.order(), sizing.FromDefault, sizing.FromMeasured, sizing.FromWhatIf) {
		if behind[row] {
			out = append(out, row)
		}
	}
	return out
}

// text is a number's, from its key; "-" of none.
func (p *sizePlan) text(key string) string {
	if n, ok := p.sheet.Find(key); ok {
		return n.Text()
	}
	if k, err := sizing.FindKey(key); err == nil && p.sheet.In.Has(key) {
		v, _, _ := p.sheet.In.Value(key)
		return k.Format(v)
	}
	return "-"
}

// steps are numbers that others are made of, and that nobody decides by.
var steps = []string{
	"layout.", "model.", "cap.", "weights.width", "weights.read_bytes", "weights.node_bytes", "decode.flops", "decode.modelled", "decode.limit_tpot",
	"kv.width", "kv.token_bytes_gpu", "kv.seen", "kv.seen_long", "prefill.flops", "prefill.modelled", "prefill.class_linear", "prefill.class_attention",
	"prefill.class_attention_share", "prefill.class_compute", "prefill.long_compute", "ttft.hops", "ttft.hops_p95", "cost.output_hour", "cost.input_hour",
}

// minor tells whether a number is left to --all.
func minor(n sizing.Number) bool {
	return n.Value == 0 && n.Prose || slices.ContainsFunc(steps, func(s string) bool {
		return n.Key == s || strings.HasSuffix(s, ".") && strings.HasPrefix(n.Key, s)
	})
}

func reportPage(pg page, p *sizePlan, out sized, all bool) {
	summary(pg, p)
	if len(p.set()) > 0 {
		changes(pg, p, out.Changed)
	}
	advice(pg, p, out.Advice)
	section := ""
	var rows [][]string
	flush := func() {
		if rows != nil {
			pg.head(strings.ToUpper(section))
			pg.table(rows)
		}
		rows = nil
	}
	for _, s := range sections(out.Numbers) {
		section = s
		for _, n := range out.Numbers {
			if n.Section == s && (all || !minor(n.Number)) {
				rows = append(rows, []string{strings.TrimPrefix(n.Key, s+"."), n.Unit.Both(n.Value), n.Is + " " + origin(n.Rows, p.order())})
			}
		}
		flush()
	}
	if !all {
		pg.head("--all has what these are made of; --explain KEY has one with its values")
	}
	contradictions(pg, p, out.Claims)
	registerTable(pg, p, "ASSUMPTIONS", out.Assumptions)
}

// sections in the order of their first number.
func sections(all []numbered) (out []string) {
	seen := map[string]bool{}
	for _, n := range all {
		if !seen[n.Section] {
			seen[n.Section] = true
			out = append(out, n.Section)
		}
	}
	return out
}

func summary(pg page, p *sizePlan) {
	pg.line("%s", p.file.Name)
	pg.line("%s nodes of %s GPUs, %s an hour; %s per 1M output and %s per 1M input tokens", p.text("fleet.nodes"), p.text("node.gpus"), p.text("cost.hour"), p.text("cost.output"), p.text("cost.input"))
	for _, s := range []struct{ key, limit, what string }{
		{"decode.tpot", "slo.tpot", "TPOT of " + p.text("layout.batch") + " streams"},
		{"ttft.p95", "slo.ttft", "TTFT p95 of " + p.text("prefill.prompt") + " tokens"},
		{"ttft.class_p95", "slo.ttft", "TTFT p95 of " + p.text("slo.ttft_prompt") + " tokens, at least"},
		{"ttft.long_p95", "slo.long_ttft", "TTFT p95 of " + p.text("slo.long_prompt") + " tokens, at least"},
	} {
		verdict := "kept"
		if p.sheet.Value(s.key) > p.sheet.Value(s.limit) {
			verdict = "NOT KEPT"
		}
		pg.line("%s: %s of %s, %s %s", s.what, p.text(s.key), p.text(s.limit), verdict, origin(p.sheet.RowsOf(s.key), p.order()))
	}
	if p.sheet.Value("decode.tpot") > p.sheet.Value("slo.tpot") {
		pg.line("the fleet is what that batch would need: it buys throughput with TPOT that was promised")
	}
	pg.line("modelled, not measured: a number is as good as the rows in its brackets")
}

func changes(pg page, p *sizePlan, all []changed) {
	pg.head("WHAT IF")
	for _, s := range p.set() {
		k, _ := sizing.FindKey(s.Key)
		was := "not set"
		if v, _, ok := p.base.In.Value(s.Key); ok {
			was = k.Format(v)
		}
		from := ""
		if s.Measured != "" {
			from = ", measured: " + s.Measured
		}
		pg.line("%s is %s instead of %s%s", s.Key, k.Format(s.Value), was, from)
	}
	rows := [][]string{{"NUMBER", "WAS", "IS", "CHANGE"}}
	for _, c := range all {
		n, _ := p.sheet.Find(c.Key)
		change := "-"
		if c.Was != 0 {
			change = sizing.Change.Format(c.Is/c.Was - 1)
		}
		rows = append(rows, []string{c.Key, n.Unit.Format(c.Was), n.Unit.Format(c.Is), change})
	}
	pg.table(rows)
}
