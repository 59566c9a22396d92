package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"llmops/fleet"
	"llmops/fleet/fleettest"
	"llmops/fleet/nomad"
	"llmops/fleet/nomad/nomadtest/recorded"
	"llmops/fleet/terraform"
	"llmops/jobs"
)

func TestMostNodes(t *testing.T) {
	if got, err := mostNodes([]string{"a=1", "b=20"}); err != nil || len(got) != 2 || got["b"] != 20 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]string{nil, {"a"}, {"a=0"}, {"=1"}, {"a=x"}} {
		if _, err := mostNodes(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// A replica for which no GPU is free gets a node, once, within the limit, and nothing
// else that is in the configuration is applied along.
func TestFleetGrows(t *testing.T) {
	tf, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("NOT TESTED: terraform is not on PATH")
	}
	t.Setenv("TF_CLI_CONFIG_FILE", os.DevNull)
	t.Setenv("CHECKPOINT_DISABLE", "1")
	contract, err := filepath.Abs("../../terraform/contract")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	infra := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(fmt.Sprintf(text, contract)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	infra(grows)
	if out, err := exec.Command(tf, "-chdir="+dir, "init", "-input=false").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const gpu = "NVIDIA H100 80GB HBM3"
	srv := recorded.Start(recorded.Options{Nodes: []recorded.Node{
		{Name: "prod-chat-az1-01", Pool: "chat", Zone: "az1", GPU: gpu, GPUs: 8}, {Name: "prod-chat-az2-01", Pool: "chat", Zone: "az2", GPU: gpu, GPUs: 8},
	}})
	defer srv.Close()
	client, err := srv.Client()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "prod.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: llmops/v1\nkind: Fleet\nscheduler: nomad\nnomad: {address: \""+srv.Address()+"\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	run := func(args ...string) (int, grown, string) {
		t.Helper()
		var out, errw bytes.Buffer
		code := Main(t.Context(), append(args, "--output", "json"), strings.NewReader(""), &out, &errw, func(k string) string { return map[string]string{"LLMOPS_HOME": home}[k] })
		var g grown
		if out.Len() > 0 {
			if err := json.Unmarshal(out.Bytes(), &g); err != nil {
				t.Fatalf("%v: %s", err, out.String())
			}
		}
		return code, g, errw.String()
	}
	grow := func(args ...string) (int, grown, string) {
		t.Helper()
		return run(append([]string{"fleet", "grow", dir, "--fleet", file, "--yes"}, args...)...)
	}
	for _, args := range [][]string{{"fleet", "plan", dir}, {"fleet", "apply", dir, "--yes"}} {
		if code, _, stderr := run(args...); code != exitDone {
			t.Fatalf("%q: %d %s", args, code, stderr)
		}
	}
	more := func() string {
		b, _ := os.ReadFile(filepath.Join(dir, terraform.MoreFile))
		return strings.Join(strings.Fields(string(b)), "")
	}
	if code, g, stderr := grow("--most", "chat=1"); code != exitDone || len(g.Add) > 0 || more() != "" {
		t.Errorf("nobody waits: %d %+v %s", code, g, stderr)
	}
	if code, _, stderr := grow("--most", "chatt=1"); code != exitUsage || !strings.Contains(stderr, "has the pools chat") {
		t.Errorf("%d %s", code, stderr)
	}

	s := nomad.NewScheduler(client, nomad.Options{Files: jobs.Files, Bin: "/bin/true", Pools: map[string]string{"interactive": "chat"}})
	job := fleet.Job{Name: "m", Version: "v1", Kind: fleet.Engine, Pool: "interactive", Groups: []fleet.Group{
		{Name: "main", Count: 3, Argv: []string{"/bin/sleep", "600"}, GPU: fleet.Need{Kind: "H100 80GB HBM3", Count: 8}},
	}}
	if _, err := s.Apply(t.Context(), job, 0); err != nil {
		t.Fatal(err)
	}
	fleettest.Await(t, s, "m", func(st fleet.Status) bool {
		waits := 0
		for _, r := range st.Replicas {
			if r.NoRoom {
				waits++
			}
		}
		return waits == 1
	})

	// Somebody is in the middle of something else.
	infra(strings.Replace(grows, "nodes = 1", "nodes = 2", 1))
	code, g, stderr := grow("--most", "chat=1")
	if code != exitRefused || len(g.Refusals) != 1 || !strings.Contains(g.Refusals[0].Reason, "would get 2 nodes, and 1 are wanted") || g.Applied || more() != "" {
		t.Errorf("%d %+v %q %s", code, g.Refusals, more(), stderr)
	}
	infra(grows)

	code, g, stderr = grow("--most", "chat=1")
	if code != exitDone || !g.Applied || g.Add["chat"] != 1 || len(g.Summary.Nodes) != 1 || g.Summary.Nodes[0].Node.Name != "prod-chat-az1-02" || more() != `{"more_nodes":{"chat":1}}` {
		t.Fatalf("%d %+v %q %s", code, g, more(), stderr)
	}
	// It has not joined yet, so that nobody is given another.
	if code, g, stderr := grow("--most", "chat=2"); code != exitRefused || len(g.Add) > 0 || len(g.Left) != 1 || !strings.Contains(g.Left[0], "have not joined yet") {
		t.Errorf("%d %+v %s", code, g, stderr)
	}

	// As a service it says what it sees, and goes on until it is stopped; what is wrong
	// from the start it does not look at again.
	again := []string{"fleet", "grow", dir, "--fleet", file, "--yes", "--every", "10ms", "--after", "1h", "--output", "json", "--most"}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := &stopping{stop: stop}
	if code := Main(ctx, append(again, "chat=2"), strings.NewReader(""), out, &out.err, func(k string) string { return map[string]string{"LLMOPS_HOME": home}[k] }); code != exitGoesOn || !strings.Contains(out.out.String(), "have not joined yet") {
		t.Errorf("%d %s %s", code, out.out.String(), out.err.String())
	}
	if code, _, stderr := run(append(again, "chatt=2")...); code != exitUsage || !strings.Contains(stderr, "has the pools chat") {
		t.Errorf("%d %s", code, stderr)
	}
}

// stopping stops a command when it has said something.
type stopping struct {
	out, err bytes.Buffer
	stop     context.CancelFunc
}

func (s *stopping) Write(b []byte) (int, error) {
	defer s.stop()
	return s.out.Write(b)
}

const grows = `
module "contract" {
  source = "%s"

  cluster    = "prod"
  zones      = { az1 = { residency = "eu" }, az2 = { residency = "eu" } }
  pools      = { chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = 1, spare = 1, survive = "node", zones = ["az1", "az2"] } }
  more_nodes = var.more_nodes

  prices           = { "8xh100-sxm" = 18 }
  network          = "10.0.0.0/16"
  server_addresses = ["10.0.0.10"]
  artifacts = {
    nomad               = { url = "https://mirror.internal/nomad.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
    nomad-device-nvidia = { url = "https://mirror.internal/nvidia.zip", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  }
}

variable "more_nodes" {
  type    = map(number)
  default = {}
}

output "nodes" { value = module.contract.nodes }
output "pools" { value = module.contract.pools }
output "totals" { value = module.contract.totals }
`
