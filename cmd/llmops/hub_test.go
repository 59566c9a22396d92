package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
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
