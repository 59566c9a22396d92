//go:build faults

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// damaged is a copy of the example's weights to which do has done something.
func damaged(t *testing.T, do func(t *testing.T, dir string)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "weights")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(example(t), "weights"))); err != nil {
		t.Fatal(err)
	}
	// Whatever list of digests it has is of the whole files.
	if err := os.Remove(filepath.Join(dir, "SHA256SUMS")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	do(t, dir)
	return dir
}

// edit changes the bytes of a file.
func edit(t *testing.T, path string, fn func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, fn(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const weightsFile = "model.safetensors"

// tensor is what the header of a safetensors file says of one.
type tensor struct {
	DType       string `json:"dtype"`
	DataOffsets [2]int `json:"data_offsets"`
}

// tensors reads the header of a safetensors file, and tells where the data
// begins.
func tensors(t *testing.T, b []byte) (all map[string]tensor, data int) {
	t.Helper()
	data = 8 + int(binary.LittleEndian.Uint64(b))
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b[8:data], &raw); err != nil {
		t.Fatal(err)
	}
	all = map[string]tensor{}
	for name, v := range raw {
		var x tensor
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(v, &x); err != nil {
			t.Fatal(err)
		}
		all[name] = x
	}
	return all, data
}

// nan puts a NaN into a matrix.
func nan(t *testing.T, b []byte) []byte {
	t.Helper()
	all, data := tensors(t, b)
	for name, x := range all {
		if strings.HasSuffix(name, "0.self_attn.q_proj.weight") && x.DType == "BF16" {
			binary.LittleEndian.PutUint16(b[data+x.DataOffsets[0]:], 0x7fc0)
			return b
		}
	}
	t.Fatal("there is no q_proj in bf16")
	return nil
}

// shard makes the one file the first of two, of which the second is missing.
func shard(t *testing.T, dir string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, weightsFile))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := tensors(t, b)
	index := map[string]map[string]string{"weight_map": {"one.more.weight": "model-00002-of-00002.safetensors"}}
	for name := range all {
		index["weight_map"][name] = "model-00001-of-00002.safetensors"
	}
	b, err = json.Marshal(index)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, weightsFile+".index.json"), b, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, weightsFile), filepath.Join(dir, "model-00001-of-00002.safetensors"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What cannot be used is refused with one clear error, leaves nothing half
// written, and clients of what is live never notice.
func TestFaultsBadInput(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if r := m.llmops(m.onboard(variant(t, "good"))...); r.code != 0 {
		t.Fatalf("the good one exits %d: %s", r.code, r.err)
	}
	clients := m.clients(quickAlias)
	before := m.artefacts()
	type input struct {
		name   string
		oldnew []string // of quick.yaml
		source func(*testing.T, string)
		code   int
		says   []string
	}
	inputs := []input{
		{"unknown-key", []string{"standby: 48h", "standby: 48h\nsurprise: 1"}, nil, 2, []string{"bad-unknown-key.yaml", "surprise", ":24:"}},
		{"duplicate-key", []string{"standby: 48h", "standby: 48h\nstandby: 24h"}, nil, 2, []string{"bad-duplicate-key.yaml", "standby"}},
		{"wrong-unit", []string{"for: 1s", "for: 1 parsec"}, nil, 2, []string{"bad-wrong-unit.yaml", "shadow.for", "1 parsec", "24h"}},
		{"not-yaml", []string{"apiVersion: llmops/v1", "apiVersion: [llmops/v1"}, nil, 2, []string{"bad-not-yaml.yaml"}},
		{"no-source", []string{"source: ./weights", "source: ./nowhere"}, nil, 1, []string{"nowhere"}},
		{"missing-shard", nil, shard, 1, []string{"model-00002-of-00002.safetensors"}},
		{"truncated", nil, func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, weightsFile), func(b []byte) []byte { return b[:len(b)/2] })
		}, 1, []string{weightsFile}},
		{"truncated-header", nil, func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, weightsFile), func(b []byte) []byte { return b[:100] })
		}, 1, []string{weightsFile, "header"}},
		{"oversized-header", nil, func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, weightsFile), func(b []byte) []byte { binary.LittleEndian.PutUint64(b, 1<<40); return b })
		}, 1, []string{weightsFile, "header"}},
		{"nan", nil, func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, weightsFile), func(b []byte) []byte { return nan(t, b) })
		}, 1, []string{"q_proj", "NaN"}},
		{"pickle", nil, func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, weightsFile), filepath.Join(dir, "pytorch_model.bin")); err != nil {
				t.Fatal(err)
			}
		}, 1, []string{"pickle", "safetensors"}},
		{"no-template", nil, func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "tokenizer_config.json"), func(b []byte) []byte {
				var c map[string]any
				if err := json.Unmarshal(b, &c); err != nil {
					t.Fatal(err)
				}
				delete(c, "chat_template")
				b, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				return b
			})
			if err := os.Remove(filepath.Join(dir, "chat_template.jinja")); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}, 1, []string{"chat template"}},
		{"no-config", nil, func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "config.json")); err != nil {
				t.Fatal(err)
			}
		}, 1, []string{"config.json"}},
	}
	for _, in := range inputs {
		t.Run(in.name, func(t *testing.T) {
			edits := append([]string{"name: " + quickAlias, "name: bad-" + in.name}, in.oldnew...)
			if in.source != nil {
				edits = append(edits, "source: ./weights", "source: "+damaged(t, in.source))
			}
			r := m.llmops(m.onboard(variant(t, "bad-"+in.name, edits...))...)
			why := r.complaint(t)
			t.Log(why)
			if r.code != in.code {
				t.Errorf("it exits %d: %s", r.code, r.err)
			}
			for _, word := range in.says {
				if !strings.Contains(why, word) {
					t.Errorf("it does not say %q: %s", word, why)
				}
			}
		})
	}
	for _, dir := range []string{"snapshots", "quantised"} {
		if parts, err := filepath.Glob(filepath.Join(m.home, dir, ".*")); err != nil || len(parts) > 0 {
			t.Errorf("left half written are %v, %v", parts, err)
		}
	}
	after := m.artefacts()
	for _, path := range sorted(before) {
		if after[path] != before[path] {
			t.Errorf("%s was changed", path)
		}
	}
	s := m.status()
	if len(s.Jobs) != 3 || len(s.Aliases) != 1 || s.Aliases[0].Live != "v1" {
		t.Errorf("status is %+v", s)
	}
	clients.undisturbed("v1")
}

