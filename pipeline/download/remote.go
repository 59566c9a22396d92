package download

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"llmops/model"
	"llmops/pipeline/download/transfer"
)

// listing is what a server has of a model.
type listing struct {
	name     string // of the source, for messages
	id       string // pins the content: equal ids are equal files
	files    []transfer.File
	remote   func(transfer.File) *transfer.Remote
	vouchers bool   // there is a list of digests
	license  string // empty: it is not said
}

// client makes the requests of a source that is not the Hub.
func (s Sources) client() *transfer.Client {
	c := transfer.NewClient(s.Hub.HTTP, s.say())
	if s.adjust != nil {
		s.adjust(c)
	}
	return c
}

func (s Sources) say() func(string, ...any) {
	if s.Hub.Say == nil {
		return func(string, ...any) {}
	}
	return s.Hub.Say
}

// short names a listing among the files of a folder.
func (l listing) short(s Sources) string {
	return model.DigestOf([]byte(l.id + "\n" + strings.Join(s.Hub.Include, "\n") + "\n\n" + strings.Join(s.Hub.Exclude, "\n"))).Hex()[:16]
}

// bring fetches what is listed into a folder of root named by its content.
func (s Sources) bring(ctx context.Context, l listing, root string, progress func(done, total int64)) (Snapshot, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return Snapshot{}, fmt.Errorf("making room for the snapshot: %w", err)
	}
	name := l.short(s)
	lock := flock.New(filepath.Join(root, ".incoming-"+name+".lock"))
	say := s.say()
	if ok, err := lock.TryLock(); err != nil {
		return Snapshot{}, fmt.Errorf("locking %s: %w", lock.Path(), err)
	} else if !ok {
		say("%s is being fetched into %s by another process, which is waited for", l.name, root)
		if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
			return Snapshot{}, fmt.Errorf("waiting for %s: %w", lock.Path(), err)
		}
	}
	defer func() { _ = lock.Close() }()
	want, left, err := transfer.Choose(l.files, s.Hub.Include, s.Hub.Exclude)
	if err != nil {
		return Snapshot{}, err
	}
	out := Snapshot{Source: l.name, License: l.license}
	out.doubts(l, want, left)
	note := filepath.Join(root, ".fetched-"+name)
	if b, err := os.ReadFile(note); err == nil {
		if d, err := model.ParseDigest(string(b)); err == nil && Whole(ctx, filepath.Join(root, d.Hex()), d) {
			out.Dir, out.Digest = filepath.Join(root, d.Hex()), d
			out.Manifest, err = model.Scan(ctx, os.DirFS(out.Dir))
			return out, err
		}
	}
	dir := filepath.Join(root, ".incoming-"+name)
	path := func(f transfer.File) string { return filepath.Join(dir, filepath.FromSlash(f.Path)) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Snapshot{}, fmt.Errorf("making room for the snapshot: %w", err)
	}
	set := &transfer.Set{
		Name: l.name, Include: s.Hub.Include, Exclude: s.Hub.Exclude, Conns: s.Hub.Conns, Rate: s.Hub.Rate, Part: s.part,
		Progress: progress, Say: say, Path: path, Remote: l.remote,
		Keep: func(ctx context.Context, x *transfer.Fetcher, r *transfer.Remote) (transfer.Sums, error) {
			if err := os.MkdirAll(filepath.Dir(path(r.File)), 0o700); err != nil {
				return transfer.Sums{}, err
			}
			return x.Keep(ctx, r, path(r.File))
		},
	}
	got, _, err := set.Fetch(ctx, dir, l.files)
	if err != nil {
		return Snapshot{}, err
	}
	slices.SortFunc(got.Files, func(a, b model.File) int { return strings.Compare(a.Path, b.Path) })
	out.Manifest, out.Digest = got, got.Digest()
	if err := complete(dir); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", l.name, err)
	}
	if out, err = out.link(ctx, dir, root); err != nil {
		return Snapshot{}, err
	}
	return out, errors.Join(renameio.WriteFile(note, []byte(out.Digest), 0o600), os.RemoveAll(dir))
}

// lockPause is how often a lock is tried that another process holds.
const lockPause = 100 * time.Millisecond

// warn says of what is left behind why.
func (s *Snapshot) warn(left []transfer.File) {
	for _, f := range left {
		if model.Unsafe(f.Path) {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s is left behind: loading it can run code", f.Path))
		}
	}
}

// doubts says what was left behind, and of which files nobody but the server itself says
// what they are.
func (s *Snapshot) doubts(l listing, want, left []transfer.File) {
	s.warn(left)
	if !l.vouchers {
		return
	}
	var rest []string
	for _, f := range want {
		switch {
		case f.SHA256 != "":
			s.Checked++
		case f.Path != transfer.SumsName:
			rest = append(rest, f.Path)
		}
	}
	if n := len(rest); n > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("nothing vouches for %d files that are not in %s: %s", n, transfer.SumsName, strings.Join(rest[:min(n, 5)], ", ")))
	}
}
