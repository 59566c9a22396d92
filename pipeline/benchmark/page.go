package benchmark

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"time"

	"llmops/pipeline/benchmark/load"
	"llmops/pipeline/chart"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"ms":       func(ns float64) string { return fmt.Sprintf("%.4g", ns/1e6) },
	"percent":  func(share float64) string { return fmt.Sprintf("%.2f", 100*share) },
	"short":    func(f float64) string { return fmt.Sprintf("%.4g", f) },
	"stamp":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"describe": func(l Load) string { return l.String() },
	"charts":   func() template.CSS { return chart.Style },
}).Parse(pageSource))

// Page is a record as one page of HTML that loads nothing: the load curve of
// several points, distributions and timeline of each. results are those of the
// points, in their order; nil where they are not at hand.
func Page(r *Record, results [][]*load.Result) ([]byte, error) {
	type section struct {
		Point   Point
		Figures []template.HTML
	}
	data := struct {
		*Record
		Curves   []template.HTML
		Sections []section
	}{Record: r}
	if len(r.Points) > 1 {
		data.Curves = Curves(r.Points, r.marks()...)
	}
	for i, p := range r.Points {
		s := section{Point: p}
		if i < len(results) {
			s.Figures = append([]template.HTML{CDF(p, results[i])}, Timeline(p, results[i])...)
		}
		data.Sections = append(data.Sections, s)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("writing the benchmark's page: %w", err)
	}
	return b.Bytes(), nil
}

// marks are the limits that a search found.
func (r *Record) marks() (out []chart.Mark) {
	f := r.Found
	if f == nil {
		return nil
	}
	if f.Holds > 0 {
		out = append(out, chart.Mark{X: f.Holds, Name: fmt.Sprintf("holds %.3g", f.Holds)})
	}
	if f.Knee > 0 && f.Beyond > 0 {
		out = append(out, chart.Mark{X: f.Knee, Name: fmt.Sprintf("knee %.3g", f.Knee)})
	}
	return out
}
