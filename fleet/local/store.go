package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"llmops/fleet"
)

const (
	// watchEvery is how often a watch looks at the store's revision: one read
	// of twenty bytes, so that a change is seen well within a router's second.
	watchEvery = 25 * time.Millisecond
	lockEvery  = 2 * time.Millisecond
	// lockPatience bounds the wait for the store's lock, which is held for two
	// small writes: a longer wait means that its holder is stopped or hung.
	lockPatience = 10 * time.Second
)

// Store keeps documents as files of one directory, each with its revision in
// the first line, and the store's last revision in a file beside them. Writers
// of all processes take turns by a lock file; readers need no lock, since a
// document is replaced by rename.
type Store struct {
	dir  string
	turn chan struct{} // one writer of this process at a time; flock tells only processes apart
}

var _ fleet.Store = (*Store)(nil)

// OpenStore opens the store in dir, making it when it is not there.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(dir, "docs"), 0o700); err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
	return &Store{dir: dir, turn: make(chan struct{}, 1)}, nil
}

// file gives a document's path. A name holds no dot, so the mapping from
// slashes to dots loses nothing and a document may be a prefix of another.
func (s *Store) file(name string) string {
	return filepath.Join(s.dir, "docs", strings.ReplaceAll(name, "/", "."))
}

// Get implements fleet.Store.
func (s *Store) Get(ctx context.Context, name string) (fleet.Doc, error) {
	if err := fleet.CheckName(name); err != nil {
		return fleet.Doc{}, err
	}
	if err := ctx.Err(); err != nil {
		return fleet.Doc{}, err
	}
	return s.read(name)
}

func (s *Store) read(name string) (fleet.Doc, error) {
	b, err := os.ReadFile(s.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return fleet.Doc{}, fmt.Errorf("document %s: %w", name, fleet.ErrNotFound)
	}
	if err != nil {
		return fleet.Doc{}, fmt.Errorf("reading document %s: %w", name, err)
	}
	head, body, ok := bytes.Cut(b, []byte("\n"))
	rev, err := strconv.ParseUint(string(head), 10, 64)
	if !ok || err != nil || rev == 0 {
		return fleet.Doc{}, fmt.Errorf("reading document %s: %s does not begin with a revision; restore or remove the file", name, s.file(name))
	}
	return fleet.Doc{Name: name, Rev: rev, Body: body}, nil
}

// List implements fleet.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]fleet.Doc, error) {
	docs, err := s.scan(ctx, prefix)
	for i := range docs {
		docs[i].Body = nil
	}
	return docs, err
}

func (s *Store) scan(ctx context.Context, prefix string) ([]fleet.Doc, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "docs"))
	if err != nil {
		return nil, fmt.Errorf("listing documents: %w", err)
	}
	var docs []fleet.Doc
	for _, e := range entries {
		name := strings.ReplaceAll(e.Name(), ".", "/")
		if !strings.HasPrefix(name, prefix) || fleet.CheckName(name) != nil || e.Name()[0] == '.' {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d, err := s.read(name)
		if errors.Is(err, fleet.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		docs = append(docs, d)
	}
	slices.SortFunc(docs, func(a, b fleet.Doc) int { return strings.Compare(a.Name, b.Name) })
	return docs, nil
}

// Put implements fleet.Store.
func (s *Store) Put(ctx context.Context, name string, body []byte, ifRev uint64) (uint64, error) {
	switch {
	case len(body) > fleet.MaxBody:
		return 0, fmt.Errorf("writing document %s: %d bytes are more than %d", name, len(body), fleet.MaxBody)
	case !utf8.Valid(body):
		return 0, fmt.Errorf("writing document %s: body is not UTF-8", name)
	}
	return s.change(ctx, name, ifRev, func(rev uint64) error {
		b := strconv.AppendUint(nil, rev, 10)
		b = append(append(b, '\n'), body...)
		return renameio.WriteFile(s.file(name), b, 0o600, renameio.WithTempDir(s.dir))
	})
}

// Delete implements fleet.Store.
func (s *Store) Delete(ctx context.Context, name string, ifRev uint64) error {
	if ifRev == 0 {
		return fmt.Errorf("deleting document %s: no revision given: %w", name, fleet.ErrConflict)
	}
	_, err := s.change(ctx, name, ifRev, func(uint64) error { return os.Remove(s.file(name)) })
	return err
}

// change runs do with the next revision if the document is at ifRev. The new
// revision is on disk before the document, so that a crash in between wastes
// one number and never gives a number twice.
func (s *Store) change(ctx context.Context, name string, ifRev uint64, do func(rev uint64) error) (uint64, error) {
	if err := fleet.CheckName(name); err != nil {
		return 0, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, fmt.Errorf("locking store for document %s: %w", name, err)
	}
	defer unlock()
	cur, err := s.read(name)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return 0, err
	}
	if cur.Rev != ifRev {
		return 0, fmt.Errorf("document %s is at revision %d, not %d: %w", name, cur.Rev, ifRev, fleet.ErrConflict)
	}
	last, err := s.last()
	if err != nil {
		return 0, err
	}
	rev := max(last, cur.Rev) + 1
	if err := renameio.WriteFile(filepath.Join(s.dir, "rev"), strconv.AppendUint(nil, rev, 10), 0o600); err != nil {
		return 0, fmt.Errorf("writing document %s: %w", name, err)
	}
	if err := do(rev); err != nil {
		return 0, fmt.Errorf("writing document %s: %w", name, err)
	}
	return rev, nil
}

func (s *Store) last() (uint64, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, "rev"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the store's revision: %w", err)
	}
	rev, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the store's revision: %s holds %q", filepath.Join(s.dir, "rev"), b)
	}
	return rev, nil
}

func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience, errors.New("another llmops process holds the lock; is one stopped?"))
	defer cancel()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l := flock.New(filepath.Join(s.dir, "lock"), flock.SetPermissions(0o600))
	if _, err := l.TryLockContext(ctx, lockEvery); err != nil {
		<-s.turn
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return func() { _ = l.Close(); <-s.turn }, nil
}

// Watch implements fleet.Store.
func (s *Store) Watch(ctx context.Context, prefix string, fn func(fleet.Doc) error) error {
	seen := map[string]uint64{}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for looked := uint64(0); ; {
		last, err := s.last()
		if err != nil {
			return err
		}
		if last > looked {
			// A writer bumps the revision before it renames the document, so the
			// scan may come too early: the next look repeats it until the
			// document with this revision was there, or the writer is done.
			stable, err := s.deliver(ctx, prefix, seen, last, fn)
			if err != nil {
				return err
			}
			if stable {
				looked = last
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// deliver calls fn for what changed since seen. It reports whether no writer
// was at work meanwhile, that is, whether the lock could be had at once.
func (s *Store) deliver(ctx context.Context, prefix string, seen map[string]uint64, last uint64, fn func(fleet.Doc) error) (stable bool, err error) {
	l := flock.New(filepath.Join(s.dir, "lock"), flock.SetPermissions(0o600))
	stable, _ = l.TryRLock()
	docs, err := s.scan(ctx, prefix)
	_ = l.Close()
	if err != nil {
		return false, err
	}
	there := make(map[string]bool, len(docs))
	for _, d := range docs {
		there[d.Name] = true
		if seen[d.Name] == d.Rev {
			continue
		}
		seen[d.Name] = d.Rev
		if err := fn(d); err != nil {
			return false, err
		}
	}
	for name := range seen {
		if !there[name] {
			delete(seen, name)
			if err := fn(fleet.Doc{Name: name, Rev: last}); err != nil {
				return false, err
			}
		}
	}
	return stable, nil
}
