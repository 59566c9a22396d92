//go:build !linux

package router

import (
	"syscall"
	"testing"
	"time"
)

func peerGivenUp(*testing.T, syscall.RawConn) (time.Duration, bool) { return 0, false }
