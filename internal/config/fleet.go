package config

import (
	"path/filepath"
	"slices"
	"strings"
)

// Fleet is a fleet.yaml: where models run.
type Fleet struct {
	File      string // absolute
	Scheduler string // local or nomad
	Nomad     Nomad
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
}

type fleetFile struct {
	APIVersion scalar `yaml:"apiVersion"`
	Kind       scalar `yaml:"kind"`
	Scheduler  scalar `yaml:"scheduler"`
	Nomad      struct {
		Address    scalar            `yaml:"address"`
		Namespace  scalar            `yaml:"namespace"`
		Region     scalar            `yaml:"region"`
		CACert     scalar            `yaml:"ca_cert"`
		ClientCert scalar            `yaml:"client_cert"`
		ClientKey  scalar            `yaml:"client_key"`
		Pools      map[string]scalar `yaml:"pools"`
		Bin        scalar            `yaml:"bin"`
		Driver     scalar            `yaml:"driver"`
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
	n := &f.Nomad
	all := []struct {
		key string
		s   scalar
	}{
		{"nomad.address", n.Address}, {"nomad.namespace", n.Namespace}, {"nomad.region", n.Region}, {"nomad.ca_cert", n.CACert},
		{"nomad.client_cert", n.ClientCert}, {"nomad.client_key", n.ClientKey}, {"nomad.bin", n.Bin}, {"nomad.driver", n.Driver},
	}
	if out.Scheduler == "local" {
		for _, k := range all {
			if k.s.set() {
				r.complain(k.s, "%s: the scheduler is local; write scheduler: nomad, or leave this out", k.key)
			}
		}
		return out
	}
	out.Nomad = Nomad{
		Address: r.text(n.Address, ""), Namespace: r.text(n.Namespace, "default"), Region: r.text(n.Region, ""),
		CACert: abs(dir, r.text(n.CACert, "")), ClientCert: abs(dir, r.text(n.ClientCert, "")), ClientKey: abs(dir, r.text(n.ClientKey, "")),
		Pools: map[string]string{}, Bin: r.text(n.Bin, ""), Driver: r.oneOf("nomad.driver", n.Driver, "", "", "exec", "raw_exec"),
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
