package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/pipeline"
	"llmops/serving/route"
)

// The codes are an interface: a release gate reads them.
func TestExitCodes(t *testing.T) {
	codes := map[string]int{"done": exitDone, "failed": exitFailed, "usage": exitUsage, "refused": exitRefused, "goes on": exitGoesOn, "inconclusive": exitInconclusive, "interrupted": exitInterrupted}
	want := map[string]int{"done": 0, "failed": 1, "usage": 2, "refused": 3, "goes on": 4, "inconclusive": 5, "interrupted": 130}
	for name, code := range want {
		if codes[name] != code {
			t.Errorf("%s is %d, want %d", name, codes[name], code)
		}
	}
	for o, code := range map[evidence.Outcome]int{evidence.Pass: exitDone, evidence.Fail: exitRefused, evidence.Inconclusive: exitInconclusive} {
		var ee *exitError
		if err := outcome(o); code == exitDone && err != nil || code != exitDone && (!errors.As(err, &ee) || ee.code != code || ee.err != nil) {
			t.Errorf("outcome %v is %v, want code %d", o, err, code)
		}
	}
}

func TestInterruptedBeforeAnythingBegan(t *testing.T) {
	h, err := openHome(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	env := func(k string) string { return map[string]string{"LLMOPS_HOME": h.dir}[k] }
	var out, errw strings.Builder
	if code := Main(ctx, []string{"runs", "show", "none"}, strings.NewReader(""), &out, &errw, env); code != exitInterrupted {
		t.Errorf("exits %d: %s", code, errw.String())
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "model.yaml")
	if err := os.WriteFile(model, []byte("apiVersion: llmops/v1\nkind: Model\nname: a\nnmae: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		want string
	}{
		{"onbord model.yaml", `unknown command "onbord"`},
		{"runs shwo r", "unknown command"},
		{"--verbose", "unknown flag: --verbose"},
		{"status --colour", "unknown flag: --colour; see llmops status --help"},
		{"status extra", "see llmops status --help"},
		{"status --output xml", `--output is "xml", want table or json`},
		{"onboard", "see llmops onboard --help"},
		{"onboard a b", "see llmops onboard --help"},
		{"onboard " + model, model + ":4"},
		{"onboard no-such.yaml", "no-such.yaml"},
		{"onboard --until lunch " + model, `no stage is called "lunch"; the stages are download, quantise`},
		{"onboard --from lunch " + model, `no stage is called "lunch"`},
		{"onboard --routers 0 " + model, "--routers is 0, want 1 to 8"},
		{"onboard --routers x " + model, "--routers"},
		{"onboard --rollback-on ttfb " + model, "--rollback-on ttfb: want ttft, tpot"},
		{"onboard --only " + model, "--only needs --rollback-on"},
		{"canary --rollback-on ttfb", "--rollback-on ttfb: want ttft, tpot"},
		{"quantise " + dir, "quantise needs --out"},
		{"quantise " + dir + " --out " + dir, "is there already"},
		{"download " + dir, "download needs --out"},
		{"engine serve", "engine serve needs --model"},
		{"engine serve --model " + dir + " --fault lunch", "lunch"},
		{"runs show none", "there is no run none; see llmops runs list"},
		{"runs report none", "there is no run none; see llmops runs list"},
		{"runs attach none", "there is no run none; see llmops runs list"},
		{"runs approve none", "approve needs --gate and --reason"},
		{"runs approve none --gate eval --reason why", "there is no run none; see llmops runs list"},
		{"logs none", "llmops status names the replicas"},
		{"rollback none", "nothing is live under none; llmops status shows what is"},
		{"canary", "no run waits for canary; llmops onboard begins one"},
		{"eval --run none", "there is no run none; see llmops runs list"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := run(t, filepath.Join(dir, "home"), strings.Fields(c.args)...)
			if r.code != exitUsage || r.out != "" {
				t.Errorf("exits %d and prints %q", r.code, r.out)
			}
			if !strings.HasPrefix(r.err, "llmops: ") || !strings.Contains(r.err, c.want) {
				t.Errorf("says %q, want %q in it", r.err, c.want)
			}
		})
	}
}

func TestStateDir(t *testing.T) {
	here, err := filepath.Abs("x")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"LLMOPS_HOME": "/a", "XDG_STATE_HOME": "/b", "HOME": "/c"}, "/a"},
		{map[string]string{"LLMOPS_HOME": "x", "HOME": "/c"}, here},
		{map[string]string{"XDG_STATE_HOME": "/b", "HOME": "/c"}, "/b/llmops"},
		{map[string]string{"XDG_STATE_HOME": "b", "HOME": "/c"}, "/c/.local/state/llmops"},
		{map[string]string{"HOME": "/c"}, "/c/.local/state/llmops"},
		{nil, ""},
	} {
		e := &env{getenv: func(k string) string { return c.env[k] }}
		if got, err := e.stateDir(); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%v: %q, %v; want %q", c.env, got, err, c.want)
		}
	}
}

