package registry

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/fleet/objects"
	"llmops/fleet/objects/objectstest"
	"llmops/model"
)

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const config = `{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":4,"vocab_size":4}`

func open(t *testing.T) (*objectstest.Server, *objects.Bucket) {
	t.Helper()
	s := objectstest.New(t, "models")
	b, err := objects.Open("s3://models/shared", s.Options())
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

func quiet(int64, int64) {}

func TestPush(t *testing.T) {
	s, b := open(t)
	ctx := t.Context()
	parent := write(t, map[string]string{"config.json": config, "tokenizer.json": "{}", "model.safetensors": "parent", "empty": ""})
	child := write(t, map[string]string{"config.json": config, "tokenizer.json": "{}", "model.safetensors": "child"})
	made := time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC)
	v0, sent, err := Push(ctx, b, parent, Manifest{Name: "a/b.c", Version: "v0", Source: "hf://a/b@c", License: "mit", Made: made}, "", quiet)
	if err != nil || sent == 0 || v0.Kind != Model || len(v0.Files) != 4 {
		t.Fatalf("%+v, %d, %v", v0, sent, err)
	}
	wrote := s.Wrote()
	v1, _, err := Push(ctx, b, child, Manifest{Name: "a/b.c", Version: "v1", Scheme: "fp8-dynamic", Base: string(v0.Digest), Run: "r", By: "llmops", Made: made}, "", quiet)
	if err != nil || v1.Base != string(v0.Digest) {
		t.Fatalf("%+v, %v", v1, err)
	}
	if n := s.Wrote() - wrote; n != 2 { // its weights and its manifest
		t.Errorf("%d objects were written of a version that shares all but its weights", n)
	}
	// Again, and with other content.
	wrote = s.Wrote()
	again, sent, err := Push(ctx, b, child, Manifest{Name: "a/b.c", Version: "v1", Made: made.Add(time.Hour)}, v1.Digest, quiet)
	if err != nil || sent != 0 || again.Run != "r" || s.Wrote() != wrote {
		t.Errorf("%+v, %d, %v", again, sent, err)
	}
	if _, _, err := Push(ctx, b, parent, Manifest{Name: "a/b.c", Version: "v1"}, "", quiet); !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}
	if _, _, err := Push(ctx, b, parent, Manifest{Name: "a/b.c", Version: "v2"}, v1.Digest, quiet); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("%v", err)
	}
	got, err := Get(ctx, b, "a/b.c", "v0")
	if err != nil || got.Digest != v0.Digest || got.License != "mit" || !got.Made.Equal(made.Truncate(time.Second)) {
		t.Errorf("%+v, %v", got, err)
	}
	all, err := List(ctx, b, "")
	if err != nil || len(all) != 2 || all[0].Version != "v0" || all[1].Scheme != "fp8-dynamic" {
		t.Errorf("%+v, %v", all, err)
	}
	if none, err := List(ctx, b, "a/b"); err != nil || len(none) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
	if _, err := Get(ctx, b, "a/b.c", "v9"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// Whatever breaks a push, no version is there, and the next push ends it.
func TestPushThatBreaks(t *testing.T) {
	s, b := open(t)
	dir := write(t, map[string]string{"config.json": config, "model.safetensors": strings.Repeat("w", 10_000)})
	for _, c := range []struct { // in this order: a push that reaches the manifest has brought the weights
		name   string
		breaks func(r *http.Request) bool
	}{
		{"the weights", func(r *http.Request) bool { return r.Method == http.MethodPut && r.ContentLength > 5000 }},
		{"the manifest", func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/models/v")
		}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s.Misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
			if c.breaks(r) {
				cancel()
				panic(http.ErrAbortHandler)
			}
			return false
		})
		if _, _, err := Push(ctx, b, dir, Manifest{Name: "models", Version: "v0"}, "", quiet); err == nil {
			t.Errorf("%s: no error", c.name)
		}
		s.Misbehave(nil)
		if all, err := List(t.Context(), b, ""); err != nil || len(all) != 0 {
			t.Errorf("%s: %+v, %v", c.name, all, err)
		}
	}
	if _, _, err := Push(t.Context(), b, dir, Manifest{Name: "models", Version: "v0"}, "", quiet); err != nil {
		t.Error(err)
	}
}

// A file that changes between its digest and its transfer is stored under no digest.
func TestPushOfAFileThatChanges(t *testing.T) {
	s, b := open(t)
	dir := write(t, map[string]string{"config.json": config, "model.safetensors": "before"})
	s.Misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead { // the manifest's digests are made by now
			if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte("AFTER!"), 0o600); err != nil {
				t.Error(err)
			}
		}
		return false
	})
	if _, _, err := Push(t.Context(), b, dir, Manifest{Name: "m", Version: "v0"}, "", quiet); err == nil || !strings.Contains(err.Error(), "model.safetensors changed") {
		t.Errorf("%v", err)
	}
	for _, k := range s.Keys() {
		if string(s.Get(k)) == "AFTER!" {
			t.Errorf("%s has the content of another digest", k)
		}
	}
}

func TestKinds(t *testing.T) {
	for want, files := range map[Kind]map[string]string{
		Model:   {"config.json": config},
		Encoder: {"config.json": strings.Replace(config, "LlamaForCausalLM", "BertModel", 1)},
		Adapter: {"adapter_config.json": `{"base_model_name_or_path":"org/base"}`, "adapter_model.safetensors": "x"},
	} {
		_, b := open(t)
		m, _, err := Push(t.Context(), b, write(t, files), Manifest{Name: "m", Version: "1"}, "", quiet)
		if err != nil || m.Kind != want || want == Adapter && m.Base != "org/base" {
			t.Errorf("%s: %+v, %v", want, m, err)
		}
	}
	_, b := open(t)
	for says, files := range map[string]map[string]string{
		"can run code": {"config.json": config, "pytorch_model.bin": "x"},
		"config.json":  {"model.safetensors": "x"},
	} {
		if _, _, err := Push(t.Context(), b, write(t, files), Manifest{Name: "m", Version: "1"}, "", quiet); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

func TestParseRef(t *testing.T) {
	if n, v, err := ParseRef("a@b/c@v1.2"); err != nil || n != "a@b/c" || v != "v1.2" {
		t.Errorf("%s, %s, %v", n, v, err)
	}
	for _, bad := range []string{"", "a", "@v1", "a@", "a@../x", "a@v/1", "a@" + strings.Repeat("v", 65)} {
		if _, _, err := ParseRef(bad); !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(`{"apiVersion":"llmops/v1","name":"a","version":"b","digest":"` + string(model.Manifest{}.Digest()) + `"}`)
	f.Add(`{"apiVersion":"llmops/v1","files":[{"path":"../x","size":-1,"digest":"sha256:0"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parse([]byte(text))
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if _, err := objects.BlobKey(string(file.Digest)); err != nil || !strings.HasPrefix(filepath.Join("/r", file.Path), "/r/") {
				t.Errorf("%+v", file)
			}
		}
	})
}
