package quantise

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
)

// python is an interpreter in the place of Python: it runs body with $out set to
// where the result goes and $in to what was asked for.
func python(t *testing.T, body string) string {
	t.Helper()
	path := write(t, t.TempDir(), "python", "#!/bin/sh\nin=$(cat)\nout=$(printf %s \"$in\" | sed 's/.*\"out\":\"\\([^\"]*\\)\".*/\\1/')\n"+body)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// What comes back is checked, completed and moved as a whole; what is not the model
// is refused. bench/weights/quantise.sh does it with llm-compressor.
func TestCalibrate(t *testing.T) {
	src, data := tiny(t), write(t, t.TempDir(), "data.jsonl", `{"text":"a"}`+"\n")
	write(t, src, "tokenizer.json", "{}")
	made := filepath.Join(t.TempDir(), "made")
	if _, err := Run(t.Context(), src, made, Options{Scheme: Int4}, quiet); err != nil {
		t.Fatal(err)
	}
	write(t, made, "recipe.yaml", "x")
	other := filepath.Join(t.TempDir(), "other")
	if _, err := Run(t.Context(), checkpoint(t, safetensors.BF16, gaussian(1), "a.weight"), other, Options{Scheme: FP8Dynamic}, quiet); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	dst := filepath.Join(t.TempDir(), "out")
	good := python(t, "echo calibrating; mkdir $out && cp "+made+"/* $out && printf %s \"$in\" > "+data+".in\n")
	rep, err := Calibrate(t.Context(), src, dst, Options{Scheme: Int4}, Calibration{Method: GPTQ, Python: good, Data: data, Samples: 3, Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Tensors) != 14 || rep.Worst()[0].Error < 0.05 || log.String() != "calibrating\n" {
		t.Errorf("report %+v, log %q", rep, log.String())
	}
	m, err := model.Scan(t.Context(), os.DirFS(dst))
	if err != nil || m.Digest() != rep.Digest {
		t.Errorf("digest %s, reported %s, %v", m.Digest(), rep.Digest, err)
	}
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Path)
	}
	if got := strings.Join(names, " "); got != "SHA256SUMS config.json model.safetensors tokenizer.json" {
		t.Errorf("files %s", got)
	}
	in, err := os.ReadFile(data + ".in")
	if want := fmt.Sprintf(`"data":"%s","samples":3,"length":2048,"preset":"W4A16","ignore":["lm_head"],"method":"gptq","kv":false`, data); err != nil || !strings.Contains(string(in), want) {
		t.Errorf("asked for %s, want %s, %v", in, want, err)
	}
	if shape, err := model.LoadShape(dst); err != nil || shape.Quant.Groups[0].Weights.Bits != 4 {
		t.Errorf("%+v, %v", shape.Quant, err)
	}

	for _, c := range []struct {
		name, method, scheme, python, data, want string
	}{
		{"another method", "magic", Int4, good, data, `method "magic" is not one of awq, gptq`},
		{"another scheme", AWQ, FP8Block, good, data, "awq does not make fp8-block"},
		{"no Python", GPTQ, Int4, filepath.Join(t.TempDir(), "none"), data, "pip install llmcompressor"},
		{"no data", GPTQ, Int4, good, data + ".none", "reading calibration data"},
		{"it fails", GPTQ, Int4, python(t, "echo first; echo 'ModuleNotFoundError: No module named llmcompressor' >&2; exit 7\n"), data, "exit status 7: ModuleNotFoundError: No module named llmcompressor"},
		{"it leaves nothing", GPTQ, Int4, python(t, "true\n"), data, "has left no model"},
		{"it leaves half", GPTQ, Int4, python(t, "mkdir $out && cp "+made+"/config.json $out\n"), data, "no safetensors file"},
		{"it quantises nothing", GPTQ, Int4, python(t, "mkdir $out && cp "+made+"/* $out && cp "+src+"/model.safetensors $out\n"), data, "as it was: BF16"},
		{"it is not compressed", GPTQ, Int4, python(t, "mkdir $out && cp "+src+"/* $out\n"), data, "not written a compressed checkpoint"},
		{"it is another model", GPTQ, Int4, python(t, "mkdir $out && cp "+other+"/* $out\n"), data, "is not the model"},
	} {
		dst := filepath.Join(t.TempDir(), "out")
		_, err := Calibrate(t.Context(), src, dst, Options{Scheme: c.scheme}, Calibration{Method: c.method, Python: c.python, Data: c.data})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if left, err := os.ReadDir(filepath.Dir(dst)); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", c.name, left, err)
		}
	}
}

func TestMeasureScales(t *testing.T) {
	src, data := tiny(t), write(t, t.TempDir(), "data.jsonl", `{"text":"a"}`+"\n")
	c := Calibration{Data: data, Python: python(t, `echo '{"activations":{"a":0.5},"kv":{}}' > $out`+"\n")}
	s, err := MeasureScales(t.Context(), src, Options{}, false, c)
	if err != nil || s.Activations["a"] != 0.5 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := MeasureScales(t.Context(), src, Options{}, true, c); err == nil || !strings.Contains(err.Error(), "has measured 1 activations and 0 caches") {
		t.Error(err)
	}
	c.Python = python(t, "echo '{}}' > $out\n")
	if _, err := MeasureScales(t.Context(), src, Options{}, false, c); err == nil || !strings.Contains(err.Error(), "something follows") {
		t.Error(err)
	}
}
