// Package objectstest is an object store for tests: what the documentation of S3 says of
// listing, reading by ranges, writing at once and in parts, and of refusals. It asks for
// the right access key and checks no signatures; that is what a real store is for.
package objectstest

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"llmops/fleet/objects"
)

// Keys are what the server takes.
const (
	AccessKey = "AKIATEST"
	SecretKey = "secret-of-the-test"
)

// Server holds one bucket in memory.
type Server struct {
	URL    string
	Bucket string

	mu      sync.Mutex // guards the rest
	objects map[string][]byte
	uploads map[string]map[int][]byte
	before  func(w http.ResponseWriter, r *http.Request) (handled bool)
	wrote   int
}

// New starts one that ends with the test.
func New(t testing.TB, bucket string) *Server {
	t.Helper()
	s, stop := Start(bucket)
	t.Cleanup(stop)
	return s
}

// Start starts one that ends with stop.
func Start(bucket string) (s *Server, stop func()) {
	s = &Server{Bucket: bucket, objects: map[string][]byte{}, uploads: map[string]map[int][]byte{}}
	srv := httptest.NewServer(s)
	s.URL = srv.URL
	return s, srv.Close
}

// Options reach the server.
func (s *Server) Options() objects.Options {
	return objects.Options{Endpoint: s.URL, Region: "us-east-1", AccessKey: AccessKey, SecretKey: SecretKey}
}

// Set stores an object, and removes it when body is nil.
func (s *Server) Set(key string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if body == nil {
		delete(s.objects, key)
		return
	}
	s.objects[key] = body
}

// Get is an object's content; nil: there is none.
func (s *Server) Get(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key]
}

// Keys lists the objects in order.
func (s *Server) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for k := range s.objects {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Wrote is how many objects have been written over the network.
func (s *Server) Wrote() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

// Misbehave has every request pass through fn first.
func (s *Server) Misbehave(fn func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = fn
}

type failure struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
}

func fail(w http.ResponseWriter, status int, code string) {
	reply(w, status, failure{Code: code, Message: "said by the test's store"})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_ = xml.NewEncoder(w).Encode(v)
}

func etag(b []byte) string { h := md5.Sum(b); return `"` + hex.EncodeToString(h[:]) + `"` }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	if !strings.Contains(r.Header.Get("Authorization")+r.URL.Query().Get("X-Amz-Credential"), AccessKey) {
		fail(w, http.StatusForbidden, "InvalidAccessKeyId")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != s.Bucket {
		fail(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && key == "" && q.Has("location"):
		reply(w, http.StatusOK, struct {
			XMLName xml.Name `xml:"LocationConstraint"`
		}{})
	case r.Method == http.MethodHead && key == "":
		w.WriteHeader(http.StatusOK)
	case r.Method == http.MethodGet && key == "":
		s.list(w, q.Get("prefix"), q.Get("continuation-token"))
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		s.read(w, r, key)
	case r.Method == http.MethodPost && q.Has("uploads"):
		id := fmt.Sprint(len(s.uploads) + 1)
		s.uploads[id] = map[int][]byte{}
		reply(w, http.StatusOK, struct {
			XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key, UploadId string
		}{Bucket: bucket, Key: key, UploadId: id})
	case r.Method == http.MethodPost:
		s.complete(w, key, q.Get("uploadId"))
	case r.Method == http.MethodPut:
		s.write(w, r, key)
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// page is how many keys one answer lists.
const page = 3

func (s *Server) list(w http.ResponseWriter, prefix, after string) {
	type content struct {
		Key, ETag    string
		Size         int
		LastModified string
	}
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []content
	}
	var keys []string
	for k := range s.objects {
		if strings.HasPrefix(k, prefix) && k > after {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	if out.IsTruncated = len(keys) > page; out.IsTruncated {
		keys = keys[:page]
		out.NextContinuationToken = keys[page-1]
	}
	for _, k := range keys {
		out.Contents = append(out.Contents, content{k, etag(s.objects[k]), len(s.objects[k]), "2026-11-30T00:00:00.000Z"})
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) read(w http.ResponseWriter, r *http.Request, key string) {
	b, ok := s.objects[key]
	switch {
	case !ok:
		fail(w, http.StatusNotFound, "NoSuchKey")
	case r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != etag(b):
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
	default:
		w.Header().Set("ETag", etag(b))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(b))
	}
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, key string) {
	b, err := body(r)
	if err != nil {
		fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	q := r.URL.Query()
	if id := q.Get("uploadId"); id != "" {
		n, err := strconv.Atoi(q.Get("partNumber"))
		if parts, ok := s.uploads[id]; err == nil && ok {
			parts[n] = b
			w.Header().Set("ETag", etag(b))
			return
		}
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	s.objects[key] = b
	s.wrote++
	w.Header().Set("ETag", etag(b))
}

// body undoes the chunks that a signed stream comes in.
func body(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	in := bufio.NewReader(r.Body)
	var out []byte
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			_, err := io.Copy(io.Discard, in)
			return out, err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk[:n]...)
	}
}

func (s *Server) complete(w http.ResponseWriter, key, id string) {
	parts, ok := s.uploads[id]
	if !ok {
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	delete(s.uploads, id)
	var whole []byte
	for n := 1; n <= len(parts); n++ {
		whole = append(whole, parts[n]...)
	}
	s.objects[key] = whole
	s.wrote++
	reply(w, http.StatusOK, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: s.Bucket, Key: key, ETag: etag(whole)})
}
