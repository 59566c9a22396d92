package prompt

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Mix is a mixture of lengths in tokens.
type Mix []Part

// Part is lengths drawn evenly from Lo to Hi, and how often among the parts.
type Part struct {
	Lo, Hi int
	Weight float64
}

// MaxTokens bounds a length: above the longest context of any model.
const MaxTokens = 16 << 20

// ParseMix reads LENGTH[-LENGTH][:WEIGHT],…: 512, or 100-2000, or
// 512:0.9,30000-32000:0.1.
func ParseMix(s string) (Mix, error) {
	var m Mix
	for part := range strings.SplitSeq(s, ",") {
		lengths, weight, weighted := strings.Cut(part, ":")
		lo, hi, ranged := strings.Cut(lengths, "-")
		p := Part{Weight: 1}
		var err error
		if p.Lo, err = strconv.Atoi(lo); err == nil {
			p.Hi = p.Lo
			if ranged {
				p.Hi, err = strconv.Atoi(hi)
			}
		}
		if err == nil && weighted {
			p.Weight, err = strconv.ParseFloat(weight, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("length %q: want tokens such as 512, 100-2000 or 512:0.9,32000:0.1", part)
		}
		if p.Lo < 1 || p.Hi < p.Lo || p.Hi > MaxTokens || !(p.Weight > 0 && p.Weight <= 1e9) {
			return nil, fmt.Errorf("length %q: want 1 to %d tokens, the smaller first, and a weight above 0", part, MaxTokens)
		}
		m = append(m, p)
	}
	return m, nil
}

func (p Part) String() string {
	if p.Lo == p.Hi {
		return strconv.Itoa(p.Lo)
	}
	return strconv.Itoa(p.Lo) + "-" + strconv.Itoa(p.Hi)
}

// draw is a length and, of several parts, the part's name; 0 of no mix.
func (m Mix) draw(rnd *rand.Rand) (n int, class string) {
	if len(m) == 0 {
		return 0, ""
	}
	all := 0.0
	for _, p := range m {
		all += p.Weight
	}
	part, at := m[len(m)-1], rnd.Float64()*all
	for _, p := range m {
		if at -= p.Weight; at < 0 {
			part = p
			break
		}
	}
	if len(m) > 1 {
		class = part.String()
	}
	return part.Lo + rnd.IntN(part.Hi-part.Lo+1), class
}
