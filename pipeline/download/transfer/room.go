package transfer

import (
	"fmt"
	"os"
	"syscall"
)

// reserve is what is left free of a disk, in bytes.
const reserve = 64 << 20

// room is an error when the disk of dir cannot hold what is missing of the files.
func (s *Set) room(dir string, files []File) error {
	var need int64
	for _, f := range files {
		if _, err := os.Stat(s.Path(f)); err == nil {
			continue
		}
		need += f.Size
		var st syscall.Stat_t
		if err := syscall.Stat(s.Path(f)+Unfinished, &st); err == nil {
			need -= st.Blocks * 512
		}
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("looking for room in %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * int64(st.Bsize); need > 0 && need+reserve > free {
		return fmt.Errorf("%s has %.1f GiB free and %.1f GiB are to come%s", dir, float64(free)/(1<<30), float64(need)/(1<<30), s.Elsewhere)
	}
	return nil
}
