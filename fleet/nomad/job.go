package nomad

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// metaJob is the key of a Nomad job's meta under which the fleet's own job lies, as
// JSON.
const metaJob = "llmops_job"

// variables are what a job file gets.
type variables struct {
	Name   string           `json:"name"`
	Pool   string           `json:"pool"`
	Zone   string           `json:"zone"`
	Groups []groupVariables `json:"groups"`
}

type groupVariables struct {
	Name     string            `json:"name"`
	Near     string            `json:"near"`
	Image    string            `json:"image"`
	Count    int               `json:"count"`
	Argv     []string          `json:"argv"`
	Env      map[string]string `json:"env"`
	Port     int               `json:"port"`
	Admin    int               `json:"admin"` // -1: no such port
	Path     string            `json:"path"`
	Interval string            `json:"interval"`
	Timeout  string            `json:"timeout"`
	Grace    string            `json:"grace"`
	GPU      string            `json:"gpu"`
	GPUs     int               `json:"gpus"`
	Fetch    []string          `json:"fetch"`
}

// File is a job file, and what a job gives it beside itself.
type File struct {
	Name    string         // for errors, and in Options.Files where Text is empty
	Text    string         // its content
	Vars    map[string]any // further variables; one that the file does not declare is an error
	Host    string         // what ${LLMOPS_HOST} is; empty: the node's own address
	Port    string         // what ${LLMOPS_PORT} is; empty: the port as the task sees it
	Program string         // in the place of the first word of each command line; empty: as it is
}

// declared are the names of the variables that a file has.
var declared = regexp.MustCompile(`(?m)^\s*variable\s+"([^"]+)"`)

// Declares lists the variables of a job file.
func Declares(hcl string) []string {
	var out []string
	for _, m := range declared.FindAllStringSubmatch(hcl, -1) {
		out = append(out, m[1])
	}
	return out
}

// placeholders are what stands for the program and for what only Nomad knows.
func (o *Options) placeholders(f File) *strings.Replacer {
	return strings.NewReplacer("${LLMOPS_BIN}", o.Bin, "${LLMOPS_ADDR}", "${NOMAD_ADDR_http}", "${LLMOPS_ADMIN}", "${NOMAD_ADDR_admin}",
		"${LLMOPS_HOST}", cmp.Or(f.Host, "${NOMAD_IP_http}"), "${LLMOPS_PORT}", cmp.Or(f.Port, "${NOMAD_PORT_http}"),
		"${LLMOPS_NONCE}", "${NOMAD_ALLOC_ID}", "${LLMOPS_DIR}", "${NOMAD_TASK_DIR}")
}

