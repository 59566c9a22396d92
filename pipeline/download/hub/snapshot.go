package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"llmops/model"
	"llmops/model/safetensors"
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

	part   int64 // of a file; these are for tests
	adjust func(*client)
}

// Snapshot is a commit in the cache, of which every file has been verified.
type Snapshot struct {
	Repo    Repo
	Commit  string
	Dir     string         // its folder, of links
	Files   model.Manifest // by sha256, which is known of all
	Left    []File         // not wanted
	License string         // as its card says; empty: it does not
}

const defaultConns = 8

// Fetch brings the repository in.
func Fetch(ctx context.Context, o Options) (Snapshot, error) {
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Conns <= 0 {
		o.Conns = defaultConns
	}
	if o.part == 0 {
		o.part = partSize
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
	want, left, err := choose(all, o.Include, o.Exclude)
	if err != nil {
		return Snapshot{}, err
	}
	if len(want) == 0 {
		return Snapshot{}, fmt.Errorf("%s has none of the files that are wanted: %s", o.Repo, strings.Join(o.Include, " "))
	}
	if err := room(c, want); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Repo: o.Repo, Commit: commit, Dir: c.snapshot(commit), Left: left}
	if err := s.fetch(ctx, o, h, c, want); err != nil {
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

// fetch gets small files first, holds the shards' headers to the index, and then gets
// the shards.
func (s *Snapshot) fetch(ctx context.Context, o Options, h *client, c *cache, want []File) error {
	var total int64
	for _, f := range want {
		total += f.Size
	}
	var done atomic.Int64
	b := newBudget(o.Rate, func(n int64) { o.Progress(min(max(done.Add(n), 0), total), total) })
	x := &fetcher{cache: c, conns: make(chan struct{}, o.Conns), b: b, part: o.part, say: o.Say}
	var side, weights []File
	for _, f := range want {
		if strings.HasSuffix(f.Path, ".safetensors") {
			weights = append(weights, f)
		} else {
			side = append(side, f)
		}
	}
	if err := s.each(ctx, x, h, side, o.Conns); err != nil {
		return err
	}
	if err := s.headers(ctx, h, c, weights); err != nil {
		return err
	}
	return s.each(ctx, x, h, weights, o.Conns)
}

// each gets files, several at once, and links them.
func (s *Snapshot) each(ctx context.Context, x *fetcher, h *client, files []File, at int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, at)
	digests := make([]sums, len(files))
	var wg sync.WaitGroup
	for i, f := range files {
		select {
		case <-ctx.Done():
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				var err error
				if digests[i], err = x.get(ctx, h.remote(s.Repo, s.Commit, f)); err == nil {
					err = x.cache.link(s.Commit, f)
				}
				if err != nil {
					cancel(fmt.Errorf("%s: %w", s.Repo, err))
				}
			})
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for i, f := range files {
		d, err := model.ParseDigest("sha256:" + digests[i].sha256)
		if err != nil {
			return err
		}
		s.Files.Files = append(s.Files.Files, model.File{Path: f.Path, Size: f.Size, Digest: d})
	}
	return nil
}

// headers reads the header of every shard and holds it to its size and to the index,
// so that a repository that is broken is known before its weights are here.
func (s *Snapshot) headers(ctx context.Context, h *client, c *cache, weights []File) error {
	index := map[string]string{}
	for _, f := range s.Files.Files {
		if path.Base(f.Path) != "model.safetensors.index.json" || strings.Contains(f.Path, "/") {
			continue
		}
		b, err := os.ReadFile(path.Join(s.Dir, f.Path))
		if err != nil {
			return err
		}
		var in struct {
			Map map[string]string `json:"weight_map"`
		}
		if err := json.Unmarshal(b, &in); err != nil {
			return fmt.Errorf("%s of %s: %w", f.Path, s.Repo, err)
		}
		index = in.Map
	}
	wanted := map[string]bool{}
	for _, f := range weights {
		wanted[f.Path] = true
	}
	missing := map[string]string{}
	for tensor, shard := range index {
		if wanted[shard] || !slices.ContainsFunc(s.Left, func(f File) bool { return f.Path == shard }) {
			missing[tensor] = shard
		}
	}
	for _, f := range weights {
		r := remoteAt{ctx, h.remote(s.Repo, s.Commit, f), c.blob(f)}
		head, err := safetensors.ReadHeader(r, f.Size)
		if err != nil {
			return fmt.Errorf("%s of %s, before its weights are fetched: %w", f.Path, s.Repo, err)
		}
		if len(index) == 0 || strings.Contains(f.Path, "/") {
			continue
		}
		for _, t := range head.Tensors {
			if index[t.Name] != f.Path {
				return fmt.Errorf("%s of %s holds tensor %s, which the index places in %q: engines would load another", f.Path, s.Repo, t.Name, index[t.Name])
			}
			delete(missing, t.Name)
		}
	}
	for tensor, shard := range missing {
		return fmt.Errorf("the index of %s places tensor %s in %s, which does not hold it", s.Repo, tensor, shard)
	}
	return nil
}

// remoteAt reads a file where it is: in the cache if it is there already.
type remoteAt struct {
	ctx  context.Context
	r    *remote
	blob string
}

func (r remoteAt) ReadAt(p []byte, off int64) (int, error) {
	if f, err := os.Open(r.blob); err == nil {
		defer func() { _ = f.Close() }()
		return f.ReadAt(p, off)
	}
	return r.r.ReadAt(r.ctx, p, off)
}

// reserve is what is left free of a disk, in bytes.
const reserve = 64 << 20

// room is an error when the disk cannot hold what is missing.
func room(c *cache, want []File) error {
	var need int64
	for _, f := range want {
		if _, err := os.Stat(c.blob(f)); err == nil {
			continue
		}
		need += f.Size
		var st syscall.Stat_t
		if err := syscall.Stat(c.blob(f)+".llmops-part", &st); err == nil {
			need -= st.Blocks * 512
		}
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(c.dir, &st); err != nil {
		return fmt.Errorf("looking for room in %s: %w", c.dir, err)
	}
	if free := int64(st.Bavail) * int64(st.Bsize); need > 0 && need+reserve > free {
		return fmt.Errorf("%s has %.1f GiB free and %.1f GiB are to come; HF_HUB_CACHE chooses another disk", c.root, float64(free)/(1<<30), float64(need)/(1<<30))
	}
	return nil
}

// offline takes the commit as the cache has it.
func offline(ctx context.Context, o Options, c *cache) (Snapshot, error) {
	commit, err := c.ref(o.Repo)
	var all []File
	if err == nil {
		all, err = c.readTree(commit)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, fmt.Errorf("%s: %w (HF_HUB_OFFLINE)", o.Repo, ErrOffline)
	}
	if err != nil {
		return Snapshot{}, err
	}
	want, left, err := choose(all, o.Include, o.Exclude)
	if err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Repo: o.Repo, Commit: commit, Dir: c.snapshot(commit), Left: left}
	for _, f := range want {
		sum, err := hashFile(ctx, c.blob(f), f)
		if errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("%s of %s: %w (HF_HUB_OFFLINE)", f.Path, o.Repo, ErrOffline)
		}
		if err == nil {
			err = f.match(sum)
		}
		if err == nil {
			err = c.link(commit, f)
		}
		if err != nil {
			return s, err
		}
		d, err := model.ParseDigest("sha256:" + sum.sha256)
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
