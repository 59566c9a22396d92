package router

import (
	"fmt"
	"testing"
	"time"

	"llmops/serving/route"
)

// fleetOf is a view of one alias with n replicas of each version, all up.
func fleetOf(streams, n int, doc route.Doc, until time.Duration) (*View, map[string][]*Replica) {
	by := map[string][]*Replica{}
	var all []*Replica
	for _, v := range doc.Versions() {
		for i := range n {
			m := NewReplica(fmt.Sprintf("%s-%d", v, i), "", doc.Alias, v)
			m.SetHealth(Up)
			by[v] = append(by[v], m)
			all = append(all, m)
		}
	}
	return NewView("az1", "", streams, []Route{{Doc: doc, Until: until}}, all), by
}

func leased(t testing.TB, ppm uint32) route.Doc {
	d, err := route.Grant(route.New("m", "run", "v1"), 1, route.Lease{
		Intent: route.Intent{Splits: []route.Split{{Shares: map[string]uint32{"v1": route.Million - ppm, "v2": ppm}}}}, TTL: 45 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestVersionFollowsTheLease(t *testing.T) {
	v, _ := fleetOf(0, 1, leased(t, route.Million), 30*time.Second)
	for now, want := range map[time.Duration]string{0: "v2", 30*time.Second - 1: "v2", 30 * time.Second: "v1", time.Hour: "v1"} {
		for c := range uint64(100) {
			if got, _ := v.Version(now, &Request{Alias: "m", Conversation: c}); got != want {
				t.Fatalf("at %v: %s, want %s", now, got, want)
			}
		}
	}
	if got, _ := v.Version(0, &Request{Alias: "m", Pin: "v1"}); got != "v1" {
		t.Errorf("pinned to v1, got %s", got)
	}
	if got, _ := v.Version(0, &Request{Alias: "x"}); got != "" {
		t.Errorf("an unknown alias got %s", got)
	}
}

func TestChoose(t *testing.T) {
	v, by := fleetOf(10, 4, route.New("m", "run", "v1"), 0)
	r := &Request{Alias: "m", Prefix: 42}
	home, _ := Choose(v, r, "v1")
	if again, _ := Choose(v, r, "v1"); again.Replica != home.Replica {
		t.Error("the same prefix went elsewhere")
	}
	home.Replica.streams = 2
	if d, _ := Choose(v, r, "v1"); d.Replica != home.Replica {
		t.Error("two streams more drove the prefix away")
	}
	home.Replica.streams = 3
	if d, _ := Choose(v, r, "v1"); d.Replica == home.Replica {
		t.Error("a busy home kept the prefix")
	}
	home.Replica.streams = 0
	r.Avoid = home.Replica
	if d, _ := Choose(v, r, "v1"); d.Replica == nil || d.Replica == home.Replica {
		t.Error("the replica to avoid was chosen")
	}
	r.Avoid = nil

	homes := map[*Replica]int{}
	for p := range uint64(4000) {
		d, _ := Choose(v, &Request{Alias: "m", Prefix: p * 7919}, "v1")
		homes[d.Replica]++
	}
	for m, n := range homes {
		if n < 850 || n > 1150 {
			t.Errorf("%s is home to %d of 4000 prefixes", m.ID, n)
		}
	}

	for _, m := range by["v1"] {
		m.streams = 10
	}
	if d, full := Choose(v, r, "v1"); d.Replica != nil || !full {
		t.Error("a full version took a request")
	}
	by["v1"][2].streams = 9
	if d, _ := Choose(v, r, "v1"); d.Replica != by["v1"][2] {
		t.Error("the only replica with room was not chosen")
	}
	// Suspects serve only when nobody is up; Down never.
	by["v1"][2].SetHealth(Suspect)
	by["v1"][3].SetHealth(Down)
	by["v1"][3].streams = 0
	if d, full := Choose(v, r, "v1"); d.Replica != nil || !full {
		t.Error("a suspect was taken though healthy replicas exist")
	}
	for _, m := range by["v1"][:2] {
		m.SetHealth(Down)
	}
	if d, _ := Choose(v, r, "v1"); d.Replica != by["v1"][2] {
		t.Error("the suspect was not taken as the last resort")
	}
	by["v1"][2].SetHealth(Down)
	if d, full := Choose(v, r, "v1"); d.Replica != nil || full {
		t.Error("a dead version has room or is full")
	}
}

// One hot prefix does not make one hot replica.
func TestChooseSpreadsAHotPrefix(t *testing.T) {
	v, by := fleetOf(0, 8, route.New("m", "run", "v1"), 0)
	g := Gate{Queue: 1}
	for i := range 400 {
		if rej := g.Arrive(time.Duration(i), &Request{Alias: "m", Prefix: 1}); rej != nil {
			t.Fatal(rej)
		}
		if _, d, ok := g.Next(time.Duration(i), v); !ok || d.Replica == nil {
			t.Fatal("not chosen")
		}
	}
	most := 0
	for _, m := range by["v1"] {
		most = max(most, m.streams)
	}
	if spot := float64(most) * 8 / 400; spot > 1.5 {
		t.Errorf("hot spot %.2f", spot)
	}
}

func TestChoiceDoesNotAllocate(t *testing.T) {
	v, _ := fleetOf(0, 64, leased(t, 500_000), time.Hour)
	g := Gate{Queue: 4}
	r := &Request{Alias: "m", Conversation: 1, Prefix: 2}
	if n := testing.AllocsPerRun(100, func() {
		version, _ := v.Version(1, r)
		Choose(v, r, version)
	}); n != 0 {
		t.Errorf("Choose allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		g.Arrive(1, r)
		_, d, _ := g.Next(1, v)
		g.Done(2, d, Usage{1, 1})
	}); n > 1 { // the queue's slice moves on
		t.Errorf("a pass through the gate allocates %v times", n)
	}
}

func TestGate(t *testing.T) {
	v, by := fleetOf(1, 1, leased(t, 500_000), time.Hour)
	g := Gate{Queue: 4}
	// Conversations by the version they fall to.
	conv := map[string][]uint64{}
	for c := uint64(0); len(conv["v1"]) < 5 || len(conv["v2"]) < 5; c++ {
		version, _ := v.Version(0, &Request{Alias: "m", Conversation: c})
		conv[version] = append(conv[version], c)
	}
	arrive := func(now time.Duration, version string, i int) *Request {
		r := &Request{Alias: "m", Conversation: conv[version][i]}
		if rej := g.Arrive(now, r); rej != nil {
			t.Fatalf("rejected: %+v", rej)
		}
		return r
	}
	a := arrive(1, "v1", 0)
	r, da, ok := g.Next(1, v)
	if !ok || r != a || da.Version != "v1" || by["v1"][0].streams != 1 || da.At != 1 {
		t.Fatalf("%+v %v", da, ok)
	}
	b, c := arrive(2, "v1", 1), arrive(3, "v1", 2)
	x := arrive(4, "v2", 0)
	// v1 is full, but nobody waits behind it who need not.
	if r, d, ok := g.Next(4, v); !ok || r != x || d.Version != "v2" {
		t.Fatalf("%+v %v", d, ok)
	}
	if _, _, ok := g.Next(4, v); ok {
		t.Fatal("a full version took another")
	}
	if !g.Cancel(b) || g.Cancel(b) || g.Cancel(a) || g.Waiting() != 1 {
		t.Error("cancelling")
	}
	g.Done(10, da, Usage{5, 6})
	if r, d, ok := g.Next(10, v); !ok || r != c || d.Replica != by["v1"][0] {
		t.Fatalf("%+v %v", d, ok)
	}
	if g.Served != (Usage{5, 6}) {
		t.Errorf("served %+v", g.Served)
	}
	for i := range 4 {
		arrive(11, "v1", i)
	}
	rej := g.Arrive(12, &Request{Alias: "m"})
	if rej == nil || rej.Status != 429 || rej.RetryAfter < time.Second || rej.Reason != "queue_full" {
		t.Fatalf("%+v", rej)
	}
	// First come, first served.
	order := []*Request{}
	for range 4 {
		g.Done(20, Decision{Replica: by["v1"][0]}, Usage{})
		r, _, ok := g.Next(20, v)
		if !ok {
			t.Fatal("no one was let in")
		}
		order = append(order, r)
	}
	for i, r := range order {
		if r.Conversation != conv["v1"][i] {
			t.Errorf("place %d went to %d", i, r.Conversation)
		}
	}
	// A version without a replica answers at once.
	by["v1"][0].SetHealth(Down)
	dead := arrive(30, "v1", 0)
	if r, d, ok := g.Next(30, v); !ok || r != dead || d.Replica != nil || d.Version != "v1" {
		t.Errorf("%+v %v", d, ok)
	}
	if d, ok := g.Take(31, v, dead, "v1"); ok {
		t.Errorf("took %+v", d)
	}
}

// A request that waited is given to the version that holds when it is chosen,
// not to the one that held when it came.
func TestGateChoosesLate(t *testing.T) {
	v, by := fleetOf(1, 1, leased(t, route.Million), 100)
	g := Gate{Queue: 4}
	first, second := &Request{Alias: "m"}, &Request{Alias: "m"}
	g.Arrive(1, first)
	_, d, _ := g.Next(1, v)
	if d.Version != "v2" {
		t.Fatalf("%+v", d)
	}
	g.Arrive(2, second)
	if _, _, ok := g.Next(2, v); ok {
		t.Fatal("two streams on one replica")
	}
	g.Done(100, d, Usage{})
	if _, d, ok := g.Next(100, v); !ok || d.Version != "v1" || d.Replica != by["v1"][0] {
		t.Errorf("after the lease's end: %+v", d)
	}
}

func TestRetryAfter(t *testing.T) {
	_, by := fleetOf(1, 1, route.New("m", "r", "v1"), 0)
	g := Gate{Queue: 100}
	if got := g.RetryAfter(0); got != time.Second {
		t.Errorf("knowing nothing: %v", got)
	}
	for i := range 10 {
		by["v1"][0].streams++
		g.Done(time.Duration(i)*time.Second, Decision{Replica: by["v1"][0]}, Usage{})
	}
	for range 5 {
		g.Arrive(10*time.Second, &Request{Alias: "m"})
	}
	// Ten requests in ten seconds, five in front: six seconds.
	if got := g.RetryAfter(10 * time.Second); got != 6*time.Second {
		t.Errorf("got %v", got)
	}
	// At a standstill the estimate grows, up to a minute.
	if got := g.RetryAfter(40 * time.Second); got != 24*time.Second {
		t.Errorf("at a standstill %v", got)
	}
	if got := g.RetryAfter(time.Hour); got != time.Minute {
		t.Errorf("at most %v", got)
	}
}

// Every arrival is decided, cancelled or rejected, and all streams come back,
// over a long random run.
func TestGateBalances(t *testing.T) {
	v, by := fleetOf(3, 2, leased(t, 300_000), 5000)
	g := Gate{Queue: 8}
	var flying []Decision
	var waiting []*Request
	seed := uint64(1)
	rnd := func(n uint64) uint64 { seed = route.Mix(seed, 7); return seed % n }
	arrived, rejected, cancelled, decided := 0, 0, 0, 0
	for now := range time.Duration(20_000) {
		switch rnd(5) {
		case 0, 1:
			arrived++
			r := &Request{Alias: "m", Conversation: rnd(1 << 40), Prefix: rnd(50)}
			if g.Arrive(now, r) != nil {
				rejected++
			} else {
				waiting = append(waiting, r)
			}
		case 2, 3:
			if len(flying) > 0 {
				i := rnd(uint64(len(flying)))
				g.Done(now, flying[i], Usage{})
				flying = append(flying[:i], flying[i+1:]...)
			}
		case 4:
			if len(waiting) > 0 && g.Cancel(waiting[rnd(uint64(len(waiting)))]) {
				cancelled++
			}
		}
		for {
			r, d, ok := g.Next(now, v)
			if !ok {
				break
			}
			decided++
			if d.Replica == nil || d.Replica.streams > 3 || now >= 5000 && d.Version != "v1" {
				t.Fatalf("at %d: %+v for %+v", now, d, r)
			}
			flying = append(flying, d)
		}
	}
	if arrived != rejected+cancelled+decided+g.Waiting() {
		t.Errorf("%d arrived, %d rejected, %d cancelled, %d decided, %d waiting", arrived, rejected, cancelled, decided, g.Waiting())
	}
	for _, d := range flying {
		g.Done(20_000, d, Usage{})
	}
	for _, ms := range by {
		for _, m := range ms {
			if m.streams != 0 {
				t.Errorf("%s still has %d streams", m.ID, m.streams)
			}
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	v, _ := fleetOf(0, 64, leased(b, 500_000), time.Hour)
	r := &Request{Alias: "m", Conversation: 1, Prefix: 2}
	b.ReportAllocs()
	for b.Loop() {
		version, _ := v.Version(1, r)
		Choose(v, r, version)
	}
}
