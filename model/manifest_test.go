package model

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestScan(t *testing.T) {
	fsys := fstest.MapFS{"config.json": {Data: []byte("{}")}, "sub/model.safetensors": {Data: []byte("xyz")}}
	m, err := Scan(t.Context(), fsys)
	if err != nil {
		t.Fatal(err)
	}
	if m.Size() != 5 || len(m.Files) != 2 {
		t.Fatalf("got %+v", m)
	}
	// printf %s {} | sha256sum
	if f, ok := m.Lookup("config.json"); !ok || f.Digest != "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" {
		t.Errorf("config.json is %+v", f)
	}
	reversed := Manifest{Files: []File{m.Files[1], m.Files[0]}}
	if m.Digest() != reversed.Digest() {
		t.Error("the digest depends on the order of files")
	}
	reversed.Files[0].Path = "sub/other.safetensors"
	if m.Digest() == reversed.Digest() {
		t.Error("the digest does not depend on names")
	}
}

func TestManifestRefusesPathsThatEscape(t *testing.T) {
	good := DigestOf(nil)
	for _, p := range []string{"../x", "/x", "a/../x", "", ".", `a\b`, "a\nb", "a//b"} {
		if err := (Manifest{Files: []File{{p, 1, good}}}).Validate(); err == nil {
			t.Errorf("accepted %q", p)
		}
	}
	err := Manifest{Files: []File{{"a", 1, good}, {"a", 1, good}, {"b", -1, good}, {"c", 1, "sha256:zz"}}}.Validate()
	for _, want := range []string{`"a" twice`, "size of -1", "sha256:zz"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestParseDigest(t *testing.T) {
	d := DigestOf([]byte("x"))
	if got, err := ParseDigest(string(d)); err != nil || got != d {
		t.Errorf("got %q, %v", got, err)
	}
	for _, s := range []string{"", d.Hex(), "sha256:" + strings.ToUpper(d.Hex()), string(d) + "0", "md5:" + d.Hex()} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("accepted %q", s)
		}
	}
}

func TestUnsafe(t *testing.T) {
	for name, want := range map[string]bool{"pytorch_model.bin": true, "a/b.PT": true, "model.safetensors": false, "config.json": false} {
		if Unsafe(name) != want {
			t.Errorf("Unsafe(%q) = %t", name, !want)
		}
	}
}
