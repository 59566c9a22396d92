package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmops/model/safetensors"
	"llmops/pipeline/download/transfer"
)

// shard is a safetensors file of one tensor of n bytes.
func shard(t testing.TB, tensor string, n int) []byte {
	t.Helper()
	head, err := safetensors.AppendHeader(nil, []safetensors.Tensor{{Name: tensor, DType: safetensors.U8, Shape: []int64{int64(n)}, End: int64(n)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(n), uint64(len(tensor))))
	for range n {
		head = append(head, byte(r.Uint32()))
	}
	return head
}

// repo is a small repository of two shards.
func repo(t testing.TB) map[string][]byte {
	index, err := json.Marshal(map[string]any{"weight_map": map[string]string{"a": "model-1.safetensors", "b": "model-2.safetensors"}})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"README.md": []byte("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\n"), "config.json": []byte(`{"model_type":"llama"}`),
		"model.safetensors.index.json": index, "empty.txt": {}, "folder/extra.json": []byte("{}"), "pytorch_model.bin": []byte("pickle"),
		"model.gguf": []byte("gguf"), ".gitattributes": []byte("*"),
		"model-1.safetensors": shard(t, "a", 300_000), "model-2.safetensors": shard(t, "b", 90_000),
	}
}

// options fetch s into a new cache, in parts of 64 KiB and without long pauses.
func options(t testing.TB, s *hubServer) Options {
	return Options{Repo: Repo{repoName, "main"}, Endpoint: s.api.URL, Token: token, Cache: t.TempDir(), part: 64 << 10,
		Say: func(f string, a ...any) { t.Logf(f, a...) },
		adjust: func(c *client) {
			c.Stall = 200 * time.Millisecond
			c.Pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
		}}
}

