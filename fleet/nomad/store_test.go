package nomad

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

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

func TestStore(t *testing.T) { both(t, testStore) }

func testStore(t *testing.T, c *api.Client) {
	empty(t, NewStore(c, ""))
	fleettest.Store(t, func(t *testing.T) fleet.Store { return NewStore(c, "") })
}

// What the cluster knows can be read as documents, and not written.
func TestMembers(t *testing.T) { both(t, testMembers) }

func testMembers(t *testing.T, c *api.Client) {
	s := scheduler(t, c)
	m := NewMembers(NewStore(c, ""), s)
	empty(t, m.Store)
	fleettest.Store(t, func(t *testing.T) fleet.Store { return m })
	j := fleet.Job{Name: "member", Version: "v1", Kind: fleet.Engine, Groups: []fleet.Group{group("")("main")}, Meta: map[string]string{"alias": "a"}}
	j.Groups[0].Count = 1
	if _, err := s.Apply(t.Context(), j, 0); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	see := func(prefix string, ok func(d fleet.Doc) bool) fleet.Doc {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var got fleet.Doc
		if err := m.Watch(ctx, prefix, func(d fleet.Doc) error {
			if ok(d) {
				got = d
				return enough
			}
			return nil
		}); !errors.Is(err, enough) {
			t.Fatalf("watching %q: %v", prefix, err)
		}
		return got
	}
	see("job/", func(d fleet.Doc) bool {
		return d.Name == "job/member" && strings.Contains(string(d.Body), `"alias":"a"`)
	})
	rep := see("replica/", func(d fleet.Doc) bool {
		return strings.HasPrefix(d.Name, "replica/member/") && strings.Contains(string(d.Body), "healthy")
	})
	see("", func(d fleet.Doc) bool { return d.Name == rep.Name })
	if d, err := m.Get(t.Context(), rep.Name); err != nil || !strings.Contains(string(d.Body), "main") {
		t.Errorf("Get = %+v, %v", d, err)
	}
	for _, prefix := range []string{"", "job/", "replica/member/"} {
		docs, err := m.List(t.Context(), prefix)
		if err != nil || !slices.ContainsFunc(docs, func(d fleet.Doc) bool { return d.Name == rep.Name || d.Name == "job/member" }) {
			t.Errorf("List(%q) = %+v, %v", prefix, docs, err)
		}
	}
	if _, err := m.Put(t.Context(), "job/member", nil, 0); err == nil {
		t.Error("a job was written as a document")
	}
	if err := m.Delete(t.Context(), rep.Name, rep.Rev); err == nil {
		t.Error("a replica was deleted as a document")
	}
	if err := s.Stop(t.Context(), "member"); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := m.Get(t.Context(), rep.Name)
		if errors.Is(err, fleet.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if jobs, err := s.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("jobs %+v, %v", jobs, err)
	}
}

func TestNamesBelowRoot(t *testing.T) {
	for _, n := range []int{128 - len(Root), 129 - len(Root), 128} {
		_, err := path(strings.Repeat("n", n))
		if (err == nil) != (n+len(Root) <= 128) {
			t.Errorf("a name of %d bytes: %v", n, err)
		}
	}
}
