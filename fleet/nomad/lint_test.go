package nomad

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/jobs"
)

func ptr[T any](v T) *T { return &v }

// sound is a job without a mistake; each case of the test makes one.
func sound() (*api.Job, *api.TaskGroup, *api.Task) {
	t := &api.Task{
		Name: "vllm", Driver: "docker", KillTimeout: ptr(25 * time.Second),
		Config: map[string]any{"image": "vllm/vllm-openai@sha256:0123", "ipc_mode": "host", "args": []any{"--model", "/m", "--port", "8000", "--shutdown-timeout", "20"}},
		Resources: &api.Resources{Devices: []*api.RequestedDevice{{Name: "nvidia/gpu", Count: ptr(uint64(4)), Constraints: []*api.Constraint{
			{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "79 GiB"}}}}},
	}
	g := &api.TaskGroup{
		Name: ptr("engine"), Count: ptr(2), Tasks: []*api.Task{t}, Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http", To: 8000}}}},
		Services: []*api.Service{{Checks: []api.ServiceCheck{{Type: "http", Path: "/health"}}}},
		Update:   &api.UpdateStrategy{HealthyDeadline: ptr(20 * time.Minute), ProgressDeadline: ptr(30 * time.Minute), Canary: ptr(1)},
		Migrate:  &api.MigrateStrategy{HealthyDeadline: ptr(20 * time.Minute)},
	}
	return &api.Job{ID: ptr("llm"), Type: ptr(api.JobTypeService), TaskGroups: []*api.TaskGroup{g}}, g, t
}

func TestLint(t *testing.T) {
	room := Cluster{SpareGPUs: 8, ModelLoad: 6 * time.Minute}
	job, _, _ := sound()
	if found := Lint(job, room); len(found) > 0 {
		t.Fatalf("a sound job: %v", found)
	}
	for rule, spoil := range map[string]func(*api.Job, *api.TaskGroup, *api.Task, *Cluster){
		"kill-timeout-cut": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) { t.KillTimeout = ptr(150 * time.Second) },
		"drain-too-long": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) {
			t.Config["args"] = []any{"--shutdown-timeout=120"}
		},
		"no-drain": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) { t.Config["args"] = []any{"--model", "/m"} },
		"healthy-deadline": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) {
			g.Update.HealthyDeadline = ptr(5 * time.Minute)
		},
		"progress-deadline": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) {
			g.Update.ProgressDeadline = ptr(10 * time.Minute)
		},
		"migrate-deadline": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) {
			g.Migrate.HealthyDeadline = ptr(time.Minute)
		},
		"auto-promote": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) { g.Update.AutoPromote = ptr(true) },
		"canary-without-room": func(_ *api.Job, _ *api.TaskGroup, _ *api.Task, c *Cluster) {
			c.SpareGPUs = 3
		},
		"no-update":     func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) { g.Update = nil },
		"drain-to-zero": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) { g.Count = ptr(1) },
		"no-check":      func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) { g.Services = nil },
		"restart-delay": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, _ *Cluster) {
			g.RestartPolicy = &api.RestartPolicy{Mode: ptr("delay")}
		},
		"disconnect-replace": func(_ *api.Job, g *api.TaskGroup, _ *api.Task, c *Cluster) {
			g.Disconnect, g.Update.Canary, c.SpareGPUs = &api.DisconnectStrategy{Replace: ptr(true)}, ptr(0), 0
		},
		"visible-by-env": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) {
			t.Env = map[string]string{"CUDA_VISIBLE_DEVICES": "${NVIDIA_VISIBLE_DEVICES}"}
		},
		"no-visible": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) { t.Driver = "raw_exec" },
		"unknown-attribute": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) {
			t.Resources.Devices[0].Constraints[0].LTarget = "${device.attr.compute_capability}"
		},
		"eighty-gib": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) {
			t.Resources.Devices[0].Constraints[0].RTarget = "80 GiB"
		},
		"image-by-tag": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) {
			t.Config["image"] = "vllm/vllm-openai:latest"
		},
		"shared-memory": func(_ *api.Job, _ *api.TaskGroup, t *api.Task, _ *Cluster) { delete(t.Config, "ipc_mode") },
		"bridged-port": func(_ *api.Job, g *api.TaskGroup, t *api.Task, _ *Cluster) {
			g.Networks[0].DynamicPorts[0].To = 0
			t.Config["args"] = []any{"--port", "${NOMAD_PORT_http}", "--shutdown-timeout", "20"}
		},
	} {
		job, g, task := sound()
		c := room
		spoil(job, g, task, &c)
		found := Lint(job, c)
		if !slices.ContainsFunc(found, func(f Finding) bool { return f.Rule == rule }) || len(found) != 1 {
			t.Errorf("%s: found %v", rule, found)
		}
		for _, f := range found {
			if !strings.HasPrefix(f.String(), "engine") || len(f.Text) < 40 {
				t.Errorf("%s says %q", rule, f)
			}
		}
	}
	// What ends by itself has no deployment and nothing to drain, and a model's load is not
	// the deadline of a group without GPUs.
	ends, eg, et := sound()
	ends.Type, eg.Update, et.Config["args"] = ptr(api.JobTypeBatch), nil, []any{"bench"}
	other, og, ot := sound()
	ot.Resources, og.Update.HealthyDeadline, og.Update.Canary = nil, ptr(time.Minute), ptr(0)
	for _, j := range []*api.Job{ends, other} {
		if found := Lint(j, room); len(found) > 0 {
			t.Errorf("a false alarm: %v", found)
		}
	}
	// A template gives an exec task its GPUs; without knowing the load a short deadline only warns.
	job, g, task := sound()
	task.Driver = "exec"
	task.Templates = []*api.Template{{Envvars: ptr(true), EmbeddedTmpl: ptr(`CUDA_VISIBLE_DEVICES={{ env "NVIDIA_VISIBLE_DEVICES" }}`)}}
	g.Update.HealthyDeadline = nil
	found := Lint(job, Cluster{SpareGPUs: -1})
	if len(found) != 1 || found[0].Rule != "healthy-deadline" || found[0].Fatal {
		t.Errorf("found %v", found)
	}
}

// A file is linted as the cluster reads it.
func TestLintFile(t *testing.T) {
	both(t, func(t *testing.T, c *api.Client) {
		s := scheduler(t, c)
		text, err := fs.ReadFile(jobs.Files, "process.nomad.hcl")
		if err != nil {
			t.Fatal(err)
		}
		g := group("")("main")
		g.Count, g.Grace, g.Argv = 2, 10*time.Minute, []string{"vllm", "vllm", "--shutdown-timeout", "900"}
		vars, err := s.o.file(fleet.Job{Name: "x", Groups: []fleet.Group{g}}, File{})
		if err != nil {
			t.Fatal(err)
		}
		found, err := s.LintFile(string(text), vars, Cluster{MaxKillTimeout: 15 * time.Minute})
		if err != nil || !slices.ContainsFunc(found, func(f Finding) bool { return f.Rule == "drain-too-long" && f.Where == "main/main" }) {
			t.Errorf("found %v, %v", found, err)
		}
		if _, err := s.LintFile("job {", "", Cluster{}); err == nil || !strings.Contains(err.Error(), "parsing") {
			t.Errorf("what is no job: %v", err)
		}
	})
}
