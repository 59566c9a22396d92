package cli

import (
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	long := "eval       inconclusive: the candidate scores less than 3 points below the parent, 40 items of 172 " + strings.Repeat("x", 100)
	for _, width := range []int{40, 80, 120} {
		lines := strings.Split(wrap(long, width), "\n")
		for i, l := range lines[:len(lines)-1] {
			if len(l) > width {
				t.Errorf("width %d: line %q is longer", width, l)
			}
			if i > 0 && !strings.HasPrefix(l, strings.Repeat(" ", hanging)) {
				t.Errorf("width %d: line %q does not hang", width, l)
			}
		}
		if got := strings.Join(strings.Fields(strings.Join(lines, " ")), " "); got != strings.Join(strings.Fields(long), " ") {
			t.Errorf("width %d: words were lost: %q", width, got)
		}
	}
	if got := wrap("short", 80); got != "short" {
		t.Errorf("wrap(short) = %q", got)
	}
}
