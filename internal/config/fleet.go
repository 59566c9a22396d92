package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"llmops/fleet/objects"
	"llmops/serving/engine"
	"llmops/serving/trace"
)

// Fleet is a fleet.yaml: where models run.
type Fleet struct {
	File      string // absolute
	Scheduler string // local or nomad
	Blobs     string // s3://bucket/prefix; empty: a folder of the machine that a command runs on
	Records   Records
	Nomad     Nomad
}

// Records are what the routers write of each request.
type Records struct {
	Dir  string // a folder of every node that has a router; empty: none are written
	Size int64  // bytes of each router's; 0: its default
}

// Nomad says where a Nomad cluster is. Tokens are never in a file: they come from
// NOMAD_TOKEN.
type Nomad struct {
	Address                       string
	Namespace                     string
	Region                        string
	CACert, ClientCert, ClientKey string
	Pools                         map[string]string // node pools by the pools that models name
	Bin                           string            // llmops on every node; empty: this program, on one machine
	Driver                        string            // of routers and plain processes; empty: what the job files say
	Models                        string            // folder on every node that weights are brought to from Blobs; empty: nodes see the state directory
	Engines                       map[string]Engine // by kind
}

// Engine is how a fleet runs one of the engines.
type Engine struct {
	Driver  string         // docker, podman, exec or raw_exec; empty: what the job file says, a container's
	Image   string         // where a model names none; empty: the job file's
	File    string         // the job file, absolute; empty: the one that llmops brings
	Program string         // the engine on every node, without a container; empty: by its own name on PATH
	Vars    map[string]any // further variables of the job file: text, numbers, true and false, lists of them
}

// Bare tells that the engine is installed on the nodes and runs without a container.
func (e Engine) Bare() bool { return e.Driver == "exec" || e.Driver == "raw_exec" }

type fleetFile struct {
	APIVersion scalar `yaml:"apiVersion"`
	Kind       scalar `yaml:"kind"`
	Scheduler  scalar `yaml:"scheduler"`
	Blobs      scalar `yaml:"blobs"`
	Routers    struct {
		Records     scalar `yaml:"records"`
		RecordsSize scalar `yaml:"records_size"`
	} `yaml:"routers"`
	Nomad struct {
		Address    scalar            `yaml:"address"`
		Namespace  scalar            `yaml:"namespace"`
		Region     scalar            `yaml:"region"`
		CACert     scalar            `yaml:"ca_cert"`
		ClientCert scalar            `yaml:"client_cert"`
		ClientKey  scalar            `yaml:"client_key"`
		Pools      map[string]scalar `yaml:"pools"`
		Bin        scalar            `yaml:"bin"`
		Driver     scalar            `yaml:"driver"`
		Models     scalar            `yaml:"models"`

		Engines map[string]struct {
			Driver  scalar           `yaml:"driver"`
			Image   scalar           `yaml:"image"`
			File    scalar           `yaml:"file"`
			Program scalar           `yaml:"program"`
			Vars    map[string]value `yaml:"vars"`
		} `yaml:"engines"`
	} `yaml:"nomad"`
}

// FleetFile reads a fleet.yaml. Paths in it are relative to its folder.
func FleetFile(path string) (Fleet, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Fleet{}, err
	}
	var f fleetFile
	src, err := decode(path, &f)
	if err != nil {
		return Fleet{}, err
	}
	r := &reader{path: path, src: src}
	out := f.fleet(r)
	return out, r.err()
}

