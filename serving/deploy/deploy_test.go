package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/serving/openai"
)

// TestMain lets the test binary be an engine: LLMOPS_TEST_SERVE is its address,
// LLMOPS_TEST_HOW says how it behaves.
func TestMain(m *testing.M) {
	if addr := os.Getenv("LLMOPS_TEST_SERVE"); addr != "" {
		if err := serve(addr, os.Getenv("LLMOPS_TEST_HOW"), os.Getenv("LLMOPS_TEST_VERSION")); err != nil {
			fmt.Println(err)
			os.Exit(7)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The ways of an engine. Anything else is one that works.
const (
	ends      = "ends"      // before it listens
	mute      = "mute"      // answers its health check and nothing else
	tokenless = "tokenless" // answers with no token
	nameless  = "nameless"  // does not say which version it is
)

// serve is an engine that answers one token to everything and lists what it was
// asked at /prompts.
func serve(addr, how, version string) error {
	if how == ends {
		return errors.New("no weights here")
	}
	var mu sync.Mutex // guards prompts
	prompts := []string{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /prompts", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(w).Encode(prompts)
	})
	if how != mute {
		mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
			var req openai.ChatRequest
			if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Model != "a.model" {
				http.Error(w, fmt.Sprint(req.Model, err), http.StatusBadRequest)
				return
			}
			mu.Lock()
			prompts = append(prompts, req.Messages[0].Content.Text)
			mu.Unlock()
			if how != nameless {
				w.Header().Set(versionHeader, version)
			}
			n := 1
			if how == tokenless {
				n = 0
			}
			_, _ = fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":"2"}}],"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":2}}`, n)
		})
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { <-ctx.Done(); _ = srv.Close() }()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func job(name, how string, replicas int) fleet.Job {
	env := map[string]string{"LLMOPS_TEST_SERVE": "${LLMOPS_ADDR}", "LLMOPS_TEST_HOW": how, "LLMOPS_TEST_VERSION": "v1"}
	return fleet.Job{Name: name, Version: "v1", Kind: fleet.Engine, Meta: map[string]string{"alias": "a.model", "version": "v1"},
		Groups: []fleet.Group{{Name: "main", Count: replicas, Argv: []string{"${LLMOPS_BIN}"}, Env: env, Check: fleet.Check{Path: "/health"}, Grace: 5 * time.Second}}}
}

// machine is a fleet of this machine, supervised until the test ends and
// empty afterwards.
func machine(t *testing.T) *local.Scheduler {
	t.Helper()
	dir := t.TempDir()
	store, err := local.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&local.Supervisor{Store: store, Dir: dir, Bin: bin, Env: os.Environ()}).Run(ctx) }()
	s := local.NewScheduler(store, dir)
	t.Cleanup(func() {
		jobs, err := s.Jobs(ctx)
		for _, j := range jobs {
			err = errors.Join(err, Down(ctx, s, j.Name))
		}
		cancel()
		if end := <-done; !errors.Is(end, context.Canceled) || err != nil {
			t.Error(end, err)
		}
	})
	return s
}

func up(t *testing.T, s fleet.Scheduler, j fleet.Job, warm Prompts) ([]Ready, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return Up(ctx, s, j, Options{Warm: warm}, func(string) {})
}

func TestUp(t *testing.T) {
	s := machine(t)
	other := job("other", "", 1)
	other.Groups[0].Env["LLMOPS_TEST_VERSION"] = "v2"
	absent := job("absent", "", 1)
	absent.Groups[0].Argv = []string{"/no/such/program"}
	for _, c := range []struct {
		name string
		job  fleet.Job
		want []string // what the error says; none: ready
	}{
		{"two replicas that work", job("good", "", 2), nil},
		{"one that does not say its version", job("nameless", nameless, 1), nil},
		{"another version", other, []string{"replica other/main-0", "version v2 answered instead of v1"}},
		{"healthy, but no API", job("mute", mute, 1), []string{"replica mute/main-0", "asking for a token", "404"}},
		{"healthy, but no token", job("tokenless", tokenless, 1), []string{"replica tokenless/main-0", "the answer has none"}},
		{"ends by itself", job("ends", ends, 1), []string{"replica ends/main-0 failed 3 times", "exit status 7", "no weights here"}},
		{"no such program", absent, []string{"replica absent/main-0 failed 3 times", "/no/such/program"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := up(t, s, c.job, nil)
			if len(c.want) > 0 {
				for _, w := range c.want {
					if err == nil || !strings.Contains(err.Error(), w) {
						t.Errorf("Up = %v, want %q in it", err, w)
					}
				}
				return
			}
			if err != nil || len(got) != c.job.Groups[0].Count {
				t.Fatalf("Up = %+v, %v", got, err)
			}
			for _, r := range got {
				if r.State != fleet.Healthy || r.FirstToken <= 0 {
					t.Errorf("ready is %+v", r)
				}
			}
		})
	}
}

