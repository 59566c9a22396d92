// Package chart draws lines and points over two axes as SVG, for the pages that say what
// was measured.
//
// A [Plot] is what is drawn; [Plot.SVG] is a pure function of it, and text that needs
// nothing but [Style], once in the page. It knows no domain and no unit but what it is
// told, runs no script, and draws nothing where there is nothing to be seen.
package chart

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Style is what the pages that hold charts have among their styles. Series are told apart
// by their strokes as well as by colour.
const Style template.CSS = `
.chart{--c-ink:#2b3137;--c-dim:#5a646d;--c-grid:#e3e6e9;--c0:#1f5fa8;--c1:#b4531b;--c2:#3f7d3a;--c3:#8a3f95;margin:1rem 0;max-width:40rem}
@media (prefers-color-scheme:dark){.chart{--c-ink:#e4e7ea;--c-dim:#a3adb6;--c-grid:#343c44;--c0:#6da7e8;--c1:#e5966a;--c2:#8cc487;--c3:#d490df}}
.chart figcaption{color:var(--c-dim);font-size:.92em;margin-bottom:.2rem}.chart svg{display:block;width:100%;height:auto}
.chart text{font:11px system-ui,sans-serif;fill:var(--c-dim)}.chart .ink{fill:var(--c-ink)}.chart .end{text-anchor:end}.chart .mid{text-anchor:middle}
.chart .grid{stroke:var(--c-grid)}.chart .axis{stroke:var(--c-dim)}.chart .mark{stroke:var(--c-dim);stroke-dasharray:4 3}
.chart path{fill:none;stroke-width:1.8;stroke-linejoin:round}.chart .s0{stroke:var(--c0)}.chart .s1{stroke:var(--c1);stroke-dasharray:7 3}.chart .s2{stroke:var(--c2);stroke-dasharray:2.5 2.5}.chart .s3{stroke:var(--c3);stroke-dasharray:9 3 2 3}.chart .guide{stroke:var(--c-dim);stroke-width:1.2}
.chart circle{stroke:none}.chart .d0{fill:var(--c0)}.chart .d1{fill:var(--c1)}.chart .d2{fill:var(--c2)}.chart .d3{fill:var(--c3)}`

// Axis is one of the two. A logarithmic one shows what is above zero.
type Axis struct {
	Unit string
	Log  bool
	SI   bool // numbers with k, M, G, T and P
}

// Series is a line, or points where there is no line between them.
type Series struct {
	Name   string
	X, Y   []float64
	Points bool     // no line
	Guide  bool     // a line that was not measured, as a limit is; as Points it only makes room
	Labels []string // of points, beside each; nil: none
}

// Mark is a moment of the x axis that has a name.
type Mark struct {
	X    float64
	Name string
}

// Plot is what is drawn. Linear axes begin at 0.
type Plot struct {
	Title  string
	X, Y   Axis
	Series []Series
	Marks  []Mark
}

const (
	width, height = 540.0, 250.0
	left, right   = 56.0, 14.0
	top, bottom   = 36.0, 34.0
	wantedTicks   = 5
	dots          = 24  // a line of at most so many points shows each
	letter        = 6.1 // width of one, roughly
)

