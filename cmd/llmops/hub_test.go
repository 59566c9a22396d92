package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"llmops/fleet/objects/objectstest"
	"llmops/pipeline/download/transfer"
)

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

// hub serves a folder as org/model of the Hugging Face Hub, with a token that it wants,
// and points the script at it: "hub DIR".
func hub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hub DIR")
	}
	root := os.DirFS(ts.MkAbs(args[0]))
	var list []map[string]any
	ts.Check(fs.WalkDir(root, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, path)
		sum := sha256.Sum256(b)
		list = append(list, map[string]any{"type": "file", "path": path, "size": len(b), "oid": hubCommit,
			"lfs": map[string]any{"oid": hex.EncodeToString(sum[:]), "size": len(b)}})
		return err
	}))
	reply := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, file := strings.CutPrefix(r.URL.Path, "/org/model/resolve/"+hubCommit+"/")
		switch {
		case r.Header.Get("Authorization") != "Bearer hf_test":
			w.Header().Set("X-Error-Code", "GatedRepo")
			http.Error(w, "gated", http.StatusForbidden)
		case file:
			http.ServeFileFS(w, r, root, name)
		case strings.HasPrefix(r.URL.Path, "/api/models/org/model/tree/"+hubCommit):
			reply(w, list)
		case r.URL.Path == "/api/models/org/model/revision/main":
			reply(w, map[string]string{"sha": hubCommit})
		default:
			w.Header().Set("X-Error-Code", "RepoNotFound")
			http.NotFound(w, r)
		}
	}))
	ts.Defer(s.Close)
	ts.Setenv("HF_ENDPOINT", s.URL)
	ts.Setenv("HF_HOME", ts.MkAbs("hf"))
}

// site serves a folder on the web, with the digests of its files, at $SITE: "site DIR".
func site(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: site DIR")
	}
	root := os.DirFS(ts.MkAbs(args[0]))
	var sums strings.Builder
	ts.Check(fs.WalkDir(root, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || path == transfer.SumsName {
			return err
		}
		b, err := fs.ReadFile(root, path)
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b), path)
		return err
	}))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/model/"+transfer.SumsName {
			_, _ = w.Write([]byte(sums.String()))
			return
		}
		http.StripPrefix("/model/", http.FileServerFS(root)).ServeHTTP(w, r)
	}))
	ts.Defer(s.Close)
	ts.Setenv("SITE", s.URL+"/model/")
}

// bucket serves a folder as s3://weights/model, and points the script at its store:
// "bucket DIR".
func bucket(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: bucket DIR")
	}
	root := os.DirFS(ts.MkAbs(args[0]))
	s, stop := objectstest.Start("weights")
	ts.Defer(stop)
	ts.Check(fs.WalkDir(root, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, path)
		s.Set("model/"+path, b)
		return err
	}))
	ts.Setenv("AWS_ENDPOINT_URL_S3", s.URL)
	ts.Setenv("AWS_REGION", "us-east-1")
	ts.Setenv("AWS_ACCESS_KEY_ID", objectstest.AccessKey)
	ts.Setenv("AWS_SECRET_ACCESS_KEY", objectstest.SecretKey)
}
