package cli

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/pipeline"
	"llmops/serving/route"
)

// A driver that is fenced by down may be in the middle of something: what it
// starts or routes meanwhile goes, too.
func TestDownTakesWhatComesMeanwhile(t *testing.T) {
	t.Setenv("LLMOPS_TEST_MAIN", "1") // the background process is this program
	dir := t.TempDir()
	h, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	job := func(name string) fleet.Job {
		return fleet.Job{Name: name, Kind: fleet.Engine, Groups: []fleet.Group{{Name: "main", Count: 1, Argv: []string{"/bin/sleep", "600"}}}}
	}
	if _, err := h.scheduler.Apply(t.Context(), job("first"), 0); err != nil {
		t.Fatal(err)
	}
	run := waiting(t, h, "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	late := make(chan error, 1)
	go func() {
		there := false
		_ = h.store.Watch(ctx, "job/first", func(d fleet.Doc) error {
			if there = there || d.Body != nil; d.Body != nil || !there {
				return nil
			}
			_, err := h.scheduler.Apply(ctx, job("late"), 0)
			if err == nil {
				var body []byte
				if body, err = route.Encode(route.New("a", run, "v0")); err == nil {
					_, err = h.store.Put(ctx, route.Name("a"), body, 0)
				}
			}
			late <- err
			return context.Canceled
		})
	}()
	e := &env{in: strings.NewReader(""), out: io.Discard, err: io.Discard, getenv: os.Getenv}
	if err := e.down(ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	docs, err := h.store.List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		for _, prefix := range []string{"job/", "replica/", route.Prefix} {
			if strings.HasPrefix(d.Name, prefix) {
				t.Errorf("%s is left", d.Name)
			}
		}
	}
	if h.watched() {
		t.Error("the background process is left")
	}
	if head, err := pipeline.Read(ctx, h.store, run); err != nil || head.State != pipeline.Stopped {
		t.Errorf("run %+v, %v", head, err)
	}
}
