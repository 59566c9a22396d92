package cost

import (
	"math"
	"strings"
	"testing"
	"time"
)

func near(t *testing.T, what string, got, want, digit float64) {
	t.Helper()
	if !(math.Abs(got-want) <= digit/2*1.0001) {
		t.Errorf("%s: %v, want %v ± %v", what, got, want, digit/2)
	}
}

// The published sizing's hour at 45 % of 300 requests a second of 1,500 and 250 tokens,
// 60 % of the input cached, on 26 nodes of eight GPUs at $3.
func TestPrices(t *testing.T) {
	c := Capacity{Decode: 7797.2, Prefill: 17169.8}
	hour := Use{1, 1500, 900, 250}.Times(300 * 0.45 * 3600)
	p := c.Prices(26*8*3, hour)
	near(t, "output tokens", hour.Output/1e6, 121.5, 0.1)
	near(t, "input tokens", hour.Input/1e6, 729.0, 0.1)
	near(t, "decode share", 100*c.DecodeShare(hour), 47.8, 0.1)
	near(t, "output; the sizing rounds its share first and has 2.45", p.PerMillionOutput, 2.457, 0.001)
	near(t, "input", p.PerMillionInput, 0.45, 0.01)
	near(t, "request", p.PerRequest*1e3, 624/486.0, 1e-9)
	near(t, "all of it", p.PerMillionOutput*hour.Output/1e6+p.PerMillionInput*hour.Input/1e6, 624, 1e-6)
	if got := c.Prices(624, Use{}); got != (Price{}) {
		t.Errorf("nothing costs %+v a piece", got)
	}
}

// The second sizing's batch: 2 million documents of 3,000 and 500 tokens at 2,500 and
// 20,000 tokens/s of a GPU.
func TestBatchJob(t *testing.T) {
	d, p := Capacity{2500, 20000}.GPUHours(Use{1, 3000, 0, 500}.Times(2e6))
	near(t, "decode", d, 111.1, 0.1)
	near(t, "prefill", p, 83.3, 0.1)
	near(t, "dollars", 3*(d+p), 583, 1)
}

func TestBreakEven(t *testing.T) {
	m := Month{GPUs: 400_000, Team: 100_000, Full: Use{1e6, 400e9, 0, 100e9}, Load: 0.4}
	api := API{Input: 1, Cached: 0.1, Output: 4} // $800,000 a month at full load
	c := BreakEven(m, api)
	near(t, "self", c.Self, 500_000, 0)
	near(t, "api", c.API, 320_000, 1e-6)
	near(t, "load", c.Load, 0.625, 1e-12)
	near(t, "peak to average", c.PeakToAverage, 1.6, 1e-12)
	if c.Cheaper() {
		t.Error("$500,000 is called cheaper than $320,000")
	}
	m.Batch, m.SpotShare, m.SpotDiscount = 0.2, 0.5, 0.6
	c = BreakEven(m, api)
	near(t, "self with spot", c.Self, 400_000*0.7+100_000, 1e-6)
	near(t, "api with batch", c.API, 480_000, 1e-6)
	near(t, "load with both", c.Load, 0.475-0.2, 1e-12)
	if !c.Cheaper() {
		t.Error("$380,000 is not called cheaper than $480,000")
	}
	cached := m
	cached.Full.Cached = 400e9
	near(t, "cached input", API.Costs(api, cached.Full), 40_000+400_000, 1e-6)
	if c := BreakEven(m, API{}); c.Load <= 1 || c.PeakToAverage != 0 || c.Cheaper() {
		t.Errorf("against an API for nothing: %+v", c)
	}
}

const lines = `{"time":"2026-03-01T10:59:00Z","tenant":"ops","workload":"chat","input_tokens":1000,"cached_tokens":600,"output_tokens":100}
{"time":"2026-03-01T12:01:00+00:00","tenant":"docs","workload":"extract","adapter":"bol","input_tokens":3000,"output_tokens":500,"model":"passed over"}

{"time":"2026-03-01T12:30:00Z","tenant":"ops","workload":"chat","input_tokens":0,"cached_tokens":0,"output_tokens":0}`

