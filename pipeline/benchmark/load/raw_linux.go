package load

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two calls of each chunk never block, and so need not tell the scheduler: that
// would wake its monitor, a thread of its own, for most of them (a seventh of a chunk's
// cost at a few hundred requests a second).

// poll takes what an epoll descriptor has at once; events are not empty.
func poll(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}

// inbox is what a read brings, of one connection after the other. It must not move, and
// so is part of what is allocated.
type inbox struct {
	buf     [64 << 10]byte
	control [64]byte
	piece   unix.Iovec
	message unix.Msghdr
}

// read reads what has come. ago is how long ago the system got the last of it, 0 where it
// does not say.
func (in *inbox) read(fd int) (b []byte, ago time.Duration, err error) {
	in.piece.Base = &in.buf[0]
	in.piece.SetLen(len(in.buf))
	in.message.Iov, in.message.Control = &in.piece, &in.control[0]
	in.message.SetIovlen(1)
	in.message.SetControllen(len(in.control))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&in.message)), unix.MSG_DONTWAIT)
	if errno != 0 {
		return nil, 0, errno
	}
	return in.buf[:n], in.ago(), nil
}

// believable bounds how long a chunk can have lain unread: one that seems to have come
// later than now, or long ago, came while the wall clock was set.
const believable = 10 * time.Second

func (in *inbox) ago() time.Duration {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&in.control[0]))
	if uint64(in.message.Controllen) < uint64(unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{})))) || h.Level != unix.SOL_SOCKET || h.Type != unix.SO_TIMESTAMPNS {
		return 0
	}
	at := (*unix.Timespec)(unsafe.Pointer(&in.control[unix.CmsgLen(0)]))
	ago := time.Duration(time.Now().UnixNano() - at.Nano())
	if ago < 0 || ago > believable {
		return 0
	}
	return ago
}

// stamped has the system say when what is read had come. It begins to some milliseconds
// after the first socket has asked; until then the time of reading is taken.
func stamped(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) }
