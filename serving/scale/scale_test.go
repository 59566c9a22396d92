package scale

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var (
	noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC) // a Wednesday
	week = [7]bool{false, true, true, true, true, true, false}
	pol  = Policy{Min: 1, Max: 10, Streams: 16, KV: 0.8, Burn: 2, Up: time.Minute, Down: 10 * time.Minute}
)

// at is a live arm of n ready replicas with so many requests each.
func at(n int, each float64) Arm {
	return Arm{Job: "m-v1", Group: "main", Role: Live, Count: n, Ready: n, Load: Load{Seen: n, Running: each * float64(n)}}
}

func with(a Arm, fn func(*Arm)) Arm { fn(&a); return a }

// quiet is the state after a whole window in which so many were wanted.
func quiet(n int) State {
	return State{Since: noon.Add(-time.Hour), Wants: []Want{{noon.Add(-time.Minute), n, float64(n)}}}
}

func TestStep(t *testing.T) {
	scheduled := pol
	scheduled.Ahead = 5 * time.Minute
	scheduled.Schedule = []Window{{Days: week, From: 12*time.Hour + 4*time.Minute, To: 18 * time.Hour, Min: 6}}
	few := pol
	few.Loads = 2
	for _, c := range []struct {
		name  string
		p     Policy
		arm   Arm
		state State
		to    int
		why   string
	}{
		{"as aimed at", pol, at(4, 16), quiet(4), 4, ""},
		{"within the slack", pol, at(4, 17), quiet(4), 4, ""},
		{"too many requests", pol, at(4, 24), State{}, 6, "24 requests a replica, 16 aimed at"},
		{"a queue counts like what runs", pol, with(at(4, 16), func(a *Arm) { a.Load.Waiting = 32 }), State{}, 6, "24 requests a replica"},
		{"the cache is full while few requests run", pol, with(at(4, 2), func(a *Arm) { a.Load.KV = 0.96 }), State{}, 5, "96% of the KV cache"},
		{"the budget burns", pol, with(at(4, 10), func(a *Arm) { a.Load.Burn = 14.4 }), State{}, 5, "burns 14.4 times"},
		{"at most double", pol, at(2, 160), State{}, 4, ""},
		{"at most max", pol, at(8, 160), State{}, 10, ""},
		{"a pause after a change", pol, at(4, 24), State{Changed: noon.Add(-30 * time.Second)}, 4, ""},
		{"idle for a window", pol, at(4, 1), quiet(1), 3, "for 10m0s no more than 1"},
		{"idle for less than a window", pol, at(4, 1), State{Since: noon.Add(-time.Minute)}, 4, ""},
		{"idle but for one moment of the window", pol, at(4, 1), quiet(4), 4, ""},
		{"idle, one replica silent", pol, with(at(4, 1), func(a *Arm) { a.Load.Seen = 3 }), quiet(1), 4, ""},
		{"idle, all silent", pol, with(at(4, 0), func(a *Arm) { a.Load.Seen = 0 }), quiet(1), 4, ""},
		{"idle, one still starting", pol, with(at(4, 1), func(a *Arm) { a.Ready, a.Load.Seen = 3, 3 }), quiet(1), 4, ""},
		{"idle, no routers heard", pol, with(at(4, 1), func(a *Arm) { a.Load.Burn = -1 }), quiet(1), 4, ""},
		{"those that start are not asked for again", pol, with(at(4, 24), func(a *Arm) { a.Count = 6 }), State{}, 6, ""},
		{"one silent, the others overrun", pol, with(at(4, 30), func(a *Arm) { a.Load.Seen = 3 }), State{}, 8, ""},
		{"a window begins when its replicas have had time to start", scheduled, at(1, 16), State{}, 2, "at least 6 from 12:04 to 18:00"},
		{"a window is no ceiling", scheduled, at(6, 32), State{}, 10, ""},
		{"the window holds an idle fleet", scheduled, at(6, 0), quiet(6), 6, ""},
		{"two start at once", few, at(4, 80), State{}, 6, "80 requests a replica"},
		{"no more while two start", few, with(at(4, 80), func(a *Arm) { a.Count = 6 }), State{}, 6, ""},
		{"one more when one has started", few, with(at(5, 80), func(a *Arm) { a.Count = 6 }), State{}, 7, ""},
		{"above max", Policy{Min: 1, Max: 3, Streams: 16, Up: time.Minute, Down: time.Minute}, at(5, 16), State{}, 4, "at most 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, acts := Step(c.p, noon, []Arm{c.arm}, false, c.state)
			to, why := c.arm.Count, ""
			for _, a := range acts {
				to, why = a.To, a.Reason
			}
			if to != c.to || !strings.Contains(why, c.why) {
				t.Errorf("to %d because %q, want %d because %q", to, why, c.to, c.why)
			}
		})
	}
}

