package cli

import (
	"strings"
	"testing"
)

// A task whose agent lies too deep cannot reach it, and says why rather than that no
// agent answers.
func TestOwnClusterSocket(t *testing.T) {
	vars := map[string]string{"NOMAD_TOKEN": "t", "NOMAD_SECRETS_DIR": "/" + strings.Repeat("d", 110), "LLMOPS_HOME": t.TempDir()}
	e := &env{getenv: func(k string) string { return vars[k] }, fleet: ownCluster}
	if _, err := e.openHome(); err == nil || !strings.Contains(err.Error(), "has a path of 120 bytes") {
		t.Errorf("%v", err)
	}
	vars["NOMAD_SECRETS_DIR"] = "/secrets"
	if h, err := e.openHome(); err != nil || h.fleet != ownCluster {
		t.Errorf("%v", err)
	}
}
