package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"llmops/internal/config"
	"llmops/jobs"
	"llmops/pipeline/eval"
)

// optional is a key of the file that is commented out.
var optional = regexp.MustCompile(`(?m)^( *)#(\S)`)

func initialised(t *testing.T, args ...string) (path, text string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "model.yaml")
	if r := run(t, t.TempDir(), append([]string{"init", "--out", path}, args...)...); r.code != exitDone {
		t.Fatalf("init exits %d: %s", r.code, r.err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"evals/questions.jsonl": itemExample + "\n", "evals/text.jsonl": "", "evals/canaries.jsonl": "", "traffic.jsonl": ""} {
		full := filepath.Join(filepath.Dir(path), name)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path, string(b)
}

func TestInitWritesWhatOnboardReads(t *testing.T) {
	path, text := initialised(t, "--name", "support-8b")
	spec, err := config.Model(path)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Name != "support-8b" || spec.Source != filepath.Join(filepath.Dir(path), "weights") || spec.Canary.Steps[0].Bake != 24*time.Hour {
		t.Errorf("the file reads as %+v", spec)
	}
	if _, _, err := eval.ReadItems(spec.Eval.Suites[0].Items, 0); err != nil {
		t.Errorf("the example of an item: %v", err)
	}

	// With every key spelled out it still reads, and the defaults that it names
	// are those that hold without them.
	if n := len(optional.FindAllString(text, -1)); n < 15 {
		t.Errorf("only %d optional keys are in the file", n)
	}
	if err := os.WriteFile(path, []byte(optional.ReplaceAllString(text, "$1$2")), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := config.Model(path)
	if err != nil {
		t.Fatalf("with every key: %v", err)
	}
	spec.Engine.Fault, spec.Quantise.Keep, spec.Traffic.Replay = all.Engine.Fault, all.Quantise.Keep, all.Traffic.Replay
	spec.Eval.Text, spec.Eval.Canaries = all.Eval.Text, all.Eval.Canaries
	a, _ := json.Marshal(spec)
	b, _ := json.Marshal(all)
	if !bytes.Equal(a, b) {
		t.Errorf("a default in the file is not the one that holds:\n%s\n%s", a, b)
	}
}

// The other engine of the file reads in the place of the first, with each of its keys.
func TestInitOtherEngine(t *testing.T) {
	path, text := initialised(t)
	first := regexp.MustCompile(`(?m)^(engine|placement):\n(  .*\n)+`)
	other := regexp.MustCompile(`(?m)^#   `)
	if len(first.FindAllString(text, -1)) != 2 || len(other.FindAllString(text, -1)) < 20 {
		t.Fatal(text)
	}
	if err := os.WriteFile(path, []byte(other.ReplaceAllString(first.ReplaceAllString(text, ""), "")), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := config.Model(path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Engine.Kind != "vllm" || s.Engine.TensorParallel != 4 || s.Engine.KVOffload != 80<<30 || s.Engine.Speculative.MaxBatch != 8 || s.Placement.GPU != "h100-sxm" || s.Placement.Near != "r7" {
		t.Errorf("%+v, %+v", s.Engine, s.Placement)
	}
}

func TestInitJobs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	if r := run(t, t.TempDir(), "init", "--jobs", dir); r.code != exitDone || !strings.Contains(r.out, "engine-vllm.nomad.hcl") {
		t.Fatalf("%+v", r)
	}
	got, err := os.ReadFile(filepath.Join(dir, "engine-bare.nomad.hcl"))
	want, err2 := jobs.Files.ReadFile("engine-bare.nomad.hcl")
	if err != nil || err2 != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %v, %d bytes, want %d", err, err2, len(got), len(want))
	}
	if r := run(t, t.TempDir(), "init", "--jobs", dir); r.code != exitUsage || !strings.Contains(r.err, "is there already") {
		t.Errorf("written over: %+v", r)
	}
	if r := run(t, t.TempDir(), "init", "--jobs", dir, "--name", "x"); r.code != exitUsage {
		t.Errorf("a model's name for job files: %+v", r)
	}
}

func TestInitQuotesWhatItMust(t *testing.T) {
	for _, name := range []string{"org/model-7b.v2", "true", "NULL", "7b", "1e3", "a: b", "# no", "'", `"`, "naïve", "a\nb", "{x}", "-", "~x"} {
		path, _ := initialised(t, "--name", name)
		if spec, err := config.Model(path); err != nil || spec.Name != name {
			t.Errorf("name %q reads as %q, %v", name, spec.Name, err)
		}
	}
}

func TestInitFindsTheSourceFromTheFile(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("sub", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, want string }{
		{"", filepath.Join(dir, "sub", "weights")},
		{"here", filepath.Join(dir, "here")},
		{"sub/there", filepath.Join(dir, "sub", "there")},
		{"/abs/olute", "/abs/olute"},
	} {
		out := filepath.Join("sub", "model.yaml")
		if r := run(t, dir, "init", "--out", out, "--source", c.source); r.code != exitDone {
			t.Fatalf("init --source %q exits %d: %s", c.source, r.code, r.err)
		}
		spec, err := config.Model(out)
		if spec.Source != c.want {
			t.Errorf("--source %q reads as %q, want %q", c.source, spec.Source, c.want)
		}
		// Only the items are still missing, and the error names their line.
		if err == nil || strings.Count(err.Error(), "model.yaml") != 1 || !strings.Contains(err.Error(), "questions.jsonl") {
			t.Errorf("a file without its items: %v", err)
		}
		if err := os.Remove(out); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInitNeverOverwrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.yaml")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, t.TempDir(), "init", "--out", path)
	if r.code != exitUsage || !strings.Contains(r.err, path) {
		t.Errorf("init over a file exits %d: %s", r.code, r.err)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file holds %q", b)
	}
}
