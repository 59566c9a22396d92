package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"llmops/fleet"
	"llmops/fleet/nomad"
	"llmops/internal/config"
)

// Each job takes the file of what it runs, with what the fleet's file says of it.
func TestPlacingJob(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.nomad.hcl")
	if err := os.WriteFile(own, []byte(`variable "name" {}`), 0o600); err != nil {
		t.Fatal(err)
	}
	engine := func(kind string) fleet.Job {
		return fleet.Job{Kind: fleet.Engine, Meta: map[string]string{"engine": kind}}
	}
	for _, c := range []struct {
		name string
		n    config.Nomad
		j    fleet.Job
		want nomad.File
	}{
		{"a router", config.Nomad{Driver: "raw_exec"}, fleet.Job{Kind: fleet.Router}, nomad.File{Name: "router.nomad.hcl", Vars: map[string]any{"driver": "raw_exec"}}},
		{"ours", config.Nomad{}, engine(""), nomad.File{Name: "process.nomad.hcl", Vars: map[string]any{}}},
		{"traffic", config.Nomad{}, fleet.Job{Kind: fleet.Traffic, Meta: map[string]string{"engine": "vllm"}}, nomad.File{Name: "process.nomad.hcl", Vars: map[string]any{}}},
		{"of which nothing is said", config.Nomad{Driver: "raw_exec"}, engine("sglang"), nomad.File{Name: "engine-sglang.nomad.hcl", Host: "0.0.0.0", Vars: map[string]any{"models_path": "/state"}}},
		{"in an image", config.Nomad{Engines: map[string]config.Engine{"vllm": {Driver: "podman", Image: "own", Vars: map[string]any{"spot": "only"}}}}, engine("vllm"),
			nomad.File{Name: "engine-vllm.nomad.hcl", Host: "0.0.0.0", Vars: map[string]any{"driver": "podman", "image": "own", "spot": "only", "models_path": "/state"}}},
		{"on the host's network", config.Nomad{Engines: map[string]config.Engine{"vllm": {Vars: map[string]any{"network_mode": "host"}}}}, engine("vllm"),
			nomad.File{Name: "engine-vllm.nomad.hcl", Port: "${NOMAD_HOST_PORT_http}", Vars: map[string]any{"network_mode": "host", "models_path": "/state"}}},
		{"installed", config.Nomad{Engines: map[string]config.Engine{"vllm": {Driver: "exec", Program: "/opt/vllm"}}}, engine("vllm"),
			nomad.File{Name: "engine-bare.nomad.hcl", Program: "/opt/vllm", Vars: map[string]any{"driver": "exec"}}},
		{"by a file that has all written down", config.Nomad{Engines: map[string]config.Engine{"vllm": {Driver: "docker", File: own}}}, engine("vllm"),
			nomad.File{Name: own, Host: "0.0.0.0", Vars: map[string]any{}}},
		{"a router with records", config.Nomad{Bin: "records"}, fleet.Job{Kind: fleet.Router}, nomad.File{Name: "router.nomad.hcl", Vars: map[string]any{"records_path": "/records"}}},
	} {
		p := &placing{file: "fleet.yaml", nomad: c.n, state: "/state"}
		if c.n.Bin == "records" {
			p.records = "/records"
		}
		got, err := p.job(c.j)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := p.check(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.n.Engines != nil && got.Text == "" {
			t.Errorf("%s: the file is empty", c.name)
		}
		got.Text = ""
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
