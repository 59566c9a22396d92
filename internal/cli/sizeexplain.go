package cli

import (
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	sizing "llmops/roofline/size"
)

// explained is one number or assumption and what is behind it.
type explained struct {
	Number  *numbered `json:"number,omitempty"`
	Assumed *settled  `json:"assumption,omitempty"`
	RestsOn []settled `json:"rests_on,omitempty"`
	Behind  []string  `json:"behind,omitempty"` // numbers that rest on an assumption
}

func (e *env) explain(p *sizePlan, key string) error {
	p.sheet.Compare()
	var out explained
	all := map[string]settled{}
	for _, s := range p.settled() {
		all[s.Key] = s
	}
	if n, ok := p.sheet.Find(key); ok {
		out.Number = &numbered{n, n.Text(), p.sheet.Substituted(n), p.sheet.RestsOn(key), p.sheet.RowsOf(key)}
		for _, k := range out.Number.RestsOn {
			if s, ok := all[k]; ok {
				out.RestsOn = append(out.RestsOn, s)
			}
		}
	} else {
		s, ok := all[key]
		if !ok {
			if k, err := sizing.FindKey(key); err == nil {
				return usage("%s is not set: %s", key, k.Is)
			}
			return usage("%q is neither a number nor an assumption here; those that begin alike: %s", key, strings.Join(alike(p.sheet, all, key), ", "))
		}
		out.Assumed = &s
		for _, n := range p.sheet.Numbers {
			if slices.Contains(p.sheet.RestsOn(n.Key), key) {
				out.Behind = append(out.Behind, n.Key)
			}
		}
	}
	return e.answer(out, func(w *tabwriter.Writer) { explainPage(page{w}, p, out) })
}

// alike are the names of a section, or the sections.
func alike(s *sizing.Sheet, all map[string]settled, key string) (out []string) {
	section, _, _ := strings.Cut(key, ".")
	sections := map[string]bool{}
	for _, n := range s.Numbers {
		if n.Section == section {
			out = append(out, n.Key)
		}
		sections[n.Section+".…"] = true
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(k, section+".") {
			out = append(out, k)
		}
	}
	if out == nil {
		out = slices.Sorted(maps.Keys(sections))
	}
	return out
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
