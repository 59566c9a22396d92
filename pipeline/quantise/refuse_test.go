package quantise

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model/safetensors"
)

// Careless repositories: each is refused with what is wrong in it, and nothing is
// left behind.
func TestBadRepositories(t *testing.T) {
	good := func() string {
		return headers(t, decoder("llama", ""), "model-1.safetensors", "model.layers.0.a.weight BF16 16x16", "model-2.safetensors", "model.layers.1.a.weight BF16 16x16")
	}
	raw := func(header string, data int) string {
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + strings.Repeat("\x00", data)
	}
	for _, c := range []struct {
		name, want string
		spoil      func(dir string)
	}{
		{"a header bomb", "over the limit of 100000000", func(dir string) {
			write(t, dir, "model-1.safetensors", string(binary.LittleEndian.AppendUint64(nil, 1<<40))+"{}")
		}},
		{"a header that ends nowhere", "truncated", func(dir string) {
			write(t, dir, "model-1.safetensors", string(binary.LittleEndian.AppendUint64(nil, 99_000_000))+"{}")
		}},
		{"overlapping tensors", `has offsets 0 to 512, want them to begin at 512`, func(dir string) {
			write(t, dir, "model-1.safetensors", raw(`{"model.layers.0.a.weight":{"dtype":"BF16","shape":[16,16],"data_offsets":[0,512]},"b":{"dtype":"BF16","shape":[16,16],"data_offsets":[0,512]}}`, 512))
		}},
		{"a shape that overflows", "overflows", func(dir string) {
			write(t, dir, "model-1.safetensors", raw(`{"model.layers.0.a.weight":{"dtype":"BF16","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`, 0))
		}},
		{"a name twice in a header", `key "model.layers.0.a.weight" is there twice`, func(dir string) {
			one := `"model.layers.0.a.weight":{"dtype":"BF16","shape":[16,16],"data_offsets":[0,512]}`
			write(t, dir, "model-1.safetensors", raw("{"+one+","+one+"}", 512))
		}},
		{"a name in two shards", `but the index has it in "model-2.safetensors"`, func(dir string) {
			b, err := os.ReadFile(filepath.Join(dir, "model-2.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir, "model-1.safetensors", string(b))
		}},
		{"a shard that is gone", "shard model-2.safetensors is missing: the index names it", func(dir string) {
			if err := os.Remove(filepath.Join(dir, "model-2.safetensors")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a tensor that the index leaves out", "the index has it in", func(dir string) {
			write(t, dir, safetensors.IndexName, `{"weight_map":{"model.layers.1.a.weight":"model-2.safetensors","x":"model-1.safetensors"}}`)
		}},
		{"an index that leads out of the folder", "is not the name of a safetensors file in this folder", func(dir string) {
			write(t, dir, safetensors.IndexName, `{"weight_map":{"a":"../model.safetensors"}}`)
		}},
		{"a truncated download", "truncated or too long", func(dir string) {
			if err := os.Truncate(filepath.Join(dir, "model-1.safetensors"), 400); err != nil {
				t.Fatal(err)
			}
		}},
		{"a pointer of git-lfs", "over the limit", func(dir string) {
			write(t, dir, "model-1.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
		}},
		{"no config", "config.json", func(dir string) {
			if err := os.Remove(filepath.Join(dir, "config.json")); err != nil {
				t.Fatal(err)
			}
		}},
		{"weights that can run code", "pickled weights", func(dir string) {
			for _, name := range []string{"model-1.safetensors", "model-2.safetensors", safetensors.IndexName} {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			write(t, dir, "pytorch_model.bin", "x")
		}},
	} {
		dir, out := good(), t.TempDir()
		c.spoil(dir)
		_, err := Run(t.Context(), dir, filepath.Join(out, "o"), Options{Scheme: FP8Dynamic}, quiet)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", c.name, left, err)
		}
	}
}

// NaN and Inf are refused in every scheme and type, named with tensor and row.
func TestDamagedWeights(t *testing.T) {
	for _, scheme := range Schemes() {
		for _, d := range floats {
			dir := t.TempDir()
			write(t, dir, "config.json", decoder("llama", ""))
			put(t, filepath.Join(dir, "model.safetensors"), func(_ string, i int) float32 {
				if i == 256*130+77 {
					return float32(math.Inf(-1))
				}
				return 1
			}, sized("a.weight", d, 256, 256))
			o := Options{Scheme: scheme}
			if scheme == FP8Static {
				o.Scales = &Scales{Activations: map[string]float64{"a": 1}}
			}
			dst := filepath.Join(t.TempDir(), "out")
			_, err := Run(t.Context(), dir, dst, o, quiet)
			if err == nil || !strings.Contains(err.Error(), "model.safetensors: tensor a.weight: row 130: holds NaN or Inf") {
				t.Errorf("%s %s: %v", scheme, d, err)
			}
			if _, err := os.Stat(dst); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %s: %v", scheme, d, err)
			}
		}
	}
}