// A port that somebody else has is said before anything is begun.
func TestFaultsPortInUse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l, err := net.Listen("tcp", m.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	r := m.llmops(m.onboard(variant(t, "port"))...)
	if why := r.complaint(t); r.code != 2 || !strings.Contains(why, m.listen) || !strings.Contains(why, "--listen") {
		t.Errorf("it exits %d: %s", r.code, why)
	}
	var runs []head
	if m.ask(&runs, "runs", "list"); len(runs) > 0 || len(m.processes()) > 0 {
		t.Errorf("runs %v and processes %v were begun", runs, m.processes())
	}
}

// A state directory that cannot be written is one error, and nothing is begun.
func TestFaultsStateThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	file := variant(t, "state")
	commands := [][]string{{"onboard", "--listen", freePort(t), file}, {"status"}, {"runs", "list"}, {"down"}, {"rollback", quickAlias, "--yes"}}
	check := func(t *testing.T, home, says string, commands [][]string) {
		m := &machine{t: t, home: home}
		for _, args := range commands {
			r := m.llmops(args...)
			if why := r.complaint(t); r.code != 2 || !strings.Contains(why, home) || !strings.Contains(why, says) {
				t.Errorf("%s exits %d: %s", args[0], r.code, why)
			}
		}
		if p := m.processes(); len(p) > 0 {
			t.Errorf("left are %v", p)
		}
	}
	t.Run("a file in its place", func(t *testing.T) {
		home := filepath.Join(t.TempDir(), "home")
		if err := os.WriteFile(home, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		check(t, home, "not a directory", commands)
	})
	t.Run("read only", func(t *testing.T) {
		home := disk(t, "16m")
		for _, sub := range []string{"docs", "blobs", "owners", "bin"} {
			if err := os.Mkdir(filepath.Join(home, sub), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		mount(t, "-o", "remount,ro", home)
		check(t, home, "read-only file system", commands[:1])
		m := &machine{t: t, home: home}
		for _, args := range commands[1:3] {
			if r := m.llmops(args...); r.code != 0 {
				t.Errorf("%s, which writes nothing, exits %d: %s", args[0], r.code, r.err)
			}
		}
	})
}

// disk is an empty file system of a size, or the end of the test where none can
// be mounted.
func disk(t *testing.T, size string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no small file system can be mounted here, so a full or read-only disk is not tested: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("unmounting %s: %v: %s", dir, err, out)
		}
	})
	return dir
}

