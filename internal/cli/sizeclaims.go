package cli

import (
	"fmt"

	sizing "llmops/roofline/size"
)

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
