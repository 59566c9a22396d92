package kernel

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Huge allocates n bytes from a boundary of 64 and asks for large pages, without
// which looking up addresses takes half of the memory's speed.
func Huge(n int) []byte {
	b := make([]byte, n+64)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & 63
	b = b[off : off+n : off+n]
	page := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	if n-from >= 2<<20 {
		// Where they are not to be had, it works all the same.
		_ = unix.Madvise(b[from:from+(n-from)/page*page], unix.MADV_HUGEPAGE)
	}
	return b
}