// decode reads an answer and refuses a null, which readers of a list trip over.
func decode(t *testing.T, r result, v any) {
	t.Helper()
	if r.code != exitDone || r.err != "" {
		t.Errorf("exits %d and says %q", r.code, r.err)
	}
	if strings.Contains(r.out, "null") {
		t.Errorf("holds a null: %s", r.out)
	}
	if err := json.Unmarshal([]byte(r.out), v); err != nil {
		t.Fatalf("%v in %q", err, r.out)
	}
}

func TestAnswersOfAnEmptyStateDirectory(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	var v struct{ Version, Go, Platform string }
	decode(t, run(t, home, "version", "--output", "json"), &v)
	if v.Version == "" || !strings.HasPrefix(v.Go, "go1.") || !strings.Contains(v.Platform, "/") {
		t.Errorf("version is %+v", v)
	}
	var s map[string]any
	decode(t, run(t, home, "status", "--output", "json"), &s)
	for _, list := range []string{"aliases", "jobs", "runs"} {
		if l, ok := s[list].([]any); !ok || len(l) != 0 {
			t.Errorf("%s is %v", list, s[list])
		}
	}
	if s["watch"] != false || s["state"] != home {
		t.Errorf("status is %v", s)
	}
	var runs []any
	decode(t, run(t, home, "runs", "list", "--output", "json"), &runs)
	if r := run(t, home, "down"); r.code != exitDone || r.err != "" {
		t.Errorf("down of nothing exits %d: %s", r.code, r.err)
	}
	if _, err := os.Stat(filepath.Join(home, "supervisor.lock")); err == nil {
		t.Error("looking around started the background process")
	}
}

// nobody runs a command line as a user who may read the state directory and
// not write to it, since nothing is read-only to root.
func nobody(t *testing.T, home string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = []string{"LLMOPS_TEST_MAIN=1", "LLMOPS_HOME=" + home}
	if os.Geteuid() == 0 {
		bin := filepath.Join(t.TempDir(), "llmops")
		b, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(bin, b, 0o755); err != nil {
			t.Fatal(err)
		}
		open(t, bin)
		cmd.Path = bin
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var out, errw strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errw
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errw.String()}
}

// open lets everybody pass through the folders of a test to path.
func open(t *testing.T, path string) {
	t.Helper()
	for dir := filepath.Dir(path); dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadOnlyStateDirectory(t *testing.T) {
	parent := t.TempDir()
	open(t, filepath.Join(parent, "x"))
	home := filepath.Join(parent, "home")
	h, err := openHome(home)
	if err != nil {
		t.Fatal(err)
	}
	replica(t, h, "router", false, fleet.Healthy)
	err = filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
		mode := os.FileMode(0o444)
		if err == nil && d.IsDir() {
			mode = 0o555
		}
		return errors.Join(err, os.Chmod(path, mode))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
			return errors.Join(err, os.Chmod(path, 0o755))
		})
		_ = os.Chmod(parent, 0o755)
	})
	if err := os.Chmod(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		home string
		args []string
	}{
		{home, []string{"watch"}},
		{home, []string{"down"}},
		{filepath.Join(parent, "other"), []string{"status"}},
		{filepath.Join(parent, "other"), []string{"runs", "list"}},
	} {
		r := nobody(t, c.home, c.args...)
		if r.code != exitUsage || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, parent) || !strings.Contains(r.err, "LLMOPS_HOME") {
			t.Errorf("%v exits %d and says %q", c.args, r.code, r.err)
		}
	}
	// Looking is allowed.
	if r := nobody(t, home, "status"); r.code != exitDone || !strings.Contains(r.out, home) {
		t.Errorf("status exits %d: %s%s", r.code, r.out, r.err)
	}
	if r := nobody(t, home, "doctor"); r.code != exitFailed || !strings.Contains(r.out, "permission denied") {
		t.Errorf("doctor exits %d: %s%s", r.code, r.out, r.err)
	}
}

// bare is what it takes to create and claim runs.
func bare(h *home) pipeline.Deps {
	return pipeline.Deps{Store: h.store, Blobs: h.blobs, Now: time.Now}
}

