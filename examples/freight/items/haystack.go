package items

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// planted is one code hidden in a haystack.
type planted struct{ name, code string }

// haystack is a terminal's log with release codes planted in it.
type haystack struct {
	text  string
	codes []planted
}

var (
	codeForms        = []string{"The release code of %s is %s.", "Release code for %s: %s.", "%s has release code %s.", "Code for %s is %s."}
	codeFormsHeldOut = []string{"Release code of %s is %s.", "The code for %s: %s."}
	codeQuestions    = []string{"What is the release code of %s?", "Give the release code of %s."}
)

// filler is one line of the log. It has digits and names of its own, so that a code is not the only number.
func filler(r *rand.Rand) string {
	switch r.IntN(8) {
	case 0:
		return fmt.Sprintf("Crane %d moved %d boxes to row %d.", 1+r.IntN(9), 2+r.IntN(80), 1+r.IntN(40))
	case 1:
		return fmt.Sprintf("The gate opened at %02d:%02d for trucks to %s.", r.IntN(24), r.IntN(60), oneOf(r, ports))
	case 2:
		return fmt.Sprintf("%s was loaded into bay %d.", oneOf(r, wares), 1+r.IntN(60))
	case 3:
		return fmt.Sprintf("A pilot boarded the ship from %s.", oneOf(r, ports))
	case 4:
		return "Rain stopped the work on deck for an hour."
	case 5:
		return fmt.Sprintf("Customs checked %d containers of %s.", 1+r.IntN(30), strings.ToLower(oneOf(r, wares)))
	case 6:
		return "All seals were intact and no damage was noted."
	}
	return fmt.Sprintf("The terminal charged %d EUR for storage.", 20+r.IntN(900))
}

// newHaystack writes about the given number of tokens with n codes spread over them. Held-out forms are for
// evaluation.
func newHaystack(r *rand.Rand, tokens, n int) haystack {
	return plant(r, tokens, n, codeFormsHeldOut)
}

func plant(r *rand.Rand, tokens, n int, forms []string) haystack {
	var h haystack
	taken := map[string]bool{}
	for len(h.codes) < n {
		p := planted{word(r), digits(r, 5)}
		if !taken[p.name] {
			taken[p.name] = true
			h.codes = append(h.codes, p)
		}
	}
	lines := []string{"Terminal log"}
	size := len(lines[0])
	for _, p := range h.codes {
		size += len(fmt.Sprintf(forms[0], p.name, p.code)) + 1
	}
	for size < int(float64(tokens)*charsAToken) {
		s := filler(r)
		lines = append(lines, s)
		size += len(s) + 1
	}
	// One code falls in each n-th part, so that every depth is asked about.
	free := len(lines)
	for i := n - 1; i >= 0; i-- {
		low, high := 1+i*(free-1)/n, 1+(i+1)*(free-1)/n
		at := low + r.IntN(high-low+1)
		s := fmt.Sprintf(oneOf(r, forms), h.codes[i].name, h.codes[i].code)
		lines = append(lines[:at], append([]string{s}, lines[at:]...)...)
	}
	h.text = strings.Join(lines, "\n")
	return h
}

func (h haystack) ask(r *rand.Rand, i int) question {
	return question{fmt.Sprintf(oneOf(r, codeQuestions), h.codes[i].name), h.codes[i].code, Number, codeTokens}
}
