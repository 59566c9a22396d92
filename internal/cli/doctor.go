package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
	"llmops/serving/embedded/ceiling"
)

const (
	// diskFail is too little for the documents and evidence of one run.
	diskFail = 256 << 20
	// diskWarn and memoryWarn are less than a small model, its candidate and its
	// live version take together.
	diskWarn   = 4 << 30
	memoryWarn = 1 << 30
	// knock bounds the wait for a router of ours.
	knock = 2 * time.Second
)

// What a check came to. Only a failed one makes doctor fail.
const (
	checkOK   = "ok"
	checkInfo = "info"
	checkWarn = "warn"
	checkFail = "fail"
)

// check is one line of doctor; its names are an interface.
type check struct {
	Name  string `json:"check"`
	State string `json:"state"`
	Found string `json:"found"`
	Do    string `json:"do"`
}

// examined is a check with the figures behind it, where it has some.
type examined struct {
	check
	Measured *ceiling.Ceilings `json:"measured,omitempty"`
}

var (
	watchAbsent    = check{"watch", checkOK, "not running", "nothing; the next command that needs it starts it"}
	replicasAbsent = check{"replicas", checkOK, "none", "nothing"}
)

func newDoctorCmd(e *env) *cobra.Command {
	var listen string
	var measure bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine before a run",
		Long: `Doctor looks at what a run needs of this machine and says what to do about each
point. It changes nothing, and exits 1 when a run could not work.

With --measure it also measures, in seconds, the two roofs of a model without a GPU:
how fast memory is read, and how many operations a second the embedded engine's own
products do. They are kept in the state directory, and benchmarks then say which of
the two binds and what share was reached. A machine that is busy with something else
is no measurement: nothing is kept, and doctor exits 5.

` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := e.stateDir()
			if err != nil {
				return &exitError{exitUsage, err}
			}
			var checks []examined
			for _, c := range e.examine(cmd.Context(), dir, listen) {
				checks = append(checks, examined{check: c})
			}
			roofs, unmeasured := checkCeilings(dir, time.Now()), error(nil)
			if measure {
				roofs, unmeasured = measureCeilings(cmd.Context(), dir, time.Now())
			}
			checks = append(checks, roofs)
			bad := 0
			for _, c := range checks {
				if c.State == checkFail {
					bad++
				}
			}
			err = e.answer(checks, func(w *tabwriter.Writer) {
				row(w, "CHECK", "STATE", "FOUND", "DO")
				for _, c := range checks {
					row(w, c.Name, c.State, c.Found, c.Do)
				}
			})
			switch {
			case err != nil:
				return err
			case bad > 0:
				return &exitError{exitFailed, fmt.Errorf("%d of %d checks failed", bad, len(checks))}
			}
			return unmeasured
		},
	}
	c.Flags().StringVar(&listen, "listen", defaultListen, "where the router shall take requests")
	c.Flags().BoolVar(&measure, "measure", false, "measure what memory and arithmetic of this machine reach, and keep it")
	return c
}

func (e *env) examine(ctx context.Context, dir, listen string) []check {
	checks := []check{checkState(dir), checkDisk(dir), checkCores(), checkMemory(), checkLoopback()}
	if _, err := os.Stat(filepath.Join(dir, "docs")); err != nil {
		// Opening the state directory would make it.
		checks = append(checks, checkFree(listen), watchAbsent, replicasAbsent)
	} else if h, err := openHome(dir); err != nil {
		checks = append(checks, check{"documents", checkFail, err.Error(), "restore the state directory, or choose another with LLMOPS_HOME"})
	} else {
		checks = append(checks, h.checkRouters(ctx, listen)...)
		checks = append(checks, h.checkWatch(), h.checkReplicas(ctx))
	}
	for _, tool := range []string{"terraform", "nomad"} {
		checks = append(checks, checkTool(tool))
	}
	return checks
}