// waiting makes a run of an alias that waits after eval.
func waiting(t *testing.T, h *home, alias string) string {
	t.Helper()
	name, err := pipeline.Create(t.Context(), bare(h), pipeline.Spec{Name: alias}, pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCanaryOfSeveralRuns(t *testing.T) {
	h, err := openHome(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, b := waiting(t, h, "a"), waiting(t, h, "b")
	r := run(t, h.dir, "canary", "--rollback-on", "ttft")
	if r.code != exitUsage || !strings.Contains(r.err, a) || !strings.Contains(r.err, b) || !strings.Contains(r.err, "--run") {
		t.Errorf("with two runs it exits %d: %s", r.code, r.err)
	}
	for _, name := range []string{a, b} {
		head, err := pipeline.Read(t.Context(), h.store, name)
		if err != nil || len(head.Options.RollbackOn) > 0 || head.Epoch != 0 {
			t.Errorf("a run was touched: %+v, %v", head, err)
		}
	}
	// One that is driven by a live process does not wait.
	owner, release, err := h.own("test")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, name := range []string{a, b} {
		if _, err := pipeline.Claim(t.Context(), bare(h), name, owner); err != nil {
			t.Fatal(err)
		}
	}
	if r := run(t, h.dir, "canary"); r.code != exitUsage || !strings.Contains(r.err, "no run waits for canary") {
		t.Errorf("with runs that are driven it exits %d: %s", r.code, r.err)
	}
	before, err := pipeline.Read(t.Context(), h.store, a)
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, h.dir, "canary", "--run", a, "--rollback-on", "ttft"); r.code != exitUsage || !strings.Contains(r.err, "driven by another process") {
		t.Errorf("with a run that is driven it exits %d: %s", r.code, r.err)
	}
	if head, err := pipeline.Read(t.Context(), h.store, a); err != nil || len(head.Options.RollbackOn) > 0 || !head.Updated.Equal(before.Updated) {
		t.Errorf("a run that is driven was touched, which ends its driver: %+v, %v", head, err)
	}
	if r := run(t, h.dir, "runs", "list"); r.code != exitDone || !strings.Contains(r.out, a) || !strings.Contains(r.out, "running") {
		t.Errorf("runs list exits %d:\n%s%s", r.code, r.out, r.err)
	}
}

// version serves a version of alias "a" from this process, as a replica of the
// state directory.
func serveVersion(t *testing.T, h *home, name string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Llmops-Version", name)
		_, _ = w.Write([]byte(`{"choices":[{"message":{"role":"assistant","content":"2"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`))
	}))
	t.Cleanup(srv.Close)
	job := pipeline.JobName("a", name)
	g := fleet.Group{Name: "main", Count: 1, Argv: []string{"true"}}
	if _, err := h.scheduler.Apply(t.Context(), fleet.Job{Name: job, Kind: fleet.Engine, Groups: []fleet.Group{g}}, 0); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(fleet.Replica{ID: job + "/main-0", Group: "main", State: fleet.Healthy, Addr: strings.TrimPrefix(srv.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Put(t.Context(), "replica/"+job+"/main-0", b, 0); err != nil {
		t.Fatal(err)
	}
}

func TestRollback(t *testing.T) {
	h, err := openHome(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := route.Claim(route.New("a", "run-1", "v0"), "run-2")
	if d, err = route.Promote(d, d.Epoch, "v1"); err != nil {
		t.Fatal(err)
	}
	body, err := route.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Put(t.Context(), route.Name("a"), body, 0); err != nil {
		t.Fatal(err)
	}
	live := func() string {
		t.Helper()
		doc, err := h.store.Get(t.Context(), route.Name("a"))
		if err != nil {
			t.Fatal(err)
		}
		now, err := route.Decode(doc.Body)
		if err != nil {
			t.Fatal(err)
		}
		return now.Live()
	}
	if r := run(t, h.dir, "rollback", "a", "--yes"); r.code != exitUsage || !strings.Contains(r.err, "v0 has no replicas") {
		t.Errorf("to a version without replicas it exits %d: %s", r.code, r.err)
	}
	serveVersion(t, h, "v0")
	r := run(t, h.dir, "rollback", "a")
	if r.code != exitUsage || !strings.Contains(r.err, "from v1 to v0, a token just now from 1 of 1 replicas") || !strings.Contains(r.err, "rollback needs --yes without a terminal") || live() != "v1" {
		t.Errorf("without a terminal it exits %d: %s", r.code, r.err)
	}
	var out rolledBack
	r = run(t, h.dir, "rollback", "a", "--yes", "--output", "json")
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != exitDone || out.To != "v0" || live() != "v0" {
		t.Errorf("with --yes it exits %d: %s%s", r.code, r.out, r.err)
	}
	if r := run(t, h.dir, "rollback", "a", "--to", "v0", "--yes"); r.code != exitUsage || !strings.Contains(r.err, "v0 is live already") {
		t.Errorf("to what is live it exits %d: %s", r.code, r.err)
	}
}

func TestHelp(t *testing.T) {
	r := run(t, t.TempDir(), "--help")
	if r.code != exitDone || r.err != "" {
		t.Errorf("exits %d: %s", r.code, r.err)
	}
	for _, want := range []string{"Onboard:", "Operate:", "Plan:", "Daemons:", "Exit status:", "  onboard ", "  doctor "} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is not in\n%s", want, r.out)
		}
	}
	if bare := run(t, t.TempDir()); bare.code != exitDone || bare.out != r.out {
		t.Errorf("without arguments it exits %d:\n%s%s", bare.code, bare.out, bare.err)
	}
}
