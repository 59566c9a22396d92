// Package evidence says what may be concluded from data.
//
// A [Verdict] is pass, fail or inconclusive about one claim and carries the
// numbers behind it and its doubts. Its zero value is inconclusive: no data is
// never a pass. [All] joins verdicts. Below them are the tools that reach one:
// paired non-inferiority ([Paired], [Ratio]), sequential tests that may be
// looked at as often as one likes ([Rate], [Excess]), mergeable counts of
// durations ([Histogram]), and the smallest samples that could decide
// ([PairedItems], [CleanRequests]).
//
// The package knows no domain: references are strings, units are names, and
// nothing here does I/O or reads a clock. Functions are pure; values are not
// safe for concurrent use.
package evidence

import "fmt"

// Outcome is what a verdict says.
type Outcome uint8

// The outcomes. Inconclusive is the zero value, so that a verdict nobody
// reached cannot read as a pass.
const (
	Inconclusive Outcome = iota
	Pass
	Fail
)

var outcomeNames = [...]string{"inconclusive", "pass", "fail"}

func (o Outcome) String() string { return outcomeNames[o] }

// MarshalText implements encoding.TextMarshaler.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Outcome) UnmarshalText(b []byte) error {
	for i, n := range outcomeNames {
		if n == string(b) {
			*o = Outcome(i)
			return nil
		}
	}
	return fmt.Errorf("outcome %q is none of pass, fail, inconclusive", b)
}

// Verdict is the answer to one claim: an estimate with the interval [Lo, Hi]
// at the given confidence in the named unit, from N observations, of which
// Need would have been enough. Parts are the verdicts it was joined from,
// Warnings its doubts, Refs where the evidence lies.
type Verdict struct {
	Claim      string    `json:"claim"`
	Unit       string    `json:"unit,omitempty"`
	Outcome    Outcome   `json:"outcome"`
	Estimate   float64   `json:"estimate"`
	Lo         float64   `json:"lo"`
	Hi         float64   `json:"hi"`
	Confidence float64   `json:"confidence,omitempty"`
	N          int       `json:"n"`
	Need       int       `json:"need,omitempty"`
	Parts      []Verdict `json:"parts,omitempty"`
	Warnings   []string  `json:"warnings,omitempty"`
	Refs       []string  `json:"refs,omitempty"`
}

// Check is the verdict on something that is simply so or not, seen n times.
func Check(claim string, ok bool, n int, doubts ...string) Verdict {
	v := Verdict{Claim: claim, Outcome: Fail, N: n, Warnings: doubts}
	if ok {
		v.Outcome = Pass
	}
	if n == 0 {
		v.Outcome = Inconclusive
	}
	return v
}

// All holds when every part holds: one failure makes it fail, otherwise one
// inconclusive part makes it inconclusive, and of no parts it is inconclusive.
func All(claim string, parts ...Verdict) Verdict {
	v := Verdict{Claim: claim, Parts: parts}
	if len(parts) == 0 {
		return v
	}
	v.Outcome = Pass
	for _, p := range parts {
		v.N += p.N
		switch p.Outcome {
		case Fail:
			v.Outcome = Fail
		case Inconclusive:
			if v.Outcome == Pass {
				v.Outcome = Inconclusive
			}
		}
	}
	return v
}

// Deciding returns the leaves that made the outcome what it is: for a failure
// the failed ones, for an inconclusive verdict the undecided ones, for a pass
// none.
func (v Verdict) Deciding() []Verdict {
	if v.Outcome == Pass {
		return nil
	}
	if len(v.Parts) == 0 {
		return []Verdict{v}
	}
	var out []Verdict
	for _, p := range v.Parts {
		if p.Outcome == v.Outcome {
			out = append(out, p.Deciding()...)
		}
	}
	return out
}
