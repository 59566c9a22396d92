package items

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

func isoDate(d date) string   { return fmt.Sprintf("%d-%02d-%02d", d.year, d.month, d.day) }
func slashDate(d date) string { return fmt.Sprintf("%02d/%02d/%d", d.day, d.month, d.year) }
func dotDate(d date) string   { return fmt.Sprintf("%02d.%02d.%d", d.day, d.month, d.year) }
func longDate(d date) string  { return fmt.Sprintf("%d %s %d", d.day, months[d.month-1], d.year) }

// fact is one label and value of a document.
type fact struct {
	field *field
	// label and printed are as the document shows them; answer is what a question expects.
	label, printed, answer string
}

// document is a rendered shipment.
type document struct {
	text  string
	facts []fact
	// separator is kept for questions that continue a line.
	separator string
}

// newDocument fills a template with n facts of a random shipment, or with all when it has fewer.
func newDocument(r *rand.Rand, t Template, n int, noise float64) document {
	n = min(n, len(t.order))
	keep := r.Perm(len(t.order))[:n]
	slices.Sort(keep)
	d := document{separator: t.separator}
	var b strings.Builder
	b.WriteString(t.title)
	b.WriteByte('\n')
	for i, k := range keep {
		at := t.order[k]
		f := fact{field: &fields[at], label: damage(r, t.labels[at], noise)}
		f.answer, f.printed = f.field.draw(r, t)
		if i > 0 {
			b.WriteString(t.joint)
		}
		b.WriteString(f.label)
		b.WriteString(t.separator)
		b.WriteString(f.printed)
		d.facts = append(d.facts, f)
	}
	d.text = b.String()
	return d
}

// draw gives a value as an answer states it and as the template prints it.
func (f *field) draw(r *rand.Rand, t Template) (answer, printed string) {
	if f.value == nil {
		s := t.dates(drawDate(r))
		return s, s
	}
	answer = f.value(r)
	if !f.number {
		return answer, answer
	}
	printed = t.number(answer)
	unit := oneOf(r, f.units)
	if strings.HasSuffix(unit, " ") || unit == "$" {
		return answer, unit + printed
	}
	return answer, printed + unit
}

// pick chooses up to n distinct facts of a kind; text facts make up for numbers that are missing and the reverse.
func (d document) pick(r *rand.Rand, k Kind, n int) []fact {
	var of, others []fact
	for _, i := range r.Perm(len(d.facts)) {
		f := d.facts[i]
		if f.field.number == (k == Number) {
			of = append(of, f)
		} else {
			others = append(others, f)
		}
	}
	if len(of) == 0 {
		of = others
	}
	return of[:min(n, len(of))]
}

var (
	fieldForms  = []string{"What is the %s?", "Give the %s.", "State the %s."}
	numberForms = []string{"What is the %s as a number?", "Give the %s as a number.", "State the %s as a number."}
	jsonForms   = []string{"Return JSON with the keys %s.", "Answer in JSON: %s.", "Give a JSON object with %s."}
)

func (d document) ask(r *rand.Rand, f fact) question {
	forms, kind := fieldForms, Field
	if f.field.number {
		forms, kind = numberForms, Number
	}
	return question{fmt.Sprintf(oneOf(r, forms), oneOf(r, f.field.names)), f.answer, kind, fieldTokens}
}

func (d document) askJSON(r *rand.Rand) question {
	n := min(2+r.IntN(jsonKeysAtMost-1), len(d.facts))
	var keys, pairs []string
	for _, i := range r.Perm(len(d.facts))[:n] {
		f := d.facts[i]
		value := f.answer
		if !f.field.number {
			value = strconv.Quote(value)
		}
		keys = append(keys, string(f.field.key))
		pairs = append(pairs, strconv.Quote(string(f.field.key))+":"+value)
	}
	return question{fmt.Sprintf(oneOf(r, jsonForms), strings.Join(keys, ", ")), "{" + strings.Join(pairs, ",") + "}", JSON, jsonTokens}
}

// askContinue asks for what follows a label, the easiest question there is: it needs no synonyms.
func (d document) askContinue(f fact) question {
	return question{"Continue: " + f.label + strings.TrimRight(d.separator, " \t"), f.printed, Field, fieldTokens}
}

func (d document) askAny(r *rand.Rand) question {
	switch r.IntN(3) {
	case 0:
		return d.ask(r, d.pick(r, Field, 1)[0])
	case 1:
		return d.ask(r, d.pick(r, Number, 1)[0])
	}
	return d.askJSON(r)
}
