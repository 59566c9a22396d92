package nomad

import (
	"errors"
	"strings"
	"testing"

	"llmops/fleet"
	"llmops/fleet/fleettest"
)

// empty deletes what an earlier test has left.
func empty(t *testing.T, s *Store) {
	t.Helper()
	docs, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		if err := s.Delete(t.Context(), d.Name, d.Rev); err != nil && !errors.Is(err, fleet.ErrNotFound) {
			t.Fatal(err)
		}
	}
}

func TestStore(t *testing.T) {
	c := agent(t)
	empty(t, NewStore(c, ""))
	fleettest.Store(t, func(t *testing.T) fleet.Store { return NewStore(c, "") })
}

func TestNamesBelowRoot(t *testing.T) {
	for _, n := range []int{128 - len(Root), 129 - len(Root), 128} {
		_, err := path(strings.Repeat("n", n))
		if (err == nil) != (n+len(Root) <= 128) {
			t.Errorf("a name of %d bytes: %v", n, err)
		}
	}
}
