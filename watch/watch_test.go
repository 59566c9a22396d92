package watch

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmops/evidence"
	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/pipeline"
)

// bench is a state directory whose runs have two stages, first and second, that
// do what the test says.
type bench struct {
	t     *testing.T
	dir   string
	store *local.Store
	deps  pipeline.Deps

	mu    sync.Mutex // guards the rest
	alive map[string]bool
	do    map[string]func(context.Context) error // by alias and stage
	ran   map[string]int                         // by alias and stage
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	store, err := local.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := local.OpenBlobs(dir + "/blobs")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, store: store, alive: map[string]bool{}, do: map[string]func(context.Context) error{}, ran: map[string]int{}}
	b.deps = pipeline.Deps{Store: store, Blobs: blobs, Dir: dir, Now: time.Now, Stages: []pipeline.Stage{b.stage("first"), b.stage("second")},
		Alive: func(owner string) bool { b.mu.Lock(); defer b.mu.Unlock(); return b.alive[owner] }}
	return b
}

func (b *bench) stage(name string) pipeline.Stage {
	return pipeline.Stage{Name: name, Run: func(ctx context.Context, a *pipeline.Attempt) (evidence.Verdict, error) {
		key := a.Spec.Name + "/" + name
		b.mu.Lock()
		b.ran[key]++
		do := b.do[key]
		b.mu.Unlock()
		if do != nil {
			if err := do(ctx); err != nil {
				return evidence.Verdict{}, err
			}
		}
		return evidence.Check("done", true, 1), nil
	}}
}

// when makes a stage of an alias do something.
func (b *bench) when(key string, do func(context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.do[key] = do
}

func (b *bench) times(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ran[key]
}

// create makes a run of an alias.
func (b *bench) create(alias string) string {
	b.t.Helper()
	run, err := pipeline.Create(b.t.Context(), b.deps, pipeline.Spec{Name: alias}, pipeline.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

func (b *bench) handOver(run, until string) {
	b.t.Helper()
	if err := pipeline.HandOver(b.t.Context(), b.store, run, until); err != nil {
		b.t.Fatal(err)
	}
}

// detached makes a run of an alias that waits for a watch.
func (b *bench) detached(alias, until string) string {
	b.t.Helper()
	run := b.create(alias)
	b.handOver(run, until)
	return run
}

func (b *bench) options(owner string) Options {
	return Options{
		Supervisor: &local.Supervisor{Store: b.store, Dir: b.dir}, Store: b.store, Owner: owner, Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
		Deps: b.deps,
	}
}

// watch watches until the test or the caller ends it.
func (b *bench) watch(owner string) (end func()) {
	b.t.Helper()
	return b.run(b.options(owner))
}

func (b *bench) run(o Options) (end func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run = %v", err)
		}
	})
	b.t.Cleanup(end)
	return end
}

// await returns the head of a run as soon as it is in the given state.
func (b *bench) await(run string, state pipeline.RunState) (h pipeline.Head) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	there := errors.New("there")
	err := b.store.Watch(ctx, "run/"+run, func(d fleet.Doc) error {
		if err := json.Unmarshal(d.Body, &h); err != nil {
			return err
		}
		if h.State == state {
			return there
		}
		return nil
	})
	if !errors.Is(err, there) {
		b.t.Fatalf("run %s is %s, not %s: %v", run, h.State, state, err)
	}
	return h
}