// checkState proves that files can be written to the state directory and that
// locks hold there, which they do not on every network file system.
func checkState(dir string) check {
	c := check{Name: "state directory", State: checkFail, Do: "set LLMOPS_HOME to a folder on a local disk that you may write to"}
	probe, err := os.MkdirTemp(existing(dir), ".llmops-doctor-")
	if err != nil {
		c.Found = err.Error()
		return c
	}
	defer func() { _ = os.RemoveAll(probe) }()
	path := filepath.Join(probe, "lock")
	a, b := flock.New(path), flock.New(path)
	defer func() { _ = a.Close(); _ = b.Close() }()
	first, err := a.TryLock()
	second, err2 := b.TryLock()
	if err := errors.Join(err, err2); err != nil {
		c.Found = "locking: " + err.Error()
		return c
	}
	if !first || second {
		c.Found = dir + " does not keep locks"
		return c
	}
	return check{c.Name, checkOK, dir + " can be written and locked", "nothing; LLMOPS_HOME chooses another"}
}

// existing is the closest folder above path, path included, that is there.
func existing(path string) string {
	for p := path; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); err == nil || p == filepath.Dir(p) {
			return p
		}
	}
}

func checkDisk(dir string) check {
	c := check{Name: "disk", State: checkOK, Do: "a run keeps a copy of the source and one of the candidate: compare with the model's size"}
	var st syscall.Statfs_t
	if err := syscall.Statfs(existing(dir), &st); err != nil {
		return check{c.Name, checkWarn, "reading the free space: " + err.Error(), c.Do}
	}
	free := int64(st.Bavail) * int64(st.Bsize)
	c.Found = size(free) + " free for " + dir
	switch {
	case free < diskFail:
		c.State, c.Do = checkFail, "free some space, or set LLMOPS_HOME to a folder on a larger disk"
	case free < diskWarn:
		c.State = checkWarn
	}
	return c
}

func size(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func checkCores() check {
	n := runtime.GOMAXPROCS(0)
	c := check{"cores", checkOK, strconv.Itoa(n), "nothing"}
	if n < 2 {
		c.State, c.Do = checkWarn, "engines and router share one core: plan for a low traffic.rate, or latency gates will refuse the candidate"
	}
	return c
}

func checkMemory() check {
	c := check{"memory", checkOK, "", "live version, parent and candidate are in memory together, each with its KV cache: compare with the model's size"}
	free, ok := freeMemory()
	if !ok {
		c.State, c.Found = checkInfo, "cannot be told on "+runtime.GOOS
		return c
	}
	c.Found = size(free) + " available"
	if free < memoryWarn {
		c.State = checkWarn
	}
	return c
}

// freeMemory is what Linux says can be had, in bytes, within this process's
// control group where it has one.
func freeMemory() (int64, bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(b), "MemAvailable:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); !ok || err != nil {
		return 0, false
	}
	free := kib << 10
	if b, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			free = min(free, limit)
		}
	}
	return free, true
}

func checkLoopback() check {
	c := check{Name: "loopback", State: checkFail, Do: "let this user listen on and connect to 127.0.0.1; replicas and routers live there"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Found = err.Error()
		return c
	}
	defer func() { _ = l.Close() }()
	conn, err := net.DialTimeout("tcp", l.Addr().String(), knock)
	if err != nil {
		c.Found = err.Error()
		return c
	}
	_ = conn.Close()
	return check{c.Name, checkOK, "127.0.0.1 takes connections", "nothing"}
}

