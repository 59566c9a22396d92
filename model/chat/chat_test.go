package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// goldens are written by bench/golden/chat.py with transformers.
type goldens map[string]map[string]struct {
	Messages, Tools, Kwargs json.RawMessage
	Prompt                  bool
	Text                    *string
	Error                   string
}

var (
	tokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>"}
	now    = time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC)
)

func TestGolden(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g goldens
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	for name, cases := range g {
		source, err := os.ReadFile(filepath.Join("testdata", name+".jinja"))
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := Parse(string(source), tokens)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for which, c := range cases {
			if string(c.Tools) == "null" {
				c.Tools = nil
			}
			got, err := tmpl.Render(Request{Messages: c.Messages, Tools: c.Tools, Prompt: c.Prompt, Extra: c.Kwargs, Now: now})
			var refused *Refused
			switch {
			case c.Text != nil && strings.Contains(*c.Text, "[{'type'"):
				// Python's notation of a list, which no model was trained on.
			case c.Text != nil && (err != nil || got != *c.Text):
				t.Errorf("%s, %s: %v\ngot  %q\nwant %q", name, which, err, got, *c.Text)
			case strings.HasPrefix(c.Error, "TemplateError: ") && (!errors.As(err, &refused) || refused.Message != strings.TrimPrefix(c.Error, "TemplateError: ")):
				t.Errorf("%s, %s: error %v, want %s", name, which, err, c.Error)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	const list = `[{"name":"tool_use","template":"T"},{"name":"default","template":"{{ bos_token }}D"}]`
	for name, tt := range map[string]struct {
		files       map[string]string
		plain, tool string
		err         string
	}{
		"string":     {files: map[string]string{"tokenizer_config.json": `{"bos_token":"<b>","chat_template":"{{ bos_token }}{{ eos_token }}S"}`}, plain: "<b>S", tool: "<b>S"},
		"object":     {files: map[string]string{"tokenizer_config.json": `{"bos_token":{"content":"<b>"},"chat_template":"{{ bos_token }}S"}`}, plain: "<b>S", tool: "<b>S"},
		"list":       {files: map[string]string{"tokenizer_config.json": `{"bos_token":"<b>","chat_template":` + list + `}`}, plain: "<b>D", tool: "T"},
		"jinja file": {files: map[string]string{"tokenizer_config.json": `{"chat_template":"S"}`, "chat_template.jinja": "J"}, plain: "J", tool: "J"},
		"only jinja": {files: map[string]string{"chat_template.jinja": "J"}, plain: "J", tool: "J"},
		"none":       {files: map[string]string{"tokenizer_config.json": `{}`}, err: "no chat template"},
		"no files":   {err: "no chat template"},
		"no default": {files: map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"x","template":"y"}]}`}, err: "no chat template"},
		"bad json":   {files: map[string]string{"tokenizer_config.json": `{`}, err: "tokenizer_config.json"},
		"bad jinja":  {files: map[string]string{"chat_template.jinja": "{% if %}"}, err: "compiling chat template"},
	} {
		dir := t.TempDir()
		for file, text := range tt.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tmpl, err := Load(dir)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: error %v, want one with %q", name, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for tools, want := range map[string]string{"": tt.plain, "[{}]": tt.tool} {
			if got, err := tmpl.Render(Request{Messages: json.RawMessage(`[]`), Tools: json.RawMessage(tools)}); err != nil || got != want {
				t.Errorf("%s, tools %q: got %q, %v, want %q", name, tools, got, err, want)
			}
		}
	}
	if _, err := Load(t.TempDir()); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("error %v is not ErrNoTemplate", err)
	}
}

func TestTemplatesCannotReachFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{`{% include "` + file + `" %}`, `{% extends "` + file + `" %}`, `{% import "` + file + `" as x %}{{ x }}`} {
		tmpl, err := Parse(source, nil)
		if err != nil {
			continue
		}
		if got, err := tmpl.Render(Request{Messages: json.RawMessage(`[]`)}); strings.Contains(got, "secret") {
			t.Errorf("%s: read the file: %q, %v", source, got, err)
		}
	}
}

func FuzzToJSON(f *testing.F) {
	tmpl, err := Parse("{{ messages | tojson }}", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"b":[1,2.5,"x\u00e9\n<&>'"],"a":{"z":null,"y":true,"":{}},"c":1e300}`)
	f.Add(`[[],{},-0.0,123456789012345678901234567890]`)
	f.Fuzz(func(t *testing.T, in string) {
		got, err := tmpl.Render(Request{Messages: json.RawMessage(in)})
		if err != nil {
			return
		}
		again, err := tmpl.Render(Request{Messages: json.RawMessage(got)})
		if err != nil || again != got {
			t.Errorf("%q gives %q, which gives %q, %v", in, got, again, err)
		}
	})
}

func TestStrftime(t *testing.T) {
	for format, want := range map[string]string{
		"%d %b %Y": "07 Mar 2026", "%A, %B %-d": "Saturday, March 7", "%H:%M:%S %p %%": "15:04:05 PM %", "%Q %": "%Q %", "%j": "066",
	} {
		if got := strftime(now, format); got != want {
			t.Errorf("strftime(%q) = %q, want %q", format, got, want)
		}
	}
}
