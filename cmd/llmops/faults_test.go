//go:build faults

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// quickAlias is the name in quick.yaml.
const quickAlias = "freight-quick"

// leaseTTL is the longest that leased weights outlive whoever renewed them.
const leaseTTL = 45 * time.Second

// files is a folder with the example's files and its weights.
var files = sync.OnceValues(func() (string, error) {
	example, err := filepath.Abs("../../examples/freight")
	if err != nil {
		return "", err
	}
	weights := os.Getenv("LLMOPS_TEST_FREIGHT")
	if weights == "" {
		weights = filepath.Join(example, "weights")
	}
	if _, err := os.Stat(weights); err != nil {
		return "", err
	}
	dir := filepath.Join(bin, "freight")
	if err := os.CopyFS(filepath.Join(dir, "weights"), os.DirFS(weights)); err != nil {
		return "", err
	}
	for _, name := range []string{"evals", "traffic.jsonl"} {
		if err := os.Symlink(filepath.Join(example, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"quick.yaml", "model.yaml"} {
		b, err := os.ReadFile(filepath.Join(example, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	return dir, nil
})

// example is the folder of files, or the end of the test when there are no
// weights.
func example(t *testing.T) string {
	t.Helper()
	dir, err := files()
	if err != nil {
		t.Skipf("the example has no weights: %v", err)
	}
	return dir
}

// variant writes a file like quick.yaml with some text replaced, beside it. Its
// service level holds on a busy machine too, so that only faults decide.
func variant(t *testing.T, name string, oldnew ...string) string {
	t.Helper()
	dir := example(t)
	b, err := os.ReadFile(filepath.Join(dir, "quick.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if !strings.Contains(text, "ttft: ") {
		oldnew = append(oldnew, "preset: interactive,", "preset: interactive, ttft: 20s, tpot: 5s,")
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(text, oldnew[i]) {
			t.Fatalf("quick.yaml does not hold %q", oldnew[i])
		}
		text = strings.Replace(text, oldnew[i], oldnew[i+1], 1)
	}
	path := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// slowly is quick.yaml with a canary that takes at least bake.
func slowly(t *testing.T, bake time.Duration) string {
	t.Helper()
	return variant(t, "bake-"+bake.String(), "bake: 2s", "bake: "+bake.String())
}

// machine is a state directory and what runs from it. When its test ends it is
// taken down, and nothing may be left running.
type machine struct {
	t      *testing.T
	home   string
	listen string
	env    []string // of every command
	within []string // what every command is an argument of
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, home: filepath.Join(t.TempDir(), "home"), listen: freePort(t)}
	t.Cleanup(m.down)
	return m
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// down takes the machine down and looks for what it left.
func (m *machine) down() {
	m.t.Helper()
	if r := m.llmops("down", "--yes"); r.code != 0 {
		m.t.Errorf("down exits %d: %s", r.code, r.err)
	}
	for pid, argv := range m.processes() {
		m.t.Errorf("process %d is left after down: %s", pid, argv)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if m.t.Failed() {
		m.t.Logf("watch.log: %s", tail(filepath.Join(m.home, "watch.log"), 4000))
	}
}

func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}

// processes are those that run for this state directory.
func (m *machine) processes() map[int]string {
	out := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		m.t.Skipf("there is no /proc to look for orphans in: %v", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !bytes.Contains(env, []byte("LLMOPS_HOME="+m.home+"\x00")) {
			continue
		}
		argv, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && len(argv) > 0 {
			out[pid] = string(bytes.ReplaceAll(argv, []byte{0}, []byte{' '}))
		}
	}
	return out
}

// find returns the processes whose command line holds text.
func (m *machine) find(text string) (pids []int) {
	for pid, argv := range m.processes() {
		if strings.Contains(argv, text) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// pid is that of the one process whose command line holds text.
func (m *machine) pid(text string) int {
	m.t.Helper()
	found := m.find(text)
	if len(found) != 1 {
		m.t.Fatalf("%d processes have %q in their command line: %v", len(found), text, m.processes())
	}
	return found[0]
}

func (m *machine) kill(text string, s syscall.Signal) {
	m.t.Helper()
	if err := syscall.Kill(m.pid(text), s); err != nil {
		m.t.Fatal(err)
	}
}

// result is how a command ended; code is -1 when a signal ended it.
type result struct {
	code     int
	out, err string
	took     time.Duration
}

// complaint is what the command said went wrong, which must be one line and the
// last one but for those of a file that it quotes.
func (r result) complaint(t *testing.T) (why string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(r.err) {
		rest, ok := strings.CutPrefix(line, "llmops: ")
		if ok {
			n++
			why = strings.TrimSpace(rest)
		} else if why != "" && !strings.HasPrefix(line, " ") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("want one error on the last line: %s", r.err)
	}
	return why
}

// command is a command that runs.
type command struct {
	t     *testing.T
	cmd   *exec.Cmd
	began time.Time
	out   bytes.Buffer
	ended chan error

	mu  sync.Mutex // guards err
	err bytes.Buffer
}

// Write takes what the command says on standard error.
func (c *command) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err.Write(b)
}

func (c *command) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err.String()
}

func (m *machine) start(env []string, args ...string) *command {
	m.t.Helper()
	argv := slices.Concat(m.within, []string{filepath.Join(bin, "llmops")}, args)
	c := &command{t: m.t, cmd: exec.Command(argv[0], argv[1:]...), began: time.Now(), ended: make(chan error, 1)}
	c.cmd.Env = slices.Concat(os.Environ(), []string{"LLMOPS_HOME=" + m.home}, m.env, env)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, c
	// What a command starts in the background holds no pipe of ours.
	c.cmd.WaitDelay = time.Second
	if err := c.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	return c
}

func (m *machine) llmops(args ...string) result {
	m.t.Helper()
	return m.start(nil, args...).wait()
}

func (m *machine) onboard(file string, args ...string) []string {
	return append(append([]string{"onboard", "--listen", m.listen}, args...), file)
}

// wait waits for the end of a command, but not for ever.
func (c *command) wait() result {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(8 * time.Minute):
		_ = c.cmd.Process.Kill()
		<-c.ended
		c.t.Errorf("%v did not end: %s", c.cmd.Args[1:], c.said())
	}
	return result{c.cmd.ProcessState.ExitCode(), c.out.String(), c.said(), time.Since(c.began)}
}

func (c *command) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Errorf("%v: %v; it said %s", c.cmd.Args[1:], err, c.said())
	}
}

// hears waits until the command has said something.
func (c *command) hears(text string) {
	c.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for !strings.Contains(c.said(), text) {
		select {
		case <-tick.C:
		case err := <-c.ended:
			c.ended <- err
			if !strings.Contains(c.said(), text) {
				c.t.Fatalf("%v ended before it said %q: %s", c.cmd.Args[1:], text, c.said())
			}
		case <-limit:
			c.t.Fatalf("%v did not say %q: %s", c.cmd.Args[1:], text, c.said())
		}
	}
}

// until waits for something that another process brings about, and tells how
// long it took.
func until(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	// Looking costs a process mostly, which a benchmark beside it would feel.
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Since(began) > limit {
			t.Fatalf("waited %v until %s", limit, what)
		}
		<-tick.C
	}
	return time.Since(began)
}

// state is what llmops status says.
type state struct {
	Watch   bool
	Aliases []struct {
		Alias, Live string
		Route       struct {
			Epoch   uint64
			Standby string
			Lease   json.RawMessage
		}
		Routers map[string]struct {
			Rev    uint64
			Leased bool
			Shares map[string]uint32
		}
		Missing []string
	}
	Jobs []struct {
		Job struct {
			Name, Kind string
			Groups     []struct{ Addr string }
		}
		Replicas []struct {
			ID, State, Node string
			PID             int
		}
	}
	Runs []head
}

type head struct {
	Run, State, Stage, Host, Owner, Reason string
	Stages                                 []struct{ Name, Outcome string }
	Attempt                                struct {
		State struct {
			Requests [2]uint64
			Looks    int
		}
	}
}

func (m *machine) ask(v any, args ...string) {
	m.t.Helper()
	r := m.llmops(append(args, "--output", "json")...)
	if r.code != 0 {
		m.t.Fatalf("%v exits %d: %s", args, r.code, r.err)
	}
	if err := json.Unmarshal([]byte(r.out), v); err != nil {
		m.t.Fatalf("%v prints %s: %v", args, r.out, err)
	}
}

func (m *machine) status() (s state) {
	m.t.Helper()
	m.ask(&s, "status")
	return s
}

// share is the candidate's largest share in any router that answers, and
// whether all of them answer.
func (s state) share(version string) (share float64, all bool) {
	for _, a := range s.Aliases {
		all = len(a.Missing) == 0
		for _, r := range a.Routers {
			share = max(share, float64(r.Shares[version])/1e6)
		}
	}
	return share, all
}

// last is the newest run.
func (m *machine) last() head {
	m.t.Helper()
	var all []head
	m.ask(&all, "runs", "list")
	if len(all) == 0 {
		m.t.Fatal("there is no run")
	}
	return all[0]
}

// entry is a line of a run's journal.
type entry struct {
	Seq                    uint64
	Kind, Stage, What, Own string
}

func (m *machine) journal(run string) (out []entry) {
	m.t.Helper()
	var shown struct{ Journal []entry }
	m.ask(&shown, "runs", "show", "--journal", run)
	return shown.Journal
}

func count(all []entry, kind, what string) (n int) {
	for _, e := range all {
		if e.Kind == kind && (e.What == what || e.Stage == what) {
			n++
		}
	}
	return n
}

// inCanary waits until every router gives half of the traffic to v1. The command
// is that which drives; nil when a watch does.
func (m *machine) inCanary(c *command) {
	m.t.Helper()
	if c != nil {
		c.hears("\ncanary")
	} else {
		until(m.t, time.Minute, "the run is in its canary", func() bool {
			h := m.last()
			if h.State != "running" && h.State != "stopped" {
				m.t.Fatalf("the run is %+v", h)
			}
			return h.Stage == "canary"
		})
	}
	until(m.t, 20*time.Second, "the candidate has half of the traffic", func() bool {
		share, all := m.status().share("v1")
		return all && share == 0.5
	})
}

// live checks that a finished run left the fleet as it should be: the candidate
// live, the version before it warm, nothing else running.
func (m *machine) live(routers int) {
	m.t.Helper()
	s := m.status()
	if len(s.Aliases) != 1 || s.Aliases[0].Live != "v1" || s.Aliases[0].Route.Standby != "v0" || len(s.Runs) != 0 || !s.Watch {
		m.t.Errorf("status is %+v", s)
		return
	}
	if a := s.Aliases[0]; len(a.Routers) != routers || len(a.Missing) > 0 {
		m.t.Errorf("routers %v, missing %v", a.Routers, a.Missing)
	}
	for name, r := range s.Aliases[0].Routers {
		if r.Leased || r.Shares["v1"] != 1e6 {
			m.t.Errorf("%s has %+v", name, r)
		}
	}
	jobs := map[string]bool{"router": true, quickAlias + "-v0": true, quickAlias + "-v1": true}
	for _, j := range s.Jobs {
		if !jobs[j.Job.Name] && j.Job.Kind != "router" || len(j.Replicas) != 1 || j.Replicas[0].State != "healthy" {
			m.t.Errorf("job %+v", j)
		}
	}
	if p := m.processes(); len(p) != 3+routers {
		m.t.Errorf("%d processes run, want the watch, %d routers and two engines: %v", len(p), routers, p)
	}
}

// finished checks the record of the run that just ended: one run, nine stages
// that passed, and no artefact made twice.
func (m *machine) finished() head {
	m.t.Helper()
	var all []head
	m.ask(&all, "runs", "list")
	if len(all) != 1 || all[0].State != "done" {
		m.t.Fatalf("runs are %+v", all)
	}
	if len(all[0].Stages) != 9 {
		m.t.Errorf("stages are %+v", all[0].Stages)
	}
	for _, s := range all[0].Stages {
		if s.Outcome != "pass" {
			m.t.Errorf("%s ended with %s", s.Name, s.Outcome)
		}
	}
	for _, sub := range []string{"snapshots", "quantised"} {
		entries, err := os.ReadDir(filepath.Join(m.home, sub))
		if err != nil || len(entries) != 1 {
			m.t.Errorf("%s holds %v, %v", sub, entries, err)
		}
	}
	return all[0]
}

// artefacts are the files of finished snapshots, by path, with what tells that
// they were written anew.
func (m *machine) artefacts() map[string]string {
	out := map[string]string{}
	for _, sub := range []string{"snapshots", "quantised"} {
		_ = filepath.WalkDir(filepath.Join(m.home, sub), func(path string, d os.DirEntry, err error) error {
			if err != nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			if info, err := d.Info(); err == nil && !d.IsDir() {
				inode := uint64(0)
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					inode = st.Ino
				}
				out[path] = fmt.Sprint(inode, info.ModTime().UnixNano(), info.Size())
			}
			return nil
		})
	}
	return out
}

// clients are requests that come in all the time. Nothing is expected of them
// before the first that is answered; from then on every one is.
type clients struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex // guards what follows
	served map[string]int
	asked  map[string]time.Time // when the last request was sent that a version served
	failed []string
	gap    time.Duration // longest time between two answers
}

// clients begin to ask the alias for a token ten times a second.
func (m *machine) clients(alias string) *clients {
	ctx, cancel := context.WithCancel(context.Background())
	c := &clients{t: m.t, cancel: cancel, done: make(chan struct{}), served: map[string]int{}, asked: map[string]time.Time{}}
	go func() {
		defer close(c.done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var last time.Time
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			sent := time.Now()
			one, cancel := context.WithTimeout(ctx, 20*time.Second)
			version, err := chat(one, m.listen, alias, fmt.Sprint("client-", i))
			cancel()
			if ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			switch {
			case err == nil:
				if !last.IsZero() {
					c.gap = max(c.gap, time.Since(last))
				}
				last = time.Now()
				c.served[version]++
				c.asked[version] = sent
			case !last.IsZero():
				c.failed = append(c.failed, time.Now().Format("05.000 ")+err.Error())
			}
			c.mu.Unlock()
		}
	}()
	m.t.Cleanup(func() { c.stop() })
	return c
}

// quickChat asks the alias of quick.yaml for one token.
func quickChat(ctx context.Context, addr, conversation string) (version string, err error) {
	return chat(ctx, addr, quickAlias, conversation)
}

// chat asks for one token and tells which version it came from.
func chat(ctx context.Context, addr, alias, conversation string) (version string, err error) {
	body := `{"model":"` + alias + `","max_tokens":1,"messages":[{"role":"user","content":"1"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Conversation-Id", conversation)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	version = res.Header.Get("Llmops-Version")
	switch {
	case err != nil:
		return version, err
	case res.StatusCode != http.StatusOK:
		return version, fmt.Errorf("%s: %s", res.Status, b)
	case version == "":
		return "", errors.New("the answer names no version")
	}
	return version, nil
}

// stop ends the requests; the rest then stands still.
func (c *clients) stop() {
	c.cancel()
	<-c.done
}

// undisturbed ends the requests and fails the test when any went unanswered.
func (c *clients) undisturbed(versions ...string) {
	c.t.Helper()
	c.stop()
	if len(c.failed) > 0 || len(c.served) == 0 {
		c.t.Errorf("%d requests of clients failed, %v were served: %v", len(c.failed), c.served, c.failed[:min(5, len(c.failed))])
	}
	for v := range c.served {
		if !slices.Contains(versions, v) {
			c.t.Errorf("clients were served by %v", c.served)
		}
	}
}

func sorted[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
