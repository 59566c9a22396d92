package download

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/fleet/objects/objectstest"
	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/download/transfer"
)

// large is a repository whose weights are of ten parts.
func large(t *testing.T) string {
	t.Helper()
	dir := repository(t)
	const n = 10 * testPart
	w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{{Name: "a.weight", DType: safetensors.U8, Shape: []int64{n}, End: n}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{2})
	_, _ = r.Read(b)
	if err := errors.Join(w.WriteAt("a.weight", b, 0), w.Commit()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "a folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "a folder/notes & more.txt", "x")
	put(t, dir, "empty.txt", "")
	return dir
}

// sum writes the SHA256SUMS of a folder.
func sum(t *testing.T, dir string) {
	t.Helper()
	var text strings.Builder
	for name, b := range content(t, dir) {
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(b), name)
	}
	put(t, dir, transfer.SumsName, text.String())
}

func content(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	m, err := model.Scan(t.Context(), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range m.Files {
		if out[f.Path], err = os.ReadFile(filepath.Join(dir, f.Path)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

const testPart = 4096

func remoteSources(t *testing.T) Sources {
	var s Sources
	s.part = testPart
	s.Hub.Say = t.Logf
	s.Hub.Conns = 2
	s.adjust = func(c *transfer.Client) {
		c.Stall = 200 * time.Millisecond
		c.Pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	}
	return s
}

// site is a web server of a folder. before may answer in its place.
type site struct {
	*httptest.Server
	mu     sync.Mutex // guards the rest
	before func(w http.ResponseWriter, r *http.Request) bool
	asked  []string
}

func serveDir(t *testing.T, dir string) *site {
	t.Helper()
	s := &site{}
	files := http.FileServer(http.Dir(dir))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.Path+" "+r.Header.Get("Range"))
		before := s.before
		s.mu.Unlock()
		if before == nil || !before(w, r) {
			files.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func quiet(int64, int64) {}

func TestWeb(t *testing.T) {
	dir := large(t)
	sum(t, dir)
	want, err := Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	web, s, root := serveDir(t, dir), remoteSources(t), t.TempDir()
	for _, at := range []string{"/", "", "/" + transfer.SumsName} {
		got, err := s.Fetch(t.Context(), web.URL+at, root, quiet)
		if err != nil {
			t.Fatal(err)
		}
		// The list itself is no file of the list.
		if len(got.Manifest.Files) != len(want.Manifest.Files)-1 || got.Checked != len(got.Manifest.Files) || !Whole(t.Context(), got.Dir, got.Digest) || len(got.Warnings) > 0 {
			t.Errorf("%s: %+v", at, got)
		}
	}
	web.mu.Lock()
	weights := 0
	for _, a := range web.asked {
		if strings.HasPrefix(a, "/model.safetensors") && !strings.HasSuffix(a, "bytes=0-0") {
			weights++
		}
	}
	web.mu.Unlock()
	if weights > 14 { // eleven parts and two looks at the header
		t.Errorf("the weights were asked for %d times: not once", weights)
	}
	before, err := s.Identify(t.Context(), web.URL)
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "more.txt", "more")
	sum(t, dir)
	if after, err := s.Identify(t.Context(), web.URL); err != nil || after == before || !strings.Contains(after, "#sha256:") {
		t.Errorf("%s, then %s, %v", before, after, err)
	}
	left, err := filepath.Glob(filepath.Join(root, ".incoming-*[0-9a-f]"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestWebRefuses(t *testing.T) {
	answer := func(path, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, path) {
				_, _ = w.Write([]byte(body))
			}
			return strings.HasSuffix(r.URL.Path, path)
		}
	}
	for name, c := range map[string]struct {
		before func(http.ResponseWriter, *http.Request) bool
		says   string
	}{
		"no list": {func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true }, "needs a list of its digests"},
		"a page":  {answer(transfer.SumsName, "<html>sign in</html>"), "SHA256SUMS:1: want a sha256"},
		"leaves":  {answer(transfer.SumsName, strings.Repeat("0", 64)+"  ../../etc/passwd\n"), "no path within"},
		"empty":   {answer(transfer.SumsName, "\n"), "names no files"},
		"missing": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/config.json" {
				http.NotFound(w, r)
			}
			return r.URL.Path == "/config.json"
		}, "config.json, which is on line"},
		"another file": {answer("/config.json", `{"model_type":"other"}`), "does not match its digest"},
		"no length": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/config.json" {
				w.(http.Flusher).Flush()
				_, _ = w.Write([]byte(configJSON))
			}
			return r.URL.Path == "/config.json"
		}, "does not tell how long it is"},
		"in a circle": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
			return true
		}, "in a circle"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := large(t)
			sum(t, dir)
			web, root := serveDir(t, dir), t.TempDir()
			web.before = c.before
			if _, err := remoteSources(t).Fetch(t.Context(), web.URL, root, quiet); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if left, _ := filepath.Glob(filepath.Join(root, "[0-9a-f]*")); len(left) > 0 {
				t.Errorf("a snapshot was made: %v", left)
			}
		})
	}
}

