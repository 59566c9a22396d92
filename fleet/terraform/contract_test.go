package terraform

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"llmops/roofline"
)

// copied is a copy of terraform/, so that initialising it leaves nothing behind.
func copied(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "terraform")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root(t), "terraform"))); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"contract", "metal", "aws"} {
		if err := os.RemoveAll(filepath.Join(dir, m, ".terraform")); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestModulesAreFormatted(t *testing.T) {
	binary(t)
	tf(t, root(t), "fmt", "-check", "-diff", "-recursive", "terraform")
	t.Log("NOT TESTED: terraform/aws beyond its syntax, for which its provider would have to be downloaded")
}

func TestModules(t *testing.T) {
	binary(t)
	dir := copied(t)
	for _, m := range []string{"contract", "metal"} {
		t.Run(m, func(t *testing.T) {
			at := filepath.Join(dir, m)
			tf(t, at, "init", "-input=false", "-backend=false")
			tf(t, at, "validate")
			tf(t, at, "test")
		})
	}
}

func TestExamplesPlan(t *testing.T) {
	binary(t)
	dir := copied(t)
	at := filepath.Join(dir, "metal", "examples", "two-racks")
	if err := os.CopyFS(filepath.Join(at, "tls"), os.DirFS(filepath.Join(dir, "metal", "tests", "tls"))); err != nil {
		t.Fatal(err)
	}
	tf(t, at, "init", "-input=false")
	w, err := Open(t.Context(), at, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Plan(t.Context(), filepath.Join(at, "fleet.plan"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.After.Nodes != 4 || s.After.GPUs != 32 || s.After.Hourly == nil || *s.After.Hourly != 72 || len(s.Warnings) != 0 {
		t.Errorf("two racks: %+v, %q", s.After, s.Warnings)
	}
	for _, c := range s.Other {
		if c.Server == "" {
			t.Errorf("%s belongs to nobody", c.Address)
		}
	}

	// What the AWS example says to the contract; the rest of its variables is ignored.
	tf(t, filepath.Join(dir, "contract"), "init", "-input=false")
	tf(t, filepath.Join(dir, "contract"), "plan", "-input=false", "-var-file="+filepath.Join(dir, "aws", "examples", "one-region", "terraform.tfvars"), "-var=network=10.40.0.0/16",
		`-var=server_addresses=["prod-server-0.prod.internal"]`)
}

// TestNomadTakesTheConfiguration holds what machines are given to Nomad's own check.
func TestNomadTakesTheConfiguration(t *testing.T) {
	dir, w := workspace(t)
	nomad, err := exec.LookPath("nomad")
	if err != nil {
		t.Skip("NOT TESTED: nomad is not on PATH")
	}
	write(t, dir, "out.tf", `
output "client" { value = values(module.contract.client_config)[0] }
output "server" { value = module.contract.server_config }
output "install" { value = module.contract.install["client"] }
`)
	plan(t, w, dir)
	apply(t, w, dir, nil)
	for _, name := range []string{"client", "server"} {
		var text string
		if err := json.Unmarshal([]byte(tf(t, dir, "output", "-json", name)), &text); err != nil {
			t.Fatal(err)
		}
		write(t, dir, name+".hcl", text)
		out, err := exec.CommandContext(t.Context(), nomad, "config", "validate", filepath.Join(dir, name+".hcl")).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Configuration is valid") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	var text string
	if err := json.Unmarshal([]byte(tf(t, dir, "output", "-json", "install")), &text); err != nil {
		t.Fatal(err)
	}
	sh := exec.CommandContext(t.Context(), "sh", "-n")
	sh.Stdin = strings.NewReader(text)
	if out, err := sh.CombinedOutput(); err != nil {
		t.Errorf("install: %v\n%s", err, out)
	}
}

func TestScriptsAreShell(t *testing.T) {
	binary(t)
	dir := copied(t)
	for _, call := range []string{
		`templatefile("aws/prepare.sh.tftpl", {cluster = "prod", region = "eu-central-1", mount = "/mnt/models"})`,
		`templatefile("metal/templates/setup.sh.tftpl", {name = "iron1", gpus = 8})`,
		`templatefile("metal/templates/setup.sh.tftpl", {name = "iron-server-0", gpus = 0})`,
		`file("rehearsal/run.sh")`,
	} {
		cmd := exec.CommandContext(t.Context(), "terraform", "console")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader("jsonencode("+call+")\n")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		// The console quotes a string, which is one of JSON here.
		var quoted, text string
		if err := json.Unmarshal(out, &quoted); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		if err := json.Unmarshal([]byte(quoted), &text); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		sh := exec.CommandContext(t.Context(), "sh", "-n")
		sh.Stdin = strings.NewReader(text)
		if out, err := sh.CombinedOutput(); err != nil || !strings.HasPrefix(text, "#!/bin/sh\n") {
			t.Errorf("%s: %v\n%s", call, err, out)
		}
	}
}

// TestGPUKindsAreTheCatalogues keeps two lists one.
func TestGPUKindsAreTheCatalogues(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root(t), "terraform", "contract", "main.tf"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(b), "gpus = {")
	list, _, ok := strings.Cut(list, "\n  }\n")
	if !ok {
		t.Fatal("main.tf has no list of GPUs")
	}
	n := 0
	for line := range strings.Lines(list) {
		kind := strings.Trim(strings.TrimSpace(strings.SplitN(line, "=", 2)[0]), `"`)
		if kind == "" || kind == "cpu" {
			continue
		}
		n++
		if _, ok := roofline.Lookup(kind); !ok {
			t.Errorf("%q is not in the catalogue", kind)
		}
	}
	if n == 0 {
		t.Error("no GPU is known")
	}
}