func (b *bench) head(run string) pipeline.Head {
	b.t.Helper()
	h, err := pipeline.Read(b.t.Context(), b.store, run)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

func TestDrivesWhatIsHandedOver(t *testing.T) {
	b := newBench(t)
	mine := b.create("kept")
	before := b.detached("before", "")
	b.watch("watch-1")
	after := b.detached("after", "first")
	if h := b.await(before, pipeline.Done); len(h.Stages) != 2 {
		t.Errorf("the run that was there is %+v", h)
	}
	if h := b.await(after, pipeline.Waiting); len(h.Stages) != 1 {
		t.Errorf("the run that came later is %+v", h)
	}
	if h := b.head(mine); h.Epoch != 0 || h.State != pipeline.Stopped {
		t.Errorf("a run that was not handed over was touched: %+v", h)
	}
}

// handedTo makes a run that the watch called owner drives, or drove.
func (b *bench) handedTo(alias, owner string) string {
	b.t.Helper()
	run := b.detached(alias, "")
	if _, err := pipeline.Claim(b.t.Context(), b.deps, run, owner); err != nil {
		b.t.Fatal(err)
	}
	return run
}

func TestTakesOverFromADeadWatchOnly(t *testing.T) {
	b := newBench(t)
	orphan, taken := b.handedTo("orphan", "watch-dead"), b.handedTo("taken", "watch-alive")
	b.alive["watch-alive"] = true
	b.watch("watch-2")
	b.await(orphan, pipeline.Done)
	b.await(b.detached("later", ""), pipeline.Done)
	if h := b.head(taken); h.Owner != "watch-alive" || h.Epoch != 2 || b.times("taken/first") != 0 {
		t.Errorf("the run of a watch that is alive is %+v", h)
	}
	b.mu.Lock()
	b.alive["watch-alive"] = false
	b.mu.Unlock()
	b.await(taken, pipeline.Done)
}

func TestDoesNotDriveAgainWhatFailedOrWaits(t *testing.T) {
	b := newBench(t)
	b.when("broken/first", func(context.Context) error { return errors.New("no weights") })
	broken, waiting := b.detached("broken", ""), b.detached("waiting", "first")
	end := b.watch("watch-1")
	if h := b.await(broken, pipeline.Failed); h.Reason != "first: no weights" {
		t.Errorf("reason %q", h.Reason)
	}
	b.await(waiting, pipeline.Waiting)
	end()
	// Neither does the next one.
	b.watch("watch-2")
	b.await(b.detached("later", ""), pipeline.Done)
	if b.times("broken/first") != 1 || b.times("waiting/second") != 0 {
		t.Errorf("stages ran %v", b.ran)
	}
	// When a person says so, it goes on.
	b.when("broken/first", nil)
	b.handOver(broken, "")
	b.handOver(waiting, "")
	b.await(broken, pipeline.Done)
	b.await(waiting, pipeline.Done)
}

// A run that is taken back and handed over again while its driver has not yet
// noticed is driven again afterwards.
func TestHandedOverAgainWhileDriving(t *testing.T) {
	b := newBench(t)
	began, goOn := make(chan bool, 2), make(chan bool)
	b.when("a/first", func(context.Context) error {
		began <- true
		<-goOn
		return nil
	})
	run := b.detached("a", "")
	b.watch("watch-1")
	<-began
	if err := pipeline.TakeBack(t.Context(), b.store, run); err != nil {
		t.Fatal(err)
	}
	b.handOver(run, "")
	// Another run's end proves that the watch has seen the change.
	b.await(b.detached("later", ""), pipeline.Done)
	close(goOn)
	if h := b.await(run, pipeline.Done); h.Epoch != 5 || b.times("a/first") != 2 {
		t.Errorf("head %+v, stages ran %v", h, b.ran)
	}
}

// A watch that ends leaves its runs to the next one, at the stage they had
// reached.
func TestLeavesRunsToTheNextWatch(t *testing.T) {
	b := newBench(t)
	began := make(chan bool, 1)
	b.when("a/second", func(ctx context.Context) error {
		began <- true
		<-ctx.Done()
		return ctx.Err()
	})
	run := b.detached("a", "")
	end := b.watch("watch-1")
	<-began
	end()
	if h := b.head(run); h.State != pipeline.Stopped || h.Host != pipeline.HostWatch || h.Owner != "" {
		t.Errorf("it was left as %+v", h)
	}
	b.when("a/second", nil)
	b.watch("watch-2")
	b.await(run, pipeline.Done)
	if b.times("a/first") != 1 || b.times("a/second") != 2 {
		t.Errorf("stages ran %v", b.ran)
	}
}

func TestOneWatch(t *testing.T) {
	b := newBench(t)
	b.watch("watch-1")
	b.await(b.detached("a", ""), pipeline.Done)
	if err := Run(t.Context(), b.options("watch-2")); !errors.Is(err, local.ErrSupervised) {
		t.Errorf("a second watch: %v", err)
	}
}

// A run that cannot be opened now is driven once it can be, and a document that
// is no run stops nothing.
func TestGoesOnAfterTrouble(t *testing.T) {
	b := newBench(t)
	if _, err := b.store.Put(t.Context(), "run/garbage", []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	o := b.options("watch-1")
	full := &fullOnce{Store: o.Deps.Store}
	o.Deps.Store = full
	b.run(o)
	b.await(b.detached("a", ""), pipeline.Done)
	if !full.was.Load() {
		t.Error("the store was never full")
	}
}

// fullOnce is a store whose disk is full at the first write.
type fullOnce struct {
	fleet.Store
	was atomic.Bool
}

func (s *fullOnce) Put(ctx context.Context, name string, body []byte, ifRev uint64) (uint64, error) {
	if s.was.CompareAndSwap(false, true) {
		return 0, errors.New("disk full")
	}
	return s.Store.Put(ctx, name, body, ifRev)
}
