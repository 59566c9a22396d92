package core

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling says how the next token is chosen. The zero value is greedy without
// penalties.
type Sampling struct {
	Temperature float64 // below MinTemperature: greedy
	TopP        float64 // 0 or 1: all
	TopK        int     // 0: all
	MinP        float64 // of the most likely token's probability; 0: all

	Repetition float64 // 0 or 1: none
	Presence   float64
	Frequency  float64
	Bias       map[int]float64

	Seed uint64
	Min  int // tokens before any id of Sequence.Stop may come
	Top  int // how many alternatives to report; below 0: report no log probabilities
}

// MinTemperature is vLLM's bound of greedy sampling.
const MinTemperature = 1e-5

// floorTemperature is what vLLM raises other temperatures to.
const floorTemperature = 1e-2

// normaliser is what a logit's log probability is less than the logit by, in
// float64 so that a sum over a large vocabulary loses nothing.
func normaliser(logits []float32) float64 {
	top := slices.Max(logits)
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l - top))
	}
	return float64(top) + math.Log(sum)
}

// report describes id given raw logits, with the k most likely.
func Report(logits []float32, id, k int) Token {
	norm := normaliser(logits)
	t := Token{ID: id, Logprob: float32(float64(logits[id]) - norm), Rank: 1}
	for i, l := range logits {
		// Ties go to the lower id, as in choosing.
		if l > logits[id] || l == logits[id] && i < id {
			t.Rank++
		}
	}
	for _, i := range best(logits, k) {
		t.Top = append(t.Top, Ranked{i, float32(float64(logits[i]) - norm)})
	}
	return t
}

// best gives the indices of the k largest, largest first, the lower index among equals.
func best(logits []float32, k int) []int {
	if k <= 0 {
		return nil
	}
	k = min(k, len(logits))
	top := make([]int, 0, k+1)
	for i, l := range logits {
		if len(top) == k && l <= logits[top[k-1]] {
			continue
		}
		at, _ := slices.BinarySearchFunc(top, l, func(j int, l float32) int {
			if logits[j] >= l {
				return -1
			}
			return 1
		})
		top = slices.Insert(top, at, i)
		if len(top) > k {
			top = top[:k]
		}
	}
	return top
}

// choose picks the next token of s. It may change logits.
func Choose(s *Sequence, logits []float32) int {
	p := s.Sampling
	penalise(s, logits)
	if s.Guide != nil {
		logits = slices.Clone(logits)
		s.Guide.Mask(logits)
	}
	if p.Temperature < MinTemperature {
		return argmax(logits)
	}
	return p.draw(logits, len(s.output))
}

func penalise(s *Sequence, logits []float32) {
	p := s.Sampling
	for id, b := range p.Bias {
		logits[id] += float32(b)
	}
	if p.Repetition != 0 && p.Repetition != 1 {
		seen := make(map[int]bool, len(s.Prompt)+len(s.output))
		for i := range s.Len() {
			seen[s.At(i)] = true
		}
		for id := range seen {
			if logits[id] > 0 {
				logits[id] /= float32(p.Repetition)
			} else {
				logits[id] *= float32(p.Repetition)
			}
		}
	}
	if p.Presence != 0 || p.Frequency != 0 {
		count := make(map[int]int, len(s.output))
		for _, id := range s.output {
			count[id]++
		}
		for id, n := range count {
			logits[id] -= float32(p.Presence + p.Frequency*float64(n))
		}
	}
	if len(s.output) < p.Min {
		for _, id := range s.Stop {
			logits[id] = float32(math.Inf(-1))
		}
	}
}

func argmax(logits []float32) int {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return best
}

// draw samples. The random number depends on seed and step alone, never on what
// else is in the batch.
func (p Sampling) draw(logits []float32, step int) int {
	type candidate struct {
		id int
		p  float64
	}
	temperature := max(p.Temperature, floorTemperature)
	top := slices.Max(logits)
	list := make([]candidate, 0, len(logits))
	for i, l := range logits {
		if w := math.Exp(float64(l-top) / temperature); w > 0 && w >= p.MinP {
			list = append(list, candidate{i, w})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.id, b.id)) })
	if p.TopK > 0 {
		list = list[:min(p.TopK, len(list))]
	}
	var sum float64
	for _, c := range list {
		sum += c.p
	}
	if p.TopP > 0 && p.TopP < 1 {
		var mass float64
		for i, c := range list {
			mass += c.p
			if mass >= p.TopP*sum {
				list, sum = list[:i+1], mass
				break
			}
		}
	}
	at := rand.New(rand.NewPCG(p.Seed, uint64(step))).Float64() * sum
	for _, c := range list {
		if at -= c.p; at < 0 {
			return c.id
		}
	}
	return list[len(list)-1].id
}

// changes reports whether choose may change the logits it is given.
func (p Sampling) Changes() bool {
	return len(p.Bias) > 0 || p.Repetition != 0 && p.Repetition != 1 || p.Presence != 0 || p.Frequency != 0 || p.Min > 0
}
