//go:build !linux

package router

import (
	"syscall"
	"time"
)

// userTimeout leaves it to the system when a peer counts as gone.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