func tally(t *testing.T, text string) *Tally {
	t.Helper()
	var out Tally
	if err := out.Read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestBill(t *testing.T) {
	c := Capacity{Decode: 10, Prefill: 100}
	b := tally(t, lines).Bill(24, 2, c)
	// ops takes 100/10 + 400/100 = 14 s, docs 500/10 + 3000/100 = 80 s, of 3 hours of two nodes.
	near(t, "hours", b.Hours, 3, 0)
	near(t, "dollars", b.Dollars, 72, 0)
	near(t, "busy", b.Busy, 94.0/(2*3*3600), 1e-12)
	near(t, "peak hour", b.PeakBusy, 80.0/(2*3600), 1e-12)
	near(t, "hits", b.HitShare, 600.0/4000, 1e-12)
	if len(b.Tenants) != 2 || b.Tenants[0].Name != "docs" || b.Tenants[1].Requests != 2 {
		t.Fatalf("tenants are %+v", b.Tenants)
	}
	near(t, "docs", b.Tenants[0].Dollars, 72*80.0/94, 1e-9)
	near(t, "docs, output", b.Tenants[0].Output, 500, 0)
	near(t, "docs, a million", b.Tenants[0].PerMillionOutput, 72*50.0/94/500*1e6, 1e-6)
	b.Compare(API{Input: 1, Cached: 0.5, Output: 10})
	near(t, "api", b.API, (3400+600*0.5+600*10)/1e6, 1e-12)
	near(t, "api, docs", b.Tenants[0].API, (3000+500*10)/1e6, 1e-12)
	if len(b.Adapters) != 2 || b.Adapters[0].Name != "bol" || b.Adapters[1].Name != "" {
		t.Errorf("adapters are %+v", b.Adapters)
	}
	for what, all := range map[string][]Line{"tenants": b.Tenants, "workloads": b.Workloads, "adapters": b.Adapters} {
		var sum float64
		for _, l := range all {
			sum += l.Dollars
		}
		near(t, what+" together", sum, b.Dollars, 1e-9)
	}
	if e := (&Tally{}).Bill(24, 2, c); e.Dollars != 0 || e.Hours != 0 || e.Price != (Price{}) || e.Tenants != nil {
		t.Errorf("nothing comes to %+v", e)
	}
}

func TestUsageIsRefused(t *testing.T) {
	good := `{"time":"2026-03-01T10:59:00Z","input_tokens":1,"output_tokens":1}` + "\n"
	for want, bad := range map[string]string{
		"line 2: invalid character":   "nonsense\n",
		"want numbers, or null":       `{"time":"2026-03-01T10:59:00Z","input_tokens":"1","output_tokens":1}`,
		"output_tokens is missing":    `{"time":"2026-03-01T10:59:00Z","input_tokens":1}`,
		"time is missing":             `{"input_tokens":1,"output_tokens":1}`,
		"cannot parse":                `{"time":"yesterday","input_tokens":1,"output_tokens":1}`,
		"-1 tokens":                   `{"time":"2026-03-01T10:59:00Z","input_tokens":1,"output_tokens":-1}`,
		"cached_tokens 2 is more":     `{"time":"2026-03-01T10:59:00Z","input_tokens":1,"cached_tokens":2,"output_tokens":1}`,
		"longer than":                 `{"time":"` + strings.Repeat("x", 2<<20),
		"want between 0 and 42949672": `{"time":"2026-03-01T10:59:00Z","input_tokens":1,"output_tokens":9999999999}`,
	} {
		n := 0
		var left Left
		err := left.Read(strings.NewReader(good+bad), func(Record) error { n++; return nil })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2") || n != 1 {
			t.Errorf("after %d records: %v, want %q", n, err, want)
		}
	}
	long := good[:len(good)-2] + `,"note":"` + strings.Repeat("x", 200<<10) + `"}`
	if got := tally(t, long+"\n"+good).Total.Requests; got != 2 {
		t.Errorf("%v records with a long line among them, want 2", got)
	}
}

// What nobody can bill is counted and not taken for nothing.
func TestUsageLeftOut(t *testing.T) {
	got := tally(t, lines+"\n"+`{"time":"2026-03-01T12:31:00Z","status":200,"input_tokens":null,"output_tokens":null}
{"time":"2026-03-01T12:31:00Z","status":200,"input_tokens":5,"output_tokens":null}
{"time":"2026-03-01T12:31:00Z","status":429,"input_tokens":null,"output_tokens":null}
{"time":"2026-03-01T12:31:00Z","status":499,"input_tokens":7,"output_tokens":2}
{"time":"2026-03-01T12:31:00Z","status":200,"input_tokens":7,"cached_tokens":null,"output_tokens":2}
{"time":"2026-03-01T12:3`)
	if want := (Left{Unknown: 2, Unserved: 2, Cut: 1}); got.Left != want || got.Total.Requests != 4 || got.Total.Input != 4007 {
		t.Errorf("left out %+v of %+v", got.Left, got.Total)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(lines + "\n" + `{"time":"2026-03-01T12:31:00Z","status":200,"input_tokens":null,"output_tokens":3}` + "\n{"))
	f.Add([]byte(lines))
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"time":"2026-03-01T10:59:00Z","input_tokens":1e3,"output_tokens":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var all Tally
		n := 0.0
		err := all.Left.Read(strings.NewReader(string(b)), func(r Record) error {
			if r.Cached > r.Input || r.Input < 0 || r.Output < 0 || r.Time == (time.Time{}) {
				t.Fatalf("read %+v", r)
			}
			all.Add(r)
			n++
			return nil
		})
		if err != nil && !strings.Contains(err.Error(), "line ") {
			t.Fatalf("an error without a line: %v", err)
		}
		bill := all.Bill(1, 1, Capacity{1, 1})
		if bill.Total.Requests != n || n > 0 && !(bill.Hours >= 1) {
			t.Fatalf("%v records come to %+v", n, bill)
		}
	})
}
