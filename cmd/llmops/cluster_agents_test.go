//go:build faults

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
		"enabled": true, "bootstrap_expect": len(all),
		// By default a node that falls silent while a leader is new counts as there for
		// five minutes.
		"failover_heartbeat_ttl": "30s",
		"server_join":            map[string]any{"retry_join": ips, "retry_interval": "1s"},
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

// ask asks the agent's API from the bridge, and reads the answer into out.
func (a *agent) ask(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+a.ip+":4646"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := fromBridge.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, b)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// get asks for what must be there.
func (a *agent) get(path string, out any) {
	a.t.Helper()
	if err := a.ask(http.MethodGet, path, nil, out); err != nil {
		a.t.Fatalf("asking %s: %v", a.name, err)
	}
}

// write puts a variable into the cluster's store.
func (a *agent) write(name string) error {
	v := map[string]any{"Path": "harness/" + name, "Items": map[string]string{"at": fmt.Sprint(time.Now().UnixNano())}}
	return a.ask(http.MethodPut, "/v1/var/harness/"+name, v, nil)
}

var fromBridge = &http.Client{Transport: &http.Transport{DialContext: dialer(""), DisableKeepAlives: true}}

// servers are those of the cluster.
type servers []*agent

// leader is the server that leads, when one that can be asked knows of one.
func (all servers) leader() (leads *agent, ok bool) {
	for _, a := range all {
		var at string
		if err := a.ask(http.MethodGet, "/v1/status/leader", nil, &at); err == nil {
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
	return until(t, time.Minute, "the servers have a leader", func() bool {
		l, ok := all.leader()
		return ok && l != old && l.write("led") == nil
	})
}
