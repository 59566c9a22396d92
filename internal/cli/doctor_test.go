package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/serving/embedded/ceiling"
)

// doctor returns the checks by name.
func doctor(t *testing.T, home string, wantCode int, args ...string) map[string]check {
	t.Helper()
	r := run(t, home, append([]string{"doctor", "--output", "json"}, args...)...)
	if r.code != wantCode {
		t.Errorf("doctor exits %d, want %d: %s%s", r.code, wantCode, r.out, r.err)
	}
	var list []check
	if err := json.Unmarshal([]byte(r.out), &list); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	out := map[string]check{}
	for _, c := range list {
		if c.Name == "" || c.Found == "" || c.Do == "" {
			t.Errorf("check %+v does not say what was found and what to do", c)
		}
		out[c.Name] = c
	}
	return out
}

// freeAddr is an address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestDoctorOfAFreshMachine(t *testing.T) {
	home := filepath.Join(t.TempDir(), "not", "there")
	got := doctor(t, home, exitDone, "--listen", freeAddr(t))
	for _, name := range []string{"state directory", "disk", "cores", "memory", "loopback", "router", "watch", "replicas", "terraform", "nomad", "ceilings"} {
		if c, ok := got[name]; !ok || c.State == checkFail {
			t.Errorf("check %s is %+v", name, c)
		}
	}
	if _, err := os.Stat(filepath.Dir(home)); err == nil {
		t.Error("doctor made the state directory")
	}
	r := run(t, home, "doctor", "--listen", freeAddr(t))
	if lines := strings.Split(strings.TrimSpace(r.out), "\n"); len(lines) != 12 || !strings.HasPrefix(lines[0], "CHECK") {
		t.Errorf("the table is\n%s", r.out)
	}
}

func TestDoctorSeesAnAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	got := doctor(t, t.TempDir(), exitFailed, "--listen", l.Addr().String())
	if c := got["router"]; c.State != checkFail || !strings.Contains(c.Do, "--listen") {
		t.Errorf("an address in use is %+v", c)
	}
}

func TestDoctorSeesAStateDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := doctor(t, filepath.Join(file, "home"), exitFailed, "--listen", freeAddr(t))
	if c := got["state directory"]; c.State != checkFail || !strings.Contains(c.Do, "LLMOPS_HOME") {
		t.Errorf("a state directory below a file is %+v", c)
	}
}

