package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/evidence"
)

// Records of old runs may have been cleared away: then they prove nothing, and
// are in nobody's way.
func TestLiveWithoutTheRecordsOfAnOldRun(t *testing.T) {
	d, _ := standbyFleet(t, time.Now().Add(time.Hour))
	w := &world{effects: map[string]int{}}
	d.Stages = w.stages(evidence.Pass)
	run := begin(t, d, "here")
	if _, err := drive(t, d, run, ""); err != nil {
		t.Fatal(err)
	}
	h, err := Read(t.Context(), d.Store, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{h.Stages[0].Record, h.Spec} {
		hex := strings.TrimPrefix(digest, "sha256:")
		if err := os.Remove(filepath.Join(d.Dir, "blobs", hex[:2], hex)); err != nil {
			t.Fatal(err)
		}
		live, why, err := Live(t.Context(), d, Spec{Name: "a.model", Source: "here"})
		if err != nil || live || !strings.Contains(why, "no run of this model file") {
			t.Errorf("%v, %q, %v", live, why, err)
		}
	}
}
