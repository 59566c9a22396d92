package route

import (
	"context"
	"errors"
	"strings"
	"testing"

	"llmops/fleet"
	"llmops/fleet/local"
)

func TestKey(t *testing.T) {
	s, err := local.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(t.Context(), s); !errors.Is(err, fleet.ErrNotFound) {
		t.Fatal(err)
	}
	k, err := MakeKey(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := MakeKey(t.Context(), s); err != nil || string(again) != string(k) {
		t.Errorf("another key: %v", err)
	}
	// Somebody makes it between this one's look and its write.
	if late, err := MakeKey(t.Context(), &blind{Store: s}); err != nil || string(late) != string(k) {
		t.Errorf("another key after a conflict: %v", err)
	}
	sig := k.Sign([]byte("a"))
	if !k.Signed([]byte("a"), sig) || k.Signed([]byte("b"), sig) || k.Signed([]byte("a"), "") || k.Signed([]byte("a"), "zz") || Key(nil).Signed([]byte("a"), Key(nil).Sign([]byte("a"))) {
		t.Error("what is signed and what is not")
	}
	d, err := s.Get(t.Context(), KeyName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), KeyName, []byte("c2hvcnQ="), d.Rev); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeKey(t.Context(), s); err == nil || !strings.Contains(err.Error(), "router-key is not 32 bytes") {
		t.Error(err)
	}
}

// blind does not find the key at its first look.
type blind struct {
	fleet.Store
	looked bool
}

func (b *blind) Get(ctx context.Context, name string) (fleet.Doc, error) {
	if !b.looked {
		b.looked = true
		return fleet.Doc{}, fleet.ErrNotFound
	}
	return b.Store.Get(ctx, name)
}
