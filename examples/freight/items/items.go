// Package items makes the text that the freight model is trained on and the items that it is judged by.
//
// One generator serves both, so that the two cannot drift apart: a [Template] (field order, label synonyms,
// separators, number and date formats) renders the facts of a random shipment as a bill of lading or a customs
// declaration, and the same facts give the questions and their answers. Templates are drawn from two disjoint
// sets, [Training] and [HeldOut]; every evaluation item, canary and traffic prompt is held out.
//
// Everything is a pure function of its seed. Functions share no state and are safe for concurrent use. The package
// knows nothing of tokens: it writes text, the chat markup included, and the trainer tokenises it as a server would.
package items

import (
	"fmt"
	"math/rand/v2"
)

// Message is one chat message.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Kind says how an answer is compared.
type Kind string

// The kinds of answer. A field is compared as text, a number by value, JSON as a document.
const (
	Field  Kind = "field"
	Number Kind = "number"
	JSON   Kind = "json"
)

// Item is one question with its only right answer. Items that share Doc share the document, and with it all of the
// prompt up to the question: they are one cluster for statistics and one prefix for a cache.
type Item struct {
	ID        string    `json:"id"`
	Task      string    `json:"task"`
	Doc       string    `json:"doc"`
	Messages  []Message `json:"messages"`
	Answer    string    `json:"answer"`
	Kind      Kind      `json:"kind"`
	MaxTokens int       `json:"max_tokens"`
}

// The tasks.
const (
	TaskFreight     = "freight"
	TaskJSON        = "json"
	TaskLongContext = "long-context"
)

// Options tunes the evaluation items. The zero value gives the shipped ones.
type Options struct {
	Seed uint64
	// Noise is the share of label letters that are damaged, as by a scanner; nil means DefaultNoise.
	Noise *float64
	// Haystack is the approximate length of a long-context document in tokens; 0 means DefaultHaystack.
	Haystack int
}

// DefaultNoise is the share of damaged label letters in evaluation items.
const DefaultNoise = 0.01

// DefaultHaystack is the length of a long-context document in tokens.
const DefaultHaystack = 1500

// The sizes of the shipped suites: 400 items a task decide a margin of 3 points at 95 % joint power when 2.5 % of the
// answers flip, 20 haystacks of twelve questions one of 5 points although the questions of one are alike.
const (
	suiteItems        = 400
	questionsADoc     = 4
	haystacks         = 20
	questionsAStack   = 12
	trainingQuestions = 8
	fieldTokens       = 32
	jsonTokens        = 72
	codeTokens        = 12
	charsAToken       = 3.05
	jsonKeysAtMost    = 3
	fewestEvalFields  = 6
	mostEvalFields    = 11
	trafficLongTokens = 300
)

func (o Options) noise() float64 {
	if o.Noise == nil {
		return DefaultNoise
	}
	return *o.Noise
}

func (o Options) haystack() int {
	if o.Haystack == 0 {
		return DefaultHaystack
	}
	return o.Haystack
}

// source is the random stream of one purpose: purposes that share a seed must not share numbers.
func source(seed uint64, purpose string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(purpose) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, h))
}

// Suite gives the items of one task.
func Suite(task string, o Options) ([]Item, error) {
	switch task {
	case TaskFreight:
		return freightSuite(o), nil
	case TaskJSON:
		return jsonSuite(o), nil
	case TaskLongContext:
		return haystackSuite(o), nil
	}
	return nil, fmt.Errorf("making items: unknown task %q, want %s, %s or %s", task, TaskFreight, TaskJSON, TaskLongContext)
}

func freightSuite(o Options) []Item {
	r := source(o.Seed, TaskFreight)
	var all []Item
	for d := 0; len(all) < suiteItems; d++ {
		doc := evalDocument(r, o, d)
		qs := append(doc.pick(r, Field, 2), doc.pick(r, Number, 2)...)
		for _, f := range qs {
			all = append(all, doc.item(TaskFreight, len(all), d, doc.ask(r, f)))
		}
	}
	return all[:suiteItems]
}

func jsonSuite(o Options) []Item {
	r := source(o.Seed, TaskJSON)
	var all []Item
	for d := 0; len(all) < suiteItems; d++ {
		doc := evalDocument(r, o, d)
		for range questionsADoc {
			all = append(all, doc.item(TaskJSON, len(all), d, doc.askJSON(r)))
		}
	}
	return all[:suiteItems]
}

func haystackSuite(o Options) []Item {
	r := source(o.Seed, TaskLongContext)
	var all []Item
	for d := range haystacks {
		h := newHaystack(r, o.haystack(), questionsAStack)
		for i := range h.codes {
			all = append(all, newItem(TaskLongContext, len(all), d, h.text, h.ask(r, i)))
		}
	}
	return all
}

// evalDocument draws a held-out document.
func evalDocument(r *rand.Rand, o Options, _ int) document {
	n := fewestEvalFields + r.IntN(mostEvalFields-fewestEvalFields+1)
	return newDocument(r, NewTemplate(HeldOut, r.IntN(HeldOut.Size())), n, o.noise())
}

// question is one question and its answer.
type question struct {
	text, answer string
	kind         Kind
	maxTokens    int
}

func (d document) item(task string, n, cluster int, q question) Item {
	return newItem(task, n, cluster, d.text, q)
}

func newItem(task string, n, cluster int, text string, q question) Item {
	return Item{
		ID:        fmt.Sprintf("%s-%04d", task, n),
		Task:      task,
		Doc:       fmt.Sprintf("%s-d%03d", task, cluster),
		Messages:  []Message{{Role: "user", Content: text + "\n\n" + q.text}},
		Answer:    q.answer,
		Kind:      q.kind,
		MaxTokens: q.maxTokens,
	}
}

// Canaries gives sixteen prompts with answers for the numerical comparison of two versions: all kinds, and short
// haystacks among them.
func Canaries(o Options) []Item {
	r := source(o.Seed, "canary")
	var all []Item
	for d := range 4 {
		doc := evalDocument(r, o, d)
		qs := []question{doc.ask(r, doc.pick(r, Field, 1)[0]), doc.ask(r, doc.pick(r, Number, 1)[0]), doc.askJSON(r)}
		for _, q := range qs {
			all = append(all, doc.item("canary", len(all), d, q))
		}
	}
	h := newHaystack(r, trafficLongTokens, 4)
	for i := range h.codes {
		all = append(all, newItem("canary", len(all), 4, h.text, h.ask(r, i)))
	}
	return all
}

// Passage is held-out text whose probability a gate measures: a whole conversation in the model's chat markup.
type Passage struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	// Answer is the byte at which the assistant's words begin.
	Answer int `json:"answer_at"`
}

// Passages gives n conversations for perplexity.
func Passages(o Options, n int) []Passage {
	r := source(o.Seed, "perplexity")
	all := make([]Passage, n)
	for i := range all {
		doc := evalDocument(r, o, i)
		q := doc.askAny(r)
		prompt := openUser + doc.text + "\n\n" + q.text + closeUser
		all[i] = Passage{ID: fmt.Sprintf("perplexity-%03d", i), Text: prompt + q.answer + closeTurn, Answer: len(prompt)}
	}
	return all
}