func (f *fleetFile) fleet(r *reader) Fleet {
	dir := filepath.Dir(r.path)
	r.oneOf("apiVersion", f.APIVersion, "", "llmops/v1")
	r.oneOf("kind", f.Kind, "", "Fleet")
	out := Fleet{File: r.path, Scheduler: r.oneOf("scheduler", f.Scheduler, "local", "local", "nomad")}
	if out.Blobs = r.text(f.Blobs, ""); out.Blobs != "" {
		if _, err := objects.Open(out.Blobs, objects.Options{Anonymous: true}); err != nil {
			r.complain(f.Blobs, "blobs: %v", err)
		}
	}
	out.Records = Records{r.text(f.Routers.Records, ""), r.bytes("routers.records_size", f.Routers.RecordsSize)}
	switch rec := out.Records; {
	case rec.Dir == "" && rec.Size != 0:
		r.complain(f.Routers.RecordsSize, "routers.records_size is of nothing: name a folder as routers.records, or leave it out")
	case rec.Size != 0 && rec.Size < trace.MinSize:
		r.complain(f.Routers.RecordsSize, "routers.records_size is %s, want at least 1MiB", f.Routers.RecordsSize.text)
	case rec.Dir == "" || out.Scheduler == "local":
		out.Records.Dir = abs(dir, rec.Dir)
	case !filepath.IsAbs(rec.Dir):
		r.complain(f.Routers.Records, "routers.records is %s: want an absolute path, which is the same on every node", rec.Dir)
	}
	n := &f.Nomad
	all := []struct {
		key string
		s   scalar
	}{
		{"nomad.address", n.Address}, {"nomad.namespace", n.Namespace}, {"nomad.region", n.Region}, {"nomad.ca_cert", n.CACert},
		{"nomad.client_cert", n.ClientCert}, {"nomad.client_key", n.ClientKey}, {"nomad.bin", n.Bin}, {"nomad.driver", n.Driver}, {"nomad.models", n.Models},
	}
	if out.Scheduler == "local" {
		for _, k := range all {
			if k.s.set() {
				r.complain(k.s, "%s: the scheduler is local; write scheduler: nomad, or leave this out", k.key)
			}
		}
		for _, kind := range slices.Sorted(maps.Keys(n.Engines)) {
			e := n.Engines[kind]
			r.complain(anyOf(e.Driver, e.Image, e.File, e.Program), "nomad.engines.%s: the scheduler is local, which runs what is on PATH; leave this out", kind)
		}
		return out
	}
	out.Nomad = Nomad{
		Address: r.text(n.Address, ""), Namespace: r.text(n.Namespace, "default"), Region: r.text(n.Region, ""),
		CACert: abs(dir, r.text(n.CACert, "")), ClientCert: abs(dir, r.text(n.ClientCert, "")), ClientKey: abs(dir, r.text(n.ClientKey, "")),
		Pools: map[string]string{}, Bin: r.text(n.Bin, ""), Driver: r.oneOf("nomad.driver", n.Driver, "", "", "exec", "raw_exec"),
		Models: r.text(n.Models, ""),
	}
	switch {
	case out.Nomad.Models == "":
	case !filepath.IsAbs(out.Nomad.Models) || filepath.Clean(out.Nomad.Models) != out.Nomad.Models:
		r.complain(n.Models, "nomad.models is %s: want an absolute path, which is the same on every node", out.Nomad.Models)
	case out.Blobs == "":
		r.complain(n.Models, "nomad.models is where nodes bring weights from a bucket: name it as blobs, s3://bucket/prefix")
	}
	switch {
	case out.Nomad.Address == "":
		r.missing("nomad.address", "as https://nomad.example:4646")
	case !strings.HasPrefix(out.Nomad.Address, "http://") && !strings.HasPrefix(out.Nomad.Address, "https://"):
		r.complain(n.Address, "nomad.address %q: want http:// or https://", out.Nomad.Address)
	}
	for _, c := range []struct {
		key  string
		s    scalar
		path string
	}{{"nomad.ca_cert", n.CACert, out.Nomad.CACert}, {"nomad.client_cert", n.ClientCert, out.Nomad.ClientCert}, {"nomad.client_key", n.ClientKey, out.Nomad.ClientKey}} {
		r.exists(c.s, c.key, c.path)
	}
	if n.ClientCert.set() != n.ClientKey.set() {
		r.complain(cmpSet(n.ClientCert, n.ClientKey), "nomad.client_cert and nomad.client_key go together")
	}
	out.Nomad.Engines = f.engines(r, dir)
	names := make([]string, 0, len(n.Pools))
	for p := range n.Pools {
		names = append(names, p)
	}
	slices.Sort(names)
	for _, p := range names {
		out.Nomad.Pools[p] = r.text(n.Pools[p], "")
	}
	return out
}

// ownVars are the variables of a job file that are not the operator's to set here.
var ownVars = []string{"name", "namespace", "pool", "zone", "groups", "driver", "image", "models_path"}

func (f *fleetFile) engines(r *reader, dir string) map[string]Engine {
	out := map[string]Engine{}
	for _, kind := range slices.Sorted(maps.Keys(f.Nomad.Engines)) {
		in, key := f.Nomad.Engines[kind], "nomad.engines."+kind
		at := anyOf(in.Driver, in.Image, in.File, in.Program)
		if !slices.Contains(engine.Kinds(), kind) || kind == "embedded" {
			r.complain(at, "%s: want one of %s", key, strings.Join(slices.DeleteFunc(engine.Kinds(), func(k string) bool { return k == "embedded" }), ", "))
			continue
		}
		e := Engine{
			Driver: r.oneOf(key+".driver", in.Driver, "", "", "docker", "podman", "exec", "raw_exec"), Image: r.text(in.Image, ""),
			File: abs(dir, r.text(in.File, "")), Program: r.text(in.Program, ""),
		}
		r.exists(in.File, key+".file", e.File)
		if e.Bare() && e.Image != "" {
			r.complain(in.Image, "%s.image: the driver %s runs what is installed on the nodes; leave the image out", key, e.Driver)
		}
		if !e.Bare() && e.Program != "" {
			r.complain(in.Program, "%s.program: an image brings its own; it is for the drivers exec and raw_exec", key)
		}
		for _, name := range slices.Sorted(maps.Keys(in.Vars)) {
			v := in.Vars[name]
			if slices.Contains(ownVars, name) {
				r.complain(scalar{line: v.line}, "%s.vars.%s: llmops sets it itself", key, name)
				continue
			}
			if e.Vars == nil {
				e.Vars = map[string]any{}
			}
			e.Vars[name] = v.v
		}
		out[kind] = e
	}
	return out
}

// value is text, a number, true or false, or a list of these.
type value struct {
	v    any
	line int
}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (x *value) UnmarshalYAML(n ast.Node) error {
	x.line = n.GetToken().Position.Line
	switch n := n.(type) {
	case *ast.IntegerNode:
		x.v = n.Value
	case *ast.FloatNode:
		x.v = n.Value
	case *ast.BoolNode:
		x.v = n.Value
	case *ast.SequenceNode:
		list := []any{}
		for _, e := range n.Values {
			var one value
			if err := one.UnmarshalYAML(e); err != nil {
				return err
			}
			list = append(list, one.v)
		}
		x.v = list
	default:
		var s scalar
		if err := s.UnmarshalYAML(n); err != nil {
			return err
		}
		x.v = s.text
	}
	return nil
}
