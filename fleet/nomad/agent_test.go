package nomad

import (
	"os"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet/nomad/nomadtest"
	"llmops/fleet/nomad/nomadtest/recorded"
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
	if addr := os.Getenv("LLMOPS_TEST_IDENTITY"); addr != "" {
		os.Exit(asController(addr, os.Getenv("NOMAD_TOKEN")))
	}
	if os.Getenv("LLMOPS_TEST_LARGE") != "" {
		os.Exit(serveLarge())
	}
	code := m.Run()
	if agents.stop != nil {
		agents.stop()
	}
	os.Exit(code)
}

// both runs a test against the recorded server, which is new each time, and against a
// real agent where there is one.
func both(t *testing.T, fn func(t *testing.T, c *api.Client)) {
	t.Helper()
	t.Run("recorded", func(t *testing.T) { fn(t, replay(t, recorded.Options{})) })
	t.Run("agent", func(t *testing.T) { fn(t, agent(t)) })
}

func replay(t *testing.T, o recorded.Options) *api.Client {
	t.Helper()
	_, c := server(t, o)
	return c
}

func server(t *testing.T, o recorded.Options) (*recorded.Server, *api.Client) {
	t.Helper()
	s := recorded.Start(o)
	t.Cleanup(s.Close)
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return s, c
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
