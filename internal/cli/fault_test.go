package cli

import (
	"slices"
	"testing"
)

func TestFaultAt(t *testing.T) {
	for at, want := range map[string][]int{
		"":               nil,
		"before":         nil,
		"before:x":       nil,
		"before:1":       {0},
		"after:1":        {1},
		"before:3":       {4},
		"after:4":        {7},
		"before:5":       {},
		"after:eval:1":   {5},
		"before:eval:2":  {6},
		"before:deploy:": nil,
	} {
		var got []int
		i := 0
		p := faultAt(at, func() { got = append(got, i) })
		if (p == nil) != (want == nil) {
			t.Errorf("%q: a point is set: %v", at, p != nil)
		}
		if p == nil {
			continue
		}
		for _, stage := range []string{"deploy", "deploy", "eval", "eval"} {
			p("before", stage)
			i++
			p("after", stage)
			i++
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: reached at %v, want %v", at, got, want)
		}
	}
}
