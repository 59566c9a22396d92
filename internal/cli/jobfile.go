package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/fleet"
	"llmops/fleet/nomad"
	"llmops/internal/config"
	"llmops/jobs"
	"llmops/pipeline"
)

// placing is how a fleet.yaml has jobs placed.
type placing struct {
	file  string // the fleet.yaml; empty: there is none
	nomad config.Nomad
	state string // engines see weights below it: the state directory, or nomad.models

	records string // the folder of routers' records; empty: there are none
}

// job is the job file of a job of ours, and its variables.
func (p *placing) job(j fleet.Job) (nomad.File, error) {
	f := nomad.File{Name: "process.nomad.hcl", Vars: map[string]any{}}
	switch kind := j.Meta["engine"]; {
	case j.Kind == fleet.Router:
		f.Name = "router.nomad.hcl"
		if p.records != "" {
			f.Vars["records_path"] = p.records
		}
	case j.Kind == fleet.Engine && kind != "" && kind != "embedded":
		return p.engine(kind)
	}
	if p.nomad.Driver != "" {
		f.Vars["driver"] = p.nomad.Driver
	}
	if j.Kind == fleet.Engine && p.nomad.Models != "" {
		f.Vars["models_path"] = p.state
	}
	return f, nil
}

// engine is the job file of an engine that is not ours.
func (p *placing) engine(kind string) (nomad.File, error) {
	e := p.nomad.Engines[kind]
	f := nomad.File{Name: "engine-" + kind + ".nomad.hcl", Vars: maps.Clone(e.Vars), Program: e.Program}
	if f.Vars == nil {
		f.Vars = map[string]any{}
	}
	if e.Bare() {
		f.Name = "engine-bare.nomad.hcl"
	} else {
		f.Host = "0.0.0.0" // of the container
		if e.Vars["network_mode"] == "host" {
			f.Host, f.Port = "", "${NOMAD_HOST_PORT_http}" // it has no ports of its own
		}
	}
	if e.Image != "" {
		f.Vars["image"] = e.Image
	}
	text, err := jobs.Files.ReadFile(f.Name)
	if e.File != "" {
		f.Name = e.File
		text, err = os.ReadFile(e.File)
	}
	if err != nil {
		return f, fmt.Errorf("reading the job file of engine %s: %w", kind, err)
	}
	f.Text = string(text)
	// A file of the operator's own may have its driver and volumes written down.
	has := nomad.Declares(f.Text)
	if e.Driver != "" && slices.Contains(has, "driver") {
		f.Vars["driver"] = e.Driver
	}
	if (!e.Bare() || p.nomad.Models != "") && slices.Contains(has, "models_path") {
		f.Vars["models_path"] = p.state
	}
	if p.nomad.Models != "" && !strings.Contains(f.Text, "group.value.fetch") {
		return f, fmt.Errorf("%s: nomad.models has nodes bring weights from the bucket, and %s runs nothing for it: give it a task for group.value.fetch as process.nomad.hcl has it (llmops init --jobs writes that)", p.file, f.Name)
	}
	return f, nil
}

// check finds what a fleet.yaml says in vain.
func (p *placing) check() error {
	for _, kind := range slices.Sorted(maps.Keys(p.nomad.Engines)) {
		f, err := p.engine(kind)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		has := nomad.Declares(f.Text)
		for _, name := range slices.Sorted(maps.Keys(f.Vars)) {
			if !slices.Contains(has, name) {
				return usage("%s: nomad.engines.%s: %s declares no variable %s; it has %s", p.file, kind, f.Name, name, strings.Join(has, ", "))
			}
		}
	}
	return nil
}

