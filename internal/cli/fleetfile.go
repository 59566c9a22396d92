package cli

import (
	"cmp"
	"path/filepath"

	"llmops/fleet/nomad"
	"llmops/fleet/objects"
	"llmops/internal/config"
	"llmops/jobs"
	"llmops/pipeline"
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
	if path == ownCluster {
		return e.onOwnCluster(h)
	}
	f, err := config.FleetFile(path)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if f.Blobs != "" {
		bucket, err := objects.Open(f.Blobs, e.objects())
		if err != nil {
			return &exitError{exitUsage, err}
		}
		h.blobs, h.bucket = objects.NewBlobs(bucket, h.dir), f.Blobs
		if f.Nomad.Models != "" {
			h.shared = &pipeline.Shared{Registry: bucket, Dir: f.Nomad.Models, By: "llmops " + readVersion().Version}
		}
	}
	h.records = pipeline.Recording{Dir: f.Records.Dir, Size: f.Records.Size}
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
	h.placing = &placing{file: f.File, nomad: n, state: cmp.Or(n.Models, h.dir), records: f.Records.Dir}
	if err := h.placing.check(); err != nil {
		return err
	}
	h.on(f.File, nomad.NewStore(client, n.Namespace), nomad.NewScheduler(client, nomad.Options{Namespace: n.Namespace, Files: jobs.Files, File: h.placing.job, Bin: n.Bin, Pools: n.Pools}))
	return nil
}

// longestSocket is what sockaddr_un has room for, with the byte that ends it.
const longestSocket = 107

// ownCluster names the cluster that this process is a task of.
const ownCluster = "nomad:"

// onOwnCluster talks to the agent that started this process, as the task that it is.
func (e *env) onOwnCluster(h *home) error {
	secrets, token := e.getenv("NOMAD_SECRETS_DIR"), e.getenv("NOMAD_TOKEN")
	if secrets == "" || token == "" {
		return usage("--fleet %s is for a Nomad task with an identity block that has env = true; NOMAD_SECRETS_DIR or NOMAD_TOKEN is not set", ownCluster)
	}
	namespace, socket := e.getenv("NOMAD_NAMESPACE"), filepath.Join(secrets, "api.sock")
	if len(socket) > longestSocket {
		return usage("the agent's socket %s has a path of %d bytes, and the kernel takes %d: give the client a shorter data_dir or alloc_dir", socket, len(socket), longestSocket)
	}
	client, err := nomad.Dial(nomad.Config{Address: "unix://" + socket, Namespace: namespace, Token: token})
	if err != nil {
		return &exitError{exitUsage, err}
	}
	h.on(ownCluster, nomad.NewStore(client, namespace), nomad.NewScheduler(client, nomad.Options{Namespace: namespace, Files: jobs.Files, File: (&placing{state: h.dir}).job}))
	return nil
}

// on puts h on a cluster.
func (h *home) on(name string, store *nomad.Store, s *nomad.Scheduler) {
	h.fleet, h.scheduler, h.store = name, s, nomad.NewMembers(store, s)
}
