package load

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two calls of each chunk never block, and so need not tell the scheduler: that
// would wake its monitor, a thread of its own, for most of them (a seventh of a chunk's
// cost at a few hundred requests a second). p and events are not empty.

func read(fd int, p []byte) (int, error) {
	n, _, err := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}

func poll(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}
