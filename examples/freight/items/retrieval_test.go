package items

import (
	"slices"
	"strings"
	"testing"
)

func TestRetrieval(t *testing.T) {
	all := Retrieval(Options{})
	texts := make(map[string]string)
	queries, relevant := 0, 0
	for _, e := range all {
		switch e.Kind {
		case "passage":
			if texts[e.ID] != "" || e.Text == "" || e.Relevant != nil {
				t.Errorf("passage %+v is empty or comes twice", e)
			}
			texts[e.ID] = e.Text
		case "query":
			queries++
			relevant += len(e.Relevant)
			if len(e.Relevant) == 0 || slices.ContainsFunc(e.Relevant, func(id string) bool { return texts[id] == "" }) {
				t.Errorf("query %+v has no passage", e)
			}
			// The values asked for stand in the passage as it prints them.
			for _, id := range e.Relevant {
				passage := strings.ToLower(texts[id])
				found := 0
				for word := range strings.FieldsSeq(strings.ToLower(strings.Trim(e.Text, ".?"))) {
					if strings.Contains(passage, word) {
						found++
					}
				}
				if found < 2 {
					t.Errorf("query %q shares %d words with %s", e.Text, found, id)
				}
			}
		}
	}
	if len(texts) != retrievalPassages || queries != retrievalQueries || relevant > queries*11/10 {
		t.Errorf("%d passages, %d queries, %d relevant", len(texts), queries, relevant)
	}
	if again := Retrieval(Options{}); !slices.EqualFunc(all, again, func(a, b Entry) bool { return a.Text == b.Text && slices.Equal(a.Relevant, b.Relevant) }) {
		t.Error("another call gives other items")
	}
}

func TestPairs(t *testing.T) {
	a, b := NewPairs(1), NewPairs(1)
	for range 200 {
		p := a.Next()
		if p != b.Next() {
			t.Fatal("the same seed gives other pairs")
		}
		if p.Query == "" || !strings.Contains(p.Passage, "\n") || strings.Contains(p.Query, "%!") {
			t.Errorf("%+v", p)
		}
	}
}
