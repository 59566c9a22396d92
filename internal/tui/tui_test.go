package tui

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"llmops/pipeline/benchmark/load"
)

var update = flag.Bool("update", false, "write the pictures in testdata anew")

// busy is a search at its third rate.
func busy() Bench {
	b := Bench{What: "freight at http://127.0.0.1:8000/v1", Load: "poisson 20/s, chat, 64 tokens in, 12 out", Step: 3, Most: 16, Elapsed: 37 * time.Second, Length: time.Minute, Warm: 6 * time.Second,
		Sent: 1740, Done: 1729, Failed: 2, Open: 9, Answers: 20.31, Tokens: 1046.2, Keeps: "/home/somebody/.local/state/llmops/benchmarks/20261130-041005.123"}
	figure := func(p50, p95 time.Duration) Figure {
		f := Figure{N: 1729, P50: p50, P95: p95}
		for i := range 37 {
			f.Over = append(f.Over, float64(1+i*i%11))
		}
		return f
	}
	b.TTFT, b.TPOT, b.Lag = figure(4220*time.Microsecond, 112*time.Millisecond), figure(179*time.Microsecond, 412*time.Microsecond), figure(42*time.Microsecond, 1210*time.Millisecond)
	b.Opened = b.TTFT.Over
	for i := range 15 {
		b.Notes = append(b.Notes, fmt.Sprintf("%d/s: TTFT p50 4.2 p95 12 ms, TPOT p50 0.18 p95 0.41 ms, 251 tokens/s out, 100.0%% good of 64", i+1))
	}
	return b
}

func TestRender(t *testing.T) {
	warming := busy()
	warming.Step, warming.Elapsed, warming.Notes, warming.TPOT, warming.Keeps = 0, 3*time.Second, nil, Figure{}, ""
	draining := busy()
	draining.Elapsed, draining.Stop = 70*time.Second, true
	for _, c := range []struct {
		name          string
		b             Bench
		width, height int
	}{
		{"search", busy(), 80, 24},
		{"search", busy(), 120, 40},
		{"warming", warming, 80, 24},
		{"draining", draining, 80, 24},
		{"small", busy(), 40, 9},
	} {
		path := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", c.name, c.width, c.height))
		got := c.b.Render(c.width, c.height) + "\n"
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is (go test -update, if it should be)\n%s\nwant\n%s", path, got, want)
		}
	}
}

// Whatever the size, a picture stays within it.
func TestRenderFits(t *testing.T) {
	for _, b := range []Bench{{}, busy()} {
		for width := 0; width < 130; width += 7 {
			for height := range 45 {
				s := b.Render(width, height)
				lines := strings.Split(s, "\n")
				if len(lines) > max(height, 1) {
					t.Fatalf("%d lines in %d", len(lines), height)
				}
				for _, l := range lines {
					if utf8.RuneCountInString(l) > max(width, least) {
						t.Fatalf("%q is wider than %d", l, width)
					}
				}
			}
		}
	}
}

func TestMeter(t *testing.T) {
	var m Meter
	at := time.Unix(1000, 0)
	if b := m.Bench(at); b.Elapsed != 0 || b.Sent != 0 {
		t.Errorf("before anything began: %+v", b)
	}
	m.Note("earlier")
	m.Begin(Bench{Load: "constant 10/s", Length: time.Minute}, at)
	for i := range 100 { // ten a second, each of which takes a tenth of one
		due := time.Duration(i) * 100 * time.Millisecond
		m.Sent(at.Add(due))
		r := &load.Result{Stream: true, Scheduled: due, Sent: due + time.Millisecond, FirstToken: due + 50*time.Millisecond, LastToken: due + 95*time.Millisecond, End: due + 99*time.Millisecond, FirstTokens: 1, Output: 10, Count: load.CountUsage}
		if i%10 == 9 {
			r.Kind = load.KindStream
		}
		m.Closed(at.Add(r.End))
		m.Result(r, at.Add(r.End))
	}
	m.Result(&load.Result{Kind: load.KindLimit}, at.Add(10*time.Second))
	b := m.Bench(at.Add(10 * time.Second))
	near := func(d, want time.Duration) bool { return d > want*98/100 && d < want*102/100 }
	if b.Sent != 100 || b.Done != 90 || b.Failed != 11 || b.Open != 0 || b.Elapsed != 10*time.Second || b.Length != time.Minute || len(b.Notes) != 1 {
		t.Errorf("%+v", b)
	}
	if b.Answers != 9 || b.Tokens != 90 || !near(b.TTFT.P50, 50*time.Millisecond) || !near(b.TPOT.P95, 5*time.Millisecond) || !near(b.Lag.P50, time.Millisecond) || b.TTFT.N != 90 || len(b.TTFT.Over) != 10 || len(b.Opened) != 10 || b.Opened[3] != 1 {
		t.Errorf("%+v", b)
	}
	// A long run keeps as many moments as it did, each for longer.
	b = m.Bench(at.Add(time.Hour))
	if n := len(b.Opened); n < moments || n > 2*moments || b.Answers != 0 {
		t.Errorf("%d moments, %v", n, b.Answers)
	}
	m.Begin(Bench{Load: "constant 20/s"}, at.Add(time.Hour))
	m.Stop()
	if b = m.Bench(at.Add(time.Hour)); b.Sent != 0 || b.TTFT.N != 0 || b.Notes[0] != "earlier" || !b.Stop {
		t.Errorf("begun anew: %+v", b)
	}
}

func TestScreen(t *testing.T) {
	var w bytes.Buffer
	s := NewScreen(&w)
	s.Close() // nothing was shown, and nothing is given back
	for range 2 {
		if err := s.Show("a\nb"); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s.Close()
	picture := "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J"
	if want := enter + picture + picture + leave; w.String() != want {
		t.Errorf("%q, want %q", w.String(), want)
	}
}
