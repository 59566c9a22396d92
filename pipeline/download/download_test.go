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
