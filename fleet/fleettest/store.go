// Package fleettest holds the suites that every implementation of the fleet's
// interfaces passes. They state the contract: a property that is not tested
// here may not be relied on.
package fleettest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/fleet"
)

// patience bounds waits for what must happen; no test depends on its length.
const patience = 30 * time.Second

// Store runs the suite of fleet.Store. open returns a view of one store that
// is empty at first; a second call returns another view of the same store, as
// a second process would have.
func Store(t *testing.T, open func(t *testing.T) fleet.Store) {
	put := func(t *testing.T, s fleet.Store, name, body string, ifRev uint64) uint64 {
		t.Helper()
		rev, err := s.Put(t.Context(), name, []byte(body), ifRev)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}

	t.Run("compare and set", func(t *testing.T) {
		s := open(t)
		if _, err := s.Get(t.Context(), "cas/a"); !errors.Is(err, fleet.ErrNotFound) {
			t.Fatalf("Get of nothing: %v", err)
		}
		if _, err := s.Put(t.Context(), "cas/a", []byte("x"), 7); !errors.Is(err, fleet.ErrConflict) {
			t.Fatalf("Put at a revision that never was: %v", err)
		}
		r1 := put(t, s, "cas/a", "one", 0)
		if _, err := s.Put(t.Context(), "cas/a", []byte("x"), 0); !errors.Is(err, fleet.ErrConflict) {
			t.Fatalf("second creation: %v", err)
		}
		r2 := put(t, s, "cas/a", "two", r1)
		if r2 <= r1 {
			t.Fatalf("revision went from %d to %d", r1, r2)
		}
		if _, err := s.Put(t.Context(), "cas/a", []byte("x"), r1); !errors.Is(err, fleet.ErrConflict) {
			t.Fatalf("Put at an old revision: %v", err)
		}
		d, err := s.Get(t.Context(), "cas/a")
		if err != nil || string(d.Body) != "two" || d.Rev != r2 || d.Name != "cas/a" {
			t.Fatalf("Get = %+v, %v", d, err)
		}
		if err := s.Delete(t.Context(), "cas/a", r1); !errors.Is(err, fleet.ErrConflict) {
			t.Fatalf("Delete at an old revision: %v", err)
		}
		if err := s.Delete(t.Context(), "cas/a", r2); err != nil {
			t.Fatal(err)
		}
		if r3 := put(t, s, "cas/a", "three", 0); r3 <= r2 {
			t.Fatalf("revision %d was used again after deletion (%d)", r3, r2)
		}
	})

	t.Run("names and sizes", func(t *testing.T) {
		s := open(t)
		for _, name := range []string{"", "a.b", "a b", strings.Repeat("n", 129)} {
			if _, err := s.Put(t.Context(), name, nil, 0); err == nil {
				t.Errorf("name %q was taken", name)
			}
		}
		if _, err := s.Put(t.Context(), "big", make([]byte, fleet.MaxBody+1), 0); err == nil {
			t.Error("a body over the limit was taken")
		}
		if _, err := s.Put(t.Context(), "bytes", []byte{0xff}, 0); err == nil {
			t.Error("a body that is not UTF-8 was taken")
		}
		body := strings.Repeat("é", fleet.MaxBody/2)
		put(t, s, "full", body, 0)
		if d, err := s.Get(t.Context(), "full"); err != nil || string(d.Body) != body {
			t.Errorf("a full body came back with %d bytes, %v", len(d.Body), err)
		}
		put(t, s, "empty", "", 0)
		if d, err := s.Get(t.Context(), "empty"); err != nil || d.Body == nil {
			t.Errorf("an empty body came back as %v, %v: nil means deleted", d.Body, err)
		}
	})

	t.Run("list", func(t *testing.T) {
		s := open(t)
		for _, n := range []string{"list/b", "list", "list/a", "list/a/x", "listen", "lis"} {
			put(t, s, n, "body of "+n, 0)
		}
		docs, err := s.List(t.Context(), "list/")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range docs {
			names = append(names, d.Name)
			if d.Body != nil || d.Rev == 0 {
				t.Errorf("listed %+v", d)
			}
		}
		if want := []string{"list/a", "list/a/x", "list/b"}; !slices.Equal(names, want) {
			t.Errorf("List = %v, want %v", names, want)
		}
	})

	t.Run("watch sees the state, then the latest of each change", func(t *testing.T) {
		s, other := open(t), open(t)
		r := put(t, s, "watch/a", "1", 0)
		put(t, s, "watched-not", "1", 0)
		got := make(chan fleet.Doc, 64)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- s.Watch(ctx, "watch/", func(d fleet.Doc) error { got <- d; return nil })
		}()
		expect := func(name, body string, deleted bool) {
			t.Helper()
			for {
				select {
				case d := <-got:
					if d.Name == name && string(d.Body) == body && (d.Body == nil) == deleted {
						return
					}
					if !strings.HasPrefix(d.Name, "watch/") {
						t.Fatalf("watch told of %s", d.Name)
					}
				case <-time.After(patience):
					t.Fatalf("watch never told of %s = %q", name, body)
				}
			}
		}
		expect("watch/a", "1", false)
		r = put(t, other, "watch/a", "2", r)
		expect("watch/a", "2", false)
		put(t, other, "watch/b", "1", 0)
		expect("watch/b", "1", false)
		if err := other.Delete(t.Context(), "watch/a", r); err != nil {
			t.Fatal(err)
		}
		expect("watch/a", "", true)
		put(t, other, "watch/a", "again", 0)
		expect("watch/a", "again", false)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch ended with %v", err)
		}
		stop := errors.New("enough")
		if err := s.Watch(t.Context(), "watch/", func(fleet.Doc) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("Watch ended with %v, want fn's error", err)
		}
	})

	t.Run("of many writers one wins each revision", func(t *testing.T) {
		views := []fleet.Store{open(t), open(t), open(t)}
		const each = 8
		var wg sync.WaitGroup
		var mu sync.Mutex // guards revs
		revs := map[uint64]bool{}
		for i, s := range views {
			wg.Go(func() {
				for n := 0; n < each; {
					d, err := s.Get(t.Context(), "race")
					if err != nil && !errors.Is(err, fleet.ErrNotFound) {
						t.Error(err)
						return
					}
					rev, err := s.Put(t.Context(), "race", fmt.Appendf(d.Body, "%d", i), d.Rev)
					if errors.Is(err, fleet.ErrConflict) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if revs[rev] {
						t.Errorf("revision %d was given twice", rev)
					}
					revs[rev] = true
					mu.Unlock()
					n++
				}
			})
		}
		wg.Wait()
		d, err := views[0].Get(t.Context(), "race")
		if err != nil || len(d.Body) != each*len(views) {
			t.Errorf("after %d writes the body is %q, %v: a write was lost", each*len(views), d.Body, err)
		}
	})
}
