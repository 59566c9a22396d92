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
	"llmops/serving/engine"
)

// variablesOf are what each file of jobs is parsed with, beside its defaults: those of
// the engines come from their adapters, so that what is parsed is what would run.
func variablesOf(t *testing.T, file, pool, near, image string) string {
	t.Helper()
	kind := strings.TrimSuffix(strings.TrimPrefix(file, "engine-"), ".nomad.hcl")
	s := engine.Serve{Kind: kind, Alias: "q", Dir: "/models/q", Replicas: 2, TensorParallel: 4, MaxModelLen: 32768, MaxNumSeqs: 64, Need: fleet.Need{Kind: "H100", Count: 4}}
	switch kind {
	case "bare":
		s.Kind, s.Listen = "vllm", "${NOMAD_IP_http}:${NOMAD_PORT_http}"
	case "llamacpp":
		s.Dir += ".gguf"
	case "ollama":
		s.TensorParallel, s.PipelineParallel = 0, 4
	case "process", "router":
		s = engine.Serve{Kind: "embedded", Alias: "q", Dir: "/models/q", Replicas: 2}
	case "prefetch":
		return `name = "q-v1"
images = ["vllm/vllm-openai:v0.32.0", "ollama/ollama:0.17.4"]
argv   = ["/usr/local/bin/llmops", "download", "/mnt/q", "--out", "/models"]`
	case "calibrate":
		return "name = \"q-v1\"\nimage = \"acme/calibrate:1\""
	case "drill":
		return "name = \"q-v1\"\nalias = \"q\""
	case "watch", "benchmark-gpu", "ceilings", "dcgm-exporter":
		return `name = "q-v1"`
	}
	j := fleet.Job{Name: "q-v1", Kind: fleet.Engine, Pool: pool, Zone: "az1"}
	roles := []engine.Role{""}
	if kind == "vllm" || kind == "sglang" {
		roles = []engine.Role{engine.Prefill, engine.Decode, ""}
	}
	for _, s.Role = range roles {
		g, err := engine.Group(s)
		if err != nil {
			t.Fatal(err)
		}
		g.Near, g.Image = near, image
		if s.Role == "" && len(roles) > 1 {
			g.Name = "long"
		}
		j.Groups = append(j.Groups, g)
	}
	vars, err := (&Options{Bin: "/usr/local/bin/llmops", Pools: map[string]string{pool: pool}}).file(j, File{})
	if err != nil {
		t.Fatal(err)
	}
	return vars
}

// Every job file is read and validated by a real agent, and has none of the known
// mistakes.
func TestJobFiles(t *testing.T) {
	c := agent(t)
	names, err := fs.Glob(jobs.Files, "*.nomad.hcl")
	if err != nil || len(names) < 15 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			text, err := fs.ReadFile(jobs.Files, name)
			if err != nil {
				t.Fatal(err)
			}
			vars := variablesOf(t, name, "default", "", "")
			job := parseFile(t, c, string(text), vars)
			if *job.ID != "q-v1" {
				t.Errorf("id is %s: it must be the variable name", *job.ID)
			}
			res, _, err := c.Jobs().Validate(job, nil)
			if err != nil || !res.DriverConfigValidated || len(res.ValidationErrors) > 0 || res.Error != "" {
				t.Errorf("%+v, %v", res, err)
			}
			cluster, serves := Cluster{MaxKillTimeout: 15 * time.Minute, SpareGPUs: 16}, strings.HasPrefix(name, "engine-")
			if serves {
				cluster.ModelLoad = 10 * time.Minute
			}
			for _, f := range Lint(job, cluster) {
				// Which digest is right is for who runs it to say.
				if f.Fatal || serves && f.Rule != "image-by-tag" {
					t.Error(f)
				}
			}
		})
	}
}

// A router that writes records sees the host volume for them, except where it sees the
// node's folders anyway.
func TestRouterRecords(t *testing.T) {
	c := agent(t)
	text, err := fs.ReadFile(jobs.Files, "router.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		vars string
		want bool
	}{{"", false}, {"records_path = \"/var/lib/llmops/records\"", true}, {"records_path = \"/r\"\ndriver = \"raw_exec\"", false}} {
		job := parseFile(t, c, string(text), variablesOf(t, "router.nomad.hcl", "default", "", "")+"\n"+tt.vars)
		g := job.TaskGroups[0]
		if got := g.Volumes["records"] != nil && len(g.Tasks[0].VolumeMounts) == 1; got != tt.want {
			t.Errorf("%s: volumes %v, mounts %v", tt.vars, g.Volumes, g.Tasks[0].VolumeMounts)
		}
		if res, _, err := c.Jobs().Validate(job, nil); err != nil || len(res.ValidationErrors) > 0 || res.Error != "" {
			t.Errorf("%s: %+v, %v", tt.vars, res, err)
		}
	}
}

func parseFile(t *testing.T, c *api.Client, text, vars string) *api.Job {
	t.Helper()
	job, err := c.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: text, Variables: vars, Canonicalize: true})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// What an operator narrows is narrowed in every file of an engine.