func fetch(t testing.TB, o Options) Snapshot {
	t.Helper()
	s, err := Fetch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// same holds a snapshot to the server's files.
func same(t testing.TB, s *hubServer, snap Snapshot) {
	t.Helper()
	for _, f := range snap.Files.Files {
		b, err := os.ReadFile(filepath.Join(snap.Dir, f.Path))
		if err != nil || string(b) != string(s.files[f.Path]) || f.Digest.Hex() != sha256Of(b) {
			t.Errorf("%s: %d bytes, digest %s, %v", f.Path, len(b), f.Digest, err)
		}
	}
	if len(snap.Files.Files) != 7 {
		t.Errorf("%d files: %+v", len(snap.Files.Files), snap.Files.Files)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(snap.Dir)), "blobs", "*llmops*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestFetch(t *testing.T) {
	s := newHub(t, repo(t))
	o := options(t, s)
	var last, total atomic.Int64
	o.Progress = func(d, n int64) { last.Store(d); total.Store(n) }
	snap := fetch(t, o)
	same(t, s, snap)
	if snap.Commit != commitA || snap.License != "apache-2.0" || len(snap.Left) != 3 {
		t.Errorf("commit %s, licence %q, left %+v", snap.Commit, snap.License, snap.Left)
	}
	if last.Load() != total.Load() || total.Load() == 0 {
		t.Errorf("progress ended at %d of %d", last.Load(), total.Load())
	}
	s.mu.Lock()
	n := len(s.ranges)
	s.mu.Unlock()
	if n < 8 {
		t.Errorf("%d requests for the bytes, want one a part", n)
	}
	// What huggingface_hub looks for.
	dir := filepath.Join(o.Cache, "models--org--model")
	if b, err := os.ReadFile(filepath.Join(dir, "refs", "main")); err != nil || string(b) != commitA {
		t.Errorf("refs/main is %q, %v", b, err)
	}
	if to, err := os.Readlink(filepath.Join(dir, "snapshots", commitA, "folder", "extra.json")); err != nil || to != "../../../blobs/"+gitOf([]byte("{}")) {
		t.Errorf("link to %q, %v", to, err)
	}

	// Again: nothing is fetched, and without the Hub neither.
	sent := s.sent()
	same(t, s, fetch(t, o))
	if s.sent() != sent {
		t.Errorf("%d bytes came although all was there", s.sent()-sent)
	}
	s.api.Close()
	o.Offline = true
	same(t, s, fetch(t, o))
	o.Repo.Revision = "other"
	if _, err := Fetch(t.Context(), o); !errors.Is(err, ErrOffline) {
		t.Errorf("a revision that is not there: %v", err)
	}
}

// Each of these is a server that users have met; every one ends with all files whole.
func TestGoesOnDespite(t *testing.T) {
	for name, bad := range map[string]func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool{
		"a server that ignores ranges": func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool {
			return func(host string, _ http.ResponseWriter, r *http.Request) bool {
				if host == "cdn" && r.Header.Get("Range") != "bytes=0-32767" { // the header is read
					r.Header.Del("Range")
				}
				return false
			}
		},
		"resets in the middle of every answer": func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool {
			return func(host string, w http.ResponseWriter, r *http.Request) bool {
				var a, b int
				if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &a, &b); host != "cdn" || n != 2 || b-a < 20_000 {
					return false
				}
				data := s.files[strings.TrimPrefix(r.URL.Path, "/blob/")]
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", a, b, len(data)))
				w.Header().Set("Content-Length", fmt.Sprint(b-a+1))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(data[a : a+10_000])
				panic(http.ErrAbortHandler)
			}
		},
		"signed addresses that expire after two requests": func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool {
			uses := map[string]int{}
			return func(host string, w http.ResponseWriter, r *http.Request) bool {
				if host != "cdn" {
					return false
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if uses[r.URL.RawQuery]++; uses[r.URL.RawQuery] > 2 {
					http.Error(w, "expired", http.StatusForbidden)
					return true
				}
				return false
			}
		},
		"a server that asks to wait": func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool {
			var n atomic.Int64
			return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
				if n.Add(1)%3 != 0 {
					return false
				}
				w.Header().Set("RateLimit", `"resolvers";r=0;t=55`)
				http.Error(w, "slow down", http.StatusTooManyRequests)
				return true
			}
		},
		"connections that stall": func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool {
			var n atomic.Int64
			return func(host string, w http.ResponseWriter, r *http.Request) bool {
				if host != "cdn" || n.Add(1)%4 != 0 {
					return false
				}
				<-r.Context().Done()
				return true
			}
		},
		"errors of the server": func(s *hubServer) func(string, http.ResponseWriter, *http.Request) bool {
			var n atomic.Int64
			return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
				if n.Add(1)%3 == 0 {
					http.Error(w, "oops", http.StatusBadGateway)
					return true
				}
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHub(t, repo(t))
			s.misbehave(bad(s))
			same(t, s, fetch(t, options(t, s)))
		})
	}
}

