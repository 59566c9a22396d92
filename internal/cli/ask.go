package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ask puts a question to the person at the terminal. An interrupt ends it,
// although nothing interrupts a read.
func (e *env) ask(ctx context.Context, format string, args ...any) (yes bool, err error) {
	_, _ = fmt.Fprintf(e.err, format+" [y/N] ", args...)
	answer := make(chan string, 1)
	go func() {
		// What was read before the input ended is the answer.
		line, _ := bufio.NewReader(e.in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		e.say("")
		return false, ctx.Err()
	case line := <-answer:
		return strings.EqualFold(strings.TrimSpace(line), "y"), nil
	}
}

// isTerminal asks for the size that only a terminal has: that it is a device is
// true of /dev/null, too.
func isTerminal(r any) bool {
	_, _, ok := terminalSize(r)
	return ok
}

// terminalSize is how many columns and lines the terminal r has, 0 where it does not know;
// ok is false when it is none.
func terminalSize(r any) (width, height int, ok bool) {
	f, ok := r.(*os.File)
	if !ok {
		return 0, 0, false
	}
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(ws.Col), int(ws.Row), true
}
