package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var full = Record{
	Time: time.Date(2026, 3, 1, 12, 0, 1, 500_000_000, time.UTC), Arrived: time.Date(2026, 3, 1, 12, 0, 0, 250_000, time.UTC),
	Tenant: "ops", Workload: `a "b"` + "\n\u00fc", Session: "00ff", Model: "freight", Adapter: "bol", Version: "v1", Endpoint: "/v1/chat/completions", Stream: true, Status: 200,
	Input: 300, Cached: 0, Output: 12, Chunks: 11, Queued: 1500 * time.Microsecond, TTFT: 20 * time.Millisecond, Took: 1499750 * time.Microsecond,
	PromptBytes: 1100, Blocks: []uint64{1<<52 - 1, 7},
}

func TestRecordIsALine(t *testing.T) {
	unknown := full
	unknown.Input, unknown.Cached, unknown.Output, unknown.Blocks, unknown.PromptBytes, unknown.Status = Unknown, Unknown, Unknown, nil, 12, Gone
	for _, want := range []Record{full, unknown} {
		b := want.Append(nil)
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n%+v, %v", b, got, err)
		}
		var all map[string]any
		if err := json.Unmarshal(b, &all); err != nil {
			t.Fatal(err)
		}
		if v, ok := all["output_tokens"]; !ok || want.Output == Unknown && v != nil {
			t.Errorf("unknown tokens are written as %v", v)
		}
	}
	b := make([]byte, 0, 4096)
	plain := full
	plain.Workload = "chat"
	if n := testing.AllocsPerRun(100, func() { b = plain.Append(b[:0]) }); n != 0 {
		t.Errorf("a record takes %v allocations", n)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`"arrived":"2026-03-01T12:00:00.000250Z"`, `"x":1`, "time or arrived is missing"},
		{`"time":"2026-03-01T12:00:01`, `"time":"2026-03-01T11:00:01`, "before it arrived"},
		{`"arrived":"2026`, `"arrived":"1826`, "which no router saw"},
		{`"status":200`, `"status":0`, "status is 0"},
		{`"block_bytes":512`, `"block_bytes":256`, "blocks of 512"},
		{`"prompt_bytes":1100`, `"prompt_bytes":1000`, "2 blocks of a prompt of 1000 bytes"},
		{`"input_tokens":300`, `"input_tokens":-1`, "-1 tokens"},
		{`"cached_tokens":0`, `"cached_tokens":301`, "more than input_tokens"},
		{`"queued_s":0.0015`, `"queued_s":1e300`, "1e+300 seconds"},
		{`{`, `[`, "invalid character"},
	} {
		line := strings.Replace(string(full.Append(nil)), c.old, c.new, 1)
		if _, err := Parse([]byte(line)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.new, err, c.want)
		}
	}
}

