package quantise

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// used refuses patterns that match no module, which would otherwise be quantised
// by a slip of the pen.
func used(keep []pattern, steps []Step, dir string) error {
	for _, p := range keep {
		one := []pattern{p}
		// A tied head has no tensor of its own, but engines build a module for it.
		found := matches(one, head)
		for _, s := range steps {
			found = found || (s.module() != s.Name || len(s.Shape) > 1) && matches(one, s.module())
		}
		if !found {
			return fmt.Errorf("keep %q matches no module of %s; a dry run without it lists them, each with a .weight that does not belong to the name", p.text, dir)
		}
	}
	return nil
}

type pattern struct {
	text  string
	exact string
	re    *regexp.Regexp
}

func compile(keep []string) ([]pattern, error) {
	var out []pattern
	for _, k := range keep {
		expr, isRE := strings.CutPrefix(k, "re:")
		if !isRE {
			out = append(out, pattern{text: k, exact: k})
			continue
		}
		re, err := regexp.Compile(`^(?:` + expr + `)`)
		if err != nil {
			return nil, fmt.Errorf("keep %q: %w", k, err)
		}
		out = append(out, pattern{text: k, re: re})
	}
	return out, nil
}

func matches(keep []pattern, module string) bool {
	return slices.ContainsFunc(keep, func(p pattern) bool {
		return p.re == nil && p.exact == module || p.re != nil && p.re.MatchString(module)
	})
}

// ignored lists the modules that the engine must leave alone, each in all its
// spellings.
func ignored(steps []Step) []string {
	var out []string
	add := func(names ...string) {
		for _, n := range names {
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	for _, s := range steps {
		if t := tower(s.module()); t != "" && !s.dropped {
			add(t)
		}
	}
	seen := map[string]bool{}
	for _, s := range steps {
		if !s.Ignore || s.module() == head {
			continue
		}
		for _, n := range spellings(s.module()) {
			if !seen[n] {
				seen[n] = true
				out = append(out, n)
			}
		}
		// Fused experts stay as one tensor, and engines look for the module that
		// computes them.
		if s.module() == s.Name {
			add(cmp.Or(product(s.module()), s.module()))
		}
	}
	// A tied head has no tensor of its own, but engines build a module for it.
	add(head)
	return out
}
