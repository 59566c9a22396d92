package safetensors

import (
	"os"
	"syscall"
)

// writeOut has the kernel begin to write what is dirty of f to the disk.
func writeOut(f *os.File) {
	const begin = 2 // SYNC_FILE_RANGE_WRITE
	_ = syscall.SyncFileRange(int(f.Fd()), 0, 0, begin)
}