// onCluster refuses a model that this fleet cannot run as its file says.
func (p *placing) onCluster(s pipeline.Spec) error {
	if pool := s.Placement.Pool; pool != pipeline.Interactive && p.nomad.Pools[pool] == "" {
		return usage("%s: placement.pool is %s, and nomad.pools of %s maps no such pool: it has %s", s.File, pool, p.file, cmp.Or(strings.Join(slices.Sorted(maps.Keys(p.nomad.Pools)), ", "), "none"))
	}
	if s.Engine.Kind == "embedded" {
		return nil
	}
	if kind := s.Engine.Kind; p.nomad.Models != "" && (kind == "llamacpp" || kind == "ollama") {
		return usage("%s: nomad.models of %s brings checkpoints of safetensors to nodes, and %s reads others: leave it out, and have nodes share the state directory", s.File, p.file, kind)
	}
	if p.nomad.Models != "" && (len(s.Engine.LoRA.Modules) > 0 || s.Engine.Speculative.Model != "") {
		return usage("%s: adapters and draft models are not brought to nodes by nomad.models of %s: leave that out, and have nodes share the state directory", s.File, p.file)
	}
	e := p.nomad.Engines[s.Engine.Kind]
	if e.Bare() {
		if s.Engine.Image != "" {
			return usage("%s: engine.image: nomad.engines.%s of %s runs what is installed on the nodes, by %s", s.File, s.Engine.Kind, p.file, e.Driver)
		}
		return nil
	}
	if s.Engine.Release != "" && s.Engine.Image == "" && e.Image == "" && e.File == "" {
		return usage("%s: engine.release is %s, and the job file's image is another: name the image of that release as engine.image, or as nomad.engines.%s.image of %s", s.File, s.Engine.Release, s.Engine.Kind, p.file)
	}
	folders := maps.Clone(s.Engine.LoRA.Modules)
	if folders == nil {
		folders = map[string]string{}
	}
	if m := s.Engine.Speculative.Model; m != "" {
		folders["engine.speculative.model"] = m
	}
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		if rel, err := filepath.Rel(p.state, folders[name]); err != nil || strings.HasPrefix(rel, "..") {
			return usage("%s: %s: a container sees what is below %s, the state directory, and not %s", s.File, name, p.state, folders[name])
		}
	}
	return nil
}

// onMachine refuses a model that this machine cannot run as its file says. An engine of
// somebody else is started by its name, from PATH.
func (h *home) onMachine(ctx context.Context, s pipeline.Spec) error {
	p := s.Placement
	for _, k := range []struct {
		key, value string
	}{{"placement.zone", p.Zone}, {"placement.near", p.Near}, {"engine.image", s.Engine.Image}} {
		if k.value != "" {
			return usage("%s: %s is %s: a fleet of one machine has neither zones, racks nor containers; leave it out, or name a cluster with --fleet", s.File, k.key, k.value)
		}
	}
	if p.Pool != pipeline.Interactive {
		return usage("%s: placement.pool is %s: a fleet of one machine has no pools; leave it out, or name a cluster with --fleet", s.File, p.Pool)
	}
	if p.GPU != pipeline.CPU {
		return usage("%s: placement.gpu is %s: a fleet of one machine places replicas on the processor alone; write cpu, or name a cluster with --fleet", s.File, p.GPU)
	}
	j, err := pipeline.CandidateJob(s)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	fits, err := h.scheduler.Plan(ctx, j)
	if err == nil && !fits.Fits {
		err = usage("%s: engine %s: %s", s.File, s.Engine.Kind, strings.Join(fits.Reasons, "; "))
	}
	return err
}

// canRun refuses a model that the fleet cannot run, before any work.
func (h *home) canRun(ctx context.Context, s pipeline.Spec) error {
	if h.placing != nil {
		return h.placing.onCluster(s)
	}
	if h.fleet != "" {
		return nil // a task of the cluster has no file to hold the model against
	}
	return h.onMachine(ctx, s)
}

// sampleGPU is what a job is read with where no model says: any will do for its file.
const sampleGPU = "h100-sxm"

// jobs are what runs would register: of the model file, else one for each engine that
// the fleet's file names.
func (p *placing) jobs(modelFile string) ([]fleet.Job, error) {
	if p == nil {
		return nil, usage("this fleet has no file that names engines: name one with --fleet")
	}
	var specs []pipeline.Spec
	if modelFile != "" {
		s, err := config.Model(modelFile)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		if err := p.onCluster(s); err != nil {
			return nil, err
		}
		specs = append(specs, s)
	} else {
		for _, kind := range slices.Sorted(maps.Keys(p.nomad.Engines)) {
			specs = append(specs, pipeline.Spec{Name: "lint-" + kind, Engine: pipeline.Engine{Kind: kind}, Placement: pipeline.Placement{GPU: sampleGPU, Replicas: 2, Pool: pipeline.Interactive}})
		}
	}
	if len(specs) == 0 {
		return nil, usage("%s names no engines: name files, or a model with --model", p.file)
	}
	var out []fleet.Job
	for _, s := range specs {
		j, err := pipeline.CandidateJob(s)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		out = append(out, j)
	}
	return out, nil
}
