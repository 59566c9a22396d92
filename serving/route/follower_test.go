package route

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"llmops/evidence"
)

const ttl = 45 * time.Second

func granted(t testing.TB, seqs int) Doc {
	d, err := Grant(New("a", "r", "v1"), 1, canaryLease(Million))
	for i := 0; err == nil && i < seqs; i++ {
		d, err = Renew(d, 1, d.Seq+1, d.Lease.Seen+"x")
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFollowerStart(t *testing.T) {
	var f Follower
	d := granted(t, 0)
	f.Read(1*time.Second, 10, &d)
	if _, leased := f.At(1 * time.Second); leased {
		t.Fatal("leased weights are live after the first read")
	}
	f.Read(6*time.Second, 10, &d)
	if _, leased := f.At(6 * time.Second); leased {
		t.Fatal("leased weights are live though nothing moved")
	}
	r := granted(t, 1)
	f.Read(11*time.Second, 11, &r)
	until, ok := f.Until()
	if in, leased := f.At(11 * time.Second); !leased || Pick(in, "az1", "", 0) != "v2" {
		t.Fatal("a renewal that moved did not make the lease live")
	}
	// The renewal may have come right after the read at 6 s.
	if !ok || until != 6*time.Second+ttl {
		t.Errorf("the lease ends at %v", until)
	}
	if _, leased := f.At(until - 1); !leased {
		t.Error("the lease ended early")
	}
	if in, leased := f.At(until); leased || Pick(in, "az1", "", 0) != "v1" {
		t.Error("the lease outlived its time")
	}
}

func TestFollowerNewAlias(t *testing.T) {
	var f Follower
	f.Read(0, 0, nil)
	d := granted(t, 0)
	f.Read(5*time.Second, 3, &d)
	if _, leased := f.At(5 * time.Second); !leased {
		t.Error("a lease granted before our eyes is not live")
	}
	f.Read(6*time.Second, 4, nil)
	if _, _, ok := f.Doc(); ok {
		t.Error("a deleted document is still in force")
	}
	f.Read(7*time.Second, 5, &d)
	if _, leased := f.At(7 * time.Second); !leased {
		t.Error("a document made anew before our eyes is not live")
	}
}

// A read under way while the process stood still revives nothing, nor does
// the first read after it.
func TestFollowerPaused(t *testing.T) {
	var f Follower
	docs := []Doc{granted(t, 0), granted(t, 1), granted(t, 2), granted(t, 3)}
	f.Read(0, 1, &docs[0])
	f.Read(5*time.Second, 2, &docs[1])
	now := 10*time.Minute + 5*time.Second
	f.Read(10*time.Second, 3, &docs[2]) // began before the pause, answered after it
	if _, leased := f.At(now); leased {
		t.Error("a read from before the pause revived the lease")
	}
	f.Read(now, 4, &docs[3])
	if _, leased := f.At(now); leased {
		t.Error("the first read after the pause revived the lease: its renewal may be ten minutes old")
	}
	next := granted(t, 4)
	f.Read(now+5*time.Second, 5, &next)
	if _, leased := f.At(now + 5*time.Second); !leased {
		t.Error("a renewal seen to move after the pause did not")
	}
}

func TestFollowerPush(t *testing.T) {
	var f Follower
	d0, d1 := granted(t, 0), granted(t, 1)
	f.Read(0, 1, &d0)
	f.Read(5*time.Second, 2, &d1)
	until, _ := f.Until()

	d2 := granted(t, 2)
	if changed, err := f.Push(20*time.Second, 3, d2); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if u, ok := f.Until(); !ok || u != until {
		t.Errorf("a push moved the lease's end from %v to %v", until, u)
	}
	if changed, err := f.Push(20*time.Second, 3, d2); changed || err != nil {
		t.Errorf("the same revision again: %v, %v", changed, err)
	}
	back := Fallback(d2)
	if changed, err := f.Push(21*time.Second, 4, back); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if _, leased := f.At(21 * time.Second); leased {
		t.Error("a pushed fallback is not in force")
	}
	if _, err := f.Push(22*time.Second, 5, d2); !errors.Is(err, ErrFenced) {
		t.Errorf("a lower epoch: %v", err)
	}
	// A new grant under the new epoch is not live until our own read shows it.
	g, err := Grant(back, back.Epoch, canaryLease(Million))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Push(22*time.Second, 6, g); err != nil {
		t.Fatal(err)
	}
	if _, leased := f.At(22 * time.Second); leased {
		t.Error("a pushed grant is live without a read")
	}
	// A read that began before the push and missed it does not undo it.
	f.Read(21*time.Second, 4, &back)
	if _, rev, _ := f.Doc(); rev != 6 {
		t.Errorf("revision %d in force", rev)
	}
	f.Read(23*time.Second, 6, &g)
	if _, leased := f.At(23 * time.Second); !leased {
		t.Error("the read that shows the grant did not make it live")
	}
	// A pushed revision that the store never had is undone by a later read.
	if _, err := f.Push(24*time.Second, 1<<60, Fallback(g)); err != nil {
		t.Fatal(err)
	}
	f.Read(25*time.Second, 6, &g)
	if _, rev, _ := f.Doc(); rev != 6 {
		t.Errorf("revision %d in force after the store disagreed", rev)
	}
}

// Caps are no lease: they hold as soon as they are known, read or pushed, and end with
// the document that has them.
func TestFollowerCaps(t *testing.T) {
	var f Follower
	d := granted(t, 0)
	f.Read(0, 1, &d)
	capped, err := Cap(d, 1, "v2", Caps{Streams: 4})
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := f.Push(time.Second, 2, capped); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if got, _, _ := f.Doc(); got.Caps["v2"].Streams != 4 {
		t.Errorf("pushed: %+v", got.Caps)
	}
	if _, leased := f.At(time.Second); leased {
		t.Error("caps made a lease live")
	}
	f.Read(2*time.Second, 2, &capped)
	back := Fallback(capped)
	if _, err := f.Push(3*time.Second, 3, back); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := f.Doc(); got.Caps != nil {
		t.Errorf("after the fallback: %+v", got.Caps)
	}
	if _, err := f.Push(4*time.Second, 4, capped); !errors.Is(err, ErrFenced) {
		t.Errorf("caps of a lower epoch: %v", err)
	}
}

func TestFollowerClaim(t *testing.T) {
	var f Follower
	d0, d1 := granted(t, 0), granted(t, 1)
	f.Read(0, 1, &d0)
	f.Read(5*time.Second, 2, &d1)
	until, _ := f.Until()
	c := Claim(d1, "other")
	f.Read(10*time.Second, 3, &c)
	if u, ok := f.Until(); !ok || u != until {
		t.Errorf("a claim moved the end from %v to %v, %v", until, u, ok)
	}
}

// Every sequence of events between a store, its controller and a router, with
// the truth beside it: leased weights are live only while the last grant or
// renewal is younger than the lease, only after the sequence moved under this
// router's eyes, and never once a fallback is known to it.
func TestFollowerExhaustive(t *testing.T) {
	const step = 20 * time.Second // the lease is 45 s: dead on the third step
	type world struct {
		now     time.Duration
		doc     Doc
		rev     uint64
		renewed time.Duration // when the lease was last granted or renewed
		f       Follower
		boot    uint64 // sequence at the router's first read since its start
		began   bool
		flight  bool // a read is under way
		readAt  time.Duration
		readDoc Doc
		readRev uint64
	}
	live, states := 0, 0
	check := func(w *world, trail []byte) {
		states++
		in, leased := w.f.At(w.now)
		if got := Pick(in, "az1", "", 0) == "v2"; got != leased && len(in.Splits) > 0 {
			t.Fatalf("%s: leased %v, candidate %v", trail, leased, got)
		}
		if !leased {
			return
		}
		live++
		d, _, _ := w.f.Doc()
		switch {
		case w.now-w.renewed >= ttl && w.doc.Lease != nil && w.doc.Seq == d.Seq:
			t.Fatalf("%s: live %v after the last renewal", trail, w.now-w.renewed)
		case !w.began || d.Seq <= w.boot:
			t.Fatalf("%s: live without a renewal seen to move", trail)
		case d.Lease == nil:
			t.Fatalf("%s: live without a lease", trail)
		}
	}
	var walk func(w world, depth int, trail []byte)
	walk = func(w world, depth int, trail []byte) {
		check(&w, trail)
		if depth == 0 {
			return
		}
		for _, ev := range []byte("tgrfcRbap") {
			n := w
			switch ev {
			case 't':
				n.now += step
			case 'g':
				d, err := Grant(w.doc, w.doc.Epoch, canaryLease(Million))
				if err != nil {
					t.Fatal(err)
				}
				n.doc, n.renewed = d, w.now
				n.rev++
			case 'r':
				if w.doc.Lease == nil {
					continue
				}
				d, err := Renew(w.doc, w.doc.Epoch, w.doc.Seq+1, w.doc.Lease.Seen+"x")
				if err != nil {
					t.Fatal(err)
				}
				n.doc, n.renewed = d, w.now
				n.rev++
			case 'f':
				if w.doc.Lease == nil {
					continue
				}
				n.doc = Fallback(w.doc)
				n.rev++
			case 'c':
				n.doc = Claim(w.doc, "x")
				n.rev++
			case 'R': // the router restarts
				if !w.began {
					continue
				}
				n.f, n.began, n.flight = Follower{}, false, false
			case 'b': // a read begins, and is answered from what is there now
				if w.flight {
					continue
				}
				n.flight, n.readAt, n.readDoc, n.readRev = true, w.now, w.doc, w.rev
			case 'a': // its answer arrives
				if !w.flight {
					continue
				}
				n.flight = false
				d := w.readDoc
				n.f.Read(w.readAt, w.readRev, &d)
				if !n.began {
					n.began, n.boot = true, d.Seq
				}
			case 'p':
				if _, err := n.f.Push(w.now, w.rev, w.doc); err != nil {
					t.Fatal(err)
				}
			}
			walk(n, depth-1, append(trail, ev))
		}
	}
	depth := 8
	if testing.Short() {
		depth = 6
	}
	walk(world{doc: New("a", "r", "v1"), rev: 1}, depth, nil)
	if live < 1000 {
		t.Errorf("the lease was live in only %d of %d states", live, states)
	}
}

func TestLatencyOver(t *testing.T) {
	var l Latency
	l.Seen.Add(100 * time.Millisecond)
	l.Seen.Add(time.Second)
	l.Gave.Add(time.Second)         // left after a second: slow
	l.Gave.Add(time.Millisecond)    // left at once: says nothing
	l.Waiting.Add(2 * time.Second)  // still waiting: slow
	l.Waiting.Add(time.Millisecond) // too early to say
	over, n, edge := l.Over(400 * time.Millisecond)
	if over != 3 || n != 4 || edge != 400*time.Millisecond {
		t.Errorf("%d of %d over %v", over, n, edge)
	}
	// The waiting ones end: one at 3 s, one in time. The difference counts
	// only what was not decided before.
	later := l
	later.Waiting = evidence.Histogram{}
	later.Seen.Add(3 * time.Second)
	later.Seen.Add(10 * time.Millisecond)
	d := later.since(l)
	if over, n, _ := d.Over(400 * time.Millisecond); over != 0 || n != 1 {
		t.Errorf("difference: %d of %d", over, n)
	}
	d2 := later.since(Latency{})
	if over, n, _ := d2.Over(400 * time.Millisecond); over != 3 || n != 5 {
		t.Errorf("from nothing: %d of %d", over, n)
	}
}

func TestReportSinceAndShare(t *testing.T) {
	var a Counters
	a.Strata[0] = Stratum{Chosen: 9, Done: 8, Errors: 1, OutputTokens: 50, Counted: 8}
	a.Strata[2] = Stratum{Chosen: 1, Cancelled: 1}
	old := Report{Boot: "1", Versions: map[string]Counters{"v1": a}}
	b := a
	b.Strata[0].Chosen, b.Strata[0].Done = 12, 11
	now := Report{Boot: "1", Versions: map[string]Counters{"v1": b, "v2": a}}
	d := now.Since(old)
	if got := d.Versions["v1"].Total(); got.Chosen != 3 || got.Done != 3 || got.Errors != 0 || got.Cancelled != 0 {
		t.Errorf("difference %+v", got)
	}
	if got := d.Versions["v2"].Total(); got.Chosen != 10 {
		t.Errorf("a version that is new: %+v", got)
	}
	now.Boot = "2"
	if got := now.Since(old).Versions["v1"].Total(); got.Chosen != 13 {
		t.Errorf("after a restart: %+v", got)
	}
	if s, ok := now.Share("v2"); !ok || s != 10.0/23 {
		t.Errorf("share %v, %v", s, ok)
	}
	if _, ok := (Report{}).Share("v1"); ok {
		t.Error("an empty report has a share")
	}
	var sum Counters
	sum.Merge(&a)
	sum.Merge(&b)
	if got := sum.Total(); got.Chosen != 23 || got.OutputTokens != 100 {
		t.Errorf("merged %+v", got)
	}
	for n, want := range map[int]int{0: 0, 512: 0, 513: 1, 4096: 1, 4097: 2} {
		if StratumOf(n) != want {
			t.Errorf("%d tokens are in stratum %d", n, StratumOf(n))
		}
	}
}

func TestAdmin(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /route/{alias}", func(w http.ResponseWriter, r *http.Request) {
		var p Push
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			t.Error(err)
		}
		d, err := Decode(p.Doc)
		if err != nil || d.Alias != r.PathValue("alias") {
			t.Errorf("%q: %+v, %v", r.PathValue("alias"), d, err)
		}
		if p.Rev == 1 {
			http.Error(w, "fenced", http.StatusConflict)
			return
		}
		json.NewEncoder(w).Encode(State{Rev: p.Rev, Shares: map[string]uint32{"v1": Million}})
	})
	mux.HandleFunc("GET /report/{alias}", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(Report{Router: r.PathValue("alias")})
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	a := &Admin{Base: srv.URL + "/"}
	d := New("org/llama 3.1", "r", "v1")
	if s, err := a.Push(t.Context(), 7, d); err != nil || s.Rev != 7 || s.Shares["v1"] != Million {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := a.Push(t.Context(), 1, d); !errors.Is(err, ErrFenced) {
		t.Errorf("error %v", err)
	}
	if r, err := a.Report(t.Context(), "org/llama 3.1"); err != nil || r.Router != "org/llama 3.1" {
		t.Errorf("%+v, %v", r, err)
	}
	var ae *AdminError
	if _, err := a.State(t.Context(), "x"); !errors.As(err, &ae) || ae.Status != 405 {
		t.Errorf("error %v", err)
	}
}

func TestFollowerOvertaken(t *testing.T) {
	var f Follower
	d0, d1 := granted(t, 0), granted(t, 1)
	f.Read(0, 1, &d0)
	f.Read(10*time.Second, 2, &d1)
	// The answer to an earlier read arrives after that of a later one.
	if f.Read(5*time.Second, 1, &d0) {
		t.Error("an overtaken answer changed what is in force")
	}
	if _, rev, _ := f.Doc(); rev != 2 {
		t.Errorf("revision %d in force", rev)
	}
	if _, leased := f.At(10 * time.Second); !leased {
		t.Error("an overtaken answer ended the lease")
	}
}
