package router

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout has the system end a connection whose peer has acknowledged nothing for
// d: it does so for a process that hangs, but not for a machine that is gone.
func userTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		}); cerr != nil {
			return cerr
		}
		return err
	}
}
