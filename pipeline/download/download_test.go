package download

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/download/transfer"
)

const configJSON = `{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4,"num_hidden_layers":1,
"num_attention_heads":1,"num_key_value_heads":1,"intermediate_size":4,"vocab_size":4}`

func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{{Name: "a.weight", DType: safetensors.F32, Shape: []int64{4, 4}, End: 64}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.WriteAt("a.weight", make([]byte, 64), 0), w.Commit()); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "config.json", configJSON)
	return dir
}

func put(t *testing.T, dir, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

func nothing(int64, int64) {}

func TestFolder(t *testing.T) {
	src, root := repository(t), t.TempDir()
	put(t, src, "pytorch_model.bin", "pickle")
	var last, total int64
	s, err := Folder(t.Context(), src, root, func(d, n int64) { last, total = d, n })
	if err != nil {
		t.Fatal(err)
	}
	if last != total || total == 0 || len(s.Warnings) != 1 || len(s.Manifest.Files) != 2 {
		t.Errorf("%d of %d bytes, snapshot %+v", last, total, s)
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "pytorch_model.bin")); err == nil {
		t.Error("pickled weights were copied")
	}
	if !Whole(t.Context(), s.Dir, s.Digest) {
		t.Error("the snapshot does not have its digest")
	}
	again, err := Folder(t.Context(), src, root, func(int64, int64) { t.Error("copied again") })
	if err != nil || again.Dir != s.Dir {
		t.Errorf("%+v, %v", again, err)
	}
	put(t, s.Dir, "config.json", "damaged")
	if healed, err := Folder(t.Context(), src, root, nothing); err != nil || !Whole(t.Context(), healed.Dir, s.Digest) {
		t.Errorf("a damaged snapshot was not replaced: %v", err)
	}
}

func TestFolderGoesOnWhereItWasStopped(t *testing.T) {
	src, root := repository(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Folder(ctx, src, root, func(done, _ int64) {
		if done >= int64(len(configJSON)) {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Fatalf("stopped: %v", err)
	}
	if out, _ := filepath.Glob(filepath.Join(root, "[0-9a-f]*")); len(out) > 0 {
		t.Errorf("half a snapshot is visible: %v", out)
	}
	var read []int64
	s, err := Folder(t.Context(), src, root, func(done, _ int64) { read = append(read, done) })
	if err != nil || !Whole(t.Context(), s.Dir, s.Digest) {
		t.Fatalf("%v, %v", s, err)
	}
	if read[0] != int64(len(configJSON)) {
		t.Errorf("progress %v: config.json was copied again", read)
	}
}

func TestFolderRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   []string
	}{
		{"only pickles", func(t *testing.T, dir string) {
			put(t, dir, "pytorch_model.bin", "x")
			_ = os.Remove(filepath.Join(dir, "model.safetensors"))
		}, []string{"pickled", "convert"}},
		{"truncated shard", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "model.safetensors"), 100); err != nil {
				t.Fatal(err)
			}
		}, []string{"model.safetensors"}},
		{"oversized header", func(t *testing.T, dir string) {
			put(t, dir, "model.safetensors", "\xff\xff\xff\xff\xff\x00\x00\x00{}")
		}, []string{"model.safetensors"}},
		{"missing shard", func(t *testing.T, dir string) {
			put(t, dir, safetensors.IndexName, `{"metadata":{"total_size":64},"weight_map":{"a.weight":"model.safetensors","b.weight":"model-00002.safetensors"}}`)
		}, []string{"model-00002.safetensors"}},
		{"wrong digest", func(t *testing.T, dir string) {
			put(t, dir, "SHA256SUMS", fmt.Sprintf("%064d  config.json\n", 0))
		}, []string{"config.json", "fetch it again"}},
		{"digest of a missing file", func(t *testing.T, dir string) {
			put(t, dir, "SHA256SUMS", fmt.Sprintf("%s  gone.json\n", model.DigestOf(nil).Hex()))
		}, []string{"gone.json", "SHA256SUMS:1"}},
		{"no config", func(t *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, "config.json")) }, []string{"config.json"}},
		{"no folder", func(t *testing.T, dir string) { _ = os.RemoveAll(dir) }, []string{"no such file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, root := repository(t), t.TempDir()
			c.damage(t, src)
			_, err := Folder(t.Context(), src, root, nothing)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range append(c.want, src) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not name %q", err, w)
				}
			}
			if left, _ := os.ReadDir(root); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Repositories as tools leave them: a cache whose files are links, a clone with
// its history beside them, lists of digests from other systems.
func TestFolderTakesWhatToolsLeave(t *testing.T) {
	plain := repository(t)
	want, err := Inspect(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		if err := os.Symlink(filepath.Join(plain, name), filepath.Join(src, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{".git/objects", ".cache/huggingface/download"} {
		if err := os.MkdirAll(filepath.Join(src, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, src, dir+"/noise", dir)
	}
	s, err := Folder(t.Context(), src, t.TempDir(), nothing)
	if err != nil || s.Digest != want.Digest {
		t.Fatalf("digest %s, want %s, %v", s.Digest, want.Digest, err)
	}
	for _, f := range s.Manifest.Files {
		if info, err := os.Lstat(filepath.Join(s.Dir, f.Path)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s is %v, %v", f.Path, info, err)
		}
	}
	if err := os.Symlink(plain, filepath.Join(src, "more")); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(t.Context(), src); err == nil || !strings.Contains(err.Error(), "more") {
		t.Errorf("a link to a folder: %v", err)
	}
}

func TestSumsOfOtherSystems(t *testing.T) {
	src := repository(t)
	if err := os.Mkdir(filepath.Join(src, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, src, "sub/note.txt", "x")
	sum := func(name string) string {
		b, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			t.Fatal(err)
		}
		return model.DigestOf(b).Hex()
	}
	all := []string{
		sum("config.json") + "  config.json",
		strings.ToUpper(sum("model.safetensors")) + " *./model.safetensors",
		sum("sub/note.txt") + "  ./sub/note.txt",
	}
	for name, body := range map[string]string{"unix": strings.Join(all, "\n") + "\n", "windows": strings.Join(all, "\r\n") + "\r\n\r\n"} {
		put(t, src, transfer.SumsName, body)
		if s, err := Inspect(t.Context(), src); err != nil || s.Checked != 3 || len(s.Warnings) > 0 {
			t.Errorf("%s: %d checked, %v, %v", name, s.Checked, s.Warnings, err)
		}
	}
	// A list that leaves the weights out vouches for less than it seems to.
	put(t, src, transfer.SumsName, all[0]+"\n")
	if s, err := Inspect(t.Context(), src); err != nil || s.Checked != 1 || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "model.safetensors") {
		t.Errorf("%d checked, %v, %v", s.Checked, s.Warnings, err)
	}
}