// replica writes a job with one replica in the given state, without a
// supervisor.
func replica(t *testing.T, h *home, job string, registered bool, state fleet.State) {
	t.Helper()
	g := fleet.Group{Name: "main", Count: 1, Argv: []string{"true"}, Addr: freeAddr(t)}
	if registered {
		if _, err := h.scheduler.Apply(t.Context(), fleet.Job{Name: job, Kind: fleet.Router, Groups: []fleet.Group{g}}, 0); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(fleet.Replica{ID: job + "/main-0", Group: "main", Addr: g.Addr, Admin: g.Addr, State: state, Reason: "no weights"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Put(t.Context(), "replica/"+job+"/main-0", b, 0); err != nil {
		t.Fatal(err)
	}
}

func TestDoctorSeesWhatIsLeftOver(t *testing.T) {
	dir := t.TempDir()
	h, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	replica(t, h, "router", true, fleet.Failed)
	got := doctor(t, dir, exitDone)
	if c := got["replicas"]; c.State != checkWarn || !strings.Contains(c.Found, "nobody supervises") || !strings.Contains(c.Do, "llmops down") {
		t.Errorf("a replica without watch is %+v", c)
	}
	if c := got["router"]; c.State != checkWarn || !strings.Contains(c.Do, "llmops logs router/main-0") {
		t.Errorf("a router that does not answer is %+v", c)
	}

	unlock := hold(t, filepath.Join(dir, "supervisor.lock"))
	defer unlock()
	if c := doctor(t, dir, exitDone)["replicas"]; !strings.Contains(c.Found, "no weights") {
		t.Errorf("a failed replica is %+v", c)
	}
	replica(t, h, "gone", false, fleet.Healthy)
	if c := doctor(t, dir, exitDone)["replicas"]; !strings.Contains(c.Found, "gone/main-0") {
		t.Errorf("a replica without a job is %+v", c)
	}
}

func TestDoctorComparesBuilds(t *testing.T) {
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		t.Skip("only Linux tells from which file a process runs")
	}
	dir := t.TempDir()
	h, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c := doctor(t, dir, exitDone, "--listen", freeAddr(t))["watch"]; c.State != checkOK || c.Found != "not running" {
		t.Errorf("no watch is %+v", c)
	}
	earlier := filepath.Join(dir, "bin", "llmops-0123456789ab")
	if err := os.WriteFile(earlier, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	startWatch(t, h)
	if _, err := os.Stat(earlier); err == nil {
		t.Error("the program of an earlier build is still there")
	}
	if c := doctor(t, dir, exitDone, "--listen", freeAddr(t))["watch"]; c.State != checkOK || c.Found != "running this build" {
		t.Errorf("a watch of this build is %+v", c)
	}
	// Any other process will do for one that runs another build.
	sleeper := startProgram(t, "sleep", "60")
	if err := os.WriteFile(filepath.Join(dir, "supervisor.lock"), []byte(sleeper), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := doctor(t, dir, exitDone, "--listen", freeAddr(t))["watch"]; c.State != checkWarn || !strings.Contains(c.Do, "llmops down") {
		t.Errorf("a watch of another build is %+v", c)
	}
}

// kept are ceilings of this machine in the state directory.
func kept(t *testing.T, dir string, edit func(*ceiling.Ceilings)) {
	t.Helper()
	r := func(best float64) ceiling.Reading {
		return ceiling.Reading{Best: best, Median: best * 0.9, Spread: 0.1, N: 5}
	}
	m := ceiling.ThisMachine()
	c := ceiling.Ceilings{Measured: time.Now().Add(-3 * time.Hour), Machine: m, BufferBytes: 1 << 28,
		One: ceiling.Rates{Threads: 1, Read: r(16e9), Row: r(20e9), F32: r(90e9), BF16: r(80e9)},
		All: ceiling.Rates{Threads: m.Threads, Read: r(28e9), Row: r(32e9), F32: r(145e9), BF16: r(138e9)}}
	if edit != nil {
		edit(&c)
	}
	if err := ceiling.Write(filepath.Join(dir, ceilingsFile), &c); err != nil {
		t.Fatal(err)
	}
}

// What was measured is said with its age, and never of another machine.
func TestDoctorKnowsCeilings(t *testing.T) {
	dir := t.TempDir()
	kept(t, dir, nil)
	c := doctor(t, dir, exitDone, "--listen", freeAddr(t))["ceilings"]
	if c.State != checkOK || !strings.Contains(c.Found, "memory 20.0 GB/s on 1 thread, 32.0 on") || !strings.Contains(c.Found, "90 GFLOP/s on 1, 145") || !strings.HasSuffix(c.Found, "10% below; measured 3 h ago") {
		t.Errorf("%+v", c)
	}
	h, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.deps().Ceilings(); got == nil || got.One.Row.Best != 20e9 {
		t.Errorf("a run is told %+v", got)
	}
	kept(t, dir, func(c *ceiling.Ceilings) { c.Machine.CPU = "another" })
	if c := doctor(t, dir, exitDone, "--listen", freeAddr(t))["ceilings"]; c.State != checkInfo || !strings.Contains(c.Found, "threads of another; this is") {
		t.Errorf("%+v", c)
	}
	if got := h.deps().Ceilings(); got != nil {
		t.Errorf("a run is told of another machine: %+v", got)
	}
	h.fleet = "fleet.yaml"
	if h.deps().Ceilings != nil {
		t.Error("a cluster is taken for this machine")
	}
}

// Measuring keeps figures, or says that it could not and keeps none.
func TestDoctorMeasures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := run(t, dir, "doctor", "--measure", "--listen", freeAddr(t))
	_, err := ceiling.Read(filepath.Join(dir, ceilingsFile))
	switch r.code {
	case exitDone:
		if err != nil || !strings.Contains(r.out, "GFLOP/s") {
			t.Errorf("%v: %s", err, r.out)
		}
	case exitInconclusive:
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(r.err, "other processes had the cores") {
			t.Errorf("%v: %s", err, r.err)
		}
	default:
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0 min", 90 * time.Second: "1 min", 47 * time.Hour: "47 h", 49 * time.Hour: "2 days"} {
		if got := ago(d); got != want {
			t.Errorf("%v is %s", d, got)
		}
	}
}
