package evidence

import (
	"math"
	"testing"
)

func TestProportionBounds(t *testing.T) {
	// With none of n the upper bound is 1 − 0.05^(1/n): 0.2589 for 10.
	v := AtMost("x", 0, 10, 0.3, 0.95)
	if v.Outcome != Pass || math.Abs(v.Hi-0.2589) > 1e-4 || v.Lo != 0 {
		t.Errorf("%+v", v)
	}
	// 2 of 10 at 95 %: [0.0368, 0.5069] from tables of the exact interval (90 % two-sided).
	v = AtMost("x", 2, 10, 0.3, 0.95)
	if v.Outcome != Inconclusive || math.Abs(v.Lo-0.0368) > 1e-4 || math.Abs(v.Hi-0.5069) > 1e-4 {
		t.Errorf("%+v", v)
	}
	for _, c := range []struct {
		v    Verdict
		want Outcome
	}{
		{AtMost("x", 9, 10, 0.3, 0.95), Fail},
		{AtMost("x", 0, 0, 0.3, 0.95), Inconclusive},
		{AtLeast("x", 10, 10, 0.7, 0.95), Pass},
		{AtLeast("x", 0, 0, 0.7, 0.95), Inconclusive},
		{AtLeast("x", 1, 10, 0.7, 0.95), Fail},
		{AtLeast("x", 8, 10, 0.7, 0.95), Inconclusive},
	} {
		if c.v.Outcome != c.want {
			t.Errorf("%+v, want %v", c.v, c.want)
		}
	}
	// ln 0.05 / ln 0.99 = 298.07: 299 clean requests show one per cent.
	if got := clean(0.01, 0.95); got != 299 {
		t.Errorf("clean(1 %%) = %d, want 299", got)
	}
}
