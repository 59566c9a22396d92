package items

import (
	"math/rand/v2"
	"strings"
)

// Set names one of the two disjoint sets of templates.
type Set int

// The sets. No held-out template shares its combination of separators with a training template; one in twelve of its
// labels, and now and then its separator or digit grouping, are ones that training never shows.
const (
	Training Set = iota
	HeldOut
)

// Size is the number of templates in the set.
func (s Set) Size() int {
	if s == HeldOut {
		return 300
	}
	return 3000
}

// Template is one layout of a document. It is immutable.
type Template struct {
	customs bool
	title   string
	// separator stands between label and value, joint between two pairs.
	separator, joint string
	// group separates thousands and point the decimals.
	group, point string
	dates        func(date) string
	caseOf       func(string) string
	// order holds indexes into fields; labels has a label for each field, whether ordered or not.
	order  []int
	labels []string
}

var (
	separators        = []string{": ", " = ", " - ", ":", " : ", " | ", "\t"}
	separatorsHeldOut = []string{"=", " -> ", " # "}
	joints            = []string{"\n", "; ", " | ", "\n- "}
	numbers           = [][2]string{{"", "."}, {",", "."}, {".", ","}, {" ", "."}}
	numbersHeldOut    = [][2]string{{"'", "."}, {" ", ","}}
	ladingTitles      = []string{"BILL OF LADING", "Bill of Lading", "Waybill", "Ocean Bill of Lading", "Sea Waybill"}
	customsTitles     = []string{"CUSTOMS DECLARATION", "Customs Declaration", "Import Declaration", "Import Entry", "Export Declaration"}
	dateFormats       = []func(date) string{isoDate, longDate, slashDate, dotDate}
	cases             = []func(string) string{asIs, asIs, asIs, asIs, strings.ToUpper, strings.ToLower}
)

func asIs(s string) string { return s }

// reserved says whether a pair of separators belongs to the held-out templates.
func reserved(separator, joint int) bool { return (separator*len(joints)+joint)%6 == 2 }

// NewTemplate gives template i of a set, the same one every time.
func NewTemplate(set Set, i int) Template {
	purpose := "training template"
	if set == HeldOut {
		purpose = "held-out template"
	}
	r := source(uint64(i), purpose)
	t := Template{customs: r.IntN(2) == 0, caseOf: oneOf(r, cases), dates: oneOf(r, dateFormats)}
	t.title = oneOf(r, ladingTitles)
	if t.customs {
		t.title = oneOf(r, customsTitles)
	}
	for {
		// A line a pair is twice as likely as any other joint.
		s, j := r.IntN(len(separators)), r.IntN(len(joints)+1)%len(joints)
		t.separator, t.joint = separators[s], joints[j]
		if reserved(s, j) == (set == HeldOut) && t.separator != t.joint {
			break
		}
	}
	format := oneOf(r, numbers)
	if set == HeldOut && r.IntN(16) == 0 {
		t.separator = oneOf(r, separatorsHeldOut)
	}
	if set == HeldOut && r.IntN(24) == 0 {
		format = oneOf(r, numbersHeldOut)
	}
	t.group, t.point = format[0], format[1]
	for _, f := range fields {
		label := oneOf(r, f.labels)
		if set == HeldOut && r.IntN(12) == 0 {
			label = oneOf(r, f.heldOut)
		}
		t.labels = append(t.labels, t.caseOf(label))
	}
	for _, k := range r.Perm(len(fields)) {
		if c := fields[k].customs; c == 0 || (c > 0) == t.customs {
			t.order = append(t.order, k)
		}
	}
	return t
}

// number writes plain digits in the template's format.
func (t Template) number(plain string) string {
	whole, decimals, fraction := strings.Cut(plain, ".")
	var b strings.Builder
	for i, c := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteString(t.group)
		}
		b.WriteRune(c)
	}
	if fraction {
		b.WriteString(t.point)
		b.WriteString(decimals)
	}
	return b.String()
}

// damage replaces, drops or doubles a share of the letters, as a scanner does.
func damage(r *rand.Rand, s string, share float64) string {
	if share == 0 {
		return s
	}
	var b strings.Builder
	for _, c := range s {
		if r.Float64() >= share || c == ' ' {
			b.WriteRune(c)
			continue
		}
		switch r.IntN(3) {
		case 0:
			b.WriteByte(byte('a' + r.IntN(26)))
		case 1:
			b.WriteRune(c)
			b.WriteRune(c)
		}
	}
	return b.String()
}