// store is a bucket with a folder's files below a prefix.
func store(t *testing.T, dir string) (*objectstest.Server, Sources) {
	t.Helper()
	srv := objectstest.New(t, "weights")
	for name, b := range content(t, dir) {
		srv.Set("m/1/"+name, b)
	}
	srv.Set("m/1/.git/config", []byte("x"))
	srv.Set("m/10/other", []byte("x"))
	s := remoteSources(t)
	s.Objects = srv.Options()
	return srv, s
}

func TestObjects(t *testing.T) {
	dir := large(t)
	put(t, dir, "pytorch_model.bin", "pickle")
	want, err := Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	srv, s := store(t, dir)
	got, err := s.Fetch(t.Context(), "s3://weights/m/1", t.TempDir(), quiet)
	if err != nil || got.Digest != want.Digest || got.Checked != 0 || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "pytorch_model.bin") {
		t.Fatalf("%+v, %v", got, err)
	}
	// With digests, of all and of some.
	sum(t, dir)
	srv.Set("m/1/"+transfer.SumsName, content(t, dir)[transfer.SumsName])
	root := t.TempDir()
	if got, err = s.Fetch(t.Context(), "s3://weights/m/1/", root, quiet); err != nil || got.Checked != 4 || len(got.Warnings) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	srv.Set("m/1/generation_config.json", []byte("{}"))
	if got, err = s.Fetch(t.Context(), "s3://weights/m/1", root, quiet); err != nil || len(got.Warnings) != 2 || !strings.Contains(got.Warnings[1], "nothing vouches for 1 files that are not in SHA256SUMS: generation_config.json") {
		t.Errorf("%+v, %v", got, err)
	}
	// What is here already is not fetched again, and is no less in doubt.
	if again, err := s.Fetch(t.Context(), "s3://weights/m/1", root, quiet); err != nil || strings.Join(again.Warnings, "\n") != strings.Join(got.Warnings, "\n") || again.Checked != got.Checked {
		t.Errorf("%+v, %v", again, err)
	}
	srv.Set("m/1/config.json", []byte(`{"model_type":"other"}`))
	if _, err = s.Fetch(t.Context(), "s3://weights/m/1", root, quiet); !errors.Is(err, transfer.ErrDigest) {
		t.Errorf("%v", err)
	}
	srv.Set("m/1/config.json", nil)
	if _, err = s.Fetch(t.Context(), "s3://weights/m/1", root, quiet); err == nil || !strings.Contains(err.Error(), "config.json is on line") {
		t.Errorf("%v", err)
	}
	if _, err = s.Fetch(t.Context(), "s3://weights/none", root, quiet); err == nil || !strings.Contains(err.Error(), "has no objects") {
		t.Errorf("%v", err)
	}
}

// An object that is replaced while it is fetched is never half of each.
func TestObjectThatChanges(t *testing.T) {
	dir := large(t)
	srv, s := store(t, dir)
	other := content(t, dir)["model.safetensors"]
	other[len(other)-1]++
	n := 0
	srv.Misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "model.safetensors") {
			if n++; n == 6 {
				srv.Set("m/1/model.safetensors", other)
			}
		}
		return false
	})
	s.Hub.Conns = 1
	root := t.TempDir()
	if _, err := s.Fetch(t.Context(), "s3://weights/m/1", root, quiet); err == nil || !strings.Contains(err.Error(), "model.safetensors changed at its source") {
		t.Errorf("%v", err)
	}
	got, err := s.Fetch(t.Context(), "s3://weights/m/1", root, quiet)
	if b, rerr := os.ReadFile(filepath.Join(got.Dir, "model.safetensors")); err != nil || rerr != nil || string(b) != string(other) {
		t.Errorf("%+v, %v, %v", got, err, rerr)
	}
}

// Broken off, it goes on with what is missing; a second waits for the first.
func TestObjectsResume(t *testing.T) {
	dir := large(t)
	srv, s := store(t, dir)
	s.Hub.Conns = 1
	root := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	busy := make(chan error, 1)
	srv.Misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == fmt.Sprintf("bytes=%d-%d", 5*testPart, 6*testPart-1) {
			wait, stop := context.WithTimeout(t.Context(), 2*lockPause)
			defer stop()
			_, err := s.Fetch(wait, "s3://weights/m/1", root, quiet)
			busy <- err
			cancel()
		}
		return false
	})
	if _, err := s.Fetch(ctx, "s3://weights/m/1", root, quiet); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if err := <-busy; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for") {
		t.Errorf("a second fetch: %v", err)
	}
	var mu sync.Mutex
	again := 0
	srv.Misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "model.safetensors") {
			again++
		}
		return false
	})
	got, err := s.Fetch(t.Context(), "s3://weights/m/1", root, quiet)
	if err != nil || !Whole(t.Context(), got.Dir, got.Digest) {
		t.Fatalf("%+v, %v", got, err)
	}
	if again > 8 { // six parts and two looks at the header
		t.Errorf("%d requests for the weights, of which half were there", again)
	}
}

func TestCheckSource(t *testing.T) {
	for _, ok := range []string{"./x", "hf://org/name", "s3://bucket/prefix", "s3://bucket", "https://host/x/", "http://host:8080/a b/"} {
		if err := CheckSource(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"hf://", "s3://B/x", "s3://b", "https:///x", "https://host/x?token=1"} {
		if err := CheckSource(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
