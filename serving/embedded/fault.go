package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault makes the engine worse on purpose, so that gates, guards and drills can be
// tried against a candidate that really is. It is a list of faults, written as
//
//	slow-prompt:over=200,per-token=4ms;error:share=2%,status=503;seed=7
//
// and the kinds are those of FaultHelp. Which requests a share hits depends on the
// seed and on the number of the request alone. The zero value is none.
type Fault struct {
	seed uint64
	list []fault
}

// fault is one of them; which fields mean something depends on the kind.
type fault struct {
	kind     string
	share    float64 // of the requests
	over     int     // tokens of a prompt, or sequences in a step
	after    int     // tokens of an answer, or requests
	status   int
	factor   float64
	by       time.Duration
	perToken time.Duration
	say      string
}

// kinds are the faults with the keys that each must and may have.
var kinds = map[string]struct {
	must, may []string
	help      string
}{
	"slow-prompt": {[]string{"over", "per-token"}, nil, "a step takes per-token longer for each token of a prompt longer than over"},
	"slow-tokens": {[]string{"by"}, nil, "every step takes longer by so much"},
	"slow-load":   {[]string{"over", "by"}, nil, "a step takes longer by so much for each sequence beyond over"},
	"slow":        {[]string{"factor"}, nil, "every step takes so many times as long, and nothing says so"},
	"slow-first":  {[]string{"by"}, []string{"share"}, "a request is begun only after so long"},
	"stall":       {[]string{"after"}, []string{"share"}, "an answer stands still after so many tokens and never ends"},
	"truncate":    {[]string{"after"}, []string{"share"}, "an answer ends after so many tokens as if it were whole"},
	"error":       {nil, []string{"share", "status"}, "a request gets an error"},
	"refuse":      {nil, []string{"share"}, "an answer is refused by a content filter"},
	"garbage":     {nil, []string{"share"}, "tokens are drawn at random"},
	"script":      {nil, []string{"share"}, "the letters of an answer come from another script"},
	"version":     {[]string{"say"}, []string{"share"}, "an answer says that another version gave it"},
	"crash":       {[]string{"after"}, nil, "the process dies at the request after so many"},
}

// FaultHelp lists the kinds of faults, one a line.
func FaultHelp() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		var keys []string
		for _, m := range kinds[k].must {
			keys = append(keys, m+"=…")
		}
		for _, m := range kinds[k].may {
			keys = append(keys, "["+m+"=…]")
		}
		fmt.Fprintf(&b, "  %s: %s\n", strings.TrimSuffix(k+":"+strings.Join(keys, ","), ":"), kinds[k].help)
	}
	return b.String()
}

// ParseFault reads faults as a flag has them, or none from an empty string.
func ParseFault(s string) (Fault, error) {
	var f Fault
	if s == "" {
		return f, nil
	}
	for part := range strings.SplitSeq(s, ";") {
		if seed, ok := strings.CutPrefix(part, "seed="); ok {
			n, err := strconv.ParseUint(seed, 10, 64)
			if err != nil {
				return Fault{}, fmt.Errorf("parsing fault %q: seed %q is not a whole number", s, seed)
			}
			f.seed = n
			continue
		}
		one, err := parseOne(part)
		if err != nil {
			return Fault{}, fmt.Errorf("parsing fault %q: %w", s, err)
		}
		f.list = append(f.list, one)
	}
	if len(f.list) == 0 {
		return Fault{}, fmt.Errorf("parsing fault %q: a seed without a fault", s)
	}
	return f, nil
}

