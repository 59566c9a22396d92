package router

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// peerGivenUp reads back after how long the system gives a connection up.
func peerGivenUp(t *testing.T, c syscall.RawConn) (d time.Duration, ok bool) {
	t.Helper()
	var ms int
	var err error
	if cerr := c.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return time.Duration(ms) * time.Millisecond, true
}
