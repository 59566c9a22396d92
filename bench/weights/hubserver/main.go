// Command hubserver serves a folder as a repository of the Hugging Face Hub on this
// machine, org/model at main: the API, and a second address that has the bytes of large
// files. It is what downloads are compared on.
package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

type file struct {
	size     int64
	sha, git string
	large    bool
}

func main() {
	dir := flag.String("dir", "", "the folder")
	listen := flag.String("listen", "127.0.0.1:18460", "the API's address; the bytes are on the next port of 127.0.0.2")
	delay := flag.Duration("delay", 0, "before each answer")
	rate := flag.Int64("rate", 0, "MiB a second of one connection; 0: all there is")
	flag.Parse()
	files, err := scan(*dir)
	if err != nil {
		log.Fatal(err)
	}
	_, port, err := net.SplitHostPort(*listen)
	if err != nil {
		log.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		log.Fatal(err)
	}
	bytesAt := net.JoinHostPort("127.0.0.2", fmt.Sprint(n+1)) // another host, as the Hub has it
	s := &server{dir: *dir, files: files, bytesAt: bytesAt, rate: *rate << 20}
	slow := func(h http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(*delay)
			h(w, r)
		})
	}
	go func() { log.Fatal(http.ListenAndServe(bytesAt, slow(s.bytes))) }()
	log.Fatal(http.ListenAndServe(*listen, slow(s.api)))
}

func scan(dir string) (map[string]file, error) {
	out := map[string]file{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		sha, git := sha256.Sum256(b), sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...))
		out[filepath.ToSlash(rel)] = file{int64(len(b)), hex.EncodeToString(sha[:]), hex.EncodeToString(git[:]), len(b) > 1<<20}
		return nil
	})
	return out, err
}

type server struct {
	dir     string
	files   map[string]file
	bytesAt string
	rate    int64
	sent    atomic.Int64
}

// counted counts what goes out, without a copy through this process, and lets no more
// than rate bytes a second pass.
type counted struct {
	http.ResponseWriter
	sent *atomic.Int64
	rate int64
}

// slice is how many bytes a connection with a rate gets at a time.
const slice = 256 << 10

func (c counted) ReadFrom(r io.Reader) (int64, error) {
	out := c.ResponseWriter.(io.ReaderFrom)
	if c.rate == 0 {
		n, err := out.ReadFrom(r)
		c.sent.Add(n)
		return n, err
	}
	var total int64
	for began := time.Now(); ; {
		n, err := out.ReadFrom(io.LimitReader(r, slice))
		c.sent.Add(n)
		if total += n; err != nil || n < slice {
			return total, err
		}
		time.Sleep(time.Duration(float64(total)/float64(c.rate)*float64(time.Second)) - time.Since(began))
	}
}

func (s *server) api(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	reply := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	name, isFile := strings.CutPrefix(path, "/org/model/resolve/"+commit+"/")
	f, known := s.files[name]
	switch {
	case strings.HasPrefix(path, "/api/models/org/model/tree/"):
		var out []map[string]any
		for p, f := range s.files {
			e := map[string]any{"type": "file", "path": p, "size": f.size, "oid": f.git}
			if f.large {
				e["lfs"] = map[string]any{"oid": f.sha, "size": f.size, "pointerSize": 135}
			}
			out = append(out, e)
		}
		reply(out)
	case strings.HasPrefix(path, "/api/models/org/model"):
		var siblings []map[string]any
		for p := range s.files {
			siblings = append(siblings, map[string]any{"rfilename": p})
		}
		reply(map[string]any{"sha": commit, "id": "org/model", "siblings": siblings})
	case !isFile || !known:
		w.Header().Set("X-Error-Code", "EntryNotFound")
		http.NotFound(w, r)
	default:
		w.Header().Set("X-Repo-Commit", commit)
		w.Header().Set("ETag", `"`+f.git+`"`)
		if !f.large {
			http.ServeFile(w, r, filepath.Join(s.dir, name))
			return
		}
		w.Header().Set("X-Linked-Etag", `"`+f.sha+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(f.size))
		w.Header().Set("Location", "http://"+s.bytesAt+"/"+name+"?signed=1")
		w.WriteHeader(http.StatusFound)
	}
}

func (s *server) bytes(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/sent" {
		_, _ = fmt.Fprint(w, s.sent.Load())
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if _, ok := s.files[name]; !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", `"`+s.files[name].sha+`"`)
	http.ServeFile(counted{w, &s.sent, s.rate}, r, filepath.Join(s.dir, name))
}
