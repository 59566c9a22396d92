package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWarmPrompts(t *testing.T) {
	read := func(text string) (int, error) {
		path := filepath.Join(t.TempDir(), "warm.jsonl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := warmPrompts(path)
		return len(p), err
	}
	line := `{"messages": [{"role": "system", "content": "You read bills of lading."}]}` + "\n"
	if n, err := read(line + "\n" + line); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for want, text := range map[string]string{
		"warm.jsonl:2": line + "{",
		"no messages":  `{"prompt": "x"}`,
		"more than":    strings.Repeat(line, maxWarm+1),
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if p, err := warmPrompts(""); p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
}
