package ceiling

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// repeated are n repetitions of a second each at a rate, on two threads that got a
// share of the processor time that they wanted.
func repeated(n int, rate, share float64) []sample {
	out := make([]sample, n)
	for i := range out {
		out[i] = sample{work: rate, seconds: 1, cpu: 2 * share}
	}
	return out
}

func TestJudge(t *testing.T) {
	quiet := append(repeated(4, 8, 1), sample{work: 10, seconds: 1, cpu: 2}, sample{work: 5, seconds: 1, cpu: 2})
	for _, c := range []struct {
		name    string
		samples []sample
		want    Reading
		err     string
	}{
		{"quiet", quiet, Reading{Best: 10, Median: 8, Spread: 0.2, N: 6}, ""},
		{"what was disturbed is no reading, however fast", append(repeated(3, 99, 0.89), quiet...), Reading{10, 8, 0.2, 6, 3}, ""},
		{"a busy machine", append(repeated(50, 9, 0.5), repeated(4, 9, 1)...), Reading{}, "had the cores in 50 of 54 repetitions"},
		{"nothing", nil, Reading{}, "5 undisturbed ones are wanted"},
		{"a clock that stands", append(quiet, sample{work: 1, cpu: 1}), Reading{}, "too coarse"},
		{"no work", append(quiet, sample{seconds: 1, cpu: 2}), Reading{}, "too coarse"},
	} {
		r, err := judge("products", 2, c.samples)
		if c.err == "" && (err != nil || math.Abs(r.Spread-c.want.Spread) > 1e-12 || r.Best != c.want.Best || r.Median != c.want.Median || r.N != c.want.N || r.Disturbed != c.want.Disturbed) {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "products")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// measured is of a machine of eight threads, which four fill.
func measured() *Ceilings {
	r := func(best float64) Reading { return Reading{Best: best, Median: best, N: 5} }
	return &Ceilings{
		Measured: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), Machine: Machine{Host: "a", Threads: 8, CacheBytes: 32 << 20}, BufferBytes: 256 << 20,
		One: Rates{1, r(10e9), r(12e9), r(90e9), r(80e9)}, All: Rates{8, r(40e9), r(36e9), r(600e9), r(640e9)},
	}
}

func TestReplica(t *testing.T) {
	c := measured()
	for _, w := range []struct {
		replicas     int
		bytes, flops float64
	}{{0, 12e9, 90e9}, {1, 12e9, 90e9}, {4, 10e9, 90e9}, {8, 5e9, 80e9}} {
		if b, f := c.Replica(w.replicas); b != w.bytes || f != w.flops {
			t.Errorf("one of %d replicas has %v B/s, %v FLOP/s", w.replicas, b, f)
		}
	}
	if !c.Cached(60<<20) || c.Cached(65<<20) {
		t.Error("what may be in 32 MiB of cache")
	}
	if c.Machine.CacheBytes = 0; !c.Cached(255<<20) || c.Cached(257<<20) {
		t.Error("what may be in a cache of unknown size")
	}
}

func TestWarnings(t *testing.T) {
	c := measured()
	if w := c.Warnings(); len(w) != 0 {
		t.Errorf("%q", w)
	}
	c.All.Row.Spread, c.Machine.CacheBytes = 0.3, 0
	if w := c.Warnings(); len(w) != 2 || !strings.Contains(w[0], "one row on 8 threads: the median is 30% below") || !strings.Contains(w[1], "last-level cache") {
		t.Errorf("%q", w)
	}
}

func TestKept(t *testing.T) {
	path, c := filepath.Join(t.TempDir(), "ceilings.json"), measured()
	if err := Write(path, c); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || *got != *c {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "measure again") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	good, err := json.Marshal(measured())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, c := range [][2]string{
		{`"best":10000000000`, `"best":0`}, {`"repetitions":5`, `"repetitions":4`}, {`"spread":0`, `"spread":1`}, {`"threads":8`, `"threads":0`},
		{`"host"`, `"hosts"`}, {`2026`, `0001`}, {`"median":10000000000`, `"median":10000000001`}, {`"buffer_bytes":268435456`, `"buffer_bytes":0`},
	} {
		bad := bytes.Replace(good, []byte(c[0]), []byte(c[1]), 1)
		if c[0] == `2026` {
			bad = bytes.Replace(good, []byte("2026-03-01"), []byte("0001-01-01"), 1)
		}
		if _, err := Parse(bad); err == nil {
			f.Errorf("%s for %s is read", c[1], c[0])
		}
		f.Add(bad)
	}
	f.Add(append(good, '{'))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err != nil {
			return
		}
		bytesPerSecond, flops := c.Replica(1)
		if !(bytesPerSecond > 0 && flops > 0) {
			t.Errorf("%v B/s and %v FLOP/s", bytesPerSecond, flops)
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := Parse(again); err != nil || *d != *c {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// Two dies with a cache each, which two cores share, count twice; the instruction
// cache and lower levels do not.
func TestLastLevel(t *testing.T) {
	dir := t.TempDir()
	put := func(cpu, index, level, kind, size, shared string) {
		at := filepath.Join(dir, cpu, "cache", index)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"level": level, "type": kind, "size": size, "shared_cpu_list": shared} {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, cpu := range []string{"cpu0", "cpu1", "cpu2", "cpu3"} {
		put(cpu, "index0", "1", "Data", "32K", cpu)
		put(cpu, "index1", "1", "Instruction", "32K", cpu)
		put(cpu, "index3", "3", "Unified", "16384K", []string{"0-1", "2-3"}[i/2])
	}
	if n := lastLevel(dir); n != 32<<20 {
		t.Errorf("%d bytes", n)
	}
	if n := lastLevel(t.TempDir()); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
}

func TestField(t *testing.T) {
	if v := field("processor\t: 0\nmodel name\t: AMD EPYC\n", "model name"); v != "AMD EPYC" {
		t.Errorf("%q", v)
	}
	if v := field("MemTotal:       24684096 kB\n", "MemTotal"); v != "24684096 kB" {
		t.Errorf("%q", v)
	}
	if m := ThisMachine(); m.Threads < 1 || m.Arch == "" {
		t.Errorf("%+v", m)
	}
}

// A measurement of a small buffer has all readings, or says that the machine is busy.
func TestMeasure(t *testing.T) {
	o := Options{Machine: Machine{Threads: 2}, Now: time.Unix(1, 0), BufferBytes: 8 << 20}
	c, err := Measure(t.Context(), o)
	switch {
	case err != nil && !strings.Contains(err.Error(), "other processes had the cores"):
		t.Fatal(err)
	case err == nil:
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(b); err != nil {
			t.Errorf("%v in %s", err, b)
		}
	}
	o.FreeBytes = 15 << 20
	if _, err := Measure(t.Context(), o); err == nil || !strings.Contains(err.Error(), "8 MiB, far beyond the caches, and 15 MiB are free") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o.FreeBytes = 0
	if _, err := Measure(ctx, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// What is computed is what is counted: each thread has its part of the rows, and the
// buffer is read from one end to the other.
func TestWork(t *testing.T) {
	b := newBench(4<<20, 2)
	for thread := range 2 {
		b.rows.Product(b.y, b.x, 1, 8*thread, 8*thread+8, b.room[thread])
		if got := b.y[8*thread : 8*thread+8]; slices.Min(got) != columns || slices.Max(got) != columns { // ones times ones
			t.Errorf("rows of ones are %v", got)
		}
	}
	if got := sum(b.words[:16]); got != sixteen(0x3f803f803f803f80) {
		t.Errorf("%x", got)
	}
}

// Each thread does its part once, and its processor time is counted, also where there
// are fewer processors than threads.
func TestTogether(t *testing.T) {
	const threads = 4
	var ran [threads]int
	s := together(threads, func(thread int) {
		for start := threadTime(); threadTime()-start < 1e-3; {
			ran[thread]++
		}
	})
	if slices.Min(ran[:]) == 0 || s.cpu < threads*1e-3 || s.seconds < 1e-3 {
		t.Errorf("%v in %v s of the clock and %v s of processors", ran, s.seconds, s.cpu)
	}
	if runtime.NumCPU() < threads && s.undisturbed(threads) {
		t.Errorf("%d threads had %d processors to themselves", threads, runtime.NumCPU())
	}
}

func sixteen(v uint64) (s uint64) {
	for range 16 {
		s += v
	}
	return s
}
