package quantise

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
)

// small makes tensors of lines such as headers takes; what is no such line, or
// large, is left out.
func small(lines string) (out []safetensors.Tensor) {
	seen, total := map[string]bool{}, int64(0)
	for l := range strings.Lines(lines) {
		f := strings.Fields(l)
		if len(f) != 3 || seen[f[0]] {
			continue
		}
		d, err := safetensors.ParseDType(f[1])
		shape, n := []int64{}, int64(1)
		for s := range strings.SplitSeq(f[2], "x") {
			v, bad := strconv.ParseUint(s, 10, 11)
			if bad != nil {
				err = bad
			}
			shape, n = append(shape, int64(v)), min(n*int64(v), 1<<20)
		}
		if total += n; err != nil || total > 1<<18 || len(out) == 32 {
			return out
		}
		seen[f[0]] = true
		out = append(out, sized(f[0], d, shape...))
	}
	return out
}

// FuzzPlan gives Plan names, types and shapes of any kind. What it accepts is
// written, can be opened, and is the same model.
func FuzzPlan(f *testing.F) {
	for i, v := range verdicts {
		shrink := strings.NewReplacer("4096", "128", "14336", "256", "32000", "64", "8192", "256", "1536", "64", "768", "32", "2048", "128", "32x", "1x")
		f.Add(shrink.Replace(v.config), shrink.Replace(strings.Join(v.lines, "\n")), strings.Join(v.keep, ""), uint8(i))
		f.Add(shrink.Replace(v.config), shrink.Replace(strings.Join(v.lines, "\n")), "re:.*experts", uint8(i+3))
	}
	f.Fuzz(func(t *testing.T, config, lines, keep string, which uint8) {
		shape, err := model.ParseShape([]byte(config))
		var short []string // without the verdicts
		for l := range strings.Lines(lines) {
			short = append(short, strings.Join(strings.Fields(l)[:min(3, len(strings.Fields(l)))], " "))
		}
		tensors := small(strings.Join(short, "\n"))
		if err != nil || len(tensors) == 0 || shape.Experts.Count > 64 {
			return
		}
		dir := t.TempDir()
		write(t, dir, "config.json", config)
		w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), tensors, nil)
		if err != nil {
			return
		}
		for _, x := range tensors {
			if err := w.WriteAt(x.Name, make([]byte, x.Size()), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		o := Options{Scheme: Schemes()[int(which)%len(schemes)], TensorParallel: int(which) / 64}
		if keep != "" {
			o.Keep = []string{keep}
		}
		c, err := safetensors.OpenDir(dir)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		steps, err := Plan(c, shape, o)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" || slices.ContainsFunc(steps, func(s Step) bool { return s.Refused && s.Reason == "" }) {
				t.Fatalf("refused without a reason: %v %+v", err, steps)
			}
			return
		}
		dst := filepath.Join(t.TempDir(), "out")
		rep, err := Run(t.Context(), dir, dst, o, quiet)
		if err != nil {
			t.Fatalf("planned, but: %v", err)
		}
		diff, err := Diff(t.Context(), dir, dst, quiet)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range diff {
			if d.Fault != "" {
				t.Fatalf("%+v of %+v", d, rep)
			}
		}
	})
}
