package nomad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
)

// machine is what the list of nodes does not tell.
type machine struct {
	ModifyIndex uint64
	Meta        map[string]string
	Devices     []*api.NodeDeviceResource
}

// read takes what it wants of a node's JSON.
func (m *machine) read(text []byte) error {
	return pick(text, func(key, value []byte) error {
		switch string(key) {
		case "ModifyIndex":
			return json.Unmarshal(value, &m.ModifyIndex)
		case "Meta":
			return json.Unmarshal(value, &m.Meta)
		case "NodeResources":
			if string(value) == "null" {
				return nil
			}
			return pick(value, func(key, value []byte) error {
				if string(key) != "Devices" {
					return nil
				}
				return json.Unmarshal(value, &m.Devices)
			})
		}
		return nil
	})
}

// Nodes implements fleet.Scheduler. Zone and rack are the clients' meta.zone and
// meta.rack, without the former their datacenter; labels are all of their meta; a GPU
// is an instance of a device of type gpu that its plugin calls healthy. They are
// ordered by name. It takes one call to Nomad and one more for each node that changed since this Scheduler last
// looked.
func (s *Scheduler) Nodes(ctx context.Context) ([]fleet.Node, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	list, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b *api.NodeListStub) int { return cmp.Compare(a.Name, b.Name) })
	machines := make([]machine, len(list))
	if err := each(ctx, len(list), func(ctx context.Context, i int) (err error) {
		machines[i], err = s.machine(ctx, list[i])
		return err
	}); err != nil {
		return nil, err
	}
	s.known.keepNodes(list)
	out := make([]fleet.Node, len(list))
	for i, n := range list {
		m := machines[i]
		out[i] = fleet.Node{
			ID: n.Name, Zone: cmp.Or(m.Meta["zone"], n.Datacenter), Rack: m.Meta["rack"], Pool: n.NodePool, Reason: n.StatusDescription,
			Ready: n.Status == api.NodeStatusReady, Eligible: n.SchedulingEligibility == api.NodeSchedulingEligible, Draining: n.Drain,
			Labels: maps.Clone(m.Meta),
		}
		if n.LastDrain != nil && n.LastDrain.Meta[metaReason] != "" && !out[i].Eligible {
			out[i].Reason = n.LastDrain.Meta[metaReason]
		}
		for _, d := range m.Devices {
			if d.Type != "gpu" {
				continue
			}
			for _, g := range d.Instances {
				if g.Healthy {
					out[i].GPUs = append(out[i].GPUs, fleet.GPU{Kind: d.Name, Memory: memory(d)})
				}
			}
		}
	}
	return out, nil
}

func (s *Scheduler) nodes(ctx context.Context) ([]*api.NodeListStub, error) {
	list, _, err := s.client.Nodes().List(s.read(ctx))
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", s.explain(err, "node read"))
	}
	return list, nil
}

// machine asks for a node unless it is known at the index of the list. The list itself
// could tell devices, but no labels, and of each core its speed.
func (s *Scheduler) machine(ctx context.Context, stub *api.NodeListStub) (machine, error) {
	s.known.mu.Lock()
	m, ok := s.known.nodes[stub.ID]
	s.known.mu.Unlock()
	if ok && m.ModifyIndex == stub.ModifyIndex {
		return m, nil
	}
	m = machine{}
	body, err := s.client.Raw().Response("/v1/node/"+stub.ID, s.read(ctx))
	if status(err) == http.StatusNotFound { // since the list was read
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("reading node %s: %w", stub.Name, s.explain(err, "node read"))
	}
	text, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		return m, fmt.Errorf("reading node %s: %w", stub.Name, err)
	}
	if err := m.read(text); err != nil {
		return m, fmt.Errorf("reading node %s: %w", stub.Name, err)
	}
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	if s.known.nodes == nil {
		s.known.nodes = map[string]machine{}
	}
	s.known.nodes[stub.ID] = m
	return m, nil
}

