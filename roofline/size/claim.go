package size

import (
	"fmt"
	"math"
	"strings"
)

// Claim is a sentence of a document with a number in it.
type Claim struct {
	Text    string `json:"text"`
	Where   string `json:"where,omitempty"` // in the document
	Key     string `json:"key"`             // of a number
	Says    string `json:"says"`            // the document's, as it stands there: ~26, 35GB..40GB, <=400ms
	Case    string `json:"case,omitempty"`
	Against string `json:"against,omitempty"` // a case: the claim is about the change from it
	Why     string `json:"why,omitempty"`     // what the document left out
	Line    int    `json:"-"`
}

// Verdict is what the model has to say about a claim.
type Verdict string

// The verdicts.
const (
	Agrees      Verdict = "agrees"
	Rounded     Verdict = "agrees but for rounding on the way"
	BinaryUnit  Verdict = "is right in binary units only"
	Contradicts Verdict = "the model does not give that"
)

// Checked is a claim with the model's answer.
type Checked struct {
	Claim
	Unit    Unit     `json:"unit"`
	Gives   float64  `json:"gives"`
	Answer  string   `json:"answer"`
	Verdict Verdict  `json:"verdict"`
	RestsOn []string `json:"rests_on"`
	Rows    []string `json:"rows"`
}

// statement is what a document says of a number.
type statement struct {
	lo, hi quantity
	op     string
}

// statedIn reads ~26, 35GB..40GB or <=400ms.
func statedIn(u Unit, says string) (statement, error) {
	text := strings.TrimPrefix(strings.TrimSpace(says), "~")
	var st statement
	for _, op := range []string{"<=", ">="} {
		if rest, ok := strings.CutPrefix(text, op); ok {
			st.op, text = op, rest
		}
	}
	low, high, ranged := strings.Cut(text, "..")
	if !ranged {
		high = low
	}
	var err error
	if st.lo, err = u.parse(low); err != nil {
		return st, err
	}
	st.hi, err = u.parse(high)
	return st, err
}

// judge compares a number with what is said of it. A number agrees when it rounds to
// what is said. One more of the last digit is what rounding on the way may cost. Bytes
// said in decimal units may have been meant in binary ones.
func (st statement) judge(u Unit, v float64) Verdict {
	within := func(f, digits float64) bool {
		lo, hi := st.lo.value*f, st.hi.value*f
		switch st.op {
		case "<=":
			return v <= hi
		case ">=":
			return v >= lo
		}
		const slack = 1 + 1e-9
		return v >= lo-digits*st.lo.digit*f*slack && v <= hi+digits*st.hi.digit*f*slack
	}
	switch {
	case within(1, 0.5):
		return Agrees
	case st.op == "" && within(1, 1):
		return Rounded
	case u == Bytes && st.op == "" && within(binaryOver(st.lo.factor), 1):
		return BinaryUnit
	}
	return Contradicts
}

// binaryOver is how much larger a binary unit is than the decimal one of that many
// bytes: 1.024 for kB, 1.049 for MB. Binary ones already are not whole powers of ten.
func binaryOver(factor float64) float64 {
	power := math.Round(math.Log10(factor) / 3)
	if math.Abs(math.Pow10(int(3*power))/factor-1) > 1e-9 {
		return 1
	}
	return math.Pow(1.024, power)
}

// baseCase names the register without a case.
const baseCase = "base"

// ClaimError is about one claim of the register.
type ClaimError struct {
	Claim Claim
	Err   error
}

func (e *ClaimError) Error() string { return fmt.Sprintf("claim %q: %v", e.Claim.Text, e.Err) }

func (e *ClaimError) Unwrap() error { return e.Err }

// Check holds each claim against the model: in its case, or for the change between
// two. A *ClaimError names the claim that cannot be checked.
func Check(r *Register, whatIf ...Setting) ([]Checked, error) {
	sheets := map[string]*Sheet{}
	sheet := func(name string) (s *Sheet, err error) {
		if s, ok := sheets[name]; ok {
			return s, nil
		}
		if s, err = r.Sheet(name, whatIf...); err == nil {
			sheets[name] = s
		}
		return s, err
	}
	var out []Checked
	for _, c := range r.Claims {
		got, err := c.check(sheet)
		if err != nil {
			return nil, &ClaimError{c, err}
		}
		out = append(out, got)
	}
	return out, nil
}

func (c Claim) check(sheet func(string) (*Sheet, error)) (Checked, error) {
	s, err := sheet(c.Case)
	if err != nil {
		return Checked{}, err
	}
	n, ok := s.Find(c.Key)
	if !ok {
		s.Compare()
		n, ok = s.Find(c.Key)
	}
	if !ok {
		return Checked{}, fmt.Errorf("%q is no number of this sheet; llmops size --numbers lists them", c.Key)
	}
	got := Checked{Claim: c, Unit: n.Unit, Gives: n.Value, RestsOn: s.RestsOn(c.Key), Rows: s.RowsOf(c.Key)}
	if c.Against != "" {
		other, err := sheet(c.Against)
		if err != nil {
			return got, err
		}
		if !other.has(c.Key) {
			other.Compare()
		}
		got.Unit, got.Gives = Change, n.Value/other.Value(c.Key)-1
	}
	st, err := statedIn(got.Unit, c.Says)
	if err != nil {
		return got, fmt.Errorf("it says %w", err)
	}
	got.Verdict, got.Answer = st.judge(got.Unit, got.Gives), got.Unit.Both(got.Gives)
	return got, nil
}

// Sheet computes a case with what-ifs; "" and "base" are the register itself.
func (r *Register) Sheet(name string, whatIf ...Setting) (*Sheet, error) {
	if name == baseCase {
		name = ""
	}
	c, ok := r.FindCase(name)
	if !ok {
		return nil, fmt.Errorf("there is no case %q", name)
	}
	in, err := Resolve(r, c.Set...)
	if err == nil {
		in, err = in.With(whatIf...)
	}
	if err != nil {
		return nil, err
	}
	return Compute(in)
}
