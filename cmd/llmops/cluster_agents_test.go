//go:build faults

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// agent is a Nomad agent in a host of its own.
type agent struct {
	host
	t     *testing.T
	dir   string
	args  []string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has
}

// options keep an agent from asking clouds about itself, which takes seconds where
// there are none.
var agentOptions = map[string]string{"fingerprint.denylist": "env_aws,env_gce,env_azure,env_digitalocean"}

// newAgent writes the configuration of an agent.
func newAgent(t *testing.T, h host, dir string, config map[string]any) *agent {
	t.Helper()
	config["name"], config["bind_addr"], config["data_dir"] = h.name, h.ip, filepath.Join(dir, "data")
	config["disable_update_check"] = true
	b, err := json.Marshal(config)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	file := filepath.Join(dir, "agent.json")
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &agent{host: h, t: t, dir: dir, args: []string{"netns", "exec", h.space(), "nomad", "agent", "-config", file}}
}

func serverConfig(all []host) map[string]any {
	var ips []string
	for _, h := range all {
		ips = append(ips, h.ip)
	}
	return map[string]any{"server": map[string]any{
		"enabled": true, "bootstrap_expect": len(all), "server_join": map[string]any{"retry_join": ips, "retry_interval": "1s"},
	}}
}

// clientConfig is a node of a pool. The weights lie on the file system that all
// hosts share.
func clientConfig(servers []host, pool, rack string) map[string]any {
	var ips []string
	for _, h := range servers {
		ips = append(ips, h.ip)
	}
	return map[string]any{
		"client": map[string]any{
			"enabled": true, "servers": ips, "network_interface": "eth0", "options": agentOptions, "max_kill_timeout": "2m", "node_pool": pool,
			"cpu_total_compute": 8000, "memory_total_mb": 8192, "meta": map[string]string{"rack": rack, "zone": "az1"},
		},
		"plugin": map[string]any{"raw_exec": map[string]any{"config": map[string]any{"enabled": true}}},
	}
}

// start begins the agent, or begins it anew after a kill.
func (a *agent) start() {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	a.cmd = exec.Command("ip", a.args...)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	ended, cmd := make(chan struct{}), a.cmd
	a.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
}

// kill ends the agent as a crash does. Its tasks live on.
func (a *agent) kill() {
	a.t.Helper()
	_ = a.cmd.Process.Kill()
	<-a.ended
}

// api is the agent's, as it is seen from the bridge.
func (a *agent) api() *api.Client {
	a.t.Helper()
	c, err := api.NewClient(&api.Config{Address: "http://" + a.ip + ":4646", HttpClient: &http.Client{
		Transport: &http.Transport{DialContext: dialer(""), DisableKeepAlives: true}, Timeout: 10 * time.Second,
	}})
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// servers are those of the cluster.
type servers []*agent

// leader is the server that leads, when one that can be asked knows of one.
func (all servers) leader() (leads *agent, ok bool) {
	for _, a := range all {
		if at, err := a.api().Status().Leader(); err == nil {
			for _, l := range all {
				if at == l.ip+":4647" {
					return l, true
				}
			}
		}
	}
	return nil, false
}

// led waits until a server leads that is not old, and can write.
func (all servers) led(t *testing.T, old *agent) time.Duration {
	t.Helper()
	var last string
	return until(t, time.Minute, "the servers have a leader", func() bool {
		l, ok := all.leader()
		if !ok || l == old {
			return false
		}
		v := &api.Variable{Path: "harness/written", Items: api.VariableItems{"at": fmt.Sprint(time.Now().UnixNano())}}
		_, _, err := l.api().Variables().Update(v, nil)
		if err != nil && err.Error() != last {
			last = err.Error()
			t.Logf("leader %s: %v", l.name, err)
		}
		return err == nil
	})
}
