package cli

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	sizing "llmops/roofline/size"
)

// pageWidth is what a terminal has at least.
const pageWidth = 80

// page prints text that fits a terminal.
type page struct{ w io.Writer }

func (p page) line(format string, args ...any) {
	for i, l := range wrapWords(fmt.Sprintf(format, args...), pageWidth-2) {
		if i > 0 {
			l = "  " + l
		}
		_, _ = fmt.Fprintln(p.w, l)
	}
}

// under prints a line with an indent, which its continuations share.
func (p page) under(indent int, format string, args ...any) {
	for _, l := range wrapWords(fmt.Sprintf(format, args...), pageWidth-indent) {
		_, _ = fmt.Fprintln(p.w, strings.Repeat(" ", indent)+l)
	}
}

func (p page) head(title string) {
	_, _ = fmt.Fprintf(p.w, "\n%s\n", title)
}

// table aligns the cells of rows, and wraps the last of each row to the page.
func (p page) table(rows [][]string) {
	if len(rows) == 0 {
		return
	}
	widths := make([]int, len(rows[0])-1)
	for _, r := range rows {
		for i := range widths {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	used := 0
	for _, w := range widths {
		used += w + 2
	}
	for _, r := range rows {
		last := r[len(r)-1]
		for i, l := range wrapWords(last, max(pageWidth-used, 20)) {
			var b strings.Builder
			for c, w := range widths {
				cell := r[c]
				if i > 0 {
					cell = ""
				}
				b.WriteString(cell + strings.Repeat(" ", w-utf8.RuneCountInString(cell)+2))
			}
			_, _ = fmt.Fprintln(p.w, strings.TrimRight(b.String()+l, " "))
		}
	}
}

// wrapWords breaks text between words. A line is longer than width only if a word is.
func wrapWords(text string, width int) []string {
	var out []string
	line := ""
	for _, word := range strings.Split(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			out = append(out, line)
			line = word
			continue
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(out, line)
}

// order is the register's rows.
func (p *sizePlan) order() (out []string) {
	for _, r := range p.file.Rows {
		out = append(out, r.ID)
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
	if len(p.whatIf) > 0 {
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
	for _, s := range p.whatIf {
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

func advice(pg page, p *sizePlan, a sizing.Advice) {
	pg.head("LAYOUTS within a TPOT of " + p.text("slo.tpot") + " at " + p.text("traffic.context") + " tokens, of a node")
	rows := [][]string{{"LAYOUT", "WEIGHTS", "CACHE", "STREAMS", "TPOT", "TOKENS/S"}}
	var not []string
	for _, o := range a.Options {
		if o.Why != "" {
			not = append(not, o.Name()+": "+o.Why)
		}
		r := []string{o.Name(), sizing.Bytes.Format(o.Weights), "-", "-", "-", "-"}
		if o.Pool > 0 {
			r[2] = sizing.Bytes.Format(o.Pool)
		}
		if o.Keeps() {
			r[3], r[4], r[5] = fmt.Sprintf("%d a copy", o.Batch), sizing.Seconds.Format(o.TPOT), sizing.Count.Format(math.Round(o.Rate))
		}
		rows = append(rows, r)
	}
	pg.table(rows)
	for _, n := range not {
		pg.line("%s", n)
	}
	if a.Best != nil {
		pg.line("recommended: %s: %s %s", a.Best.Name(), a.Reason, origin(p.sheet.RowsOf("layout.best_rate"), p.order()))
	} else {
		pg.line("%s", a.Reason)
	}
	switch {
	case a.Holds == nil:
		pg.line("smallest TP that holds the model and a prompt of %s: none", p.text("slo.long_prompt"))
	case a.Keeps == nil:
		pg.line("smallest TP that holds the model and a prompt of %s: %s; none keeps the TPOT", p.text("slo.long_prompt"), a.Holds.Name())
	default:
		pg.line("smallest TP, then replicas: %s holds the model and a prompt of %s; %s is the smallest that keeps the TPOT too, with %s",
			a.Holds.Name(), p.text("slo.long_prompt"), a.Keeps.Name(), sizing.TokenRate.Format(a.Keeps.Rate))
	}
	flips(pg, "it flips", a.Flips)
	pg.head("POOLS")
	choice := "one pool that prefills and decodes"
	if a.Pools.Apart {
		choice = "two pools"
	}
	pg.line("recommended: %s: %s %s", choice, a.Pools.Reason, origin(p.sheet.RowsOf("fleet.apart_saves"), p.order()))
	flips(pg, "it flips", a.Pools.Flips)
	switch {
	case a.Decode > 0:
		pg.line("replicas: %d that decode and %d that prefill, on %s nodes", a.Decode, a.Prefill, p.text("fleet.nodes"))
	case a.Together > 0:
		pg.line("replicas: %d", a.Together)
	}
	routerCaps(pg, p)
}

// routerCaps prints the caps of a replica.
func routerCaps(pg page, p *sizePlan) {
	rows := origin(p.sheet.RowsOf("cap.kv_tokens"), p.order())
	switch v := p.sheet.Value; {
	case !(v("decode.limit_batch") > 0):
		pg.line("router: no number of streams keeps the TPOT; there is no cap to give")
	case v("layout.batch") > v("decode.limit_batch"):
		pg.line("router: %s streams and %s KV tokens a replica, the edge of the service level; layout.batch is %s, over it %s",
			p.text("decode.limit_batch"), p.text("decode.limit_kv_tokens"), p.text("layout.batch"), rows)
	default:
		pg.line("router: %s of %s streams and %s of %s KV tokens a replica; %s is held back from the edge for %s of the throughput %s",
			p.text("cap.streams"), p.text("decode.limit_batch"), p.text("cap.kv_tokens"), p.text("decode.limit_kv_tokens"), p.text("decode.headroom"), p.text("decode.headroom_cost"), rows)
	}
}

// flipsShown is how many of the nearest flips are printed.
const flipsShown = 4

func flips(pg page, verb string, all []sizing.Flip) {
	if len(all) == 0 {
		pg.line("no assumption within a factor of four flips it alone")
		return
	}
	var parts []string
	for _, f := range all[:min(len(all), flipsShown)] {
		word := "from"
		if f.At < f.From {
			word = "below"
		}
		parts = append(parts, fmt.Sprintf("to %s %s %s %s", f.To, word, f.Key, f.Text))
	}
	pg.line("%s %s", verb, strings.Join(parts, "; "))
}

func contradictions(pg page, p *sizePlan, all []sizing.Checked) {
	bad := 0
	for _, c := range all {
		if c.Verdict == sizing.Contradicts || c.Verdict == sizing.BinaryUnit {
			bad++
		}
	}
	if len(all) == 0 {
		return
	}
	pg.head(fmt.Sprintf("CLAIMS: %d of %d are not what the model gives", bad, len(all)))
	for _, c := range all {
		if c.Verdict == sizing.Contradicts || c.Verdict == sizing.BinaryUnit {
			contradiction(pg, p, c)
		}
	}
	pg.line("--claims lists all")
}

func contradiction(pg page, p *sizePlan, c sizing.Checked) {
	pg.line("- %s%s", where(c), c.Text)
	verb := "the model gives"
	if c.Verdict == sizing.BinaryUnit {
		verb = "which is right in binary units only:"
	}
	pg.under(2, "the document says %s, %s %s (%s%s) %s", c.Says, verb, c.Answer, c.Key, under(c), origin(c.Rows, p.order()))
	if c.Why != "" {
		pg.under(2, "%s", c.Why)
	}
}

func where(c sizing.Checked) string {
	if c.Where == "" {
		return ""
	}
	return c.Where + ": "
}

// under is the case of a claim, and what it is compared with.
func under(c sizing.Checked) string {
	switch {
	case c.Against != "" && c.Case != "":
		return ", " + c.Case + " against " + c.Against
	case c.Against != "":
		return ", against " + c.Against
	case c.Case != "":
		return ", " + c.Case
	}
	return ""
}

func claimTables(pg page, p *sizePlan, all []sizing.Checked) {
	contradictions(pg, p, all)
	pg.head("CLAIMS that the model gives")
	rows := [][]string{{"SAYS", "GIVES", "CLAIM"}}
	for _, c := range all {
		switch c.Verdict {
		case sizing.Agrees, sizing.Rounded:
			note := ""
			if c.Verdict == sizing.Rounded {
				note = ", but for rounding on the way"
			}
			rows = append(rows, []string{c.Says, c.Answer, fmt.Sprintf("%s%s (%s%s)%s %s", where(c), c.Text, c.Key, under(c), note, origin(c.Rows, p.order()))})
		}
	}
	pg.table(rows)
}

// registerTable prints assumptions by the rows that make them.
func registerTable(pg page, p *sizePlan, title string, all []settled) {
	pg.head(title)
	for _, row := range append(p.order(), sizing.FromMeasured, sizing.FromWhatIf, sizing.FromDefault) {
		var values, sources []string
		for _, s := range all {
			if s.Row != row {
				continue
			}
			values = append(values, s.Key+" "+s.Text)
			if !slices.Contains(sources, s.Source) {
				sources = append(sources, s.Source)
			}
		}
		if values == nil {
			continue
		}
		text := strings.Join(sources, "; ")
		for _, r := range p.file.Rows {
			if r.ID == row {
				text = r.Is + ": " + text + "; if wrong: " + r.IfWrong
			}
		}
		pg.line("%s  %s", row, text)
		pg.under(4, "%s", strings.Join(values, ", "))
	}
}

func explainPage(pg page, p *sizePlan, x explained) {
	if x.Assumed != nil {
		a := x.Assumed
		pg.line("%s is %s", a.Key, a.Text)
		pg.line("row %s: %s", a.Row, a.Source)
		if a.IfWrong != "" {
			pg.line("if it is wrong: %s", a.IfWrong)
		}
		if len(x.Behind) > 0 {
			pg.line("%d numbers rest on it: %s", len(x.Behind), strings.Join(x.Behind, ", "))
		}
		return
	}
	n := x.Number
	pg.line("%s is %s: %s", n.Key, n.Unit.Both(n.Value), n.Is)
	if n.Prose {
		pg.under(2, "%s", n.Formula)
	} else {
		pg.under(2, "= %s", n.Formula)
	}
	pg.under(2, "= %s", n.Substituted)
	if len(n.Chosen) > 0 {
		pg.under(2, "the form of the formula hangs on %s", strings.Join(n.Chosen, ", "))
	}
	registerTable(pg, p, "RESTS ON", x.RestsOn)
}

// sweptTitles are short names of the numbers that a sweep shows unasked.
var sweptTitles = map[string]string{
	"decode.tpot": "TPOT", "decode.limit_batch": "STREAMS", "decode.rate": "TOKENS/S", "ttft.p95": "TTFT p95", "fleet.nodes": "NODES", "cost.output": "1M OUTPUT",
}

func sweptTable(pg page, p *sizePlan, key string, shown []string, all []swept) {
	title := []string{key}
	for _, k := range shown {
		t := sweptTitles[k]
		if t == "" {
			t = k
		}
		title = append(title, t)
	}
	rows := [][]string{title}
	var failed [][]string
	over := false
	for _, r := range all {
		if r.Error != "" {
			failed = append(failed, []string{r.Value, r.Error})
			continue
		}
		over = over || r.over
		rows = append(rows, append([]string{r.Value}, r.texts...))
	}
	pg.table(rows)
	pg.table(failed)
	if over {
		pg.line("! is over its service level")
	}
	behind := map[string]bool{}
	for _, k := range shown {
		for _, row := range p.sheet.RowsOf(k) {
			behind[row] = true
		}
	}
	var union []string
	for _, row := range append(p.order(), sizing.FromDefault, sizing.FromMeasured, sizing.FromWhatIf) {
		if behind[row] {
			union = append(union, row)
		}
	}
	pg.line("rests on %s", origin(union, p.order()))
}

// barWidth is of the widest bar of a tornado.
const barWidth = 12

func tornadoTable(pg page, p *sizePlan, key string, bars []sizing.Bar) {
	n, _ := p.sheet.Find(key)
	pg.line("%s is %s: %s", key, n.Text(), n.Is)
	widest := 0.0
	for _, b := range bars {
		if w := b.Swing(); !math.IsInf(w, 1) {
			widest = max(widest, w)
		}
	}
	rows := [][]string{{"ROW", "KEY", "RANGE", "AT LOW", "AT HIGH", "SWING"}}
	text := func(v *float64) string {
		if v == nil {
			return "impossible"
		}
		return n.Unit.Format(*v)
	}
	guessed := false
	for _, b := range bars {
		if b.Swing() == 0 {
			continue
		}
		k, _ := sizing.FindKey(b.Key)
		low, high := k.Format(sizing.Value{Number: b.Low}), k.Format(sizing.Value{Number: b.High})
		if number, unit, ok := strings.Cut(low, " "); ok && strings.HasSuffix(high, " "+unit) {
			low = number
		}
		between := low + ".." + high
		if b.Guessed {
			between += "*"
			guessed = true
		}
		length := barWidth
		if w := b.Swing(); !math.IsInf(w, 1) && widest > 0 {
			length = int(math.Ceil(barWidth * w / widest))
		}
		rows = append(rows, []string{b.Row, b.Key, between, text(b.AtLow), text(b.AtHigh), strings.Repeat("#", length)})
	}
	pg.table(rows)
	if guessed {
		pg.line("* no range is given in the register: a fifth to either side")
	}
}
