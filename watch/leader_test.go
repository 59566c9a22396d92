package watch

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"llmops/fleet/local"
)

// Three watches that stall, are cut off and come back at random times: never do two
// lead at once, and while one of them is well somebody does.
func TestOneLeads(t *testing.T) {
	owners := []string{"a", "b", "c"}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		type pending struct {
			at, began time.Duration
			rev       uint64
			write     lease
		}
		type actor struct {
			s       leadership
			offset  time.Duration // of its clock
			next    time.Duration
			pending *pending
		}
		var rev uint64
		var doc lease
		actors := make([]actor, len(owners))
		for i := range actors {
			actors[i].offset = time.Duration(r.Int64N(int64(time.Hour)))
		}
		led, ticks := 0, 0
		const tick = 250 * time.Millisecond
		for now := time.Duration(0); now < 10*time.Minute; now += tick {
			for i := range actors {
				a := &actors[i]
				clock := now + a.offset
				if p := a.pending; p != nil && now >= p.at {
					if p.rev == rev {
						rev, doc = rev+1, p.write
						a.s = a.s.wrote(rev, doc, p.began)
					} else {
						a.s.leads = false
					}
					a.pending = nil
				}
				if a.pending != nil || now < a.next {
					continue
				}
				a.next = now + leadEvery
				if r.IntN(20) == 0 {
					a.next = now + time.Duration(r.Int64N(int64(2*leadTTL))) // it stalls
				}
				var write *lease
				a.s, write = a.s.step(owners[i], rev, doc, clock)
				if write != nil {
					delay := time.Duration(r.Int64N(int64(time.Second)))
					if r.IntN(10) == 0 {
						delay = time.Duration(r.Int64N(int64(2 * leadTTL))) // the store does
					}
					a.pending = &pending{now + delay, clock, rev, *write}
				}
			}
			leaders := 0
			for _, a := range actors {
				if a.s.holds(now + a.offset) {
					leaders++
				}
			}
			if leaders > 1 {
				t.Fatalf("seed %d: at %v %d lead", seed, now, leaders)
			}
			led += leaders
			ticks++
		}
		if led < ticks/2 {
			t.Errorf("seed %d: somebody led in %d of %d looks", seed, led, ticks)
		}
	}
}

func TestLeaderResigns(t *testing.T) {
	store, err := local.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	a, b := newLeader(store, "a", log), newLeader(store, "b", log)
	sa, err := a.once(t.Context(), leadership{})
	if err != nil || !sa.leads {
		t.Fatalf("%+v, %v", sa, err)
	}
	a.until.Store(int64(sa.began + leadTTL))
	sb, err := b.once(t.Context(), leadership{})
	if err != nil || sb.leads {
		t.Fatalf("beside a leader: %+v, %v", sb, err)
	}
	b.resign(t.Context()) // who does not lead takes nothing away
	a.resign(t.Context())
	if sb, err = b.once(t.Context(), sb); err != nil || !sb.leads {
		t.Errorf("after it resigned: %+v, %v", sb, err)
	}
}
