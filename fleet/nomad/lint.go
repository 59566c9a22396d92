package nomad

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Finding is a mistake of a job file.
type Finding struct {
	Rule  string // its short name
	Where string // group/task
	Fatal bool   // it will not work; otherwise it may bite
	Text  string // what happens, and what to write instead
}

func (f Finding) String() string {
	level := "warning"
	if f.Fatal {
		level = "error"
	}
	return fmt.Sprintf("%s: %s: %s (%s)", f.Where, level, f.Text, f.Rule)
}

// Cluster is what a lint knows of the place where a job shall run.
type Cluster struct {
	MaxKillTimeout time.Duration // of its clients; 0: Nomad's default
	ModelLoad      time.Duration // from start to the first token; 0: not known
	SpareGPUs      int           // that no allocation holds; below 0: not known
}

// defaultMaxKill is what clients cut kill_timeout to, without a word, unless they are
// configured otherwise.
const defaultMaxKill = 30 * time.Second

// Lint finds the known mistakes of a job that serves a model. job is as Nomad's parser
// gives it, defaults filled in.
func Lint(job *api.Job, c Cluster) []Finding {
	l := &linter{cluster: c}
	if l.cluster.MaxKillTimeout == 0 {
		l.cluster.MaxKillTimeout = defaultMaxKill
	}
	for _, g := range job.TaskGroups {
		l.group(job, g)
	}
	return l.found
}

type linter struct {
	cluster Cluster
	found   []Finding
}

func (l *linter) add(rule, where string, fatal bool, format string, args ...any) {
	l.found = append(l.found, Finding{rule, where, fatal, fmt.Sprintf(format, args...)})
}

