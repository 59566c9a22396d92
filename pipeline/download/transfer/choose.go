package transfer

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"llmops/model"
)

// otherWeights are the suffixes of weights that are not read here. They are as large as
// those that are.
var otherWeights = []string{".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".tflite", ".ot", ".mlmodel", ".nemo", ".llamafile", ".pdparams"}

// Choose splits a listing into what is wanted and what is left behind. A pattern is one
// of package path, of the whole path or of its last element.
func Choose(files []File, include, exclude []string) (want, left []File, err error) {
	for _, p := range append(slices.Clone(include), exclude...) {
		if _, err := path.Match(p, ""); err != nil {
			return nil, nil, fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	hit := func(patterns []string, name string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			whole, _ := path.Match(p, name)
			last, _ := path.Match(p, path.Base(name))
			return whole || last
		})
	}
	for _, f := range files {
		name := strings.ToLower(f.Path)
		wanted := !slices.ContainsFunc(otherWeights, func(s string) bool { return strings.HasSuffix(name, s) })
		if len(include) > 0 {
			wanted = hit(include, f.Path)
		}
		if model.Unsafe(f.Path) || hit(exclude, f.Path) || strings.HasPrefix(f.Path, ".git") {
			wanted = false
		}
		if wanted {
			want = append(want, f)
		} else {
			left = append(left, f)
		}
	}
	return want, left, nil
}
