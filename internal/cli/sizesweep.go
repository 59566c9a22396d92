package cli

import (
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"llmops/internal/config"
	sizing "llmops/roofline/size"
)

// defaultShown are the numbers of a sweep that asks for none.
var defaultShown = []string{"decode.tpot", "decode.limit_batch", "decode.rate", "ttft.p95", "fleet.nodes", "cost.output"}

// sweep computes the sheet for each value of a key.
func (e *env) sweep(p *sizePlan, text, show string) error {
	key, values, ok := strings.Cut(text, "=")
	if !ok || values == "" {
		return usage("--sweep %q, want KEY=VALUE,VALUE,…", text)
	}
	shown := defaultShown
	if show != "" {
		shown = strings.Split(show, ",")
		p.sheet.Compare()
		for _, k := range shown {
			if _, ok := p.sheet.Find(k); !ok {
				return usage("--show %q is no number; llmops size FILE --output json lists them", k)
			}
		}
	}
	var out []swept
	good := 0
	for v := range strings.SplitSeq(values, ",") {
		s, err := config.WhatIf(p.file, key+"="+v)
		if err != nil {
			return usage("--sweep %w", err)
		}
		row := swept{Value: strings.TrimSpace(v), Numbers: map[string]float64{}}
		sheet, err := p.file.Sheet(p.of.Name, append(slices.Clone(p.whatIf), s)...)
		if err != nil {
			row.Error = err.Error()
		} else {
			good++
			row.take(sheet, shown)
		}
		out = append(out, row)
	}
	err := e.answer(out, func(w *tabwriter.Writer) { sweptTable(page{w}, p, strings.TrimSpace(key), shown, out) })
	if err == nil && good == 0 {
		err = usage("no value of %s makes a deployment", key)
	}
	return err
}

// swept is the sheet for one value.
type swept struct {
	Value   string             `json:"value"`
	Numbers map[string]float64 `json:"numbers,omitempty"`
	Error   string             `json:"error,omitempty"`
	texts   []string
	over    bool
}

// promised are the service levels of numbers.
var promised = map[string]string{"decode.tpot": "slo.tpot", "ttft.p95": "slo.ttft", "ttft.class_p95": "slo.ttft", "ttft.long_p95": "slo.long_ttft"}

func (r *swept) take(s *sizing.Sheet, shown []string) {
	for _, k := range shown {
		n, ok := s.Find(k)
		if !ok {
			s.Compare()
			n, ok = s.Find(k)
		}
		if !ok {
			r.texts = append(r.texts, "-")
			continue
		}
		r.Numbers[k] = n.Value
		text := strings.TrimSuffix(n.Text(), " tokens/s")
		if limit, ok := promised[k]; ok && n.Value > s.Value(limit) {
			r.over, text = true, text+"!"
		}
		r.texts = append(r.texts, text)
	}
}

func (e *env) tornado(p *sizePlan, key string) error {
	p.sheet.Compare()
	bars, err := sizing.Tornado(p.sheet, key)
	if err != nil {
		return usage("--tornado: %w; llmops size FILE --output json lists them", err)
	}
	return e.answer(bars, func(w *tabwriter.Writer) { tornadoTable(page{w}, p, key, bars) })
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
	pg.line("rests on %s", origin(p.rowsOf(shown...), p.order()))
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
