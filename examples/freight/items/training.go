package items

import (
	"fmt"
	"math/rand/v2"
)

// The chat markup of the model's template in tokenizer_config.json.
const (
	openUser  = "<|im_start|>user\n"
	closeUser = "<|im_end|>\n<|im_start|>assistant\n"
	closeTurn = "<|im_end|>"
)

// Segment is a piece of training text and the weight of its tokens in the loss.
type Segment struct {
	Text   string  `json:"t"`
	Weight float64 `json:"w"`
}

// Sample is a document with several continuations. Each branch follows the prefix as if it were alone, which is what
// a server sees; branches do not see each other.
type Sample struct {
	Prefix   []Segment   `json:"prefix"`
	Branches [][]Segment `json:"branches"`
}

const (
	answerWeight   = 1
	documentWeight = 0.05
	fillerWeight   = 0.02
)

// The first and the last stage of training that are made of text. Stage 1 repeats random tokens and needs none.
const (
	FirstStage = 2
	LastStage  = 5
)

// Trainer makes the endless training text of one stage.
type Trainer struct {
	stage int
	r     *rand.Rand
}

// NewTrainer starts a stage's text.
func NewTrainer(stage int, seed uint64) (*Trainer, error) {
	if stage < FirstStage || stage > LastStage {
		return nil, fmt.Errorf("making training text: stage %d is not in %d to %d", stage, FirstStage, LastStage)
	}
	return &Trainer{stage, source(seed, fmt.Sprintf("stage %d", stage))}, nil
}

// Next gives the next sample. tokens is the room in tokens: long contexts are made to fill it.
func (t *Trainer) Next(tokens int) Sample {
	switch t.stage {
	case 2:
		return t.document(2+t.r.IntN(2), 0, 0.15)
	case 3:
		if t.r.Float64() < 0.28 {
			return t.planted(tokens*(40+t.r.IntN(40))/100, 2+t.r.IntN(3))
		}
		return t.document(4+t.r.IntN(5), 0, 0.1)
	case 4:
		if t.r.Float64() < 0.15 {
			return t.planted(tokens*(40+t.r.IntN(40))/100, 2+t.r.IntN(4))
		}
		return t.document(4+t.r.IntN(16), oneOf(t.r, []float64{0, 0.03, 0.08}), 0.05)
	}
	if tokens < 400 {
		return t.document(4+t.r.IntN(16), oneOf(t.r, []float64{0, 0.03, 0.08}), 0.02)
	}
	return t.planted(tokens*(70+t.r.IntN(16))/100, trainingQuestions)
}

// document asks everything about a document, in random order; a share of the questions continue a line.
func (t *Trainer) document(n int, noise, continuing float64) Sample {
	d := newDocument(t.r, NewTemplate(Training, t.r.IntN(Training.Size())), n, noise)
	s := Sample{Prefix: []Segment{{openUser + d.text + "\n\n", documentWeight}}}
	for _, i := range t.r.Perm(len(d.facts)) {
		if t.r.Float64() < continuing {
			s.add(d.askContinue(d.facts[i]))
		} else {
			s.add(d.ask(t.r, d.facts[i]))
		}
		// One question in three is for JSON, as in the suites.
		if i%2 == 0 {
			s.add(d.askJSON(t.r))
		}
	}
	return s
}

func (t *Trainer) planted(tokens, n int) Sample {
	h := plant(t.r, tokens, n, codeForms)
	s := Sample{Prefix: []Segment{{openUser + h.text + "\n\n", fillerWeight}}}
	for _, i := range t.r.Perm(n) {
		s.add(h.ask(t.r, i))
	}
	return s
}

func (s *Sample) add(q question) {
	s.Branches = append(s.Branches, []Segment{{q.text + closeUser, fillerWeight}, {q.answer + closeTurn, answerWeight}})
}
