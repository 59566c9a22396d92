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
func Start(bin string) (client *api.Client, stop func(), err error) { return Cluster(bin, 1) }

// Cluster is Start with more clients, named test, test-2 and so on.
func Cluster(bin string, clients int) (client *api.Client, stop func(), err error) {
	return cluster(bin, clients, false)
}

// Secured is Start with ACLs on. The client's token is the one for management.
func Secured(bin string) (client *api.Client, stop func(), err error) { return cluster(bin, 1, true) }

func cluster(bin string, clients int, acl bool) (client *api.Client, stop func(), err error) {
	dir, err := os.MkdirTemp("", "llmops-nomad-")
	if err != nil {
		return nil, nil, err
	}
	var agents []*process
	stop = func() {
		for i := len(agents) - 1; i >= 0; i-- {
			agents[i].stop()
		}
		sweep(dir)
		_ = os.RemoveAll(dir)
	}
	var server string
	for n := range clients {
		ports, err := freePorts(3)
		if err != nil {
			stop()
			return nil, nil, err
		}
		config, args := serverConfig(ports), []string{"agent", "-dev"}
		if n > 0 {
			config, args = clientConfig(n, server, ports), []string{"agent"}
		}
		config["acl"] = map[string]any{"enabled": acl}
		p, err := begin(bin, filepath.Join(dir, fmt.Sprint("agent-", n)), config, args)
		if err != nil {
			stop()
			return nil, nil, err
		}
		agents = append(agents, p)
		if n == 0 {
			server = fmt.Sprintf("127.0.0.1:%d", ports[1])
			if client, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}); err != nil {
				stop()
				return nil, nil, err
			}
		}
		if acl {
			err = bootstrap(client, p)
		}
		if err == nil {
			err = await(client, p, n+1)
		}
		if err != nil {
			b, _ := os.ReadFile(p.log.Name())
			stop()
			return nil, nil, fmt.Errorf("starting nomad: %w\n%s", err, b[max(0, len(b)-4000):])
		}
	}
	return client, stop, nil
}

// options keep an agent from asking clouds about itself, which takes seconds where
// there are none.
var options = map[string]string{"fingerprint.denylist": "env_aws,env_gce,env_azure,env_digitalocean", "driver.raw_exec.enable": "1"}

func serverConfig(ports []int) map[string]any {
	return map[string]any{
		"name": "test", "disable_update_check": true, "bind_addr": "127.0.0.1",
		"ports": map[string]int{"http": ports[0], "rpc": ports[1], "serf": ports[2]},
		"client": map[string]any{"options": options, "max_kill_timeout": "2m",
			"min_dynamic_port": 20000 + 2000*lane(), "max_dynamic_port": 21999 + 2000*lane()},
	}
}

// lane is 0, 1 or 2: tests of several packages run at once, and agents hand out ports
// that they take for free.
func lane() int { return os.Getpid() % 3 }

// clientConfig gives each client ports of its own: all are on one address.
func clientConfig(n int, server string, ports []int) map[string]any {
	return map[string]any{
		"name": fmt.Sprint("test-", n+1), "disable_update_check": true, "bind_addr": "127.0.0.1",
		"advertise": map[string]string{"http": "127.0.0.1", "rpc": "127.0.0.1", "serf": "127.0.0.1"},
		"ports":     map[string]int{"http": ports[0], "rpc": ports[1], "serf": ports[2]},
		"client": map[string]any{
			"enabled": true, "servers": []string{server}, "options": options, "max_kill_timeout": "2m", "network_interface": "lo",
			"min_dynamic_port": 26000 + 2000*lane() + 500*n, "max_dynamic_port": 26499 + 2000*lane() + 500*n,
		},
		"plugin": map[string]any{"raw_exec": map[string]any{"config": map[string]any{"enabled": true}}},
	}
}

type process struct {
	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{} // closed when it has
	err   error
}

func begin(bin, dir string, config map[string]any, args []string) (*process, error) {
	config["data_dir"] = filepath.Join(dir, "data")
	b, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "agent.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, err
	}
	p := &process{ended: make(chan struct{})}
	if p.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	p.cmd = exec.Command(bin, append(args, "-config", file)...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	_ = p.log.Close()
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

// bootstrap gives the client the first token, once there is a leader to make it.
func bootstrap(c *api.Client, p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for {
		token, _, err := c.ACLTokens().Bootstrap(nil)
		if err == nil {
			c.SetSecretID(token.SecretID)
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the agent ended: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("bootstrapping its ACLs: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// await is over when the agent leads, has its keyring and so many ready nodes.
func await(c *api.Client, p *process, want int) error {
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
				ready := 0
				for _, n := range nodes {
					if n.Status == api.NodeStatusReady {
						ready++
					}
				}
				if ready == want {
					return nil
				}
				last = fmt.Errorf("nodes are %+v", nodes)
			}
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the agent ended: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("waiting for the agent: %w", last)
		case <-tick.C:
		}
	}
}
