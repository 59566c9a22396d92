package size

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Bar is how far a number moves with one assumption.
type Bar struct {
	Key  string  `json:"key"`
	Low  float64 `json:"low"` // of the assumption
	High float64 `json:"high"`
	Row  string  `json:"row"`
	// AtLow and AtHigh are the number's there; nil where the model is impossible.
	AtLow  *float64 `json:"at_low"`
	AtHigh *float64 `json:"at_high"`
	// Guessed says that nobody gave a range, and a fifth to either side was taken.
	Guessed bool `json:"guessed"`
}

// Swing is the distance between both ends; +Inf where one is impossible.
func (b Bar) Swing() float64 {
	if b.AtLow == nil || b.AtHigh == nil {
		return math.Inf(1)
	}
	return math.Abs(*b.AtHigh - *b.AtLow)
}

// guess is the range of an assumption that gives none, to either side.
const guess = 0.2

// Tornado moves each assumption that a number rests on through its range, the others
// as they are, the widest first. Counts of things are moved only where a range is
// given, since a fifth of a layer is none. An assumption whose end makes the model
// impossible has none there, and comes first.
func Tornado(s *Sheet, key string) ([]Bar, error) {
	if !s.has(key) {
		return nil, fmt.Errorf("there is no number %q", key)
	}
	var out []Bar
	for _, name := range s.RestsOn(key) {
		k, _ := FindKey(name)
		v, from, _ := s.In.Value(name)
		if k.Unit == Text || v.Number == 0 && from.Low == nil {
			continue
		}
		b := Bar{Key: name, Row: from.Row, Low: v.Number * (1 - guess), High: v.Number * (1 + guess), Guessed: true}
		switch {
		case from.Low != nil:
			b.Low, b.High, b.Guessed = from.Low.Number, from.High.Number, false
		case k.Whole || k.Unit == Count:
			continue
		case k.Unit == Tokens:
			b.Low, b.High = math.Round(b.Low), math.Round(b.High)
		}
		if k.Max > 0 {
			b.High = min(b.High, k.Max)
		}
		b.AtLow, b.AtHigh = s.moved(name, b.Low, key), s.moved(name, b.High, key)
		out = append(out, b)
	}
	slices.SortStableFunc(out, func(a, b Bar) int { return cmp.Compare(b.Swing(), a.Swing()) })
	return out, nil
}

// moved is a number when one assumption is x.
func (s *Sheet) moved(name string, x float64, key string) *float64 {
	in, err := s.In.With(Setting{Key: name, Value: Value{Number: x}})
	if err != nil {
		return nil
	}
	t, err := Compute(in)
	if err != nil {
		return nil
	}
	if !t.has(key) {
		t.Compare()
	}
	if n, ok := t.Find(key); ok {
		return &n.Value
	}
	return nil
}
