package local

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmops/fleet"
	"llmops/fleet/fleettest"
)

func TestStore(t *testing.T) {
	dir := t.TempDir()
	fleettest.Store(t, func(t *testing.T) fleet.Store {
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestBlobs(t *testing.T) {
	b, err := OpenBlobs(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	fleettest.Blobs(t, b)
	left, err := filepath.Glob(filepath.Join(b.dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestStoreNamesTheFileItCannotRead(t *testing.T) {
	s, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file("run/a"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(t.Context(), "run/a")
	if err == nil || !strings.Contains(err.Error(), s.file("run/a")) {
		t.Errorf("Get = %v, want the file's name in it", err)
	}
}

func TestStoreWaitsForTheLockOnlyAsLongAsAsked(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := other.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Put(ctx, "a", nil, 0); err == nil {
		t.Error("Put went past another's lock")
	}
	if _, err := s.Get(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("Get under another's lock: %v", err)
	}
}