// checkRouters asks the routers of this fleet whether they answer, or, when there is
// none, whether one could listen.
func (h *home) checkRouters(ctx context.Context, listen string) []check {
	all, err := h.routers(ctx)
	if err != nil {
		return []check{{"router", checkFail, err.Error(), "restore the file that is named, or choose another state directory with LLMOPS_HOME"}}
	}
	var out []check
	for _, st := range all {
		for _, r := range pipeline.RoutersOf(st) {
			c := check{"router", checkOK, fmt.Sprintf("%s of ours answers on %s", r.Name, r.Addr), "nothing; llmops down stops it"}
			if err := answers(ctx, r.Addr); err != nil {
				c.State, c.Found = checkWarn, fmt.Sprintf("%s of ours does not answer: %v", r.Name, err)
				c.Do = fmt.Sprintf("see llmops logs %s; llmops down and the next onboard start anew", r.Replica)
			}
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		out = append(out, checkFree(listen))
	}
	return out
}

func checkFree(listen string) check {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return check{"router", checkFail, err.Error(), "stop the program that listens there, or give onboard another --listen"}
	}
	_ = l.Close()
	return check{"router", checkOK, listen + " is free", "nothing; --listen chooses another"}
}

func answers(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, knock)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("its health is %s", res.Status)
	}
	return nil
}

func (h *home) checkWatch() check {
	if !h.watched() {
		return watchAbsent
	}
	c := check{watchAbsent.Name, checkOK, "running this build", "nothing; llmops down stops it"}
	theirs, err := h.watchProgram()
	if err != nil {
		c.State, c.Found, c.Do = checkInfo, "running, its build cannot be told: "+err.Error(), "if in doubt, llmops down and run again"
		return c
	}
	ours, err := h.program()
	switch {
	case err != nil:
		c.State, c.Found = checkInfo, "running, this build cannot be told: "+err.Error()
	case filepath.Base(ours) != filepath.Base(theirs):
		c.State, c.Found = checkWarn, fmt.Sprintf("running another build (%s, this is %s)", filepath.Base(theirs), filepath.Base(ours))
		c.Do = "llmops down stops it with all that it serves; the next command starts this build"
	}
	return c
}

// program is where the copy of this program belongs.
func (h *home) program() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return h.copyPath(f)
}

// watchProgram is the file that the background process runs from.
func (h *home) watchProgram() (string, error) {
	pid, err := local.SupervisorPID(h.dir)
	if err != nil {
		return "", err
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(path, " (deleted)"), nil
}

// checkReplicas looks for replicas that failed or that nobody looks after.
func (h *home) checkReplicas(ctx context.Context) check {
	c := check{Name: replicasAbsent.Name, State: checkFail, Do: "restore the file that is named, or choose another state directory with LLMOPS_HOME"}
	docs, err := h.store.List(ctx, "replica/")
	if err != nil {
		c.Found = err.Error()
		return c
	}
	if len(docs) == 0 {
		return replicasAbsent
	}
	var failed, orphans []string
	for _, d := range docs {
		id := strings.TrimPrefix(d.Name, "replica/")
		job, _, _ := strings.Cut(id, "/")
		st, err := h.scheduler.Status(ctx, job)
		if err != nil {
			c.Found = err.Error()
			return c
		}
		if st.Rev == 0 {
			orphans = append(orphans, id)
		}
		for _, r := range st.Replicas {
			if r.ID == id && r.State == fleet.Failed {
				failed = append(failed, fmt.Sprintf("%s (%s)", id, r.Reason))
			}
		}
	}
	c.State = checkWarn
	switch {
	case !h.watched():
		c.Found, c.Do = fmt.Sprintf("%d that nobody supervises", len(docs)), "llmops down stops them; any onboard takes them over"
	case len(orphans) > 0:
		c.Found, c.Do = "left over without a job: "+strings.Join(orphans, ", "), "they are being stopped; if they stay, llmops down"
	case len(failed) > 0:
		c.Found, c.Do = "failed: "+strings.Join(failed, ", "), "see llmops logs REPLICA; llmops status shows what they serve"
	default:
		c.State, c.Found, c.Do = checkOK, fmt.Sprintf("%d, none left over", len(docs)), "nothing"
	}
	return c
}

func checkTool(name string) check {
	c := check{name, checkInfo, "not on the PATH", "nothing: this machine alone needs none; a fleet of several machines does"}
	if path, err := exec.LookPath(name); err == nil {
		c.Found, c.Do = path, "nothing"
	}
	return c
}
