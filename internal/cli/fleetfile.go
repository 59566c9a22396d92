package cli

import (
	"llmops/fleet/nomad"
	"llmops/internal/config"
	"llmops/jobs"
)

// onFleet gives h the fleet that --fleet, or LLMOPS_FLEET, names. Without either it
// stays on this machine.
func (e *env) onFleet(h *home) error {
	path := e.fleet
	if path == "" {
		path = e.getenv("LLMOPS_FLEET")
	}
	if path == "" {
		return nil
	}
	f, err := config.FleetFile(path)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if f.Scheduler == "local" {
		return nil
	}
	n := f.Nomad
	client, err := nomad.Dial(nomad.Config{
		Address: n.Address, Namespace: n.Namespace, Region: n.Region, Token: e.getenv("NOMAD_TOKEN"),
		CACert: n.CACert, ClientCert: n.ClientCert, ClientKey: n.ClientKey,
	})
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if n.Bin == "" {
		// Nodes that are not this machine have no such file, and say so when they start.
		if n.Bin, err = h.copySelf(); err != nil {
			return unwritable(err)
		}
	}
	s := nomad.NewScheduler(client, nomad.Options{Namespace: n.Namespace, Files: jobs.Files, Bin: n.Bin, Pools: n.Pools})
	h.fleet, h.scheduler, h.store = f.File, s, nomad.NewMembers(nomad.NewStore(client, n.Namespace), s)
	return nil
}
