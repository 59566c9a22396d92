//go:build !linux

package transfer

import "os"

// writeOut leaves it to the sync at the end.
func writeOut(*os.File, int64, int64) {}
