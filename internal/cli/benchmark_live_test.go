//go:build linux

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a terminal of 80 columns and 24 lines; ended gives all that was written to it
// once it is closed.
func terminal(t *testing.T) (tty *os.File, ended func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: 24})
	}
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	seen := make(chan string)
	go func() {
		b, _ := io.ReadAll(master) // ends with an error when nobody has the terminal any more
		seen <- string(b)
	}()
	return tty, func() string { _ = tty.Close(); return <-seen }
}

// At a terminal a picture is drawn, which an interrupt takes away again, and what had been
// measured is told and kept.
func TestBenchmarkAtATerminal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := answering(t, func(n int, _ []byte, _ http.Header) {
		if n == 20 {
			cancel()
		}
	})
	tty, ended := terminal(t)
	dir := filepath.Join(t.TempDir(), "out")
	var out bytes.Buffer
	env := map[string]string{"LLMOPS_HOME": t.TempDir()}
	code := Main(ctx, []string{"benchmark", "--url", url, "--rate", "200", "--for", "10m", "--warmup", "0s", "--input-tokens", "5", "--output-tokens", "2", "--out", dir}, strings.NewReader(""), &out, tty, func(k string) string { return env[k] })
	shown := ended()
	if code != exitInconclusive || !strings.Contains(out.String(), "poisson 200/s") {
		t.Errorf("exit %d, %s", code, out.String())
	}
	const enter, leave = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	if strings.Count(shown, enter) != 1 || strings.Count(shown, leave) != 1 || strings.Index(shown, enter) > strings.Index(shown, leave) || !strings.Contains(shown, "benchmark of ") {
		t.Errorf("%q", shown)
	}
	if after := shown[strings.Index(shown, leave):]; !strings.Contains(after, "results: "+dir) || strings.Contains(after, "\x1b[H") {
		t.Errorf("after the picture: %q", after)
	}
	if _, all, err := readBenchmark(dir); err != nil || len(all) != 1 || len(all[0]) < 20 {
		t.Errorf("%d points, %v", len(all), err)
	}
}