// However a file is cut, what is whole is read, and the rest is said.
func TestReadCut(t *testing.T) {
	var file []byte
	var ends []int
	for i := range 3 {
		r := full
		r.Input = 1000 + i
		file = r.Append(file)
		ends = append(ends, len(file))
	}
	for n := range len(file) + 1 {
		var got []int
		cut, err := Read(bytes.NewReader(file[:n]), func(_ int, r Record) error { got = append(got, r.Input); return nil })
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		want, whole := 0, n == 0
		for _, e := range ends {
			if n >= e-1 { // the line feed alone may be missing
				want++
			}
			whole = whole || n == e || n == e-1
		}
		if len(got) != want || cut == whole {
			t.Fatalf("cut at %d: %d records, cut %v; want %d, %v", n, len(got), cut, want, !whole)
		}
	}
	_, err := Read(strings.NewReader(string(file[:40])+"\n"+string(file)), func(int, Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "line 1: ") {
		t.Errorf("a line that is cut in the middle of a file: %v", err)
	}
	_, err = Read(strings.NewReader(strings.Repeat("x", maxLine+1)), func(int, Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "line 1 is longer") {
		t.Errorf("a long line: %v", err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Files(dir); err == nil || !strings.Contains(err.Error(), "no file in") {
		t.Errorf("an empty folder: %v", err)
	}
	for _, name := range []string{"b.jsonl", "a.jsonl", "key"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Files(dir)
	if want := []string{filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if one, err := Files(got[1]); err != nil || !slices.Equal(one, got[1:]) {
		t.Errorf("%v, %v", one, err)
	}
}

// Equal beginnings have equal hashes, as far as they are equal, under the same key.
func TestBlocks(t *testing.T) {
	k, other := NewKey(), NewKey()
	text := strings.Repeat("a bill of lading from Rotterdam. ", 100) // 3,300 bytes: six blocks
	a := k.Blocks(nil, []byte(text+"first"))
	if len(a) != 6 || len(k.Blocks(nil, []byte(text[:BlockBytes-1]))) != 0 {
		t.Fatalf("%d blocks", len(a))
	}
	changed := []byte(text + "second")
	if b := k.Blocks(nil, changed); !slices.Equal(a, b) {
		t.Error("what comes behind the last whole block changed it")
	}
	changed[3*BlockBytes] ^= 1
	b := k.Blocks(nil, changed)
	if !slices.Equal(a[:3], b[:3]) {
		t.Error("the beginning is another for what comes behind")
	}
	for i := 3; i < 6; i++ {
		if a[i] == b[i] {
			t.Errorf("block %d does not depend on what was before it", i)
		}
	}
	for name, c := range map[string][]uint64{
		"another key": other.Blocks(nil, []byte(text)), "tools": k.Blocks(nil, []byte(text), []byte("tools")),
	} {
		if c[0] == a[0] {
			t.Errorf("%s: the same hash", name)
		}
	}
	if x, y := k.Blocks(nil, []byte(text), []byte("ab"), []byte("c")), k.Blocks(nil, []byte(text), []byte("a"), []byte("bc")); x[0] == y[0] {
		t.Error("parts run into each other")
	}
	seen := map[uint64]bool{}
	for i, h := range k.Blocks(nil, bytes.Repeat([]byte("x"), (MaxBlocks+9)*BlockBytes)) {
		if h >= 1<<52 || seen[h] || i >= MaxBlocks {
			t.Fatalf("block %d is %d", i, h)
		}
		seen[h] = true
	}
	if k.Tenant("Bearer a") == k.Tenant("Bearer b") || k.Tenant("Bearer a") == other.Tenant("Bearer a") || strings.Contains(k.Tenant("Bearer a"), "Bearer") {
		t.Error("tenants")
	}
	if again := k; k.Session(1) == k.Session(2) || k.Session(1) != again.Session(1) {
		t.Error("sessions")
	}
}

func TestKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := ReadKey(path); err == nil {
		t.Error("a key that is not there was read")
	}
	keys := make(chan Key)
	for range 8 {
		go func() {
			k, err := MakeKey(path)
			if err != nil {
				t.Error(err)
			}
			keys <- k
		}()
	}
	first := <-keys
	for range 7 {
		if k := <-keys; k != first {
			t.Error("two processes have two keys")
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read the key: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeKey(path); err == nil || !strings.Contains(err.Error(), "64 hexadecimal digits") {
		t.Errorf("%v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(full.Append(nil))
	f.Add(full.Append(full.Append(nil))[:500])
	f.Add([]byte(`{"time":"2026-03-01T12:00:01Z","arrived":"2026-03-01T12:00:00+01:00","status":429,"input_tokens":null}`))
	f.Add([]byte(`{"time":"0000-01-01T00:00:00+01:00","arrived":"0000-01-01T00:00:00+01:00","status":200}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var all []byte
		var got []Record
		lines := 0
		_, err := Read(bytes.NewReader(in), func(n int, r Record) error {
			if n <= lines {
				return fmt.Errorf("line %d after %d", n, lines)
			}
			lines = n
			got = append(got, r)
			all = r.Append(all)
			return nil
		})
		_ = err
		i := 0
		cut, err := Read(bytes.NewReader(all), func(_ int, r Record) error {
			// What was between two microseconds is not kept.
			want := got[i]
			want.Time, want.Arrived = want.Time.Truncate(time.Microsecond), want.Arrived.Truncate(time.Microsecond)
			if !r.Time.Equal(want.Time) || !r.Arrived.Equal(want.Arrived) {
				return fmt.Errorf("times %v %v became %v %v", want.Time, want.Arrived, r.Time, r.Arrived)
			}
			want.Time, want.Arrived = r.Time, r.Arrived
			if len(r.Blocks) == 0 {
				r.Blocks, want.Blocks = nil, nil
			}
			// Of text that is no UTF-8 the reader of JSON has made some already.
			if !reflect.DeepEqual(r, want) {
				return fmt.Errorf("%+v became %+v", want, r)
			}
			i++
			return nil
		})
		if err != nil || cut || i != len(got) {
			t.Fatalf("%d of %d records, cut %v: %v", i, len(got), cut, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	buf := make([]byte, 0, 4096)
	r := full
	r.Workload = "chat"
	b.ReportAllocs()
	for b.Loop() {
		buf = r.Append(buf[:0])
	}
}

// BenchmarkBlocks is a prompt of 4 KiB.
func BenchmarkBlocks(b *testing.B) {
	k, prompt := NewKey(), []byte(strings.Repeat("a bill of lading ", 241))
	var dst []uint64
	b.ReportAllocs()
	for b.Loop() {
		dst = k.Blocks(dst[:0], prompt)
	}
}
