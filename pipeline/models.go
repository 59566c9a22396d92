package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"llmops/fleet"
	"llmops/pipeline/canary"
	"llmops/pipeline/download"
)

// Registered is a version of an alias with what became of it.
type Registered struct {
	Alias string `json:"alias"`
	Version
	State   string `json:"state,omitempty"`   // live, standby, leased or deployed; empty: none of these
	Size    int64  `json:"size"`              // bytes of its weights on this machine
	Missing bool   `json:"missing,omitempty"` // its weights are not on this machine
	Source  string `json:"source,omitempty"`  // of the run that made it
	License string `json:"license,omitempty"`
}

// Models lists every version of every alias, or of one, in the order of their making.
func Models(ctx context.Context, d Deps, alias string) ([]Registered, error) {
	docs, err := d.Store.List(ctx, "index/version/")
	if err != nil {
		return nil, err
	}
	var out []Registered
	for _, doc := range docs {
		name, err := fleet.Unescape(strings.TrimPrefix(doc.Name, "index/version/"))
		if err != nil || alias != "" && name != alias {
			continue
		}
		vs, err := Versions(ctx, d.Store, name)
		if err != nil {
			return nil, err
		}
		state, err := states(ctx, d, name)
		if err != nil {
			return nil, err
		}
		for _, v := range vs {
			r := Registered{Alias: name, Version: v}
			if r.State, err = state(v.Name); err != nil {
				return nil, err
			}
			size, err := sizeOf(v.Dir)
			r.Size, r.Missing = size.all, errors.Is(err, fs.ErrNotExist)
			if err != nil && !r.Missing {
				return nil, err
			}
			if made, err := Making(ctx, d, v); err == nil { // else its records are elsewhere, or gone
				r.Source, r.License = made.Source, made.License
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// states tells what each version of an alias is to its route and to the fleet.
func states(ctx context.Context, d Deps, alias string) (func(version string) (string, error), error) {
	c := &canary.Control{Store: d.Store, Alias: alias, Routers: d.Admins}
	doc, _, err := c.Read(ctx)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return nil, err
	}
	return func(version string) (string, error) {
		switch {
		case version == doc.Live():
			return "live", nil
		case version == doc.Standby:
			return "standby", nil
		case doc.Knows(version):
			return "leased", nil
		}
		st, err := d.Scheduler.Status(ctx, JobName(alias, version))
		if err == nil && st.Rev != 0 {
			return "deployed", nil
		}
		return "", err
	}, nil
}

// Made is how a version's weights came to be.
type Made struct {
	Digest  string `json:"digest"`            // of the weights
	Base    string `json:"base,omitempty"`    // of those that they were quantised from; empty: they are the source's
	Source  string `json:"source,omitempty"`  // of the run that made them, with its commit if it has one
	License string `json:"license,omitempty"` // as its card says
}

// Making reads from the run's records how the weights of v were made.
func Making(ctx context.Context, d Deps, v Version) (Made, error) {
	h, err := Read(ctx, d.Store, v.Run)
	if err != nil {
		return Made{}, fmt.Errorf("run %s, which made %s: %w", v.Run, v.Name, err)
	}
	if err := Here(ctx, d.Blobs, h); err != nil {
		return Made{}, err
	}
	spec, err := ReadSpec(ctx, d.Blobs, h)
	if err != nil {
		return Made{}, err
	}
	rs, err := Records(ctx, d.Blobs, h)
	if err != nil {
		return Made{}, err
	}
	m := Made{Source: spec.Source}
	for _, r := range rs {
		var w struct {
			Weights
			Detail download.Snapshot `json:"detail"`
		}
		if r.Stage != StageDownload && r.Stage != StageQuantise {
			continue
		}
		if err := unmarshal(r.Output, &w); err != nil {
			return Made{}, fmt.Errorf("the record of %s of run %s: %w", r.Stage, v.Run, err)
		}
		if r.Stage == StageDownload {
			m.Digest, m.License = w.Digest, w.Detail.License
			if w.Detail.Source != "" {
				m.Source = w.Detail.Source
			}
		} else if w.Dir == v.Dir && w.Digest != m.Digest {
			m.Digest, m.Base = w.Digest, m.Digest
		}
	}
	return m, nil
}

// Folder is a folder of weights below the state directory. Freed is what its removal
// frees: files with another name elsewhere stay.
type Folder struct {
	Dir   string `json:"dir"`
	Size  int64  `json:"size"`
	Freed int64  `json:"freed"`
}

// Garbage lists the folders of weights that nothing needs: no version that is routed or
// deployed, none of the newest keep of an alias, and no run that is not over.
func Garbage(ctx context.Context, d Deps, keep int) ([]Folder, error) {
	needed := map[string]bool{}
	all, err := Models(ctx, d, "")
	if err != nil {
		return nil, err
	}
	left := map[string]int{}
	for _, r := range all {
		left[r.Alias]++
	}
	for _, r := range all {
		if left[r.Alias]--; left[r.Alias] < keep || r.State != "" {
			needed[r.Dir] = true
		}
	}
	busy, err := underWay(ctx, d, needed)
	if err != nil {
		return nil, err
	}
	var out []Folder
	for _, sub := range []string{"snapshots", "quantised"} {
		entries, err := os.ReadDir(filepath.Join(d.Dir, sub))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			dir := filepath.Join(d.Dir, sub, e.Name())
			if !e.IsDir() || needed[dir] || busy && strings.HasPrefix(e.Name(), ".") {
				continue
			}
			size, err := sizeOf(dir)
			if err != nil {
				return nil, err
			}
			out = append(out, Folder{dir, size.all, size.own})
		}
	}
	slices.SortFunc(out, func(a, b Folder) int { return strings.Compare(a.Dir, b.Dir) })
	return out, nil
}

// underWay adds the folders of runs that are not over, and tells whether there are such
// runs: what they are just writing has no record yet.
func underWay(ctx context.Context, d Deps, needed map[string]bool) (bool, error) {
	heads, err := Runs(ctx, d.Store)
	if err != nil {
		return false, err
	}
	busy := false
	for _, h := range heads {
		if h.Over() {
			continue
		}
		busy = true
		rs, err := Records(ctx, d.Blobs, h)
		if errors.Is(err, fleet.ErrNotFound) {
			continue // another machine's
		}
		if err != nil {
			return busy, err
		}
		for _, r := range rs {
			var w Weights
			if (r.Stage == StageDownload || r.Stage == StageQuantise) && unmarshal(r.Output, &w) == nil {
				needed[w.Dir] = true
			}
		}
	}
	return busy, nil
}

// Remove takes a folder of Garbage away. It is renamed first, so that one that is half
// removed is not taken for whole.
func (f Folder) Remove() error {
	gone := filepath.Join(filepath.Dir(f.Dir), ".removed-"+strings.TrimPrefix(filepath.Base(f.Dir), ".removed-"))
	if gone != f.Dir {
		if err := os.Rename(f.Dir, gone); err != nil {
			return err
		}
	}
	return os.RemoveAll(gone)
}

type sizes struct{ all, own int64 }

func sizeOf(dir string) (s sizes, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		s.all += info.Size()
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Nlink < 2 {
			s.own += info.Size()
		}
		return nil
	})
	return s, err
}
