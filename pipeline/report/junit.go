package report

import (
	"encoding/xml"
	"fmt"
	"strings"

	"llmops/evidence"
)

type suites struct {
	XMLName xml.Name `xml:"testsuites"`
	Suites  []suite  `xml:"testsuite"`
}

type suite struct {
	Name     string  `xml:"name,attr"`
	Tests    int     `xml:"tests,attr"`
	Failures int     `xml:"failures,attr"`
	Errors   int     `xml:"errors,attr"`
	Time     string  `xml:"time,attr"`
	Cases    []tcase `xml:"testcase"`
}

type tcase struct {
	Name    string   `xml:"name,attr"`
	Class   string   `xml:"classname,attr"`
	Failure *message `xml:"failure,omitempty"`
	Error   *message `xml:"error,omitempty"`
	Out     string   `xml:"system-out,omitempty"`
}

type message struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
}

// JUnit is the run as a CI server reads it: a suite a stage, a case a verdict.
// An inconclusive verdict is an error, never a skip, since servers read a skip
// as success.
func JUnit(r Run) ([]byte, error) {
	var out suites
	for _, s := range r.Stages {
		ts := suite{Name: s.Name, Time: fmt.Sprintf("%.3f", s.Took.Seconds())}
		leaves(s.Verdict, func(v evidence.Verdict) {
			c := tcase{Name: v.Claim, Class: r.Alias + "." + s.Name, Out: said(v)}
			m := &message{Message: said(v), Type: v.Outcome.String()}
			switch v.Outcome {
			case evidence.Fail:
				c.Failure = m
				ts.Failures++
			case evidence.Inconclusive:
				c.Error = m
				ts.Errors++
			}
			ts.Tests++
			ts.Cases = append(ts.Cases, c)
		})
		out.Suites = append(out.Suites, ts)
	}
	b, err := xml.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing JUnit report: %w", err)
	}
	return append([]byte(xml.Header), append(b, '\n')...), nil
}

// said is all that a verdict says beside its claim: figures and doubts.
func said(v evidence.Verdict) string {
	parts := v.Warnings
	if i := interval(v); i != "" {
		parts = append([]string{i}, parts...)
	}
	return strings.Join(parts, "; ")
}

func leaves(v evidence.Verdict, fn func(evidence.Verdict)) {
	if len(v.Parts) == 0 {
		fn(v)
		return
	}
	worst := evidence.Pass
	for _, p := range v.Parts {
		leaves(p, fn)
		if p.Outcome == evidence.Fail || p.Outcome == evidence.Inconclusive && worst == evidence.Pass {
			worst = p.Outcome
		}
	}
	// A verdict may be worse than its parts, as one that ran out of time is.
	if v.Outcome != worst && v.Outcome != evidence.Pass {
		fn(evidence.Verdict{Claim: v.Claim, Outcome: v.Outcome, N: v.N, Warnings: v.Warnings})
	}
}