func parseOne(s string) (fault, error) {
	kind, fields, _ := strings.Cut(s, ":")
	k, ok := kinds[kind]
	if !ok {
		return fault{}, fmt.Errorf("%q is not one of: %s", kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	f := fault{kind: kind, share: 1}
	if kind == "error" {
		f.status = http.StatusInternalServerError
	}
	seen := map[string]bool{}
	if fields != "" {
		for field := range strings.SplitSeq(fields, ",") {
			key, value, _ := strings.Cut(field, "=")
			if !slices.Contains(k.must, key) && !slices.Contains(k.may, key) {
				return f, fmt.Errorf("%s has no key %q: it has %s", kind, key, cmp.Or(strings.Join(append(slices.Clone(k.must), k.may...), ", "), "none"))
			}
			if seen[key] {
				return f, fmt.Errorf("%s has %s twice", kind, key)
			}
			seen[key] = true
			if err := f.set(key, value); err != nil {
				return f, fmt.Errorf("%s: %s is %q: %w", kind, key, value, err)
			}
		}
	}
	for _, key := range k.must {
		if !seen[key] {
			return f, fmt.Errorf("%s wants %s", kind, key)
		}
	}
	return f, nil
}

func (f *fault) set(key, value string) error {
	var err error
	wanted := ""
	switch key {
	case "share":
		number, percent := strings.CutSuffix(value, "%")
		f.share, err = strconv.ParseFloat(number, 64)
		if percent {
			f.share /= 100
		}
		if err != nil || !(f.share > 0 && f.share <= 1) {
			wanted = "a share above 0 and up to 100%"
		}
	case "over":
		if f.over, err = strconv.Atoi(value); err != nil || f.over < 0 {
			wanted = "a whole number"
		}
	case "after":
		if f.after, err = strconv.Atoi(value); err != nil || f.after < 0 {
			wanted = "a whole number"
		}
	case "status":
		if f.status, err = strconv.Atoi(value); err != nil || f.status < 400 || f.status > 599 {
			wanted = "a status from 400 to 599"
		}
	case "factor":
		if f.factor, err = strconv.ParseFloat(value, 64); err != nil || !(f.factor > 1 && f.factor <= 1000) {
			wanted = "a factor above 1"
		}
	case "by":
		if f.by, err = time.ParseDuration(value); err != nil || f.by <= 0 {
			wanted = "a duration above 0"
		}
	case "per-token":
		if f.perToken, err = time.ParseDuration(value); err != nil || f.perToken <= 0 {
			wanted = "a duration above 0"
		}
	case "say":
		if f.say = value; value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < '!' || r > '~' }) {
			wanted = "a version's name"
		}
	}
	if wanted != "" {
		return errors.New("want " + wanted)
	}
	return nil
}

// String is what ParseFault reads.
func (f Fault) String() string {
	var parts []string
	for _, one := range f.list {
		k := kinds[one.kind]
		var fields []string
		for _, key := range append(slices.Clone(k.must), k.may...) {
			value := map[string]any{
				"share": strconv.FormatFloat(100*one.share, 'g', -1, 64) + "%", "over": one.over, "after": one.after, "status": one.status,
				"factor": one.factor, "by": one.by, "per-token": one.perToken, "say": one.say,
			}[key]
			if key == "share" && one.share == 1 {
				continue
			}
			fields = append(fields, fmt.Sprintf("%s=%v", key, value))
		}
		parts = append(parts, strings.TrimSuffix(one.kind+":"+strings.Join(fields, ","), ":"))
	}
	if f.seed != 0 {
		parts = append(parts, "seed="+strconv.FormatUint(f.seed, 10))
	}
	return strings.Join(parts, ";")
}

// has finds a fault of a kind.
func (f Fault) has(kind string) bool {
	return slices.ContainsFunc(f.list, func(one fault) bool { return one.kind == kind })
}

// hits draws which faults the n-th request gets.
func (f Fault) hits(n uint64) map[string]fault {
	if len(f.list) == 0 {
		return nil
	}
	hit := make(map[string]fault)
	for i, one := range f.list {
		if rand.New(rand.NewPCG(f.seed+uint64(i)<<32, n)).Float64() < one.share {
			hit[one.kind] = one
		}
	}
	return hit
}
