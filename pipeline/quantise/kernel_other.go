//go:build !amd64

package quantise

// There is no assembly.
var fastest = &portable
