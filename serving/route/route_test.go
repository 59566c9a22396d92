package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func canaryLease(ppm uint32) Lease {
	return Lease{
		Intent: Intent{Splits: []Split{
			{Zone: "az1", Shares: map[string]uint32{"v1": Million - ppm, "v2": ppm}},
			{Shares: map[string]uint32{"v1": Million}},
		}},
		TTL: 45 * time.Second, Seen: "a",
	}
}

func must(t *testing.T) func(Doc, error) Doc {
	return func(d Doc, err error) Doc {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func TestTransitions(t *testing.T) {
	ok := must(t)
	d := Claim(New("freight", "", "v1"), "run-1")
	if d.Epoch != 2 || d.Run != "run-1" || d.Live() != "v1" {
		t.Fatalf("claimed: %+v", d)
	}
	g := ok(Grant(d, 2, canaryLease(100_000)))
	if g.Seq != 1 || g.Lease.Seq != 1 || g.Epoch != 2 || d.Lease != nil {
		t.Fatalf("granted: %+v", g)
	}
	r := ok(Renew(g, 2, 2, "b"))
	if r.Seq != 2 || r.Lease.Seq != 2 || r.Lease.Seen != "b" || g.Lease.Seq != 1 {
		t.Fatalf("renewed: %+v", r)
	}
	for name, err := range map[string]error{
		"old epoch":       second(Renew(r, 1, 3, "c")),
		"future epoch":    second(Renew(r, 3, 3, "c")),
		"grant, old":      second(Grant(r, 1, canaryLease(1))),
		"promote, old":    second(Promote(r, 1, "v2")),
		"after fallback":  second(Renew(Fallback(r), 2, 3, "c")),
		"after rollback":  second(Promote(ok(Rollback(r, "v1")), 2, "v2")),
		"after new claim": second(Grant(Claim(r, "run-2"), 2, canaryLease(1))),
	} {
		if !errors.Is(err, ErrFenced) {
			t.Errorf("%s: error %v, want ErrFenced", name, err)
		}
	}
	for name, err := range map[string]error{
		"same sequence":   second(Renew(r, 2, 2, "c")),
		"no evidence":     second(Renew(r, 2, 3, "")),
		"old evidence":    second(Renew(r, 2, 3, "b")),
		"granted again":   second(Grant(r, 2, Lease{Intent: r.Lease.Intent, TTL: time.Second, Seq: 2})),
		"lower after end": second(Grant(Fallback(r), 3, Lease{Intent: r.Lease.Intent, TTL: time.Second, Seq: 1})),
	} {
		if !errors.Is(err, ErrStale) {
			t.Errorf("%s: error %v, want ErrStale", name, err)
		}
	}
	if err := second(Renew(Fallback(r), 3, 3, "c")); !errors.Is(err, ErrNoLease) {
		t.Errorf("renewing nothing: %v", err)
	}
	p := ok(Promote(r, 2, "v2"))
	if p.Lease != nil || p.Live() != "v2" || p.Standby != "v1" || p.Seq != 2 {
		t.Errorf("promoted: %+v", p)
	}
	if again := ok(Promote(p, 2, "v2")); again.Standby != "v1" {
		t.Errorf("promoting what is live lost the standby: %+v", again)
	}
	b := ok(Rollback(p, ""))
	if b.Live() != "v1" || b.Standby != "" || b.Epoch != 3 {
		t.Errorf("rolled back: %+v", b)
	}
	for _, to := range []string{"", "v9"} {
		if _, err := Rollback(b, to); !errors.Is(err, ErrNoTarget) {
			t.Errorf("rollback to %q: %v", to, err)
		}
	}
}

func second(_ Doc, err error) error { return err }

func TestAt(t *testing.T) {
	d, err := Grant(New("a", "r", "v1"), 1, canaryLease(100_000))
	if err != nil {
		t.Fatal(err)
	}
	d.Lease.Floor = 2
	for _, tt := range []struct {
		age   time.Duration
		moved bool
		live  bool
	}{
		{0, true, true}, {45*time.Second - 1, true, true}, {45 * time.Second, true, false},
		{0, false, false}, {-1, true, false}, {time.Hour, true, false},
	} {
		in := d.At(tt.age, tt.moved)
		if live := in.Floor == 2 && Pick(in, "az1", "", ^uint64(0)) == "v2"; live != tt.live {
			t.Errorf("age %v, moved %v: live %v", tt.age, tt.moved, live)
		}
		if Pick(in, "az2", "", ^uint64(0)) != "v1" {
			t.Errorf("age %v: another zone is not stable", tt.age)
		}
	}
	shadow, err := Grant(New("a", "r", "v1"), 1, Lease{Intent: Intent{Mirror: map[string]uint32{"v2": 50_000}}, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	in := shadow.At(0, true)
	if Pick(in, "", "", 1) != "v1" || in.Mirror["v2"] != 50_000 {
		t.Errorf("shadow: %+v", in)
	}
	if in := shadow.At(time.Second, true); in.Mirror != nil {
		t.Errorf("mirror outlives its lease: %+v", in)
	}
}

func TestValidate(t *testing.T) {
	good := New("llama-3.1-8b", "r", "v1")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	lease := func(f func(*Lease)) func(*Doc) {
		return func(d *Doc) {
			l := canaryLease(1)
			l.Seq, d.Seq = 1, 1
			f(&l)
			d.Lease = &l
		}
	}
	for want, change := range map[string]func(*Doc){
		"alias is empty":              func(d *Doc) { d.Alias = "" },
		"has 136 bytes":               func(d *Doc) { d.Alias = strings.Repeat("a", 130) },
		"epoch is 0":                  func(d *Doc) { d.Epoch = 0 },
		"no splits":                   func(d *Doc) { d.Otherwise.Splits = nil },
		"add up to 999999":            func(d *Doc) { d.Otherwise.Splits[0].Shares["v1"]-- },
		"add up to 0":                 func(d *Doc) { d.Otherwise.Splits[0].Shares = nil },
		"without a name":              func(d *Doc) { d.Otherwise.Splits[0].Shares[""] = 0 },
		"must match every":            func(d *Doc) { d.Otherwise.Splits[0].Zone = "z" },
		"split 0: the last split":     func(d *Doc) { d.Otherwise.Splits = append(d.Otherwise.Splits, d.Otherwise.Splits[0]) },
		"mirrors 1000001":             func(d *Doc) { d.Otherwise.Mirror = map[string]uint32{"v2": Million + 1} },
		"floor 3 above ceiling 2":     func(d *Doc) { d.Otherwise.Floor, d.Otherwise.Ceiling = 3, 2 },
		`pin "x" names version ""`:    func(d *Doc) { d.Pins = map[string]string{"x": ""} },
		`"" is capped`:                func(d *Doc) { d.Caps = map[string]Caps{"": {Streams: 1}} },
		"capped at 0 streams and 0":   func(d *Doc) { d.Caps = map[string]Caps{"v1": {From: "x"}} },
		"capped at -1 streams":        func(d *Doc) { d.Caps = map[string]Caps{"v1": {Streams: -1, KVTokens: 1}} },
		"lasts 0s":                    lease(func(l *Lease) { l.TTL = 0 }),
		"lasts 1m1s":                  lease(func(l *Lease) { l.TTL = 61 * time.Second }),
		"sequence 2, the document 1":  lease(func(l *Lease) { l.Seq = 2 }),
		"lease split 1: shares add":   lease(func(l *Lease) { l.Splits[1].Shares["v1"] = 5 }),
		"lease mirrors 2000000 parts": lease(func(l *Lease) { l.Mirror = map[string]uint32{"v2": 2 * Million} }),
	} {
		d := good.clone()
		change(&d)
		err := d.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		if _, err := Encode(d); err == nil {
			t.Errorf("%q was encoded", want)
		}
	}
	// Overflow: two shares that wrap a uint32 sum to one million.
	d := good.clone()
	d.Otherwise.Splits[0].Shares = map[string]uint32{"a": 1 << 31, "b": 1<<31 + Million}
	if d.Validate() == nil {
		t.Error("shares that overflow were accepted")
	}
}

// Every sequence of six operations by two controllers and an operator, from
// every state: epochs never fall, each fenced controller stays fenced, the
// input is never changed, and the result is always a valid document.
func TestTransitionsExhaustive(t *testing.T) {
	type actor struct{ epoch uint64 }
	states, fenced := 0, 0
	var walk func(d Doc, a [2]actor, depth int)
	walk = func(d Doc, a [2]actor, depth int) {
		states++
		if err := d.Validate(); err != nil {
			t.Fatalf("invalid document: %v", err)
		}
		if !reflect.DeepEqual(d.At(0, false), d.Otherwise) || !reflect.DeepEqual(d.At(MaxTTL, true), d.Otherwise) {
			t.Fatalf("a dead lease is in force: %+v", d)
		}
		if depth == 0 {
			return
		}
		before, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		seen := fmt.Sprint(depth)
		for i := range a {
			next := a
			next[i].epoch = d.Epoch + 1
			walk(Claim(d, fmt.Sprint("run", i)), next, depth-1)
			ops := []func() (Doc, error){
				func() (Doc, error) { return Grant(d, a[i].epoch, canaryLease(uint32(depth)*1000)) },
				func() (Doc, error) { return Renew(d, a[i].epoch, d.Seq+1, seen) },
				func() (Doc, error) { return Promote(d, a[i].epoch, "v2") },
			}
			for k, op := range ops {
				n, err := op()
				switch {
				case a[i].epoch != d.Epoch:
					if !errors.Is(err, ErrFenced) {
						t.Fatalf("controller %d at epoch %d of %d, operation %d: %v", i, a[i].epoch, d.Epoch, k, err)
					}
					fenced++
				case err == nil:
					if n.Epoch != d.Epoch || n.Seq < d.Seq {
						t.Fatalf("operation %d: epoch %d to %d, seq %d to %d", k, d.Epoch, n.Epoch, d.Seq, n.Seq)
					}
					walk(n, a, depth-1)
				case k != 1 || d.Lease != nil:
					t.Fatalf("operation %d refused: %v", k, err)
				}
			}
		}
		for _, n := range []Doc{Fallback(d), second2(Rollback(d, "v1"))} {
			if n.Alias == "" {
				continue // v1 is not known here
			}
			if n.Epoch != d.Epoch+1 || n.Lease != nil || n.Seq != d.Seq {
				t.Fatalf("%+v became %+v", d, n)
			}
			walk(n, a, depth-1)
		}
		if after, _ := json.Marshal(d); string(after) != string(before) {
			t.Fatalf("a transition changed its input from %s to %s", before, after)
		}
	}
	depth := 6
	if testing.Short() {
		depth = 4
	}
	walk(New("a", "r", "v1"), [2]actor{}, depth)
	if states < 1000 || fenced < 1000 {
		t.Errorf("only %d states, %d fenced", states, fenced)
	}
}

func second2(d Doc, _ error) Doc { return d }

// Caps are a version's for as long as the document names it.
func TestCap(t *testing.T) {
	ok := must(t)
	d := ok(Cap(New("a", "r", "v1"), 1, "v1", Caps{Streams: 8, KVTokens: 1000, From: "x"}))
	if _, err := Cap(d, 2, "v1", Caps{}); !errors.Is(err, ErrFenced) {
		t.Errorf("another epoch: %v", err)
	}
	if _, err := Cap(d, 1, "v1", Caps{Streams: -1}); err == nil {
		t.Error("a cap below 0 was taken")
	}
	if e := ok(Cap(d, 1, "v1", Caps{From: "nobody"})); e.Caps["v1"] != (Caps{}) || d.Caps["v1"].Streams != 8 {
		t.Errorf("taken away: %+v, of %+v", e.Caps, d.Caps)
	}
	// Before the candidate has a share, through its canary, and as what is live.
	d = ok(Grant(ok(Cap(d, 1, "v2", Caps{KVTokens: 9})), 1, canaryLease(7)))
	p := ok(Promote(d, 1, "v2"))
	if p.Standby != "v1" || len(p.Caps) != 2 {
		t.Errorf("promoted: %+v", p)
	}
	p = ok(Promote(Claim(p, "next"), 2, "v3"))
	if p.Standby != "v2" || len(p.Caps) != 1 || p.Caps["v2"].KVTokens != 9 {
		t.Errorf("v1 is gone: %+v", p)
	}
	if f := Fallback(d); len(f.Caps) != 1 || f.Caps["v1"].Streams != 8 || len(d.Caps) != 2 {
		t.Errorf("after a fallback %+v, of %+v", f.Caps, d.Caps)
	}
	if r := ok(Rollback(p, "v2")); len(r.Caps) != 1 || r.Knows("v3") {
		t.Errorf("rolled back %+v", r)
	}
	for routers, want := range map[int]Caps{0: {9, 100, "x"}, 1: {9, 100, "x"}, 2: {5, 50, "x"}, 4: {3, 25, "x"}, 20: {1, 5, "x"}} {
		if got := (Caps{9, 100, "x"}).Part(routers); got != want {
			t.Errorf("of %d routers: %+v", routers, got)
		}
	}
	if got := (Caps{Streams: 1}).Part(3); got != (Caps{Streams: 1}) {
		t.Errorf("no bound became one: %+v", got)
	}
}

func TestNames(t *testing.T) {
	for alias, name := range map[string]string{"freight": "route/freight", "llama-3.1": "route/llama-3~2e1", "org/m:x": "route/org~2fm~3ax"} {
		if got := Name(alias); got != name {
			t.Errorf("%s: %s", alias, got)
		}
		if got, err := Alias(name); err != nil || got != alias {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, bad := range []string{"route/", "run/x", "route/a~2", "route/a~zz", "route/a~2E", "route/~61", "route/a/b"} {
		if got, err := Alias(bad); err == nil {
			t.Errorf("%q was read as %q", bad, got)
		}
	}
}

func TestCodec(t *testing.T) {
	d := New("m", "r", "v1")
	d.Pins = map[string]string{"old": "v0"}
	d, err := Grant(d, 1, canaryLease(7))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "caps") {
		t.Errorf("without caps it is another document than before: %s", b)
	}
	// As it was written before there were caps.
	old := `{"alias":"m","run":"r","epoch":3,"seq":1,"otherwise":{"splits":[{"shares":{"v1":1000000}}]},"standby":"v0"}`
	if was, err := Decode([]byte(old)); err != nil || was.Caps != nil || was.Standby != "v0" {
		t.Errorf("an old document: %+v, %v", was, err)
	}
	capped := must(t)(Cap(d, 1, "v2", Caps{Streams: 192, KVTokens: 393216, From: "size"}))
	c, err := Encode(capped)
	if err != nil || !strings.Contains(string(c), `"caps":{"v2":{"streams":192,"kv_tokens":393216,"from":"size"}}`) {
		t.Errorf("encoded as %s, %v", c, err)
	}
	if back, err := Decode(c); err != nil || !reflect.DeepEqual(back, capped) {
		t.Errorf("got %+v, %v", back, err)
	}
	if _, err := Decode([]byte(strings.Replace(string(c), `"kv_tokens"`, `"kv"`, 1))); err == nil {
		t.Error("a cap that nobody knows was accepted")
	}
	if !strings.Contains(string(b), `"ttl":"45s"`) {
		t.Errorf("encoded as %s", b)
	}
	back, err := Decode(b)
	if err != nil || !reflect.DeepEqual(back, d) {
		t.Errorf("got %+v, %v", back, err)
	}
	for _, bad := range []string{``, `{}`, `null`, string(b) + "{}", strings.Replace(string(b), `"run"`, `"rum"`, 1), strings.Replace(string(b), "45s", "45", 1), strings.Replace(string(b), `"seen"`, `"sean"`, 1)} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b, _ := Encode(New("m", "r", "v1"))
	f.Add(b)
	d, _ := Grant(New("m", "r", "v1"), 1, canaryLease(7))
	b, _ = Encode(d)
	f.Add(b)
	d, _ = Cap(d, 1, "v2", Caps{Streams: 3, KVTokens: 5, From: "x"})
	b, _ = Encode(d)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Encode(d)
		if err != nil {
			t.Fatalf("decoded and does not encode: %v", err)
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if x, _ := Encode(back); string(x) != string(again) {
			t.Fatalf("%s became %s", again, x)
		}
	})
}

func TestPick(t *testing.T) {
	shares := map[string]uint32{"v1": 900_000, "v2": 90_000, "v3": 10_000, "v4": 0}
	in := Intent{Splits: []Split{{Zone: "z", Pool: "p", Shares: map[string]uint32{"v4": Million}}, {Shares: shares}}}
	table := NewTable(shares)
	const n = 200_000
	got := map[string]int{}
	for i := range n {
		h := Hash("run", fmt.Sprint("conversation-", i))
		v := table.Pick(h)
		if v != Pick(in, "", "", h) || v != Pick(in, "z", "q", h) {
			t.Fatal("the table and the intent disagree")
		}
		if Pick(in, "z", "p", h) != "v4" {
			t.Fatal("the first matching split was not used")
		}
		got[v]++
	}
	for v, share := range shares {
		want := float64(share) / Million
		// Five standard errors of a binomial share.
		if f := float64(got[v]) / n; f < want-0.0034 || f > want+0.0034 || share == 0 && got[v] > 0 {
			t.Errorf("%s has %.4f, want %.4f", v, f, want)
		}
	}
	if allocs := testing.AllocsPerRun(100, func() { table.Pick(12345) }); allocs != 0 {
		t.Errorf("Pick allocates %v times", allocs)
	}
	if (&Table{}).Pick(1) != "" {
		t.Error("an empty table picked something")
	}
}

// Raising a candidate's share moves conversations to it and none away.
func TestPickIsNested(t *testing.T) {
	var tables []Table
	for _, s := range []uint32{10_000, 100_000, 500_000, Million} {
		tables = append(tables, NewTable(map[string]uint32{"v1": Million - s, "v2": s}))
	}
	for i := range 20_000 {
		h := Hash("r", fmt.Sprint(i))
		var got []string
		for k := range tables {
			got = append(got, tables[k].Pick(h))
		}
		if !slices.IsSorted(got) {
			t.Fatalf("conversation %d went %v", i, got)
		}
	}
}

func TestMirroredIsIndependent(t *testing.T) {
	table := NewTable(map[string]uint32{"v1": 500_000, "v2": 500_000})
	const n = 100_000
	var mirrored, both int
	for i := range n {
		h := Hash("r", fmt.Sprint(i))
		if Mirrored(100_000, h) {
			mirrored++
			if table.Pick(h) == "v2" {
				both++
			}
		}
	}
	if f := float64(mirrored) / n; f < 0.095 || f > 0.105 {
		t.Errorf("mirrored %.4f", f)
	}
	if f := float64(both) / float64(mirrored); f < 0.475 || f > 0.525 {
		t.Errorf("of these %.4f on v2", f)
	}
	if Mirrored(0, 0) || !Mirrored(Million, ^uint64(0)) {
		t.Error("a share of nothing or all is not exact")
	}
}

// Routers of different builds must agree, so these values may never change.
func TestHashGolden(t *testing.T) {
	for in, want := range map[string]uint64{
		"": 0x58b8675c495f7d4a, "a": 0xf439150ec2020ef1, "conversation-1": 0xb4db55d13dc3a393, strings.Repeat("x", 40): 0xec09e109245bf70b,
	} {
		if got := Hash("run", in); got != want {
			t.Errorf("%q: %#x", in, got)
		}
	}
}

// Flipping any input bit flips each output bit about half the time.
func TestSumAvalanche(t *testing.T) {
	for _, n := range []int{1, 8, 15, 16, 17, 40} {
		var flips [64]int
		trials := 0
		for i := range 200 {
			b := make([]byte, n)
			for k := range b {
				b[k] = byte(i*31 + k*7)
			}
			h := Sum(b)
			for bit := range n * 8 {
				b[bit/8] ^= 1 << (bit % 8)
				d := h ^ Sum(b)
				b[bit/8] ^= 1 << (bit % 8)
				for k := range flips {
					flips[k] += int(d >> k & 1)
				}
				trials++
			}
		}
		for k, f := range flips {
			if r := float64(f) / float64(trials); r < 0.4 || r > 0.6 {
				t.Errorf("%d bytes: output bit %d flips in %.3f", n, k, r)
			}
		}
	}
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{64, 32 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				Sum(in)
			}
		})
	}
}
