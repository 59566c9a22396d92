package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
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