// SVG is the plot as a figure; empty where no series has anything to show.
func (p Plot) SVG() template.HTML {
	x, y := p.X.scale(p.span(func(s Series) []float64 { return s.X }, p.X.Log)), p.Y.scale(p.span(func(s Series) []float64 { return s.Y }, p.Y.Log))
	if x == nil || y == nil {
		return ""
	}
	x.from, x.to = left, width-right
	y.from, y.to = height-bottom, top
	var b strings.Builder
	title := template.HTMLEscapeString(p.Title)
	fmt.Fprintf(&b, `<figure class="chart"><figcaption>%s</figcaption><svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, title, width, height, title)
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" class="grid"/><text x="%g" y="%.1f" class="end">%s</text>`, left, width-right, y.at(v), y.at(v), left-6, y.at(v)+4, y.text(v))
	}
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%g" y2="%g" class="axis"/><text x="%.1f" y="%g" class="mid">%s</text>`, x.at(v), x.at(v), height-bottom, height-bottom+4, x.at(v), height-bottom+16, x.text(v))
	}
	fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%g" y2="%g" class="axis"/><text x="%g" y="%g" class="end">%s</text><text x="4" y="%g">%s</text>`,
		left, width-right, height-bottom, height-bottom, width-right, height-4, template.HTMLEscapeString(p.X.Unit), top-11, template.HTMLEscapeString(p.Y.Unit))
	for i, m := range p.Marks {
		if m.X < x.lo || m.X > x.hi {
			continue
		}
		// Before the line, or behind it where there is no room, and each on a line of its own.
		at, class := x.at(m.X)-4, "end"
		if at < left+letter*float64(len(m.Name)) {
			at, class = x.at(m.X)+4, ""
		}
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%g" y2="%g" class="mark"/><text x="%.1f" y="%g" class="%s">%s</text>`, x.at(m.X), x.at(m.X), top, height-bottom, at, top+10+13*float64(i), class, template.HTMLEscapeString(m.Name))
	}
	legend := left
	for i, s := range p.Series {
		p.draw(&b, i%4, s, x, y)
		if s.Name == "" || len(s.X) == 0 {
			continue
		}
		legend += p.key(&b, i%4, s, legend)
	}
	b.WriteString(`</svg></figure>`)
	return template.HTML(b.String())
}

// draw adds a series' line and points.
func (p Plot) draw(b *strings.Builder, i int, s Series, x, y *scale) {
	if !s.Points {
		var path strings.Builder
		verb := "M"
		for k := range s.X {
			if !x.shows(s.X[k]) || !y.shows(s.Y[k]) {
				verb = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", verb, x.at(s.X[k]), y.at(s.Y[k]))
			verb = "L"
		}
		if strings.Contains(path.String(), "L") {
			fmt.Fprintf(b, `<path d="%s" class="%s"/>`, path.String(), s.stroke(i))
		}
	}
	if s.Guide || !s.Points && len(s.X) > dots {
		return
	}
	var taken []float64
	for k := range s.X {
		if !x.shows(s.X[k]) || !y.shows(s.Y[k]) {
			continue
		}
		at, up := x.at(s.X[k]), y.at(s.Y[k])
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="%g" class="d%d"/>`, at, up, 3.0, i)
		if k < len(s.Labels) {
			class, by := "ink", 7.0
			if at+letter*float64(len(s.Labels[k])) > width-right {
				class, by = "ink end", -7
			}
			line := free(up, taken)
			taken = append(taken, line)
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f" class="%s">%s</text>`, at+by, line+4, class, template.HTMLEscapeString(s.Labels[k]))
		}
	}
}

// free is the height next to want that has no label yet.
func free(want float64, taken []float64) float64 {
	const apart = 13
	for i := range 2*len(taken) + 1 {
		at := want + apart*float64((i+1)/2)
		if i%2 == 0 {
			at = want - apart*float64(i/2)
		}
		if at > top && at < height-bottom-apart && !slices.ContainsFunc(taken, func(t float64) bool { return math.Abs(t-at) < apart-0.5 }) {
			return at
		}
	}
	return want
}

func (s Series) stroke(i int) string {
	if s.Guide {
		return "guide"
	}
	return fmt.Sprintf("s%d", i)
}

// key adds a series' entry to the legend, and gives its width.
func (p Plot) key(b *strings.Builder, i int, s Series, at float64) float64 {
	const line, y = 22.0, 7.0
	if s.Points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%g" r="3" class="d%d"/>`, at+line/2, y, i)
	} else {
		fmt.Fprintf(b, `<path d="M%.1f %gL%.1f %g" class="%s"/>`, at, y, at+line, y, s.stroke(i))
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%g" class="ink">%s</text>`, at+line+5, y+4, template.HTMLEscapeString(s.Name))
	return line + 5 + letter*float64(len([]rune(s.Name))) + 16
}

// span is from the lowest to the highest value that an axis can show.
func (p Plot) span(of func(Series) []float64, logarithmic bool) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, s := range p.Series {
		if len(s.X) != len(s.Y) {
			panic("chart: a series has another number of x than of y")
		}
		for _, v := range of(s) {
			if math.IsNaN(v) || math.IsInf(v, 0) || logarithmic && v <= 0 {
				continue
			}
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	return lo, hi
}
