//go:build !linux

package kernel

// Huge allocates n bytes, on Linux of large pages.
func Huge(n int) []byte { return make([]byte, n) }
