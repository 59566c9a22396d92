package fleet

import (
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"route/freight": true, "a": true, "run/2026~2e1": true, "job/a-b_c": true,
		"": false, "a.b": false, "a b": false, "é": false,
		strings.Repeat("a", 128): true, strings.Repeat("a", 129): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v, want ok %v", name, err, ok)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "freight", "qwen2.5-7b", "a/b~c", "ü\x00\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := Escape(s)
		if s != "" && len(e) <= maxName {
			if err := CheckName(e); err != nil || strings.Contains(e, "/") {
				t.Fatalf("Escape(%q) = %q: %v", s, e, err)
			}
		}
		if back, err := Unescape(e); err != nil || back != s {
			t.Fatalf("Unescape(%q) = %q, %v, want %q", e, back, err, s)
		}
		if back, err := Unescape(s); err == nil && strings.Contains(s, "~") {
			if Escape(back) == "" {
				t.Fatalf("Unescape(%q) = %q", s, back)
			}
		}
	})
}
