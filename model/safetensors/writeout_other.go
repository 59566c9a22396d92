//go:build !linux

package safetensors

import "os"

// writeOut leaves it to the sync at the end.
func writeOut(*os.File) {}
