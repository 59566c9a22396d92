package ceiling

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ThisMachine is where this process runs, as the operating system tells.
func ThisMachine() Machine {
	m := Machine{Arch: runtime.GOARCH, Threads: runtime.GOMAXPROCS(0)}
	m.Host, _ = os.Hostname() // without a name, machines are told apart by the rest
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = field(string(b), "model name")
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		kib, _ := strconv.ParseInt(strings.TrimSuffix(field(string(b), "MemTotal"), " kB"), 10, 64)
		m.MemoryBytes = kib << 10
	}
	m.CacheBytes = lastLevel("/sys/devices/system/cpu")
	return m
}

// field is the first "name : value" of a file of /proc.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// lastLevel adds up the last-level caches below a folder like /sys/devices/system/cpu,
// each once however many cores share it; 0 where they are not listed.
func lastLevel(dir string) int64 {
	all, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "cache", "index[0-9]*"))
	read := func(index, name string) string {
		b, _ := os.ReadFile(filepath.Join(index, name))
		return strings.TrimSpace(string(b))
	}
	level, sizes := 0, map[string]int64{}
	for _, index := range all {
		n, err := strconv.Atoi(read(index, "level"))
		if err != nil || n < level || read(index, "type") == "Instruction" {
			continue
		}
		if n > level {
			level, sizes = n, map[string]int64{}
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(read(index, "size"), "K"), 10, 64)
		if err == nil {
			sizes[read(index, "shared_cpu_list")] = kib << 10
		}
	}
	var total int64
	for _, n := range sizes {
		total += n
	}
	return total
}

// threadTime is the processor time of the calling thread, in seconds. That of the whole
// process would be behind by up to a tick for threads that run, which is longer than a
// repetition.
func threadTime() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic("ceiling: " + err.Error()) // fails for an unknown clock only
	}
	return float64(t.Nano()) / 1e9
}
