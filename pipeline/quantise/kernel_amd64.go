package quantise

import "golang.org/x/sys/cpu"

// fastest is chosen once; GODEBUG=cpu.avx512f=off,cpu.avx2=off takes from it.
var fastest = func() *kernels {
	if all := assembly(); len(all) > 0 {
		return all[0]
	}
	return &portable
}()

// assembly lists what this machine can run, the fastest first.
func assembly() (all []*kernels) {
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX2 {
		all = append(all, &kernels{
			name:  "avx512",
			peak:  [3]func(*byte, int) uint32{peak16AVX512, peak16AVX512, peak32AVX512},
			fp8:   [3]func(_, _ *byte, _ int, _ float32, _ *residue){fp8BF16AVX512, fp8F16AVX512, fp8F32AVX512},
			whole: [3]func(_, _ *byte, _ int, _, _ float32, _ *residue){wholeBF16AVX512, wholeF16AVX512, wholeF32AVX512},
		})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasF16C {
		all = append(all, &kernels{
			name:  "avx2",
			peak:  [3]func(*byte, int) uint32{peak16AVX2, peak16AVX2, peak32AVX2},
			fp8:   [3]func(_, _ *byte, _ int, _ float32, _ *residue){fp8BF16AVX2, fp8F16AVX2, fp8F32AVX2},
			whole: [3]func(_, _ *byte, _ int, _, _ float32, _ *residue){wholeBF16AVX2, wholeF16AVX2, wholeF32AVX2},
		})
	}
	return all
}

// Of weights of 16 and 32 bits: the largest without its sign.

//go:noescape
func peak16AVX2(src *byte, n int) uint32

//go:noescape
func peak32AVX2(src *byte, n int) uint32

//go:noescape
func peak16AVX512(src *byte, n int) uint32

//go:noescape
func peak32AVX512(src *byte, n int) uint32

// E4M3 codes.

//go:noescape
func fp8BF16AVX2(dst, src *byte, n int, scale float32, r *residue)

//go:noescape
func fp8F16AVX2(dst, src *byte, n int, scale float32, r *residue)

//go:noescape
func fp8F32AVX2(dst, src *byte, n int, scale float32, r *residue)

//go:noescape
func fp8BF16AVX512(dst, src *byte, n int, scale float32, r *residue)

//go:noescape
func fp8F16AVX512(dst, src *byte, n int, scale float32, r *residue)

//go:noescape
func fp8F32AVX512(dst, src *byte, n int, scale float32, r *residue)

// Integers.

//go:noescape
func wholeBF16AVX2(dst, src *byte, n int, scale, top float32, r *residue)

//go:noescape
func wholeF16AVX2(dst, src *byte, n int, scale, top float32, r *residue)

//go:noescape
func wholeF32AVX2(dst, src *byte, n int, scale, top float32, r *residue)

//go:noescape
func wholeBF16AVX512(dst, src *byte, n int, scale, top float32, r *residue)

//go:noescape
func wholeF16AVX512(dst, src *byte, n int, scale, top float32, r *residue)

//go:noescape
func wholeF32AVX512(dst, src *byte, n int, scale, top float32, r *residue)
