package config

import (
	"os"
	"path/filepath"
	"reflect"
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
	if f, err := fleetFrom(t, "blobs: s3://acme/llmops\n"); err != nil || f.Blobs != "s3://acme/llmops" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := FleetFile(filepath.Join("..", "..", "examples", "fleet", "nomad-dev.yaml")); err != nil || f.Nomad.Address != "http://127.0.0.1:4646" {
		t.Errorf("the example: %+v, %v", f, err)
	}
	if f, err := fleetFrom(t, "routers: {records: ./requests, records_size: 64MiB}\n"); err != nil || f.Records != (Records{filepath.Join(filepath.Dir(f.File), "requests"), 64 << 20}) {
		t.Errorf("%+v, %v", f, err)
	}
	for text, want := range map[string]string{
		"routers: {records_size: 64MiB}\n":                                                  "fleet.yaml:3: routers.records_size is of nothing",
		"routers: {records: /r, records_size: 0.1MiB}\n":                                    "want at least 1MiB",
		"scheduler: nomad\nrouters: {records: ./r}\nnomad: {address: \"http://n\"}\n":       "absolute path",
		"scheduler: nomad\nnomad: {address: \"http://n\", models: /m}\n":                    "name it as blobs",
		"blobs: s3://acme\nscheduler: nomad\nnomad: {address: \"http://n\", models: ./m}\n": "absolute path",
		"nomad: {models: /m}\n":                            "the scheduler is local",
		"blobs: ./folder\n":                                "want s3://bucket/prefix",
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

func TestFleetFileEngines(t *testing.T) {
	f, err := fleetFrom(t, `scheduler: nomad
nomad:
  address: http://n
  engines:
    vllm: {driver: docker, image: own, file: ./fleet.yaml, vars: {cpu: 4000, share: 0.5, spot: only, on: true, text: "7", compliance: [hipaa, 2]}}
    sglang: {driver: raw_exec, program: /opt/python3}
`)
	if err != nil {
		t.Fatal(err)
	}
	v, s := f.Nomad.Engines["vllm"], f.Nomad.Engines["sglang"]
	want := map[string]any{"cpu": uint64(4000), "share": 0.5, "spot": "only", "on": true, "text": "7", "compliance": []any{"hipaa", uint64(2)}}
	if v.Image != "own" || v.File != f.File || v.Bare() || !reflect.DeepEqual(v.Vars, want) {
		t.Errorf("%+v", v)
	}
	if !s.Bare() || s.Program != "/opt/python3" || len(f.Nomad.Engines) != 2 {
		t.Errorf("%+v", s)
	}
	for text, want := range map[string]string{
		"{vllm: {driver: lxc}}":                    "fleet.yaml:4: nomad.engines.vllm.driver",
		"{embedded: {driver: docker}}":             "nomad.engines.embedded: want one of vllm",
		"{vllm: {driver: exec, image: x}}":         "nomad.engines.vllm.image: the driver exec",
		"{vllm: {program: /x}}":                    "nomad.engines.vllm.program: an image brings its own",
		"{vllm: {file: gone.hcl}}":                 "nomad.engines.vllm.file: stat",
		"{vllm: {vars: {pool: x}}}":                "fleet.yaml:4: nomad.engines.vllm.vars.pool: llmops sets it itself",
		"{vllm: {vars: {a: {b: c}}}}":              "one value",
		"{vllm: {vars: {a: [[1], {b: c}]}}}":       "one value",
		"{vllm: {gpu: h100}}":                      "unknown field \"gpu\"",
		"{vllm: {driver: docker, driver: podman}}": "already defined",
	} {
		if _, err := fleetFrom(t, "scheduler: nomad\nnomad: {address: \"http://n\", engines: "+text+"}\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := fleetFrom(t, "nomad: {engines: {vllm: {driver: docker}}}\n"); err == nil || !strings.Contains(err.Error(), "fleet.yaml:3: nomad.engines.vllm: the scheduler is local") {
		t.Errorf("%v", err)
	}
	if _, err := fleetFrom(t, "nomad: {engines: {vllm: }}\n"); err == nil || !strings.Contains(err.Error(), "nomad.engines.vllm: the scheduler is local") {
		t.Errorf("%v", err)
	}
}
