// Package nomadtest starts real Nomad agents for tests. They need the nomad binary on
// PATH and are otherwise skipped, which is said.
package nomadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Binary is where nomad is. Without one the test is skipped.
func Binary(t testing.TB) string {
	t.Helper()
	bin, err := exec.LookPath("nomad")
	if err != nil {
		t.Skip("SKIPPED: no nomad binary on PATH, so that nothing was tested against a real agent")
	}
	return bin
}

// Start begins an agent in development mode, client and server in one, and waits until
// it can place jobs. stop ends it.
func Start(bin string) (client *api.Client, stop func(), err error) {
	dir, err := os.MkdirTemp("", "llmops-nomad-")
	if err != nil {
		return nil, nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, nil, err
	}
	config, err := json.Marshal(map[string]any{
		"name": "test", "data_dir": filepath.Join(dir, "data"), "disable_update_check": true, "bind_addr": "127.0.0.1",
		"ports":  map[string]int{"http": ports[0], "rpc": ports[1], "serf": ports[2]},
		"client": map[string]any{"options": map[string]string{"fingerprint.denylist": "env_aws,env_gce,env_azure,env_digitalocean"}, "max_kill_timeout": "2m"},
	})
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(dir, "agent.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(bin, "agent", "-dev", "-config", file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = log.Close()
		_ = os.RemoveAll(dir)
	}
	client, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])})
	if err == nil {
		err = await(client, ended)
	}
	if err != nil {
		b, _ := os.ReadFile(log.Name())
		stop()
		return nil, nil, fmt.Errorf("starting nomad: %w\n%s", err, b[max(0, len(b)-4000):])
	}
	return client, stop, nil
}

// freePorts holds all of them before it gives any back, so that they differ.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// await is over when the agent leads, has its keyring and one ready node.
func await(c *api.Client, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		_, last = c.Status().Leader()
		if last == nil {
			_, _, last = c.Variables().CheckedUpdate(&api.Variable{Path: "llmops-test/ready", Items: api.VariableItems{"x": "y"}}, nil)
			if last != nil && strings.Contains(last.Error(), "cas") {
				last = nil
			}
		}
		if last == nil {
			var nodes []*api.NodeListStub
			if nodes, _, last = c.Nodes().List(nil); last == nil {
				if len(nodes) == 1 && nodes[0].Status == "ready" {
					return nil
				}
				last = fmt.Errorf("nodes are %+v", nodes)
			}
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the agent ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("waiting for the agent: %w", last)
		case <-tick.C:
		}
	}
}
