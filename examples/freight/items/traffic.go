package items

import (
	"math"
	"math/rand/v2"
)

// Arrival is one request of the replayed traffic.
type Arrival struct {
	// At is in seconds after the start.
	At        float64   `json:"at"`
	Messages  []Message `json:"messages"`
	MaxTokens int       `json:"max_tokens"`
}

// DefaultArrivals is three minutes at TrafficRate.
const DefaultArrivals = 3600

// TrafficRate is the mean rate of the traffic, in requests per second.
const TrafficRate = 20.0

// longShare of the requests ask about a document that is at least three times as long as the others.
const longShare = 0.25

// thread is a document with the questions that are still to be asked about it.
type thread struct {
	text      string
	questions []question
}

// Traffic gives n requests with exponential gaps. Some documents are open at any time and their questions come
// interleaved, as from people at several desks.
func Traffic(o Options, n int) []Arrival {
	r := source(o.Seed, "traffic")
	short, long := make([]thread, 6), make([]thread, 3)
	all := make([]Arrival, n)
	at := 0.0
	for i := range all {
		at += r.ExpFloat64() / TrafficRate
		var q question
		var text string
		if r.Float64() < longShare {
			text, q = next(r, long, func() thread { return longThread(r) })
		} else {
			text, q = next(r, short, func() thread { return shortThread(r, o.noise()) })
		}
		all[i] = Arrival{math.Round(at*1000) / 1000, []Message{{"user", text + "\n\n" + q.text}}, q.maxTokens}
	}
	return all
}

// next takes a question from one of the open threads, which are opened when they have none left.
func next(r *rand.Rand, open []thread, fresh func() thread) (string, question) {
	t := &open[r.IntN(len(open))]
	if len(t.questions) == 0 {
		*t = fresh()
	}
	q := t.questions[0]
	t.questions = t.questions[1:]
	return t.text, q
}

func shortThread(r *rand.Rand, noise float64) thread {
	d := newDocument(r, NewTemplate(HeldOut, r.IntN(HeldOut.Size())), 4+r.IntN(3), noise)
	t := thread{text: d.text}
	for range questionsADoc {
		t.questions = append(t.questions, d.askAny(r))
	}
	return t
}

func longThread(r *rand.Rand) thread {
	h := newHaystack(r, trafficLongTokens+r.IntN(trafficLongTokens/2), trainingQuestions)
	t := thread{text: h.text}
	for i := range h.codes {
		t.questions = append(t.questions, h.ask(r, i))
	}
	return t
}
