//go:build !amd64

package quantise

func assembly() []*kernels { return nil }