func mount(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Fatalf("mount %v: %v: %s", args, err, out)
	}
}

// The disk is full from the beginning: the command says so and leaves nothing
// half written under a final name. With room again the next one goes on.
func TestFaultsFullDisk(t *testing.T) {
	t.Parallel()
	file := variant(t, "full-disk")
	home := disk(t, "200m")
	m := &machine{t: t, home: home, listen: freePort(t)}
	t.Cleanup(m.down)
	// The program's copy and the background process find room, weights do not.
	if r := m.llmops(m.onboard(file, "--until", "plan")...); r.code != 0 {
		t.Fatalf("until plan it exits %d: %s", r.code, r.err)
	}
	for _, sub := range []string{"snapshots", "quantised"} {
		if err := os.RemoveAll(filepath.Join(home, sub)); err != nil {
			t.Fatal(err)
		}
	}
	other := variant(t, "full-disk-too", "name: "+quickAlias, "name: full")
	filler := fill(t, home, 1<<20)
	r := m.llmops(m.onboard(other)...)
	if why := r.complaint(t); r.code != 1 || !strings.Contains(why, "no space left") {
		t.Errorf("on a full disk it exits %d: %s", r.code, why)
	}
	if all := m.artefacts(); len(all) > 0 {
		t.Errorf("on a full disk it wrote %v", sorted(all))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if r := m.llmops(m.onboard(other, "--until", "deploy")...); r.code != 0 {
		t.Errorf("with room again it exits %d: %s", r.code, r.err)
	}
}

// fill leaves only so many bytes free.
func fill(t *testing.T, dir string, free int64) (path string) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(st.Bavail)*st.Bsize - free
	zeros := make([]byte, 1<<20)
	for n > 0 && err == nil {
		var k int
		k, err = f.Write(zeros[:min(n, int64(len(zeros)))])
		n -= int64(k)
	}
	if e := f.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) || e != nil {
		t.Fatal(err, e)
	}
	return path
}

// The disk becomes full while a canary runs: nothing moves until there is room,
// clients do not notice, and the run goes on.
func TestFaultsDiskFullDuringACanary(t *testing.T) {
	t.Parallel()
	file := slowly(t, 6*time.Second)
	home := disk(t, "200m")
	m := &machine{t: t, home: home, listen: freePort(t)}
	t.Cleanup(m.down)
	clients := m.clients(quickAlias)
	run := m.start(nil, m.onboard(file)...)
	m.inCanary(run)
	filler := fill(t, home, 0)
	run.hears("no space left")
	if share, all := m.status().share("v1"); share != 0.5 || !all {
		t.Errorf("with a full disk the candidate has %g", share)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if r := run.wait(); r.code != 0 {
		t.Errorf("the run exits %d: %s", r.code, r.err)
	}
	m.finished()
	m.live(1)
	clients.undisturbed("v0", "v1")
	if docs, err := filepath.Glob(filepath.Join(home, "docs", "*")); err != nil || slices.ContainsFunc(docs, func(p string) bool {
		info, err := os.Stat(p)
		return err == nil && info.Size() == 0
	}) {
		t.Errorf("documents are %v, %v", docs, err)
	}
}
