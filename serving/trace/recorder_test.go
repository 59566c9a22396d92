package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// recorded reads all files of a folder, in order.
func recorded(t testing.TB, dir string) (inputs []int, cut int) {
	t.Helper()
	files, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		broken, err := Read(bytes.NewReader(b), func(_ int, r Record) error { inputs = append(inputs, r.Input); return nil })
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if broken {
			cut++
		}
	}
	return inputs, cut
}

// running starts a recorder, and gives what ends it and waits.
func running(t testing.TB, o Options) (*Recorder, func() error) {
	t.Helper()
	r, err := NewRecorder(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, sync.OnceValue(func() error { stop(); return <-ended })
}

func record(i int) *Record {
	r := full
	r.Input = 1000 + i
	return &r
}

// Nothing is lost when a router ends, and a second one goes on in files of its own.
func TestRecorderKeepsAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	n := 0
	for range 2 {
		r, end := running(t, Options{Dir: dir, Name: "r/1"})
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 500 {
					r.Add(record(n + 500*w + i))
				}
			})
		}
		wg.Wait()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		n += 4000
		if s := r.Stats(); s != (Stats{Written: 4000}) {
			t.Errorf("%+v", s)
		}
	}
	got, cut := recorded(t, dir)
	seen := map[int]bool{}
	for _, i := range got {
		seen[i] = true
	}
	if len(got) != n || len(seen) != n || cut != 0 {
		t.Errorf("%d records, %d of them different, %d cut", len(got), len(seen), cut)
	}
	_, end := running(t, Options{Dir: dir, Name: "r/1"})
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if files, _ := Files(dir); len(files) != 2 {
		t.Errorf("a router without requests leaves a file: %v", files)
	}
}

// A second passes, and what was added is in the file.
func TestRecorderFlushesEachSecond(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r, end := running(t, Options{Dir: dir})
		r.Add(record(1))
		synctest.Wait()
		if s := r.Stats(); s.Waiting != 1 || s.Written != 0 {
			t.Errorf("at once: %+v", s)
		}
		time.Sleep(DefaultFlush)
		synctest.Wait()
		if s := r.Stats(); s.Waiting != 0 || s.Written != 1 {
			t.Errorf("after a second: %+v", s)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// The oldest files go, and only those of the router's own name.
func TestRecorderIsBounded(t *testing.T) {
	dir := t.TempDir()
	others := []string{"router-2.20200101T000000.000000Z.jsonl", "router.20200101T000000.000000Z.jsonl"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), full.Append(nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, end := running(t, Options{Dir: dir, Size: MinSize})
	n := 3 * MinSize / len(full.Append(nil))
	for i := range n {
		r.Add(record(i))
		if i%1000 == 0 { // more would wait than may
			for r.Stats().Waiting > 0 {
				runtime.Gosched()
				r.wake <- struct{}{}
			}
		}
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.Written != uint64(n) || s.Dropped != 0 {
		t.Errorf("%+v of %d", s, n)
	}
	var size int64
	files, _ := Files(dir)
	for _, p := range files[1:] {
		info, err := os.Stat(p)
		if err != nil || info.Size() > MinSize/parts {
			t.Errorf("%s: %v, %v", p, info.Size(), err)
		}
		size += info.Size()
	}
	if size > MinSize || size < MinSize*3/4 || filepath.Base(files[0]) != others[0] {
		t.Errorf("%d bytes in %d files, the first %s", size, len(files), files[0])
	}
	got, _ := recorded(t, dir)
	if got[len(got)-1] != 1000+n-1 {
		t.Errorf("the newest record is %d of %d", got[len(got)-1], n)
	}
	if _, err := NewRecorder(Options{Dir: dir, Size: MinSize - 1}); err == nil {
		t.Error("too small a size was taken")
	}
}

func TestRecorderNeedsAFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewRecorder(Options{Dir: path}); err == nil {
		t.Error("a file was taken for a folder")
	}
}

// A disk that is full costs records when it stays so, which are counted, and nobody's
// time. When there is room again, what waited is written.
func TestRecorderOnAFullDisk(t *testing.T) {
	fullDisk, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("NOT TESTED: a full disk: %v", err)
	}
	dir := t.TempDir()
	r, err := NewRecorder(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	disk := r.f
	r.f = fullDisk
	add := func() (n int) {
		for before := r.Stats().Dropped; r.Stats().Dropped == before; n++ {
			r.Add(record(n))
		}
		return n - 1
	}
	kept := add()
	if err := r.flush(); err == nil || !strings.Contains(r.Stats().Failing, "no space left") {
		t.Fatalf("%v, %+v", err, r.Stats())
	}
	kept += add()
	if s := r.Stats(); s.Waiting != kept || s.Dropped != 2 || s.Written != 0 {
		t.Fatalf("%+v, %d kept", s, kept)
	}
	r.f = disk
	if err := errors.Join(r.flush(), r.flush(), r.close()); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s != (Stats{Written: uint64(kept), Dropped: 2}) {
		t.Errorf("%+v", s)
	}
	if got, cut := recorded(t, dir); len(got) != kept || cut != 0 {
		t.Errorf("%d records, %d cut", len(got), cut)
	}
}

// A disk that hangs blocks the writer and nobody else, and does not hold the end up.
func TestRecorderOnADiskThatHangs(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = from.Close(), to.Close() })
	r, err := NewRecorder(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	// The pipe has a file's name, so that it is not taken for one that was moved away.
	fd, err := syscall.Dup(int(to.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r.f, r.last = os.NewFile(uintptr(fd), r.f.Name()), time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	n := 0
	for ; r.Stats().Dropped == 0; n++ {
		r.Add(record(n))
	}
	if s := r.Stats(); s.Waiting != n-1 || s.Written != 0 {
		t.Errorf("%+v of %d", s, n)
	}
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), fmt.Sprint(n-1)) || !strings.Contains(err.Error(), "lost") {
		t.Errorf("%v", err)
	}
}

// What a write could not finish is taken back, and a file that is taken away is begun
// anew.
func TestRecorderMendsItsFile(t *testing.T) {
	dir := t.TempDir()
	r, err := NewRecorder(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r.Add(record(1))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	// As after a write that ended in the middle of a line, with an error.
	if _, err := r.f.WriteString(`{"time":`); err != nil {
		t.Fatal(err)
	}
	if err := r.f.Truncate(r.size); err != nil {
		t.Fatal(err)
	}
	r.Add(record(2))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	if got, cut := recorded(t, dir); len(got) != 2 || cut != 0 {
		t.Errorf("%v, %d cut", got, cut)
	}
	away := filepath.Join(t.TempDir(), "away.jsonl")
	if err := os.Rename(r.f.Name(), away); err != nil {
		t.Fatal(err)
	}
	r.Add(record(3))
	if err := errors.Join(r.flush(), r.close()); err != nil {
		t.Fatal(err)
	}
	if got, _ := recorded(t, dir); len(got) != 1 || got[0] != 1003 {
		t.Errorf("behind the one that was taken away: %v", got)
	}
}

func BenchmarkAdd(b *testing.B) {
	r, end := running(b, Options{Dir: b.TempDir()})
	rec := full
	rec.Workload = "chat"
	b.ReportAllocs()
	for b.Loop() {
		r.Add(&rec)
	}
	if err := end(); err != nil {
		b.Fatal(err)
	}
}
