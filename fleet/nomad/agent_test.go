package nomad

import (
	"os"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet/nomad/nomadtest"
)

// agents are shared by the tests of this package: one takes seconds to start.
var agents struct {
	once   sync.Once
	client *api.Client
	err    error
	stop   func()
}

func TestMain(m *testing.M) {
	if addr := os.Getenv("LLMOPS_TEST_SERVE"); addr != "" {
		os.Exit(serve(addr, os.Getenv("LLMOPS_TEST_HOW")))
	}
	code := m.Run()
	if agents.stop != nil {
		agents.stop()
	}
	os.Exit(code)
}

// agent is a real Nomad in development mode.
func agent(t *testing.T) *api.Client {
	t.Helper()
	bin := nomadtest.Binary(t)
	agents.once.Do(func() { agents.client, agents.stop, agents.err = nomadtest.Start(bin) })
	if agents.err != nil {
		t.Fatal(agents.err)
	}
	return agents.client
}
