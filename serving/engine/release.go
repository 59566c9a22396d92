package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// release is an engine's version, by its numbers.
type release [3]int

// parseRelease reads 0.32.0, v0.32.0, b11434 and 0.5.4.post3; what follows the third
// number tells nothing about flags.
func parseRelease(s string) (release, error) {
	var r release
	text := strings.TrimLeft(s, "vb")
	for i, part := range strings.SplitN(text, ".", 4) {
		if i == len(r) {
			break
		}
		digits := part
		if j := strings.IndexFunc(part, func(c rune) bool { return c < '0' || c > '9' }); j >= 0 {
			digits = part[:j]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return r, fmt.Errorf("%q is not a version", s)
		}
		r[i] = n
		if digits != part {
			break
		}
	}
	return r, nil
}

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }

// atLeast tells whether r is that release or a later one.
func (r release) atLeast(numbers ...int) bool {
	for i := range r {
		n := 0
		if i < len(numbers) {
			n = numbers[i]
		}
		if r[i] != n {
			return r[i] > n
		}
	}
	return true
}

// release is the one that is asked for, or the newest that is known. A later one is
// taken to have the newest's flags; an earlier one than the oldest is refused.
func (a adapter) release(asked string) (release, error) {
	if asked == "" {
		asked = a.newest
	}
	r, err := parseRelease(asked)
	if err != nil {
		return r, &Refusal{a.kind, "release", err.Error()}
	}
	oldest, err := parseRelease(a.oldest)
	if err != nil {
		return r, err
	}
	if !r.atLeast(oldest[:]...) {
		return r, &Refusal{a.kind, "release", fmt.Sprintf("%s is older than %s, the first whose flags are known", asked, a.oldest)}
	}
	return r, nil
}