func TestJobFilesPlacement(t *testing.T) {
	c := agent(t)
	for _, kind := range engine.Kinds() {
		file := "engine-" + kind + ".nomad.hcl"
		text, err := fs.ReadFile(jobs.Files, file)
		if kind == "embedded" {
			continue // process.nomad.hcl
		}
		if err != nil {
			t.Errorf("%s has no job file: %v", kind, err)
			continue
		}
		vars := variablesOf(t, file, "gpu-h100", "r2", "own/engine@sha256:1")
		job := parseFile(t, c, string(text), vars+`
residency  = "eu"
compliance = ["hipaa", "soc2"]
spot       = "prefer"
namespace  = "regulated"
gpu_memory = "79 GiB"
priority   = 30
`)
		var has []string
		for _, x := range job.Constraints {
			has = append(has, x.LTarget+" "+x.Operand+" "+x.RTarget)
		}
		for _, x := range job.Affinities {
			has = append(has, "prefers "+x.LTarget+" "+x.RTarget)
		}
		for _, want := range []string{"${meta.zone} = az1", "${meta.residency} = eu", "${meta.compliance} set_contains hipaa", "${meta.compliance} set_contains soc2", "prefers ${meta.spot} true"} {
			if !slices.Contains(has, want) {
				t.Errorf("%s: %q lacks %q", file, has, want)
			}
		}
		if *job.NodePool != "gpu-h100" || *job.Namespace != "regulated" || *job.Priority != 30 {
			t.Errorf("%s: pool %s, namespace %s, priority %d", file, *job.NodePool, *job.Namespace, *job.Priority)
		}
		for _, g := range job.TaskGroups {
			task := g.Tasks[0]
			if len(g.Affinities) != 1 || g.Affinities[0].RTarget != "r2" || task.Config["image"] != "own/engine@sha256:1" {
				t.Errorf("%s: group %s: %+v, image %v", file, *g.Name, g.Affinities, task.Config["image"])
			}
			d := task.Resources.Devices
			if len(d) != 1 || *d[0].Count != 4 || len(d[0].Constraints) != 2 || d[0].Constraints[0].RTarget != "H100" || d[0].Constraints[1].RTarget != "79 GiB" {
				t.Errorf("%s: group %s: devices %+v", file, *g.Name, d)
			}
		}
		if _, err := c.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: string(text), Variables: vars + "\nspot = \"some\"\n"}); err == nil || !strings.Contains(err.Error(), "never, prefer or only") {
			t.Errorf("%s: spot = some: %v", file, err)
		}
	}
}

// The files of the engines in containers differ in what the engines differ in; a change
// of placement is one of all of them.
func TestJobFilesAgree(t *testing.T) {
	var first string
	for _, kind := range []string{"vllm", "sglang", "trtllm", "llamacpp", "tgi", "ollama"} {
		text, err := fs.ReadFile(jobs.Files, "engine-"+kind+".nomad.hcl")
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(text), `job "llmops"`)
		var kept []string
		for line := range strings.Lines(body) {
			line = strings.Join(strings.Fields(line), " ")
			if !strings.HasPrefix(line, "entrypoint =") && !strings.HasPrefix(line, "args =") && !strings.HasPrefix(line, "tags =") && !strings.HasPrefix(line, "read_only =") {
				kept = append(kept, line)
			}
		}
		all := strings.Join(kept, "\n")
		if first == "" {
			first = all
		}
		if all != first || len(kept) < 100 {
			t.Errorf("engine-%s.nomad.hcl places its engine otherwise than engine-vllm.nomad.hcl", kind)
		}
	}
}

// A process of anybody's sees the GPUs that it asked for and no others, near the rack
// that it names.
func TestProcessFileWithGPUs(t *testing.T) {
	for _, name := range []string{"process.nomad.hcl", "engine-bare.nomad.hcl"} {
		text, err := fs.ReadFile(jobs.Files, name)
		if err != nil {
			t.Fatal(err)
		}
		j := fleet.Job{Name: "q-v1", Groups: []fleet.Group{{Name: "main", Near: "r7", Count: 2, Argv: []string{"serve"}, GPU: fleet.Need{Kind: "H100", Count: 2}, Check: fleet.Check{Path: "/health"}}}}
		vars, err := (&Options{}).file(j, File{Name: name, Text: string(text)})
		if err != nil {
			t.Fatal(err)
		}
		job := parseFile(t, agent(t), string(text), vars)
		for _, f := range Lint(job, Cluster{MaxKillTimeout: 5 * time.Minute, SpareGPUs: -1}) {
			t.Errorf("%s: %v", name, f)
		}
		g := job.TaskGroups[0]
		if len(g.Affinities) != 1 || g.Affinities[0].LTarget != "${meta.rack}" || g.Affinities[0].RTarget != "r7" || len(g.Tasks[0].Templates) != 1 {
			t.Errorf("%s: %+v, %+v", name, g.Affinities, g.Tasks[0].Templates)
		}
	}
}