// Each of these cannot end well, and says why.
func TestRefuses(t *testing.T) {
	fail := func(code int, headers ...string) func(string, http.ResponseWriter, *http.Request) bool {
		return func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			http.Error(w, "no", code)
			return true
		}
	}
	for _, c := range []struct {
		name string
		bad  func(host string, w http.ResponseWriter, r *http.Request) bool
		is   error
		says string
	}{
		{"gated", fail(403, "X-Error-Code", "GatedRepo", "X-Request-Id", "Root=1"), ErrGated, "request Root=1"},
		{"gated, no token", fail(401, "X-Error-Code", "GatedRepo"), ErrGated, "HF_TOKEN"},
		{"private", fail(401), ErrNotFound, "set HF_TOKEN"},
		{"bad token", fail(401, "X-Error-Message", "Invalid credentials in Authorization header"), ErrToken, ""},
		{"no scope", fail(403), ErrForbidden, "fine-grained"},
		{"disabled", fail(403, "X-Error-Message", "Access to this resource is disabled."), ErrDisabled, ""},
		{"no revision", fail(404, "X-Error-Code", "RevisionNotFound"), ErrRevision, ""},
		{"a page instead of an answer", func(_ string, w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write([]byte("<html>sign in</html>"))
			return true
		}, nil, "instead of JSON"},
		{"a page instead of the weights", func(host string, w http.ResponseWriter, r *http.Request) bool {
			if host == "cdn" {
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte("<html>sign in</html>"))
			}
			return host == "cdn"
		}, nil, "ignores ranges"},
		{"a server that lies about the length", func(host string, w http.ResponseWriter, r *http.Request) bool {
			if host == "cdn" {
				w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+"/17")
				w.WriteHeader(http.StatusPartialContent)
			}
			return host == "cdn"
		}, nil, "the server has 17 bytes"},
		{"another range than was asked for", func(host string, w http.ResponseWriter, r *http.Request) bool {
			if host == "cdn" {
				w.Header().Set("Content-Range", "bytes 5-9/90000")
				w.WriteHeader(http.StatusPartialContent)
			}
			return host == "cdn"
		}, nil, `got "bytes 5-9/90000"`},
		{"redirects in a circle", func(host string, w http.ResponseWriter, r *http.Request) bool {
			if host == "cdn" {
				http.Redirect(w, r, r.URL.String(), http.StatusFound)
			}
			return host == "cdn"
		}, nil, "in a circle"},
		{"a next page elsewhere", func(host string, w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/tree/") {
				w.Header().Set("Link", `<http://evil.example/steal>; rel="next"`)
				reply(w, []any{map[string]any{"type": "file", "path": "a", "size": 1, "oid": commitA}})
				return true
			}
			return false
		}, nil, "evil.example"},
		{"a path that leaves the folder", func(host string, w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/tree/") {
				reply(w, []any{map[string]any{"type": "file", "path": "../../.bashrc", "size": 1, "oid": commitA}})
				return true
			}
			return false
		}, nil, "no path within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newHub(t, repo(t))
			s.misbehave(c.bad)
			_, err := Fetch(t.Context(), options(t, s))
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v and %q", err, c.is, c.says)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the error tells the token: %v", err)
			}
		})
	}
}

func TestBytesThatAreOthers(t *testing.T) {
	s := newHub(t, repo(t))
	listed := s.files["model-2.safetensors"]
	other := append([]byte(nil), listed...)
	other[len(other)-1]++
	s.misbehave(func(host string, w http.ResponseWriter, r *http.Request) bool {
		if host == "cdn" && strings.Contains(r.URL.Path, "model-2") {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(other)))
			return true
		}
		return false
	})
	o := options(t, s)
	_, err := Fetch(t.Context(), o)
	if !errors.Is(err, transfer.ErrDigest) || !strings.Contains(err.Error(), "model-2.safetensors") {
		t.Fatalf("%v", err)
	}
	s.misbehave(nil)
	same(t, s, fetch(t, o)) // nothing of it was kept
}