// A standby takes over in a second only if it is there: it follows the need, and no
// idle window ends it.
func TestStandbyIsNotScaledAway(t *testing.T) {
	standby := Arm{Job: "m-v0", Group: "main", Role: Standby, Count: 1, Ready: 1}
	s := quiet(1)
	for range 100 {
		var acts []Action
		if s, acts = Step(pol, noon, []Arm{at(1, 0), standby}, false, s); len(acts) > 0 {
			t.Fatalf("%+v", acts)
		}
	}
	_, acts := Step(pol, noon, []Arm{at(5, 16), standby}, false, State{})
	if len(acts) != 1 || acts[0].Job != "m-v0" || acts[0].To != 6 {
		t.Errorf("beside five busy replicas: %+v, want 6 of the standby", acts)
	}
	standby.Count = 6
	if _, acts = Step(pol, noon, []Arm{with(at(5, 0), func(a *Arm) { a.Load.Seen = 0 }), standby}, false, quiet(1)); len(acts) > 0 {
		t.Errorf("beside what says nothing: %+v", acts)
	}
}

func TestNothingShrinksWhileARunMoves(t *testing.T) {
	arms := []Arm{at(4, 0), {Job: "m-v2", Group: "main", Count: 3, Ready: 3}, {Job: "m-v0", Group: "main", Role: Standby, Count: 4, Ready: 4}}
	if _, acts := Step(pol, noon, arms, true, quiet(1)); len(acts) > 0 {
		t.Errorf("%+v", acts)
	}
	arms[0] = at(4, 32)
	_, acts := Step(pol, noon, arms, true, State{})
	for _, a := range acts {
		if a.Job == "m-v2" || a.To < a.From {
			t.Errorf("%+v", a)
		}
	}
	if len(acts) == 0 {
		t.Error("stable does not grow under load")
	}
}

func TestSaysOnceWhatCannotBePlaced(t *testing.T) {
	a := with(at(3, 16), func(a *Arm) { a.Count, a.Waits = 4, "no node has room" })
	s, acts := Step(pol, noon, []Arm{a}, false, State{})
	if len(acts) != 1 || acts[0].To != acts[0].From || !strings.Contains(acts[0].Reason, "no node has room; llmops fleet plan") {
		t.Fatalf("%+v", acts)
	}
	if _, acts = Step(pol, noon, []Arm{a}, false, s); len(acts) > 0 {
		t.Errorf("again: %+v", acts)
	}
}

func TestWindows(t *testing.T) {
	night := Window{Days: week, From: 22 * time.Hour, To: 6 * time.Hour, Min: 2}
	for at, want := range map[string]bool{
		"2026-11-25T22:00": true, "2026-11-26T05:59": true, "2026-11-26T06:00": false, "2026-11-25T21:59": false,
		"2026-11-28T03:00": true,  // Saturday, of Friday's window
		"2026-11-28T23:00": false, // Saturday's own
		"2026-11-30T03:00": false, // Monday, of Sunday's
	} {
		now, err := time.Parse("2006-01-02T15:04", at)
		if err != nil {
			t.Fatal(err)
		}
		if night.holds(now) != want {
			t.Errorf("at %s: %v", at, !want)
		}
	}
}

