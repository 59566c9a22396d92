package recorded

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// recorded is what the parser of a real agent made of process.nomad.hcl, with
// variables that ask for everything in the group full and for nothing in bare. The
// file is written by go test -update, which needs the binary.
//
//go:embed testdata/process.json
var recordedJob []byte

// values are the variables of process.nomad.hcl.
type values struct {
	name, pool, zone string
	groups           []groupValues
}

type groupValues struct {
	Name, Near                     string
	Count, Port, Admin, GPUs       int
	Argv, Fetch                    []string
	Env                            map[string]string
	Path, Interval, Timeout, Grace string
	GPU                            string
}

// readValues reads a variables file of lines of key = JSON.
func readValues(text string) (v values, err error) {
	v.pool = "default"
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok {
			return v, fmt.Errorf("line %q is not key = JSON", line)
		}
		value = strings.ReplaceAll(value, "$${", "${")
		to, ok := map[string]any{"name": &v.name, "pool": &v.pool, "zone": &v.zone, "groups": &v.groups}[key]
		if !ok {
			return v, fmt.Errorf("process.nomad.hcl was recorded without a variable %q", key)
		}
		if err := json.Unmarshal([]byte(value), to); err != nil {
			return v, fmt.Errorf("variable %s: %w", key, err)
		}
	}
	return v, nil
}

func parseRequest(r *http.Request) (reply, error) {
	var req api.JobsParseRequest
	if err := decode(r, &req); err != nil {
		return reply{}, err
	}
	if !strings.Contains(req.JobHCL, `variable "groups"`) || !strings.Contains(req.JobHCL, "driver       = var.driver") {
		return reply{}, refusef(http.StatusBadRequest, "Failed to parse job: this is not process.nomad.hcl, the only file that was recorded")
	}
	v, err := readValues(req.Variables)
	if err != nil {
		return reply{}, refusef(http.StatusBadRequest, "Failed to parse job: %v", err)
	}
	job, err := v.job()
	if err != nil {
		return reply{}, refusef(http.StatusBadRequest, "Failed to parse job: %v", err)
	}
	return reply{body: job, plain: true}, nil
}

// job is the recorded one with other values, as the file's dynamic blocks make it.
func (v values) job() (*api.Job, error) {
	var job api.Job
	dec := json.NewDecoder(bytes.NewReader(recordedJob))
	dec.UseNumber()
	if err := dec.Decode(&job); err != nil {
		return nil, err
	}
	full, bare := job.TaskGroups[0], job.TaskGroups[1]
	job.ID, job.Name, job.NodePool, job.TaskGroups = &v.name, &v.name, &v.pool, nil
	if v.zone == "" {
		job.Constraints = nil
	} else {
		job.Constraints[0].RTarget = v.zone
	}
	for _, g := range v.groups {
		made, err := g.group(v.name, full, bare)
		if err != nil {
			return nil, err
		}
		job.TaskGroups = append(job.TaskGroups, made)
	}
	return &job, nil
}

func (g groupValues) group(job string, full, bare *api.TaskGroup) (*api.TaskGroup, error) {
	if len(g.Fetch) > 0 {
		return nil, fmt.Errorf("process.nomad.hcl was recorded without a task that brings weights")
	}
	out, without := clone(full), clone(bare)
	out.Name, out.Count = &g.Name, &g.Count
	task, service, network := out.Tasks[0], out.Services[0], out.Networks[0]

	fixed, free := network.ReservedPorts, without.Networks[0].DynamicPorts
	network.ReservedPorts, network.DynamicPorts = nil, nil
	for i, port := range []int{g.Port, g.Admin} {
		switch {
		case port > 0:
			p := fixed[i]
			p.Value = port
			network.ReservedPorts = append(network.ReservedPorts, p)
		case port == 0:
			p := free[0]
			p.Label = fixed[i].Label
			network.DynamicPorts = append(network.DynamicPorts, p)
		}
	}

	if g.Near == "" {
		out.Affinities = nil
	} else {
		out.Affinities[0].RTarget = g.Near
	}
	service.Name = job
	if g.Path == "" {
		service.Checks, out.Update.HealthCheck = nil, without.Update.HealthCheck
	} else {
		check := &service.Checks[0]
		check.Path = g.Path
		for text, to := range map[string]*time.Duration{g.Interval: &check.Interval, g.Timeout: &check.Timeout} {
			d, err := time.ParseDuration(text)
			if err != nil {
				return nil, err
			}
			*to = d
		}
	}

	grace, err := time.ParseDuration(g.Grace)
	if err != nil {
		return nil, err
	}
	task.KillTimeout, task.Env = &grace, g.Env
	args := []any{}
	for _, a := range g.Argv[1:] {
		args = append(args, a)
	}
	task.Config = map[string]any{"command": g.Argv[0], "args": args}
	if g.GPUs == 0 {
		task.Resources.Devices, task.Templates = nil, nil
		return out, nil
	}
	device := task.Resources.Devices[0]
	device.Count = ptr(uint64(g.GPUs))
	if g.GPU == "" {
		device.Constraints = nil
	} else {
		device.Constraints[0].RTarget = g.GPU
	}
	return out, nil
}

func clone[T any](v *T) *T {
	b, err := json.Marshal(v)
	if err != nil {
		panic("recorded: " + err.Error())
	}
	out := new(T)
	if err := json.Unmarshal(b, out); err != nil {
		panic("recorded: " + err.Error())
	}
	return out
}
