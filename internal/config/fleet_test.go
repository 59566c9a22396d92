package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func fleetFrom(t *testing.T, text string) (Fleet, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: llmops/v1\nkind: Fleet\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	return FleetFile(path)
}

func TestFleetFile(t *testing.T) {
	f, err := fleetFrom(t, "scheduler: nomad\nnomad: {address: \"https://n:4646\", pools: {interactive: gpu-h100}, bin: /opt/llmops}\n")
	if err != nil || f.Scheduler != "nomad" || f.Nomad.Address != "https://n:4646" || f.Nomad.Namespace != "default" || f.Nomad.Pools["interactive"] != "gpu-h100" || f.Nomad.Bin != "/opt/llmops" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := fleetFrom(t, ""); err != nil || f.Scheduler != "local" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := FleetFile(filepath.Join("..", "..", "examples", "fleet", "nomad-dev.yaml")); err != nil || f.Nomad.Address != "http://127.0.0.1:4646" {
		t.Errorf("the example: %+v, %v", f, err)
	}
	for text, want := range map[string]string{
		"scheduler: slurm\n":                               "fleet.yaml:3",
		"nomad: {address: \"http://n\"}\n":                 "the scheduler is local",
		"scheduler: nomad\n":                               "nomad.address",
		"scheduler: nomad\nnomad: {address: \"n:4646\"}\n": "http:// or https://",
		"scheduler: nomad\nnomad: {address: \"http://n\", ca_cert: ./none.pem}\n":       "none.pem",
		"scheduler: nomad\nnomad: {address: \"http://n\", client_cert: ./fleet.yaml}\n": "go together",
		"scheduler: nomad\nnomad: {address: \"http://n\", token: secret}\n":             "token",
	} {
		if _, err := fleetFrom(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
