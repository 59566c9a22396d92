package size

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"llmops/roofline"
)

// Number is one result.
type Number struct {
	Key     string  `json:"key"`
	Section string  `json:"section"`
	Is      string  `json:"is"`
	Unit    Unit    `json:"unit"`
	Value   float64 `json:"value"`

	// Formula is an expression over keys and other numbers, or, when Prose is set, a
	// sentence that names them.
	Formula string   `json:"formula"`
	Prose   bool     `json:"prose,omitempty"`
	Chosen  []string `json:"chosen_by,omitempty"` // keys that the form of the formula hangs on
}

// Text is the number as a person would write it.
func (n Number) Text() string { return n.Unit.Format(n.Value) }

// Sheet is all numbers of one set of assumptions. It belongs to one goroutine.
type Sheet struct {
	In      Inputs
	Numbers []Number

	index   map[string]int
	decode  *roofline.Roof
	prefill *roofline.Roof

	compared bool
}

// Find finds a number.
func (s *Sheet) Find(key string) (Number, bool) {
	i, ok := s.index[key]
	if !ok {
		return Number{}, false
	}
	return s.Numbers[i], true
}

func (s *Sheet) has(key string) bool { _, ok := s.index[key]; return ok }

// Value is a number's, or an assumption's; NaN of neither.
func (s *Sheet) Value(key string) float64 {
	if n, ok := s.Find(key); ok {
		return n.Value
	}
	if s.In.Has(key) {
		return s.In.Number(key)
	}
	return math.NaN()
}

// eachName calls fn with what stands between names in a formula, and with each name: a
// key or number, which has a dot where functions have none.
func eachName(formula string, fn func(text string, isName bool)) {
	letter := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.' }
	for start := 0; start < len(formula); {
		end := start
		for end < len(formula) && letter(formula[end]) == letter(formula[start]) {
			end++
		}
		word := formula[start:end]
		section, rest, dotted := strings.Cut(word, ".")
		fn(word, dotted && section != "" && rest != "" && word[0] >= 'a')
		start = end
	}
}

// names are those in a formula.
func names(formula string) (out []string) {
	eachName(formula, func(text string, isName bool) {
		if isName {
			out = append(out, text)
		}
	})
	return out
}

// RestsOn are the assumptions behind a number or key, in the order of Keys.
func (s *Sheet) RestsOn(key string) []string {
	seen := map[string]bool{}
	var walk func(string)
	walk = func(key string) {
		if seen[key] {
			return
		}
		seen[key] = true
		if n, ok := s.Find(key); ok {
			for _, u := range append(names(n.Formula), n.Chosen...) {
				walk(u)
			}
		}
	}
	walk(key)
	var out []string
	for _, k := range keys {
		if seen[k.Name] {
			out = append(out, k.Name)
		}
	}
	return out
}

// RowsOf are the register's rows behind a number in their order, then default,
// measured and what-if where it rests on those.
func (s *Sheet) RowsOf(key string) []string {
	behind := map[string]bool{}
	for _, k := range s.RestsOn(key) {
		behind[s.In.from[k].Row] = true
	}
	var out []string
	for _, row := range append(slices.Clone(s.In.rows), FromDefault, FromMeasured, FromWhatIf) {
		if behind[row] {
			out = append(out, row)
		}
	}
	return out
}

// Substituted is a number's formula with the values in the place of the names.
func (s *Sheet) Substituted(n Number) string {
	var b strings.Builder
	eachName(n.Formula, func(text string, isName bool) {
		if m, ok := s.Find(text); ok {
			text = m.Text()
		} else if v, _, ok := s.In.Value(text); ok && isName {
			k, _ := FindKey(text)
			text = k.Format(v)
		}
		b.WriteString(text)
	})
	return b.String()
}

// usual is about how many numbers a sheet has.
const usual = 128

// Compute makes the sheet. An error says which assumption is missing or which cannot
// be together.
func Compute(in Inputs) (*Sheet, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	s := &Sheet{In: in, Numbers: make([]Number, 0, usual), index: make(map[string]int, usual)}
	var err error
	if s.decode, err = roofline.New(in.deployment("decode.arithmetic")); err != nil {
		return nil, err
	}
	if s.prefill, err = roofline.New(in.deployment("prefill.arithmetic")); err != nil {
		return nil, err
	}
	s.weights()
	s.cache()
	if pool := s.Value("kv.pool_bytes"); pool <= 0 {
		return nil, fmt.Errorf("%s of weights and %s kept back leave %s on each of %g GPUs for a cache: use more GPUs a copy, fewer bits, or a smaller reserve",
			Bytes.Format(s.Value("weights.gpu_bytes")), Bytes.Format(s.Value("reserve.gpu_bytes")), "nothing", s.Value("layout.gpus"))
	}
	if holds := s.Value("kv.streams") / s.Value("layout.copies"); holds < in.Number("layout.batch") {
		return nil, fmt.Errorf("layout.batch is %g, and the cache of a copy holds %s streams of %s tokens: a smaller batch, more GPUs a copy, or fewer bits",
			in.Number("layout.batch"), digits(math.Floor(holds)), digits(in.Number("traffic.context")))
	}
	s.decoding()
	s.prefilling()
	s.latency()
	s.fleet()
	s.cost()
	s.batch()
	s.caps()
	return s, nil
}

// add adds a number to the section that its key begins with.
func (s *Sheet) add(key string, u Unit, v float64, is, formula string) {
	section, _, _ := strings.Cut(key, ".")
	s.index[key] = len(s.Numbers)
	s.Numbers = append(s.Numbers, Number{Key: key, Section: section, Is: is, Unit: u, Value: v, Formula: formula})
}

// prose adds a number whose formula is a sentence.
func (s *Sheet) prose(key string, u Unit, v float64, is, sentence string) {
	s.add(key, u, v, is, sentence)
	s.Numbers[len(s.Numbers)-1].Prose = true
}

// chosenBy says which keys the form of the last formula hangs on.
func (s *Sheet) chosenBy(keys ...string) {
	n := &s.Numbers[len(s.Numbers)-1]
	n.Chosen = append(n.Chosen, keys...)
}

// when is a for true.
func when(cond bool, a, b string) string {
	if cond {
		return a
	}
	return b
}
