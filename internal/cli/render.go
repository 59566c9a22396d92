package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
)

// answer prints v as JSON when that was asked for, otherwise what table writes.
func (e *env) answer(v any, table func(w *tabwriter.Writer)) error {
	if e.output == "json" {
		enc := json.NewEncoder(e.out)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	table(w)
	return w.Flush()
}

func (e *env) say(format string, args ...any) {
	_, _ = fmt.Fprintf(e.err, format+"\n", args...)
}

func row(w *tabwriter.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = fmt.Fprint(w, "\t")
		}
		_, _ = fmt.Fprint(w, c)
	}
	_, _ = fmt.Fprintln(w)
}