func TestPolicyChecks(t *testing.T) {
	if err := pol.Check(); err != nil {
		t.Error(err)
	}
	for want, p := range map[string]Policy{
		"min is 0":              {Max: 1, KV: 1, Up: 1, Down: 1},
		"max is 1, below min 2": {Min: 2, Max: 1, KV: 1, Up: 1, Down: 1},
		"none of":               {Min: 1, Max: 1, Up: 1, Down: 1},
		"kv 80":                 {Min: 1, Max: 1, KV: 80, Up: 1, Down: 1},
		"up 0s":                 {Min: 1, Max: 1, KV: 1, Down: 1},
		"no part of a day":      {Min: 1, Max: 2, Up: 1, Down: 1, Schedule: []Window{{Days: week, From: time.Hour, To: time.Hour, Min: 2}}},
		"want 1 to max 2":       {Min: 1, Max: 2, Up: 1, Down: 1, Schedule: []Window{{Days: week, From: time.Hour, To: 2 * time.Hour, Min: 3}}},
	} {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A day of traffic whose rate rises and falls by a factor of eight, with noise and
// replicas that take two minutes to start: the fleet follows, is never far short of
// what is asked for once it has started, and does not swing.
func TestFollowsADay(t *testing.T) {
	const look = 15 * time.Second
	r := rand.New(rand.NewPCG(1, 2))
	var s State
	count, ready, starting := 1, 1, []time.Time(nil)
	turns, last, short, looks := 0, 0, 0, 0
	for at := time.Duration(0); at < day; at += look {
		now := noon.Truncate(day).Add(at)
		hour := at.Hours()
		demand := 12.0 // requests in flight
		if hour > 7 && hour < 21 {
			demand = 12 + 84*min(1, (hour-7)/3, (21-hour)/3)
		}
		demand *= 1 + 0.2*r.NormFloat64()/2
		for len(starting) > 0 && now.Sub(starting[0]) >= 2*time.Minute {
			ready, starting = ready+1, starting[1:]
		}
		a := Arm{Job: "m", Group: "main", Role: Live, Count: count, Ready: ready, Load: Load{Seen: ready, Running: demand}}
		var acts []Action
		s, acts = Step(pol, now, []Arm{a}, false, s)
		for _, act := range acts {
			dir := 1
			if act.To < act.From {
				dir = -1
				ready--
			}
			for range act.To - act.From {
				starting = append(starting, now)
			}
			if last != 0 && dir != last {
				turns++
			}
			last, count = dir, act.To
		}
		looks++
		if demand > 1.5*16*float64(ready) {
			short++
		}
	}
	if turns > 12 || short > looks/100 || count > 2 {
		t.Errorf("%d changes of direction, short in %d of %d looks, %d replicas at midnight", turns, short, looks, count)
	}
}

// Whatever comes in: bounds hold, what is silent does not shrink, arms that a run
// moves stay, and no standby is scaled away.
func FuzzStep(f *testing.F) {
	f.Add(uint64(1), uint8(4), uint8(3), uint8(4), 16.0, 0.5, 1.0)
	f.Fuzz(func(t *testing.T, seed uint64, count, seen, sb uint8, each, kv, burn float64) {
		if each != each || kv != kv || burn != burn || each < 0 || kv < 0 || each > 1e6 || kv > 1e6 {
			t.Skip()
		}
		r := rand.New(rand.NewPCG(seed, 0))
		n := int(count)%pol.Max + 1
		live := Arm{Job: "l", Role: Live, Count: n, Ready: r.IntN(n + 1), Load: Load{Running: each, KV: kv, Burn: burn}}
		live.Load.Seen = min(int(seen), live.Ready)
		arms := []Arm{live, {Job: "s", Role: Standby, Count: int(sb)%pol.Max + 1}}
		if seed%3 == 0 {
			arms = append(arms, Arm{Job: "m", Count: 1})
		}
		s := quiet(r.IntN(12))
		for i := range 3 {
			now := noon.Add(time.Duration(i) * 20 * time.Minute)
			var acts []Action
			s, acts = Step(pol, now, arms, seed%3 == 0, s)
			for _, a := range acts {
				switch {
				case a.To < 1 || a.To > pol.Max:
					t.Fatalf("%+v is out of bounds", a)
				case a.Job == "m" && a.To != a.From, a.To < a.From && len(arms) > 2:
					t.Fatalf("%+v while a run moves", a)
				case a.To < a.From && live.Load.Seen < live.Count:
					t.Fatalf("%+v of which %d of %d are seen", a, live.Load.Seen, live.Count)
				case a.To < a.From-1:
					t.Fatalf("%+v is more than one", a)
				}
			}
		}
	})
}
