package fleettest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"llmops/fleet"
)

// Blobs runs the suite of fleet.Blobs on an empty one.
func Blobs(t *testing.T, b fleet.Blobs) {
	const text = "what is stored by digest cannot change"
	want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
	if has, err := b.Has(t.Context(), want); has || err != nil {
		t.Fatalf("Has before Put = %v, %v", has, err)
	}
	if _, err := b.Open(t.Context(), want); !errors.Is(err, fleet.ErrNotFound) {
		t.Fatalf("Open before Put: %v", err)
	}
	for range 2 {
		digest, n, err := b.Put(t.Context(), strings.NewReader(text))
		if err != nil || digest != want || n != int64(len(text)) {
			t.Fatalf("Put = %s, %d, %v, want %s, %d", digest, n, err, want, len(text))
		}
	}
	r, err := b.Open(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || string(got) != text {
		t.Fatalf("read %q, %v", got, err)
	}
	broken := errors.New("broken source")
	if _, _, err := b.Put(t.Context(), io.MultiReader(strings.NewReader("half"), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("Put of a broken source: %v", err)
	}
	half := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("half")))
	if has, _ := b.Has(t.Context(), half); has {
		t.Error("half a blob is visible")
	}
	for _, bad := range []string{"", "sha256:", "md5:abc", "sha256:" + strings.Repeat("G", 64), "sha256:../../x", strings.ToUpper(want)} {
		if _, err := b.Has(t.Context(), bad); err == nil {
			t.Errorf("digest %q was taken", bad)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
