package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"llmops/fleet"
)

var update = flag.Bool("update", false, "record the plans in testdata anew, by the terraform on PATH")

// killed tells this test binary to be the process that is killed in the middle of
// applying the plan in the folder it names.
const killed = "LLMOPS_TEST_APPLY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killed); dir != "" {
		w, err := Open(context.Background(), dir, Options{})
		if err == nil {
			_, err = w.Apply(context.Background(), filepath.Join(dir, "fleet.plan"), ApplyOptions{})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// binary finds terraform, or says aloud that what needs it was not tested.
func binary(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("NOT TESTED: terraform is not on PATH")
	}
	t.Setenv("TF_CLI_CONFIG_FILE", os.DevNull)
	t.Setenv("CHECKPOINT_DISABLE", "1")
	t.Setenv("TF_IN_AUTOMATION", "1")
	return path
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func tf(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "terraform", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("terraform %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const digest = "0000000000000000000000000000000000000000000000000000000000000000"

// vars describe a fleet of one interactive pool with spare nodes over n in all.
func vars(nodes int, more string) string {
	return fmt.Sprintf(`
zones = { az1 = { residency = "eu", racks = ["r1", "r2"] }, az2 = { residency = "eu" } }
pools = {
  chat = { class = "interactive", gpu = "h100-sxm", gpus_per_node = 8, nodes = %d, zones = ["az1", "az2"] }
  %s
}
`, nodes, more)
}

// workspace is an initialised folder over the real contract, whose nodes can be held up
// while they are made.
func workspace(t *testing.T) (dir string, w *Workspace) {
	t.Helper()
	binary(t)
	dir = t.TempDir()
	write(t, dir, "main.tf", fmt.Sprintf(`
variable "zones" {}
variable "pools" {}
variable "hold" { default = "" }
variable "secret" { default = "hunter2" }

module "contract" {
  source           = %q
  cluster          = "prod"
  zones            = var.zones
  pools            = var.pools
  prices           = { "8xh100-sxm" = 50 }
  network          = "10.0.0.0/16"
  server_addresses = ["10.0.0.10"]
  artifacts = {
    nomad               = { url = "https://mirror.internal/nomad.zip", sha256 = %q }
    nomad-device-nvidia = { url = "https://mirror.internal/nvidia.zip", sha256 = %q }
  }
}

# What stands for the machine, as an instance does in a cloud.
resource "terraform_data" "instance" {
  for_each         = module.contract.nodes
  input            = each.key
  triggers_replace = [each.value.gpu]

  provisioner "local-exec" {
    command = "test -z '${var.hold}' || read go <'${var.hold}'"
  }
}

resource "terraform_data" "network" {
  for_each = var.zones
  input    = each.key
}

output "nodes"  { value = module.contract.nodes }
output "pools"  { value = module.contract.pools }
output "totals" { value = module.contract.totals }
`, filepath.Join(root(t), "terraform", "contract"), digest, digest))
	write(t, dir, "terraform.tfvars", vars(3, ""))
	tf(t, dir, "init", "-input=false")
	w, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return dir, w
}

func plan(t *testing.T, w *Workspace, dir string, replace ...string) *Summary {
	t.Helper()
	s, err := w.Plan(t.Context(), filepath.Join(dir, "fleet.plan"), replace)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func apply(t *testing.T, w *Workspace, dir string, f Fleet) {
	t.Helper()
	if _, err := w.Apply(t.Context(), filepath.Join(dir, "fleet.plan"), ApplyOptions{Fleet: f}); err != nil {
		t.Fatal(err)
	}
}

// still is a fleet that does not change.
type still struct {
	nodes []fleet.Node
	jobs  []fleet.Status
}

func (f *still) Nodes(context.Context) ([]fleet.Node, error) { return f.nodes, nil }

func (f *still) All(context.Context, string) ([]fleet.Status, error) { return f.jobs, nil }

func TestPlanThenApplyThatFileOnly(t *testing.T) {
	dir, w := workspace(t)
	s := plan(t, w, dir)
	if s.After.Nodes != 4 || s.After.GPUs != 32 || s.After.Hourly == nil || *s.After.Hourly != 200 {
		t.Fatalf("after: %+v", s.After)
	}
	info, err := os.Stat(filepath.Join(dir, "fleet.plan"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("plan file: %v, %v", info, err)
	}

	// What is described after the plan was made is not what is applied.
	write(t, dir, "terraform.tfvars", vars(7, ""))
	apply(t, w, dir, nil)
	inv, err := w.Inventory(t.Context())
	if err != nil || len(inv.Nodes) != 4 || inv.Pools["chat"].Needed != 3 || inv.Totals.GPUs != 32 {
		t.Fatalf("inventory: %+v, %v", inv, err)
	}

	_, err = w.Apply(t.Context(), filepath.Join(dir, "fleet.plan"), ApplyOptions{Confirm: func(*Summary) (bool, error) {
		t.Error("a person is asked about a plan that cannot be applied")
		return true, nil
	}})
	if !errors.Is(err, ErrStale) {
		t.Fatalf("applying a plan twice: %v", err)
	}
	write(t, dir, "terraform.tfvars", vars(3, ""))
	if s := plan(t, w, dir); !s.Empty() || s.After.Nodes != 4 {
		t.Fatalf("after apply: %+v", s)
	}
	apply(t, w, dir, nil)
}

func TestNodesAreOnlyTakenOnceDrained(t *testing.T) {
	dir, w := workspace(t)
	plan(t, w, dir)
	apply(t, w, dir, nil)
	write(t, dir, "terraform.tfvars", vars(2, ""))
	s := plan(t, w, dir)
	if len(s.Nodes) != 1 || s.Nodes[0].Action != Removed || s.Nodes[0].Node.Name != "prod-chat-az2-02" || len(s.Nodes[0].Through) != 2 {
		t.Fatalf("plan: %+v", s.Nodes)
	}
	f := &still{
		nodes: []fleet.Node{{ID: "prod-chat-az2-02", Pool: "chat", Ready: true, Eligible: true}},
		jobs:  []fleet.Status{{Pool: "chat", Job: fleet.Job{Name: "m"}, Replicas: []fleet.Replica{{ID: "r1", Node: "prod-chat-az2-02", State: fleet.Healthy}}}},
	}
	refused := func(f Fleet, want string) {
		t.Helper()
		var r *RefusedError
		_, err := w.Apply(t.Context(), filepath.Join(dir, "fleet.plan"), ApplyOptions{Fleet: f})
		if !errors.As(err, &r) || !strings.Contains(r.Refusals[0].String(), want) {
			t.Fatalf("%v, want a refusal with %q", err, want)
		}
		if inv, err := w.Inventory(t.Context()); err != nil || len(inv.Nodes) != 4 {
			t.Fatalf("a refused plan was applied: %v", err)
		}
	}
	refused(nil, "no fleet was asked")
	refused(f, "holds 1 replicas (r1)")
	f.jobs = nil
	refused(f, "still takes work")
	f.nodes[0].Eligible = false

	// The fleet is asked again after the person was.
	_, err := w.Apply(t.Context(), filepath.Join(dir, "fleet.plan"), ApplyOptions{Fleet: f, Confirm: func(*Summary) (bool, error) {
		f.nodes[0].Eligible = true
		return true, nil
	}})
	if r := (*RefusedError)(nil); !errors.As(err, &r) {
		t.Fatalf("undrained while asked: %v", err)
	}
	f.nodes[0].Eligible = false
	if _, err := w.Apply(t.Context(), filepath.Join(dir, "fleet.plan"), ApplyOptions{Fleet: f, Confirm: func(*Summary) (bool, error) { return false, nil }}); !errors.Is(err, ErrDeclined) {
		t.Fatalf("declined: %v", err)
	}
	apply(t, w, dir, f)
	if inv, err := w.Inventory(t.Context()); err != nil || len(inv.Nodes) != 3 {
		t.Fatalf("after the drain: %v", err)
	}
}

func TestReplaceOneNode(t *testing.T) {
	dir, w := workspace(t)
	plan(t, w, dir)
	apply(t, w, dir, nil)
	s := plan(t, w, dir, "prod-chat-az1-01")
	if len(s.Nodes) != 1 || s.Nodes[0].Action != Replaced || len(s.Nodes[0].Through) != 2 || s.Before.Nodes != 4 || s.After.Nodes != 4 {
		t.Fatalf("plan: %+v", s)
	}
	if _, err := w.Plan(t.Context(), filepath.Join(dir, "x.plan"), []string{"prod-chat-az9-01"}); err == nil || !strings.Contains(err.Error(), "the state has no such node") {
		t.Fatalf("an unknown node: %v", err)
	}
}

// hold makes nodes wait for their go, and returns a pipe to give it by.
func hold(t *testing.T, dir string) string {
	t.Helper()
	pipe := filepath.Join(dir, "hold")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "terraform.tfvars", vars(3, "")+fmt.Sprintf("hold = %q\n", pipe))
	return pipe
}

// until waits for a provisioner of an apply to read the pipe, and keeps it waiting.
func until(t *testing.T, pipe string) *os.File {
	t.Helper()
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func applying(t *testing.T, dir string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd, out := exec.Command(os.Args[0]), &bytes.Buffer{}
	cmd.Env = append(os.Environ(), killed+"="+dir)
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

func TestALockedStateAndAKillInTheMiddle(t *testing.T) {
	dir, w := workspace(t)
	pipe := hold(t, dir)
	plan(t, w, dir)
	cmd, _ := applying(t, dir)
	go1 := until(t, pipe)

	var locked *LockedError
	_, err := w.Plan(t.Context(), filepath.Join(dir, "other.plan"), nil)
	if !errors.As(err, &locked) || locked.ID == "" || locked.Operation != "Apply" || !strings.Contains(locked.Who, "@") || locked.Created == "" {
		t.Fatalf("planning while another applies: %v", err)
	}
	if !strings.Contains(err.Error(), "terraform force-unlock "+locked.ID) {
		t.Errorf("%v does not say what to do", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other.plan.part")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a plan is left: %v", err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	_ = go1.Close()

	// Terraform dies with its parent: its lock is free once it has.
	if err := os.Remove(pipe); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "terraform.tfvars", vars(3, ""))
	var s *Summary
	for {
		if s, err = w.Plan(t.Context(), filepath.Join(dir, "rest.plan"), nil); !errors.As(err, &locked) {
			break
		}
	}
	if err != nil || s.Empty() {
		t.Fatalf("the rest: %+v, %v", s, err)
	}
	if _, err := w.Apply(t.Context(), filepath.Join(dir, "fleet.plan"), ApplyOptions{}); !errors.Is(err, ErrStale) {
		t.Fatalf("the plan that was killed: %v", err)
	}
	// What was half made is made anew, which the fleet does not know.
	var names []string
	for _, c := range s.Nodes {
		names = append(names, c.Node.Name)
	}
	if _, err := w.Apply(t.Context(), filepath.Join(dir, "rest.plan"), ApplyOptions{Fleet: &still{}, Permit: Permit{LetGo: names}}); err != nil {
		t.Fatal(err)
	}
	if inv, err := w.Inventory(t.Context()); err != nil || len(inv.Nodes) != 4 {
		t.Fatalf("after the rest: %+v, %v", inv, err)
	}
}

func TestAnInterruptStopsInOrder(t *testing.T) {
	dir, w := workspace(t)
	pipe := hold(t, dir)
	plan(t, w, dir)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.Apply(ctx, filepath.Join(dir, "fleet.plan"), ApplyOptions{})
		done <- err
	}()
	until(t, pipe)
	cancel()
	if err := <-done; !errors.Is(err, ErrStopped) || !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	var s struct {
		Serial uint64 `json:"serial"`
	}
	if err := json.Unmarshal([]byte(tf(t, dir, "state", "pull")), &s); err != nil || s.Serial == 0 {
		t.Fatalf("the state has nothing of it: %v", err)
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	path := binary(t)
	dir := t.TempDir()
	for name, c := range map[string]struct {
		dir, path string
		want      error
	}{
		"no terraform":    {dir, filepath.Join(dir, "terraform"), ErrMissing},
		"another version": {dir, script(t, "1.8.5"), ErrVersion},
		"a later major":   {dir, script(t, "2.0.0"), ErrVersion},
		"no folder":       {filepath.Join(dir, "none"), path, os.ErrNotExist},
	} {
		if _, err := Open(t.Context(), c.dir, Options{Path: c.path}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	write(t, dir, "main.tf", `module "m" { source = "./m" }`)
	w, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Plan(t.Context(), filepath.Join(dir, "p"), nil); !errors.Is(err, ErrNotInitialised) {
		t.Errorf("without init: %v", err)
	}
	write(t, dir, "junk", "PK\x03\x04 not a zip")
	if _, err := w.Apply(t.Context(), filepath.Join(dir, "junk"), ApplyOptions{}); err == nil || !strings.Contains(err.Error(), "no plan file") {
		t.Errorf("junk for a plan: %v", err)
	}
	if inv, err := w.Inventory(t.Context()); err != nil || len(inv.Nodes) != 0 {
		t.Errorf("an empty inventory: %+v, %v", inv, err)
	}
}

// script is a program that says that it is terraform of a version.
func script(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "terraform")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '{\"terraform_version\": \""+version+"\"}'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRecord makes the plans of testdata anew.
func TestRecord(t *testing.T) {
	if !*update {
		t.Skip("the plans are recorded with -update")
	}
	dir, w := workspace(t)
	record := func(name string) {
		t.Helper()
		var p map[string]any
		if err := json.Unmarshal([]byte(tf(t, dir, "show", "-json", "fleet.plan")), &p); err != nil {
			t.Fatal(err)
		}
		for _, k := range []string{"configuration", "planned_values", "prior_state", "output_changes", "variables", "relevant_attributes"} {
			delete(p, k)
		}
		b, err := json.MarshalIndent(p, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		write(t, "testdata", name+".json", string(b)+"\n")
	}
	plan(t, w, dir)
	record("first")
	apply(t, w, dir, nil)
	plan(t, w, dir)
	record("none")
	write(t, dir, "terraform.tfvars", vars(4, `bulk = { class = "batch", gpu = "l4", gpus_per_node = 1, nodes = 1, zones = ["az2"], spot = true }`))
	plan(t, w, dir)
	record("grow")
	write(t, dir, "terraform.tfvars", strings.ReplaceAll(vars(2, ""), "h100-sxm", "h200-sxm"))
	plan(t, w, dir)
	record("shrink")
	write(t, dir, "terraform.tfvars", `
zones = { az2 = { residency = "eu" } }
pools = { bulk = { class = "batch", gpu = "l4", gpus_per_node = 1, nodes = 1, zones = ["az2"] } }
`)
	plan(t, w, dir)
	record("destroy")
}