// devices are the GPUs that one task asks for.
func devices(t *api.Task) (n uint64, all []*api.RequestedDevice) {
	if t.Resources == nil {
		return 0, nil
	}
	for _, d := range t.Resources.Devices {
		if d.Name == "gpu" || strings.Contains(d.Name, "/gpu") {
			all = append(all, d)
			n += deref(d.Count, 1)
		}
	}
	return n, all
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func (l *linter) group(job *api.Job, g *api.TaskGroup) {
	where := deref(g.Name, "")
	var gpus uint64
	for _, t := range g.Tasks {
		n, all := devices(t)
		gpus += n
		l.task(where+"/"+t.Name, job, g, t, all)
	}
	count := deref(g.Count, 1)
	if !serves(job) {
		return
	}
	l.update(where, job, g, gpus)
	if gpus == 0 {
		return
	}
	if count == 1 {
		l.add("drain-to-zero", where, false, "count is 1: a node drain stops this replica before another is healthy (Nomad has no surge); drain with llmops fleet drain, or run 2")
	}
	if !slices.ContainsFunc(services(g), func(s *api.Service) bool { return len(s.Checks) > 0 }) {
		l.add("no-check", where, false, "no service has a check: a replica counts as healthy while it loads its weights")
	}
	if r := g.RestartPolicy; r != nil && deref(r.Mode, "") == api.RestartPolicyModeDelay {
		l.add("restart-delay", where, false, `restart.mode is "delay": a GPU that is broken keeps the replica for ever; write "fail", so that it is placed elsewhere`)
	}
	if d := g.Disconnect; d != nil && deref(d.Replace, false) && l.cluster.SpareGPUs == 0 {
		l.add("disconnect-replace", where, false, "disconnect.replace wants %d free GPUs for each replica that is cut off, and none is free", gpus)
	}
}

// serves tells a job that goes on until it is stopped from one that ends by itself, or
// runs once on every node: those are not updated by deployments, and drain nothing.
func serves(job *api.Job) bool { return deref(job.Type, api.JobTypeService) == api.JobTypeService }

func services(g *api.TaskGroup) []*api.Service {
	all := slices.Clone(g.Services)
	for _, t := range g.Tasks {
		all = append(all, t.Services...)
	}
	return all
}

// update is about how a version replaces another.
func (l *linter) update(where string, job *api.Job, g *api.TaskGroup, gpus uint64) {
	u := g.Update
	if u == nil {
		u = job.Update
	}
	if u == nil {
		if gpus > 0 {
			l.add("no-update", where, false, "without an update block all replicas are stopped at once for a new version")
		}
		return
	}
	healthy, progress := deref(u.HealthyDeadline, 5*time.Minute), deref(u.ProgressDeadline, 10*time.Minute)
	load := l.cluster.ModelLoad
	if load > 0 && gpus > 0 && healthy < load {
		l.add("healthy-deadline", where, true, "update.healthy_deadline is %v and the model takes %v to its first token: every deployment fails; write at least %v", healthy, load, 2*load)
	}
	if load == 0 && gpus > 0 && healthy <= 5*time.Minute {
		l.add("healthy-deadline", where, false, "update.healthy_deadline is %v, Nomad's default at most: large weights take longer to load", healthy)
	}
	if progress != 0 && progress <= healthy {
		l.add("progress-deadline", where, true, "update.progress_deadline, %v, must be longer than healthy_deadline, %v", progress, healthy)
	}
	if m := g.Migrate; m != nil && gpus > 0 && load > 0 && deref(m.HealthyDeadline, 5*time.Minute) < load {
		l.add("migrate-deadline", where, true, "migrate.healthy_deadline is %v and the model takes %v to its first token: a drain never sees it healthy", deref(m.HealthyDeadline, 5*time.Minute), load)
	}
	if deref(u.AutoPromote, false) {
		l.add("auto-promote", where, false, "update.auto_promote makes a canary live on its checks alone, which know nothing of answers")
	}
	canaries := deref(u.Canary, 0)
	if canaries > 0 && l.cluster.SpareGPUs >= 0 && uint64(l.cluster.SpareGPUs) < uint64(canaries)*gpus {
		l.add("canary-without-room", where, true, "update.canary is %d and needs %d GPUs beside those in use, %d are free: the canary stays pending", canaries, uint64(canaries)*gpus, l.cluster.SpareGPUs)
	}
}

func (l *linter) task(where string, job *api.Job, g *api.TaskGroup, t *api.Task, gpus []*api.RequestedDevice) {
	l.stopping(where, t, serves(job))
	bare := t.Driver == "exec" || t.Driver == "raw_exec"
	if v, ok := t.Env["CUDA_VISIBLE_DEVICES"]; ok && strings.Contains(v, "NVIDIA_VISIBLE_DEVICES") {
		l.add("visible-by-env", where, true, "env is read before the device is known, so CUDA_VISIBLE_DEVICES will be the text %q; use a template with env = true: CUDA_VISIBLE_DEVICES={{ env \"NVIDIA_VISIBLE_DEVICES\" }}", v)
	} else if bare && len(gpus) > 0 && !ok && !slices.ContainsFunc(t.Templates, func(tm *api.Template) bool {
		return deref(tm.Envvars, false) && strings.Contains(deref(tm.EmbeddedTmpl, ""), "CUDA_VISIBLE_DEVICES")
	}) {
		l.add("no-visible", where, true, "%s gives the task no GPU of its own: every process sees all of them; set CUDA_VISIBLE_DEVICES by a template with env = true", t.Driver)
	}
	for _, d := range gpus {
		for _, c := range d.Constraints {
			l.device(where, c)
		}
	}
	if t.Driver == "docker" {
		l.docker(where, g, t, gpus)
	}
}

// known are the attributes that nomad-device-nvidia reports.
var known = []string{"memory", "power", "bar1", "driver_version", "cores_clock", "memory_clock", "pci_bandwidth", "display_state", "persistence_mode"}

func (l *linter) device(where string, c *api.Constraint) {
	name, ok := strings.CutPrefix(c.LTarget, "${device.attr.")
	if !ok {
		return
	}
	name = strings.TrimSuffix(name, "}")
	if !slices.Contains(known, name) {
		l.add("unknown-attribute", where, true, "the device plugin reports no %s: the constraint holds nowhere; it has %s", name, strings.Join(known, ", "))
	}
	if name == "memory" && (c.Operand == ">=" || c.Operand == "=" || c.Operand == ">") && strings.ReplaceAll(c.RTarget, " ", "") == "80GiB" {
		l.add("eighty-gib", where, true, "a GPU sold with 80 GB reports 79.6 GiB, which is not %s %s; write 79 GiB", c.Operand, c.RTarget)
	}
}

func (l *linter) docker(where string, g *api.TaskGroup, t *api.Task, gpus []*api.RequestedDevice) {
	image, _ := t.Config["image"].(string)
	if image != "" && !strings.Contains(image, "@sha256:") && !strings.Contains(image, "${") {
		l.add("image-by-tag", where, false, "image %s is named by a tag, which may be another one tomorrow; name its digest", image)
	}
	if len(gpus) == 0 {
		return
	}
	ipc, _ := t.Config["ipc_mode"].(string)
	if _, shm := t.Config["shm_size"]; ipc != "host" && !shm {
		l.add("shared-memory", where, false, `tensor parallelism needs shared memory, and a container has 64 MiB; write ipc_mode = "host", or shm_size`)
	}
	if network, _ := t.Config["network_mode"].(string); network == "host" {
		return
	}
	for _, n := range g.Networks {
		for _, p := range append(slices.Clone(n.DynamicPorts), n.ReservedPorts...) {
			if p.To == 0 && slices.ContainsFunc(arguments(t), func(a string) bool { return strings.Contains(a, "NOMAD_PORT_"+p.Label) }) {
				l.add("bridged-port", where, true, `port %s has no "to", so that the container's port and the one that --port gives need not be the same; write to = 8000 and --port 8000, or network_mode = "host"`, p.Label)
			}
		}
	}
}

func arguments(t *api.Task) []string {
	var out []string
	if list, ok := t.Config["args"].([]any); ok {
		for _, a := range list {
			out = append(out, fmt.Sprint(a))
		}
	}
	return out
}

// stopping is the grace chain: the engine's own drain is shorter than kill_timeout,
// which is no longer than the client allows.
func (l *linter) stopping(where string, t *api.Task, serves bool) {
	kill := deref(t.KillTimeout, 5*time.Second)
	if kill > l.cluster.MaxKillTimeout {
		l.add("kill-timeout-cut", where, true, "kill_timeout is %v, and clients cut it to %v without a word; raise client.max_kill_timeout, or lower this", kill, l.cluster.MaxKillTimeout)
		kill = l.cluster.MaxKillTimeout
	}
	args := arguments(t)
	isVLLM := strings.Contains(fmt.Sprint(t.Config["image"]), "vllm") || slices.Contains(args, "vllm")
	drain, said := drainOf(args)
	switch {
	case said && drain >= kill:
		l.add("drain-too-long", where, true, "the engine drains for %v, and is killed after %v: what it serves is cut off; kill_timeout must be longer", drain, kill)
	case isVLLM && !said && serves:
		l.add("no-drain", where, false, "vLLM aborts what it serves when it is told to stop; give --shutdown-timeout, shorter than kill_timeout, %v", kill)
	}
}

// drainOf is vLLM's --shutdown-timeout.
func drainOf(args []string) (time.Duration, bool) {
	for i, a := range args {
		value, ok := strings.CutPrefix(a, "--shutdown-timeout=")
		if a == "--shutdown-timeout" && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if !ok {
			continue
		}
		if s, err := strconv.ParseFloat(value, 64); err == nil {
			return time.Duration(s * float64(time.Second)), s > 0
		}
	}
	return 0, false
}
