package transfer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"llmops/model"
	"llmops/model/safetensors"
)

// Set is a repository on its way: which of its files are wanted, whom to ask for them and
// where they go.
type Set struct {
	Name     string   // of the repository, for messages
	Include  []string // patterns of files; none: all but weights of other formats
	Exclude  []string
	Conns    int                     // connections at once; 0: 8
	Rate     int64                   // bytes a second; 0: no bound
	Part     int64                   // bytes that one request fetches; 0: 32 MiB
	Progress func(done, total int64) // from several goroutines; nil: nobody is told
	Say      func(format string, args ...any)

	Elsewhere string            // ends the message about a full disk
	Path      func(File) string // where the bytes of a file go
	Remote    func(File) *Remote
	// Keep brings one file in; nil: Fetcher.Keep, to Path.
	Keep func(context.Context, *Fetcher, *Remote) (Sums, error)

	mu      sync.Mutex // guards remotes
	remotes map[string]*Remote
}

// remote is the same for each use of a file, so that where its address leads is asked once.
func (s *Set) remote(f File) *Remote {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.remotes[f.Path]
	if r == nil {
		r = s.Remote(f)
		if s.remotes == nil {
			s.remotes = map[string]*Remote{}
		}
		s.remotes[f.Path] = r
	}
	return r
}

const defaultConns = 8

// Fetch brings in what is wanted of all files; dir is on the disk that they go to. Small
// files come first; then the headers of the shards, where they are, are held to the index
// and to their sizes, so that a repository that is broken is known before its weights
// are here.
func (s *Set) Fetch(ctx context.Context, dir string, all []File) (got model.Manifest, left []File, err error) {
	want, left, err := Choose(all, s.Include, s.Exclude)
	if err != nil {
		return got, nil, err
	}
	if len(want) == 0 {
		return got, nil, fmt.Errorf("%s has none of the files that are wanted: %s", s.Name, strings.Join(s.Include, " "))
	}
	if err := s.room(dir, want); err != nil {
		return got, nil, err
	}
	x := s.fetcher(want)
	var side, weights []File
	for _, f := range want {
		if strings.HasSuffix(f.Path, ".safetensors") {
			weights = append(weights, f)
		} else {
			side = append(side, f)
		}
	}
	if err := s.each(ctx, x, side, &got); err != nil {
		return got, nil, err
	}
	if err := s.headers(ctx, weights, side, left); err != nil {
		return got, nil, err
	}
	return got, left, s.each(ctx, x, weights, &got)
}

func (s *Set) fetcher(want []File) *Fetcher {
	var total int64
	for _, f := range want {
		total += f.Size
	}
	var done atomic.Int64
	tell := func(n int64) {
		now := done.Add(n)
		if s.Progress != nil {
			s.Progress(min(max(now, 0), total), total)
		}
	}
	return &Fetcher{Conns: make(chan struct{}, s.conns()), Budget: NewBudget(s.Rate, tell), Part: s.Part, Say: s.Say}
}

func (s *Set) conns() int {
	if s.Conns <= 0 {
		return defaultConns
	}
	return s.Conns
}

// each gets files, several at once.
func (s *Set) each(ctx context.Context, x *Fetcher, files []File, into *model.Manifest) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, cap(x.Conns))
	sums := make([]Sums, len(files))
	var wg sync.WaitGroup
	for i, f := range files {
		select {
		case <-ctx.Done():
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				var err error
				if r := s.remote(f); s.Keep != nil {
					sums[i], err = s.Keep(ctx, x, r)
				} else {
					sums[i], err = x.Keep(ctx, r, s.Path(f))
				}
				if err != nil {
					cancel(fmt.Errorf("%s: %w", s.Name, err))
				}
			})
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for i, f := range files {
		d, err := model.ParseDigest("sha256:" + sums[i].SHA256)
		if err != nil {
			return err
		}
		into.Files = append(into.Files, model.File{Path: f.Path, Size: f.Size, Digest: d})
	}
	return nil
}

// indexName is the file that places tensors in shards.
const indexName = "model.safetensors.index.json"

// headers reads the header of every shard and holds it to its size and to the index.
func (s *Set) headers(ctx context.Context, weights, side, left []File) error {
	index, err := s.index(side)
	if err != nil {
		return err
	}
	is := func(name string) func(File) bool { return func(f File) bool { return f.Path == name } }
	missing := map[string]string{}
	for tensor, shard := range index {
		if slices.ContainsFunc(weights, is(shard)) || !slices.ContainsFunc(left, is(shard)) {
			missing[tensor] = shard
		}
	}
	heads, err := s.look(ctx, weights)
	if err != nil {
		return err
	}
	for i, f := range weights {
		if len(index) == 0 || strings.Contains(f.Path, "/") {
			continue
		}
		for _, t := range heads[i].Tensors {
			if index[t.Name] != f.Path {
				return fmt.Errorf("%s of %s holds tensor %s, which the index places in %q: engines would load another", f.Path, s.Name, t.Name, index[t.Name])
			}
			delete(missing, t.Name)
		}
	}
	for tensor, shard := range missing {
		return fmt.Errorf("the index of %s places tensor %s in %s, which does not hold it", s.Name, tensor, shard)
	}
	return nil
}

// index reads which shard each tensor is in, from a file that is here by now.
func (s *Set) index(side []File) (map[string]string, error) {
	var in struct {
		Map map[string]string `json:"weight_map"`
	}
	for _, f := range side {
		if f.Path != indexName {
			continue
		}
		b, err := os.ReadFile(s.Path(f))
		if err == nil {
			err = json.Unmarshal(b, &in)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", f.Path, s.Name, err)
		}
	}
	return in.Map, nil
}

// look reads the headers of shards where they are, several at once.
func (s *Set) look(ctx context.Context, weights []File) ([]*safetensors.Header, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	heads := make([]*safetensors.Header, len(weights))
	slots := make(chan struct{}, s.conns())
	var wg sync.WaitGroup
	for i, f := range weights {
		select {
		case <-ctx.Done():
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				var err error
				if heads[i], err = safetensors.ReadHeader(&nearest{ctx: ctx, r: s.remote(f), path: s.Path(f)}, f.Size); err != nil {
					cancel(fmt.Errorf("%s of %s, before its weights are fetched: %w", f.Path, s.Name, err))
				}
			})
		}
	}
	wg.Wait()
	return heads, context.Cause(ctx)
}

// nearest reads a file where it is: here if it has come already.
type nearest struct {
	ctx  context.Context
	r    *Remote
	path string
	head []byte // of the file
}

// ahead is how much of a file is fetched with its first bytes: most headers end there.
const ahead = 32 << 10

func (n *nearest) ReadAt(p []byte, off int64) (int, error) {
	if f, err := os.Open(n.path); err == nil {
		defer func() { _ = f.Close() }()
		return f.ReadAt(p, off)
	}
	if n.head == nil {
		head := make([]byte, min(ahead, n.r.File.Size))
		if m, err := n.r.ReadAt(n.ctx, head, 0); m < len(head) {
			return 0, err
		}
		n.head = head
	}
	if off+int64(len(p)) <= int64(len(n.head)) {
		return copy(p, n.head[off:]), nil
	}
	return n.r.ReadAt(n.ctx, p, off)
}
