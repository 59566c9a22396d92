package hub

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	repoName = "org/model"
	commitA  = "0123456789abcdef0123456789abcdef01234567"
	token    = "hf_secret"
)

// hubServer speaks the Hub's protocol: an API, and a second host that has the bytes.
type hubServer struct {
	t     *testing.T
	api   *httptest.Server
	cdn   *httptest.Server
	files map[string][]byte
	lfs   func(path string) bool
	page  int // entries a page

	mu     sync.Mutex // guards the rest
	serial int        // of signed addresses
	asked  map[string]int
	ranges []string
	bytes  int64 // that went out of the second host
	before func(host string, w http.ResponseWriter, r *http.Request) (handled bool)
}

func newHub(t *testing.T, files map[string][]byte) *hubServer {
	t.Helper()
	s := &hubServer{t: t, files: files, asked: map[string]int{}, page: 3, lfs: func(p string) bool { return strings.HasSuffix(p, ".safetensors") }}
	s.cdn = httptest.NewServer(http.HandlerFunc(s.serveBytes))
	t.Cleanup(s.cdn.Close)
	s.api = httptest.NewServer(http.HandlerFunc(s.serveAPI))
	t.Cleanup(s.api.Close)
	return s
}

func sha256Of(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }

func gitOf(b []byte) string {
	h := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...))
	return hex.EncodeToString(h[:])
}

func (s *hubServer) intercept(host string, w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	s.asked[host+r.URL.Path]++
	before := s.before
	s.mu.Unlock()
	return before != nil && before(host, w, r)
}

func (s *hubServer) serveAPI(w http.ResponseWriter, r *http.Request) {
	if s.intercept("api", w, r) {
		return
	}
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/api/models/"+repoName+"/revision/"):
		if rev := strings.TrimPrefix(path, "/api/models/"+repoName+"/revision/"); rev != "main" && rev != "refs/pr/1" {
			w.Header().Set("X-Error-Code", "RevisionNotFound")
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		reply(w, map[string]any{"sha": commitA})
	case path == "/api/models/"+repoName+"/tree/"+commitA:
		s.serveTree(w, r)
	case strings.HasPrefix(path, "/"+repoName+"/resolve/"+commitA+"/"):
		name := strings.TrimPrefix(path, "/"+repoName+"/resolve/"+commitA+"/")
		b, ok := s.files[name]
		if !ok {
			w.Header().Set("X-Error-Code", "EntryNotFound")
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		if !s.lfs(name) {
			_, _ = w.Write(b)
			return
		}
		s.mu.Lock()
		s.serial++
		to := fmt.Sprintf("%s/blob/%s?sig=%d", s.cdn.URL, url.PathEscape(name), s.serial)
		s.mu.Unlock()
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	default:
		w.Header().Set("X-Error-Code", "RepoNotFound")
		http.Error(w, "no", http.StatusUnauthorized)
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v)
}

func (s *hubServer) serveTree(w http.ResponseWriter, r *http.Request) {
	var names []string
	for n := range s.files {
		names = append(names, n)
	}
	slices.Sort(names)
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	to := min(from+s.page, len(names))
	out := []map[string]any{{"type": "directory", "path": "folder", "oid": commitA, "size": 0}}
	for _, n := range names[from:to] {
		b := s.files[n]
		e := map[string]any{"type": "file", "path": n, "size": len(b), "oid": gitOf(b)}
		if s.lfs(n) {
			e["lfs"] = map[string]any{"oid": sha256Of(b), "size": len(b), "pointerSize": 135}
		}
		out = append(out, e)
	}
	if to < len(names) {
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, s.api.URL, r.URL.Path, to))
	}
	reply(w, out)
}

func (s *hubServer) serveBytes(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		s.t.Errorf("the token went to %s", r.Host)
	}
	if r.Header.Get("Accept-Encoding") != "identity" {
		s.t.Errorf("Accept-Encoding is %q", r.Header.Get("Accept-Encoding"))
	}
	s.mu.Lock()
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	s.mu.Unlock()
	if s.intercept("cdn", w, r) {
		return
	}
	b := s.files[strings.TrimPrefix(r.URL.Path, "/blob/")]
	http.ServeContent(&counted{w, s}, r, "", time.Time{}, strings.NewReader(string(b)))
}

type counted struct {
	http.ResponseWriter
	s *hubServer
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.s.mu.Lock()
	c.s.bytes += int64(n)
	c.s.mu.Unlock()
	return n, err
}

// misbehave has every request pass through fn first.
func (s *hubServer) misbehave(fn func(host string, w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = fn
}

func (s *hubServer) sent() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}
