package cli

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"llmops/pipeline"
	"llmops/serving/route"
)

// What was live once is not live after down: its source goes live again, ungated,
// only when somebody says so.
func TestFirstVersionIsAskedFor(t *testing.T) {
	h, err := openHome(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := &env{in: strings.NewReader("y\n"), out: io.Discard, err: io.Discard, getenv: os.Getenv}
	spec := pipeline.Spec{Name: "a", First: "ask", File: "model.yaml"}
	ask := func() error { return e.confirmFirst(t.Context(), h, spec, false) }
	refused := func(err error) bool {
		var ee *exitError
		return errors.As(err, &ee) && ee.code == exitUsage && strings.Contains(err.Error(), "no live version")
	}
	if err := ask(); !refused(err) {
		t.Errorf("a new alias: %v", err)
	}
	if _, err := h.store.Put(t.Context(), "index/version/a", []byte(`[{"name":"v0"}]`), 0); err != nil {
		t.Fatal(err)
	}
	if err := ask(); !refused(err) {
		t.Errorf("a version that was taken down: %v", err)
	}
	if err := e.confirmFirst(t.Context(), h, spec, true); err != nil {
		t.Errorf("with --yes: %v", err)
	}
	spec.First = "parent"
	if err := ask(); err != nil {
		t.Errorf("with first: parent: %v", err)
	}
	spec.First = "ask"
	body, err := route.Encode(route.New("a", "run", "v0"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Put(t.Context(), route.Name("a"), body, 0); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("with a live version: %v", err)
	}
}
