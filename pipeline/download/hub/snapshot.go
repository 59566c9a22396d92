package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"llmops/model"
	"llmops/pipeline/download/transfer"
)

// Options say what to fetch, from where and how.
type Options struct {
	Repo     Repo
	Endpoint string   // DefaultEndpoint, or a mirror
	Token    string   // empty: none
	Cache    string   // huggingface_hub's folder of all repositories
	Include  []string // patterns of files; none: all but weights of other formats
	Exclude  []string
	Offline  bool  // only what is in the cache
	Rate     int64 // bytes a second; 0: no bound
	Conns    int   // connections at once; 0: 8
	// Progress gets the bytes that are there and those there will be, from several
	// goroutines.
	Progress func(done, total int64)
	// Say gets what a person should know while it happens.
	Say  func(format string, args ...any)
	HTTP *http.Client // nil: one of its own

	part   int64 // of a file, 0: as usual; these are for tests
	adjust func(*client)
}

// Snapshot is a commit in the cache, of which every file has been verified.
type Snapshot struct {
	Repo    Repo
	Commit  string
	Dir     string          // its folder, of links
	Files   model.Manifest  // by sha256, which is known of all
	Left    []transfer.File // not wanted
	License string          // as its card says; empty: it does not
}

// Fetch brings the repository in.
func Fetch(ctx context.Context, o Options) (Snapshot, error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	c := openCache(o.Cache, o.Repo)
	if o.Offline {
		return offline(ctx, o, c)
	}
	if err := c.prepare(); err != nil {
		return Snapshot{}, err
	}
	h := newClient(&o)
	if o.adjust != nil {
		o.adjust(h)
	}
	commit, err := h.commit(ctx, o.Repo)
	if err != nil {
		return Snapshot{}, err
	}
	all, err := h.list(ctx, o.Repo, commit)
	if err != nil {
		return Snapshot{}, err
	}
	set := &transfer.Set{
		Name: o.Repo.String(), Include: o.Include, Exclude: o.Exclude, Conns: o.Conns, Rate: o.Rate, Part: o.part, Progress: o.Progress, Say: o.Say,
		Elsewhere: "; HF_HUB_CACHE chooses another disk",
		Path:      c.blob,
		Remote:    func(f transfer.File) *transfer.Remote { return h.remote(o.Repo, commit, f) },
		Keep: func(ctx context.Context, x *transfer.Fetcher, r *transfer.Remote) (transfer.Sums, error) {
			sums, err := c.keep(ctx, x, r)
			if err == nil {
				err = c.link(commit, r.File)
			}
			return sums, err
		},
	}
	s := Snapshot{Repo: o.Repo, Commit: commit, Dir: c.snapshot(commit)}
	if s.Files, s.Left, err = set.Fetch(ctx, c.dir, all); err != nil {
		return Snapshot{}, err
	}
	if err := errors.Join(c.writeTree(commit, all), c.writeRef(o.Repo, commit)); err != nil {
		return Snapshot{}, err
	}
	s.License = license(s.Dir)
	return s, nil
}

// Commit pins the revision without fetching anything else.
func Commit(ctx context.Context, o Options) (string, error) {
	if o.Repo.Pinned() {
		return o.Repo.Revision, nil
	}
	if o.Offline {
		commit, err := openCache(o.Cache, o.Repo).ref(o.Repo)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w (HF_HUB_OFFLINE)", o.Repo, ErrOffline)
		}
		return commit, err
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	return newClient(&o).commit(ctx, o.Repo)
}

// offline takes the commit as the cache has it.
func offline(ctx context.Context, o Options, c *cache) (Snapshot, error) {
	commit, err := c.ref(o.Repo)
	var all []transfer.File
	if err == nil {
		all, err = c.readTree(commit)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, fmt.Errorf("%s: %w (HF_HUB_OFFLINE)", o.Repo, ErrOffline)
	}
	if err != nil {
		return Snapshot{}, err
	}
	want, left, err := transfer.Choose(all, o.Include, o.Exclude)
	if err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Repo: o.Repo, Commit: commit, Dir: c.snapshot(commit), Left: left}
	for _, f := range want {
		sum, err := transfer.Hash(ctx, c.blob(f), f)
		if errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("%s of %s: %w (HF_HUB_OFFLINE)", f.Path, o.Repo, ErrOffline)
		}
		if err == nil {
			err = f.Match(sum)
		}
		if err == nil {
			err = c.link(commit, f)
		}
		if err != nil {
			return s, err
		}
		d, err := model.ParseDigest("sha256:" + sum.SHA256)
		if err != nil {
			return s, err
		}
		s.Files.Files = append(s.Files.Files, model.File{Path: f.Path, Size: f.Size, Digest: d})
	}
	s.License = license(s.Dir)
	return s, nil
}

// license is what the model's card says in its front matter.
func license(dir string) string {
	b, err := os.ReadFile(path.Join(dir, "README.md"))
	if err != nil {
		return ""
	}
	front, ok := bytes.CutPrefix(b, []byte("---\n"))
	if !ok {
		return ""
	}
	front, _, _ = bytes.Cut(front, []byte("\n---"))
	for line := range strings.SplitSeq(string(front), "\n") {
		if v, ok := strings.CutPrefix(line, "license:"); ok {
			return strings.Trim(strings.TrimSpace(v), `"'`)
		}
	}
	return ""
}
