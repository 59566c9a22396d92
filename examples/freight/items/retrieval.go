package items

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// Entry is one line of the retrieval items: a passage to find, or a query with the
// passages that answer it.
type Entry struct {
	Kind     string   `json:"kind"` // "passage" or "query"
	ID       string   `json:"id"`
	Text     string   `json:"text"`
	Relevant []string `json:"relevant,omitempty"` // of a query
}

// Pair is a query and a passage that answers it, to train an encoder with.
type Pair struct {
	Query   string `json:"query"`
	Passage string `json:"passage"`
}

// The sizes of the shipped retrieval items: 250 queries put a recall of 90 % within 4
// points at 95 %.
const (
	retrievalPassages = 500
	retrievalQueries  = 250
)

// asked are the facts that a query can be about, and how it says them.
var asked = map[key][]string{
	"shipper":        {"shipped by %s", "of the exporter %s", "sent by %s"},
	"consignee":      {"for %s", "consigned to %s", "that %s receives"},
	"notify":         {"notifying %s", "with %s to be notified"},
	"declarant":      {"declared by %s", "that %s declared"},
	"vessel":         {"on the vessel %s", "aboard %s", "carried by the ship %s"},
	"loading_port":   {"loaded at %s", "from the port of %s", "leaving %s"},
	"discharge_port": {"to %s", "discharged at %s", "bound for %s"},
	"bill":           {"under bill %s", "with the bill number %s"},
	"entry":          {"with the customs entry %s", "under entry %s"},
	"container":      {"in container %s"},
	"seal":           {"under seal %s", "sealed with %s"},
	"hs_code":        {"under HS code %s", "of tariff %s"},
	"goods":          {"of %s", "with a cargo of %s"},
	"origin":         {"made in %s", "originating in %s"},
	"incoterm":       {"on %s terms", "sold %s"},
}

var queryForms = []string{"Find the shipment %s.", "Which document is about a shipment %s?", "shipment %s", "I need the papers of the shipment %s."}

// query asks for the document by n of its facts, of which one at least tells it from
// most others. It is "" when there are none.
func (d document) query(r *rand.Rand, n int) (string, []fact) {
	var of []fact
	for _, i := range r.Perm(len(d.facts)) {
		if f := d.facts[i]; asked[f.field.key] != nil {
			of = append(of, f)
		}
	}
	of = of[:min(n, len(of))]
	if len(of) == 0 {
		return "", nil
	}
	var parts []string
	for _, f := range of {
		value := f.answer
		if r.IntN(3) == 0 {
			value = strings.ToLower(value)
		}
		parts = append(parts, fmt.Sprintf(oneOf(r, asked[f.field.key]), value))
	}
	return fmt.Sprintf(oneOf(r, queryForms), strings.Join(parts, " ")), of
}

// states reports whether the document has all the facts.
func (d document) states(facts []fact) bool {
	for _, f := range facts {
		if !slices.ContainsFunc(d.facts, func(g fact) bool { return g.field == f.field && g.answer == f.answer }) {
			return false
		}
	}
	return true
}

// Retrieval gives held-out passages and queries for them.
func Retrieval(o Options) []Entry {
	r := source(o.Seed, "retrieval")
	docs := make([]document, retrievalPassages)
	all := make([]Entry, len(docs))
	for i := range docs {
		docs[i] = evalDocument(r, o, i)
		all[i] = Entry{Kind: "passage", ID: fmt.Sprintf("passage-%03d", i), Text: docs[i].text}
	}
	for i := 0; i < retrievalQueries; {
		text, facts := oneOf(r, docs).query(r, 2+r.IntN(2))
		if len(facts) < 2 {
			continue
		}
		q := Entry{Kind: "query", ID: fmt.Sprintf("query-%03d", i), Text: text}
		for j, d := range docs {
			if d.states(facts) {
				q.Relevant = append(q.Relevant, all[j].ID)
			}
		}
		all = append(all, q)
		i++
	}
	return all
}

// Pairs makes the endless training text of an encoder.
type Pairs struct{ r *rand.Rand }

// NewPairs starts it.
func NewPairs(seed uint64) *Pairs { return &Pairs{source(seed, "pairs")} }

// Next gives the next pair.
func (p *Pairs) Next() Pair {
	for {
		noise := oneOf(p.r, []float64{0, 0.01, 0.03})
		d := newDocument(p.r, NewTemplate(Training, p.r.IntN(Training.Size())), 5+p.r.IntN(7), noise)
		if text, _ := d.query(p.r, 1+p.r.IntN(3)); text != "" {
			return Pair{text, d.text}
		}
	}
}

// Search is a text that an encoder gets to embed at a time, in seconds: a query from
// somebody who looks for a document, or a document that comes in.
type Search struct {
	At    float64 `json:"at"`
	Input string  `json:"input"`
}

// Searches gives the texts of the retrieval items as traffic with exponential gaps,
// at the rate of the other traffic.
func Searches(o Options) []Search {
	r := source(o.Seed, "searches")
	all := Retrieval(o)
	out := make([]Search, len(all))
	at := 0.0
	for i, k := range r.Perm(len(all)) {
		at += r.ExpFloat64() / TrafficRate
		out[i] = Search{math.Round(at*1000) / 1000, all[k].Text}
	}
	return out
}