// Broken off at half, with what was on its way damaged on disk: the next call fetches
// what is missing and no more.
func TestResumes(t *testing.T) {
	s := newHub(t, repo(t))
	o := options(t, s)
	o.Conns = 1
	ctx, cancel := context.WithCancel(t.Context())
	s.misbehave(func(host string, _ http.ResponseWriter, r *http.Request) bool {
		if host == "cdn" && strings.HasPrefix(r.Header.Get("Range"), "bytes=196608-") { // the fourth part
			cancel()
			return true // and sends nothing that would be counted later
		}
		return false
	})
	if _, err := Fetch(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	part, err := filepath.Glob(filepath.Join(o.Cache, "models--org--model", "blobs", "*.llmops-part"))
	if err != nil || len(part) != 1 {
		t.Fatalf("%v, %v", part, err)
	}
	f, err := os.OpenFile(part[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("torn"), 70_000); err != nil { // in the second
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.misbehave(nil)
	before := s.sent()
	same(t, s, fetch(t, o))
	if got, all := s.sent()-before, int64(len(s.files["model-1.safetensors"])+len(s.files["model-2.safetensors"])); got > all-2*o.part+2*32<<10+8192 {
		t.Errorf("%d bytes of %d were fetched again, though two parts were whole", got, all)
	}
}

// Broken off within a part, it goes on there.
func TestResumesWithinAPart(t *testing.T) {
	files := repo(t)
	files["model-2.safetensors"] = shard(t, "b", 5<<20)
	s := newHub(t, files)
	o := options(t, s)
	o.part, o.Conns = 4<<20, 1
	ctx, cancel := context.WithCancel(t.Context())
	s.misbehave(func(host string, w http.ResponseWriter, r *http.Request) bool {
		data := s.files["model-2.safetensors"]
		if host != "cdn" || r.Header.Get("Range") != fmt.Sprintf("bytes=0-%d", o.part-1) || !strings.Contains(r.URL.Path, "model-2") {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", o.part-1, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data[:3<<20+1])
		w.(http.Flusher).Flush()
		list := filepath.Join(o.Cache, "models--org--model", "blobs", sha256Of(data)+".llmops-parts")
		for r.Context().Err() == nil {
			if b, err := os.ReadFile(list); err == nil && strings.Count(string(b), "\n") > 3 {
				break // three MiB are on the list
			}
		}
		cancel()
		return true
	})
	if _, err := Fetch(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	s.misbehave(nil)
	before := s.sent()
	same(t, s, fetch(t, o))
	if got := s.sent() - before; got > 2<<20+3*32<<10 {
		t.Errorf("%d bytes were fetched again of 5 MiB, of which 3 were there", got)
	}
}

// A broken repository is known before its weights are here.
func TestHeadersComeFirst(t *testing.T) {
	for want, change := range map[string]func(map[string][]byte){
		"holds tensor x": func(f map[string][]byte) { f["model-2.safetensors"] = shard(t, "x", 90_000) },
		"places tensor c": func(f map[string][]byte) {
			f["model.safetensors.index.json"] = []byte(`{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors","c":"model-3.safetensors"}}`)
		},
		"before its weights":        func(f map[string][]byte) { f["model-2.safetensors"] = f["model-2.safetensors"][:80_000] },
		"model-1.safetensors of hf": func(f map[string][]byte) { f["model-1.safetensors"] = []byte("<html>" + strings.Repeat(" ", 99_000)) },
	} {
		files := repo(t)
		change(files)
		s := newHub(t, files)
		_, err := Fetch(t.Context(), options(t, s))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if s.sent() > 2*32<<10 {
			t.Errorf("%s: %d bytes came first", want, s.sent())
		}
	}
}

func TestPatterns(t *testing.T) {
	s := newHub(t, repo(t))
	o := options(t, s)
	o.Include, o.Exclude = []string{"*.json", "model.gguf", "*.bin"}, []string{"folder/*"}
	snap := fetch(t, o)
	var names []string
	for _, f := range snap.Files.Files {
		names = append(names, f.Path)
	}
	if got := strings.Join(names, " "); got != "config.json model.gguf model.safetensors.index.json" {
		t.Errorf("%s", got)
	}
}

func TestParseRepo(t *testing.T) {
	for in, want := range map[string]Repo{
		"hf://org/name": {"org/name", "main"}, "hf://gpt2@v1": {"gpt2", "v1"}, "hf://o/n@refs/pr/1": {"o/n", "refs/pr/1"}, "hf://o/n@" + commitA: {"o/n", commitA},
	} {
		if got, err := ParseRepo(in); err != nil || got != want || got.Pinned() != (want.Revision == commitA) {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"hf://", "hf://a/b/c", "hf://../x", "hf://a/..", "hf://a/b@", "hf://a/b@x y", "hf://a/b@../x", "a/b", "hf://a b/c", "hf://a--b/c"} {
		if got, err := ParseRepo(in); err == nil {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

func FuzzTree(f *testing.F) {
	f.Add(`[{"type":"file","path":"a/b","size":3,"oid":"0123456789abcdef0123456789abcdef01234567","lfs":{"oid":"x","size":-1}}]`)
	f.Fuzz(func(t *testing.T, text string) {
		var page []entry
		if json.Unmarshal([]byte(text), &page) != nil {
			return
		}
		for _, e := range page {
			if file, err := e.file(); err == nil {
				at := filepath.Join("/root/dir", filepath.FromSlash(file.Path))
				if !strings.HasPrefix(at, "/root/dir/") || file.Size < 0 || strings.Contains(etag(file), "/") {
					t.Errorf("%+v", file)
				}
			}
		}
	})
}
