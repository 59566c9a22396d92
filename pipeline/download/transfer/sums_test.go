package transfer

import (
	"path/filepath"
	"strings"
	"testing"
)

var zeros = strings.Repeat("0", 64)

func TestReadSums(t *testing.T) {
	got, err := ReadSums(strings.NewReader(zeros+"  a b/c\r\n\n"+strings.Repeat("AB", 32)+" *./d\n"), "list")
	if err != nil || len(got) != 2 || got[0] != (Sum{"a b/c", zeros, 1}) || got[1].Path != "d" || got[1].Line != 3 || got[1].SHA256 != strings.Repeat("ab", 32) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"x  a", zeros, zeros + "  ", zeros[1:] + "  a", zeros + "  /etc/passwd", zeros + "  a/../../b", zeros + "  a\n" + zeros + "  a"} {
		if got, err := ReadSums(strings.NewReader(bad), "list"); err == nil || !strings.HasPrefix(err.Error(), "list:") {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
}

func FuzzReadSums(f *testing.F) {
	f.Add(zeros + "  a/b\n")
	f.Add(zeros + " *../b\n")
	f.Fuzz(func(t *testing.T, text string) {
		sums, err := ReadSums(strings.NewReader(text), "list")
		if err != nil {
			return
		}
		for _, s := range sums {
			if at := filepath.Join("/root/dir", filepath.FromSlash(s.Path)); !strings.HasPrefix(at, "/root/dir/") || len(s.SHA256) != 64 {
				t.Errorf("%+v", s)
			}
		}
	})
}