// file is the content of a variables file for f: JSON is HCL as well, but for the ${
// that both would interpolate.
func (o *Options) file(j fleet.Job, f File) (string, error) {
	if len(j.Groups) == 0 {
		return "", fmt.Errorf("job %s has no groups", j.Name)
	}
	v := variables{Name: j.Name, Pool: "default", Zone: j.Zone}
	if p, ok := o.Pools[j.Pool]; ok {
		v.Pool = p
	}
	put := o.placeholders(f)
	for _, g := range j.Groups {
		if len(g.Argv) == 0 {
			return "", fmt.Errorf("group %s of job %s has nothing to run", g.Name, j.Name)
		}
		port, err := portOf(g.Addr)
		if err != nil {
			return "", fmt.Errorf("group %s of job %s: %w", g.Name, j.Name, err)
		}
		admin := -1
		if g.Admin != "" {
			if admin, err = portOf(g.Admin); err != nil {
				return "", fmt.Errorf("group %s of job %s: %w", g.Name, j.Name, err)
			}
		}
		gv := groupVariables{
			Name: g.Name, Near: g.Near, Image: g.Image, Count: g.Count, Env: map[string]string{}, Port: port, Admin: admin, Path: g.Check.Path,
			Interval: duration(g.Check.Interval, 10*time.Second), Timeout: duration(g.Check.Timeout, 3*time.Second), Grace: duration(g.Grace, 5*time.Second),
			GPU: g.GPU.Kind, GPUs: g.GPU.Count, Fetch: []string{},
		}
		for _, a := range g.Argv {
			gv.Argv = append(gv.Argv, put.Replace(a))
		}
		gv.Argv[0] = cmp.Or(f.Program, gv.Argv[0])
		for _, a := range g.Fetch {
			gv.Fetch = append(gv.Fetch, put.Replace(a))
		}
		for k, e := range g.Env {
			gv.Env[k] = put.Replace(e)
		}
		v.Groups = append(v.Groups, gv)
	}
	all := map[string]any{"name": v.Name, "pool": v.Pool, "zone": v.Zone, "groups": v.Groups}
	maps.Copy(all, f.Vars)
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		if f.Text != "" && !slices.Contains(Declares(f.Text), key) {
			if key == "zone" && j.Zone == "" {
				continue
			}
			return "", fmt.Errorf("job %s: %s declares no variable %s, which the job needs; it has %s", j.Name, f.Name, key, strings.Join(Declares(f.Text), ", "))
		}
		text, err := json.Marshal(value)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s = %s\n", key, strings.ReplaceAll(string(text), "${", "$${"))
	}
	return b.String(), nil
}

func duration(d, otherwise time.Duration) string {
	if d <= 0 {
		d = otherwise
	}
	return d.String()
}

// portOf is the port of a fixed address, 0 when Nomad is to pick one.
func portOf(addr string) (int, error) {
	if addr == "" {
		return 0, nil
	}
	i := strings.LastIndexByte(addr, ':')
	var port int
	if _, err := fmt.Sscanf(addr[i+1:], "%d", &port); err != nil || i < 0 || port < 0 || port > 65535 {
		return 0, fmt.Errorf("address %q has no port from 0 to 65535", addr)
	}
	return port, nil
}

// parse makes the Nomad job of j: the agent reads the file, so that it means what it
// means to the people who use that agent.
func (s *Scheduler) parse(j fleet.Job) (*api.Job, error) {
	f := File{Name: "process.nomad.hcl"}
	if s.o.File != nil {
		var err error
		if f, err = s.o.File(j); err != nil {
			return nil, err
		}
	}
	if f.Text == "" {
		hcl, err := fs.ReadFile(s.o.Files, f.Name)
		if err != nil {
			return nil, fmt.Errorf("reading job file: %w", err)
		}
		f.Text = string(hcl)
	}
	vars, err := s.o.file(j, f)
	if err != nil {
		return nil, err
	}
	job, err := s.client.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: f.Text, Variables: vars, Canonicalize: true})
	if err != nil {
		return nil, fmt.Errorf("parsing %s for job %s: %w", f.Name, j.Name, s.explain(err, "parse-job in namespace "+s.namespace))
	}
	if job.ID == nil || *job.ID != j.Name {
		return nil, fmt.Errorf("parsing %s for job %s: the file must take its id from the variable name", f.Name, j.Name)
	}
	job.Namespace = &s.namespace
	// Nomad counts: a count in the meta as well would make a change of a job that is
	// registered again with another, and Nomad would replace all of its replicas.
	text, err := json.Marshal(uncounted(j))
	if err != nil {
		return nil, err
	}
	if job.Meta == nil {
		job.Meta = map[string]string{}
	}
	job.Meta[metaJob] = string(text)
	return job, nil
}

func uncounted(j fleet.Job) fleet.Job {
	j.Groups = slices.Clone(j.Groups)
	for i := range j.Groups {
		j.Groups[i].Count = 0
	}
	return j
}

var errForeign = errors.New("it was not registered by llmops: choose another name, or remove it")

// fleetJob is the reverse: what was registered, with the counts that hold now.
func fleetJob(id string, meta map[string]string, count func(group string) (int, bool)) (fleet.Job, error) {
	var j fleet.Job
	text, ok := meta[metaJob]
	if !ok {
		return j, fmt.Errorf("job %s: %w", id, errForeign)
	}
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return j, fmt.Errorf("job %s: reading %s of its meta: %w", id, metaJob, err)
	}
	for i := range j.Groups {
		if n, ok := count(j.Groups[i].Name); ok {
			j.Groups[i].Count = n
		}
	}
	return j, nil
}

func registeredJob(job *api.Job) (fleet.Job, error) {
	return fleetJob(*job.ID, job.Meta, func(group string) (int, bool) {
		g := job.LookupTaskGroup(group)
		if g == nil || g.Count == nil {
			return 0, false
		}
		return *g.Count, true
	})
}