// keepNodes forgets all others.
func (k *facts) keepNodes(list []*api.NodeListStub) {
	k.mu.Lock()
	defer k.mu.Unlock()
	there := make(map[string]bool, len(list))
	for _, n := range list {
		there[n.ID] = true
	}
	maps.DeleteFunc(k.nodes, func(id string, _ machine) bool { return !there[id] })
}

// memory is a device's in bytes, 0 when its plugin does not say.
func memory(d *api.NodeDeviceResource) int64 {
	a := d.Attributes["memory"]
	if a == nil || a.IntVal == nil {
		return 0
	}
	unit := map[string]int64{"MiB": 1 << 20, "GiB": 1 << 30, "MB": 1e6, "GB": 1e9, "": 1}[a.Unit]
	return *a.IntVal * unit
}

// metaReason is the key of a drain's metadata that says why.
const metaReason = "llmops_reason"

// Drain implements fleet.Scheduler. The reason stays with the node.
func (s *Scheduler) Drain(ctx context.Context, node, reason string, deadline time.Duration) error {
	list, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range list {
		if n.Name != node && n.ID != node {
			continue
		}
		o := &api.DrainOptions{MarkEligible: true}
		if deadline > 0 {
			o = &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: deadline, IgnoreSystemJobs: true}, Meta: map[string]string{metaReason: reason}}
		}
		if _, err := s.client.Nodes().UpdateDrainOpts(n.ID, o, s.write(ctx)); err != nil {
			return fmt.Errorf("draining node %s: %w", node, s.explain(err, "node write"))
		}
		return nil
	}
	return fmt.Errorf("draining node %s: %w", node, fleet.ErrNotFound)
}

// Cordon closes a node to new allocations, or opens it again. Those it has stay.
func (s *Scheduler) Cordon(ctx context.Context, node string, closed bool) error {
	list, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range list {
		if n.Name == node || n.ID == node {
			if _, err := s.client.Nodes().ToggleEligibility(n.ID, !closed, s.write(ctx)); err != nil {
				return fmt.Errorf("changing the eligibility of node %s: %w", node, s.explain(err, "node write"))
			}
			return nil
		}
	}
	return fmt.Errorf("changing the eligibility of node %s: %w", node, fleet.ErrNotFound)
}

// Logs implements fleet.Scheduler: standard output and error of the replica's task,
// one behind the other, or as they come.
func (s *Scheduler) Logs(ctx context.Context, replica string, follow bool) (io.ReadCloser, error) {
	alloc, _, err := s.client.Allocations().Info(replica, s.read(ctx))
	if code := status(err); code == http.StatusNotFound || code == http.StatusBadRequest || code == http.StatusInternalServerError && strings.Contains(err.Error(), "UUID") {
		return nil, fmt.Errorf("reading logs of %s: %w", replica, fleet.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("reading logs of %s: %w", replica, s.explain(err, s.needs("read-job")))
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	go func() {
		// What brought the weights was first.
		for _, task := range slices.Backward(slices.Sorted(maps.Keys(alloc.TaskStates))) {
			for _, kind := range []string{"stdout", "stderr"} {
				if err := s.copyLog(ctx, w, alloc, task, kind, follow); err != nil {
					w.CloseWithError(err)
					return
				}
			}
		}
		_ = w.Close()
	}()
	return &logReader{r, cancel}, nil
}

func (s *Scheduler) copyLog(ctx context.Context, w io.Writer, alloc *api.Allocation, task, kind string, follow bool) error {
	frames, errs := s.client.AllocFS().Logs(alloc, follow && kind == "stdout", task, kind, api.OriginStart, 0, ctx.Done(), s.read(ctx))
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return nil
			}
			if _, err := w.Write(f.Data); err != nil {
				return err
			}
		case err := <-errs:
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("reading %s of %s: %w", kind, alloc.ID, s.explain(err, s.needs("read-logs")))
		case <-ctx.Done():
			return nil
		}
	}
}

type logReader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (l *logReader) Close() error {
	l.cancel()
	return l.PipeReader.Close()
}