func TestUpWarms(t *testing.T) {
	s := machine(t)
	ready, err := up(t, s, job("warm", "", 1), Prompts{{{Role: "user", Content: openai.Text("a long document")}}, {{Role: "user", Content: openai.Text("another")}}})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get("http://" + ready[0].Addr + "/prompts")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var asked []string
	if err := json.NewDecoder(res.Body).Decode(&asked); err != nil || !slices.Equal(asked, []string{"1", "a long document", "another"}) {
		t.Errorf("asked %q, %v", asked, err)
	}
}

// What is up already stays as it is; what has changed is replaced, and the
// replica that is on its way out is not taken for the new one.
func TestUpReconciles(t *testing.T) {
	s := machine(t)
	first, err := up(t, s, job("j", "", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := up(t, s, job("j", "", 1), nil)
	if err != nil || again[0].Nonce != first[0].Nonce {
		t.Errorf("a second Up gave %+v, %v; the first %+v", again, err, first)
	}
	changed := job("j", "", 1)
	changed.Groups[0].Env["LLMOPS_TEST_EXTRA"] = "1"
	now, err := up(t, s, changed, nil)
	if err != nil || now[0].Nonce == first[0].Nonce {
		t.Errorf("Up of a changed job gave %+v, %v; before it was %+v", now, err, first)
	}
}

func TestUpRefusesWhatDoesNotFit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s := machine(t)
	j := job("j", "", 1)
	j.Groups[0].Addr = l.Addr().String()
	if _, err := up(t, s, j, nil); err == nil || !strings.Contains(err.Error(), "does not fit") || !strings.Contains(err.Error(), j.Groups[0].Addr) {
		t.Errorf("Up = %v", err)
	}
	if st, err := s.Status(t.Context(), "j"); err != nil || st.Rev != 0 {
		t.Errorf("a job that does not fit was registered: %+v, %v", st, err)
	}
}

func TestStartNeedsNoToken(t *testing.T) {
	s := machine(t)
	if err := Start(t.Context(), s, job("router", mute, 1), func(string) {}); err != nil {
		t.Error(err)
	}
}

func TestUpEndsWithItsContext(t *testing.T) {
	s := machine(t)
	j := job("j", "", 1)
	j.Groups[0].Check.Path = "/never"
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Up(ctx, s, j, Options{}, func(string) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Up = %v", err)
	}
}

func TestDownWaits(t *testing.T) {
	s := machine(t)
	ready, err := up(t, s, job("j", "", 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), s, "j"); err != nil {
		t.Fatal(err)
	}
	for _, r := range ready {
		if c, err := net.Dial("tcp", r.Addr); err == nil {
			_ = c.Close()
			t.Errorf("replica %s still listens", r.ID)
		}
	}
	if err := Down(t.Context(), s, "j"); err != nil {
		t.Errorf("Down of what is down: %v", err)
	}
}

// No more than so many load at once, what is there already counts as loaded, and the
// parts of a cold start are told of what was started here.
func TestLoadsAFewAtATime(t *testing.T) {
	s := machine(t)
	j := job("a-v1", "", 5)
	most, told := 0, 0
	watched, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(watched, j.Name, func(st fleet.Status) error {
			starting := 0
			for _, r := range st.Replicas {
				if r.State != fleet.Healthy {
					starting++
				}
			}
			most, told = max(most, starting), told+1
			return nil
		})
	}()
	got, err := Up(t.Context(), s, j, Options{Loads: 2, Warm: Prompts{{{Role: "user", Content: openai.Text("hot")}}}}, func(string) {})
	stop()
	<-ended
	if err != nil || len(got) != 5 || most > 2 || told == 0 {
		t.Fatalf("%d replicas, at most %d starting in %d looks, %v", len(got), most, told, err)
	}
	for _, r := range got {
		if r.Cold == nil || r.Cold.Load <= 0 || r.Cold.Warm <= 0 || r.FirstToken <= 0 || !strings.Contains(r.String(), "answered in") {
			t.Errorf("cold start of %s: %+v", r, r.Cold)
		}
	}
	j.Groups[0].Count = 6
	if got, err = Up(t.Context(), s, j, Options{Loads: 2}, func(string) {}); err != nil || len(got) != 5 {
		t.Errorf("without leave to grow: %d, %v", len(got), err)
	}
	if got, err = Up(t.Context(), s, j, Options{Loads: 2, Grow: true}, func(string) {}); err != nil || len(got) != 6 {
		t.Fatalf("with leave to grow: %d, %v", len(got), err)
	}
	if got[0].Cold != nil {
		t.Errorf("what was there before has a cold start: %+v", got[0].Cold)
	}
}
