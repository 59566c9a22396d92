package nomad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// Root is the path under which all documents are variables.
const Root = "llmops/"

// body is the variable's item that holds a document.
const body = "body"

// patience is how long a blocking query waits for a change, and pause how long one
// that failed waits before the next.
const patience, pause = 5 * time.Minute, time.Second

// Store keeps documents as variables of one namespace.
type Store struct {
	*cluster

	mu       sync.Mutex // guards readable
	readable bool       // that check could read
}

// NewStore uses the variables below Root in a namespace; empty is Nomad's default.
func NewStore(c *api.Client, namespace string) *Store {
	return &Store{cluster: newCluster(c, namespace)}
}

// check also asks whether variables may be read at all: a list is without a word empty
// for a token that may see none of them.
func (s *Store) check(ctx context.Context) error {
	if err := s.cluster.check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readable {
		return nil
	}
	_, _, err := s.client.Variables().Read(Root+"~", s.read(ctx))
	if err != nil && !errors.Is(err, api.ErrVariablePathNotFound) {
		return fmt.Errorf("reading documents: %w", s.explain(err, s.variables("read")))
	}
	s.readable = true
	return nil
}

// path is the variable of a document, whose name is the longer by Root.
func path(name string) (string, error) {
	if err := fleet.CheckName(name); err != nil {
		return "", err
	}
	p := Root + name
	if err := fleet.CheckName(p); err != nil {
		return "", fmt.Errorf("%w: in Nomad it is a variable below %s", err, Root)
	}
	return p, nil
}

// variables says what a token must be allowed to do.
func (s *Store) variables(what string) string {
	return s.needs(fmt.Sprintf("%s on variables %q", what, Root+"*"))
}

// Get implements fleet.Store.
func (s *Store) Get(ctx context.Context, name string) (fleet.Doc, error) {
	p, err := path(name)
	if err != nil {
		return fleet.Doc{}, err
	}
	if err := s.check(ctx); err != nil {
		return fleet.Doc{}, err
	}
	v, _, err := s.client.Variables().Read(p, s.read(ctx))
	if errors.Is(err, api.ErrVariablePathNotFound) {
		return fleet.Doc{}, fmt.Errorf("document %s: %w", name, fleet.ErrNotFound)
	}
	if err != nil {
		return fleet.Doc{}, fmt.Errorf("reading document %s: %w", name, s.explain(err, s.variables("read")))
	}
	return fleet.Doc{Name: name, Rev: v.ModifyIndex, Body: []byte(v.Items[body])}, nil
}

// List implements fleet.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]fleet.Doc, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	docs, _, err := s.list(prefix, s.read(ctx))
	return docs, err
}

func (s *Store) list(prefix string, q *api.QueryOptions) ([]fleet.Doc, uint64, error) {
	all, meta, err := s.client.Variables().PrefixList(Root+prefix, q)
	if err != nil {
		return nil, 0, fmt.Errorf("listing documents %s*: %w", prefix, s.explain(err, s.variables("list")))
	}
	var docs []fleet.Doc
	for _, v := range all {
		if name, ok := strings.CutPrefix(v.Path, Root+prefix); ok {
			docs = append(docs, fleet.Doc{Name: prefix + name, Rev: v.ModifyIndex})
		}
	}
	slices.SortFunc(docs, func(a, b fleet.Doc) int { return cmp.Compare(a.Name, b.Name) })
	return docs, meta.LastIndex, nil
}

// Put implements fleet.Store.
func (s *Store) Put(ctx context.Context, name string, text []byte, ifRev uint64) (uint64, error) {
	p, err := path(name)
	if err != nil {
		return 0, err
	}
	switch {
	case len(text) > fleet.MaxBody:
		return 0, fmt.Errorf("document %s has %d bytes, want at most %d: what is large belongs into blobs, and its digest here", name, len(text), fleet.MaxBody)
	case !utf8.Valid(text):
		return 0, fmt.Errorf("document %s is not UTF-8", name)
	}
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	v := &api.Variable{Namespace: s.namespace, Path: p, ModifyIndex: ifRev, Items: api.VariableItems{body: string(text)}}
	// Without an index the update creates, and only if nothing is there.
	again := false
	out, _, err := s.client.Variables().CheckedUpdate(v, s.write(context.WithValue(ctx, againKey{}, &again)))
	var lost api.ErrCASConflict
	if again && errors.As(err, &lost) && lost.Conflict.Items[body] == string(text) {
		return lost.Conflict.ModifyIndex, nil // it lost to itself: its first answer did not come
	}
	if err != nil {
		return 0, fmt.Errorf("writing document %s: %w", name, s.conflict(err, "write"))
	}
	return out.ModifyIndex, nil
}

// Delete implements fleet.Store.
func (s *Store) Delete(ctx context.Context, name string, ifRev uint64) error {
	p, err := path(name)
	if err != nil {
		return err
	}
	if _, err := s.Get(ctx, name); err != nil {
		return err
	}
	if _, err := s.client.Variables().CheckedDelete(p, ifRev, s.write(ctx)); err != nil {
		return fmt.Errorf("deleting document %s: %w", name, s.conflict(err, "destroy"))
	}
	return nil
}

func (s *Store) conflict(err error, needs string) error {
	var lost api.ErrCASConflict
	if errors.As(err, &lost) {
		return fmt.Errorf("%w: at revision %d, wanted %d", fleet.ErrConflict, lost.Conflict.ModifyIndex, lost.CheckIndex)
	}
	return s.explain(err, s.variables(needs))
}

// Watch implements fleet.Store, by blocking queries: variables are no topic of the
// event stream. When the cluster cannot be reached it goes on trying, and then tells
// what has changed meanwhile.
func (s *Store) Watch(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	known := map[string]uint64{}
	var index uint64
	for {
		q := s.read(ctx)
		q.WaitIndex, q.WaitTime = index, patience
		err := s.check(ctx)
		var docs []fleet.Doc
		next := index
		if err == nil {
			docs, next, err = s.list(prefix, q)
		}
		if err == nil {
			err = s.tell(ctx, docs, known, fn)
		}
		var told toldError
		switch {
		case errors.As(err, &told):
			return told.error
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passes(err):
			return err
		case err != nil:
			if err := sleep(ctx, pause); err != nil {
				return err
			}
			continue
		}
		if next < index { // a cluster that was restored from a snapshot
			next = 0
		}
		index = next
	}
}

// toldError is an error of whoever was told.
type toldError struct{ error }

func (s *Store) tell(ctx context.Context, docs []fleet.Doc, known map[string]uint64, fn func(fleet.Doc) error) error {
	there := make(map[string]bool, len(docs))
	for _, d := range docs {
		there[d.Name] = true
		if known[d.Name] == d.Rev {
			continue
		}
		now, err := s.Get(ctx, d.Name)
		if errors.Is(err, fleet.ErrNotFound) { // since the list was read
			there[d.Name] = false
			continue
		}
		if err != nil {
			return err
		}
		known[d.Name] = now.Rev
		if err := fn(now); err != nil {
			return toldError{err}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if there[name] {
			continue
		}
		delete(known, name)
		if err := fn(fleet.Doc{Name: name}); err != nil {
			return toldError{err}
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
