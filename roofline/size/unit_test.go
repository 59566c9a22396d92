package size

import (
	"math"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	for want, c := range map[string]struct {
		u Unit
		v float64
	}{
		"327,680 B": {Bytes, 327680}, "10.74 GB": {Bytes, 10.737e9}, "1,165.6 GB": {Bytes, 1165.6e9}, "5.30 TB/s": {Bandwidth, 5.3e12}, "300 GB/s": {Bandwidth, 300e9},
		"9.06 ms": {Seconds, 0.00906}, "119.3 ms": {Seconds, 0.1193}, "2,966 ms": {Seconds, 2.966}, "8 µs": {Seconds, 8e-6}, "-26.36 ms": {Seconds, -0.02636}, "0 ms": {Seconds, 0},
		"47.8%": {Share, 0.478}, "60%": {Share, 0.6}, "-26.9%": {Change, -0.269}, "286.7 TFLOP": {Operations, 286.7e12}, "1,300 TFLOP/s": {Arithmetic, 1300e12},
		"7,797 tokens/s": {TokenRate, 7797.2}, "3,557,128": {Tokens, 3557128}, "208.6": {Count, 208.6}, "9.62": {Count, 9.619}, "26": {Count, 26},
		"$624": {Dollars, 624}, "$2.46": {Dollars, 2.457}, "$0.00128": {Dollars, 0.001284}, "-$3.00": {Dollars, -3}, "$449,280": {Dollars, 449280}, "111.1 h": {Hours, 111.11},
	} {
		if got := c.u.Format(c.v); got != want {
			t.Errorf("%v of %q is %q, want %q", c.v, c.u, got, want)
		}
	}
	if got, want := Bytes.Both(1165.6e9), "1,165.6 GB = 1,085.5 GiB"; got != want {
		t.Errorf("both are %q, want %q", got, want)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		u     Unit
		says  string
		gives float64
		want  Verdict
	}{
		{Count, "26", 26, Agrees}, {Count, "26", 26.4, Agrees}, {Count, "26", 26.9, Rounded}, {Count, "26", 27.1, Contradicts},
		{TokenRate, "~6,600/s", 6604, Agrees}, {TokenRate, "7,797/s", 9235, Contradicts}, {TokenRate, "2.50k/s", 2504, Agrees}, {TokenRate, "2.50k/s", 2516, Contradicts},
		{Dollars, "$2.45", 2.457, Rounded}, {Dollars, "-$3", -3.2, Agrees}, {Seconds, "30ms", 0.0304, Agrees}, {Seconds, "30ms", 0.045, Contradicts},
		{Share, "18%", 0.156, Contradicts}, {Share, "29%", 0.2855, Agrees}, {Change, "-35%..-20%", -0.084, Contradicts}, {Change, "-35%..-20%", -0.345, Agrees},
		{Seconds, "<=400ms", 0.400, Agrees}, {Seconds, "<=400ms", 0.4001, Contradicts}, {Seconds, ">=400ms", 0.4001, Agrees}, {Seconds, ">=400ms", 0.3, Contradicts},
		{Bytes, "0.31MB", 327680, BinaryUnit}, {Bytes, "~2.5GB", 2.5 * (1 << 30), BinaryUnit}, {Bytes, "2.5GiB", 2.5 * (1 << 30), Agrees}, {Bytes, "2.5GiB", 2.5e9, Contradicts},
		{Bytes, "35GB..40GB", 37.1e9, Agrees}, {Bytes, "1.25TB", 1.25 * (1 << 40), BinaryUnit},
	} {
		st, err := statedIn(c.u, c.says)
		if err != nil {
			t.Errorf("%s: %v", c.says, err)
			continue
		}
		if got := st.judge(c.u, c.gives); got != c.want {
			t.Errorf("%s against %v: %s, want %s", c.says, c.gives, got, c.want)
		}
	}
}

// A number that was read and is written again is the number, to the digits that are
// written.
func FuzzQuantity(f *testing.F) {
	units := []Unit{Count, Tokens, Bytes, Bandwidth, Operations, Arithmetic, Share, Change, Seconds, Rate, TokenRate, Hours, Dollars}
	for i, s := range []string{"70e9", "2,048", "192GB", "5.3TB/s", "286.7TFLOP", "1300TFLOP/s", "70%", "-27%", "8us", "300/s", "3000/s", "720h", "$3.00"} {
		f.Add(uint8(i), s)
	}
	f.Add(uint8(2), "..")
	f.Add(uint8(12), "-$$1e-300")
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		u := units[int(which)%len(units)]
		q, err := u.parse(text)
		if err != nil {
			if !strings.Contains(err.Error(), examples[u]) {
				t.Fatalf("the error shows no example: %v", err)
			}
			return
		}
		if math.IsNaN(q.value) || math.IsInf(q.value, 0) || !(q.digit >= 0) {
			t.Fatalf("%q is %+v", text, q)
		}
		if a := math.Abs(q.value); a > 1e-5 && a < 1e12 {
			again, err := u.parse(u.Format(q.value))
			if err != nil {
				t.Fatalf("%q is written %q: %v", text, u.Format(q.value), err)
			}
			if math.Abs(again.value-q.value) > 0.006*a+again.digit {
				t.Fatalf("%q is %v and is written %q", text, q.value, u.Format(q.value))
			}
		}
		if _, err := statedIn(u, text); err != nil {
			t.Fatalf("%q is a number and nothing to say: %v", text, err)
		}
	})
}
