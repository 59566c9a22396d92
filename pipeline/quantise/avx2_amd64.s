#include "textflag.h"

// Operands are in the assembler's order: the destination last. VSUBPS a, b, c is
// c = b - a, VDIVPS a, b, c is c = b / a.

DATA minPower<>+0(SB)/8, $0x3c8000003c800000
DATA minPower<>+8(SB)/8, $0x3c8000003c800000
DATA minPower<>+16(SB)/8, $0x3c8000003c800000
DATA minPower<>+24(SB)/8, $0x3c8000003c800000
GLOBL minPower<>(SB), RODATA|NOPTR, $32
DATA shift20<>+0(SB)/8, $0x0a0000000a000000
DATA shift20<>+8(SB)/8, $0x0a0000000a000000
DATA shift20<>+16(SB)/8, $0x0a0000000a000000
DATA shift20<>+24(SB)/8, $0x0a0000000a000000
GLOBL shift20<>(SB), RODATA|NOPTR, $32
DATA bias<>+0(SB)/8, $0x000003c8000003c8
DATA bias<>+8(SB)/8, $0x000003c8000003c8
DATA bias<>+16(SB)/8, $0x000003c8000003c8
DATA bias<>+24(SB)/8, $0x000003c8000003c8
GLOBL bias<>(SB), RODATA|NOPTR, $32
DATA one<>+0(SB)/8, $0x0000000100000001
DATA one<>+8(SB)/8, $0x0000000100000001
DATA one<>+16(SB)/8, $0x0000000100000001
DATA one<>+24(SB)/8, $0x0000000100000001
GLOBL one<>(SB), RODATA|NOPTR, $32
DATA shift141<>+0(SB)/8, $0x4680000046800000
DATA shift141<>+8(SB)/8, $0x4680000046800000
DATA shift141<>+16(SB)/8, $0x4680000046800000
DATA shift141<>+24(SB)/8, $0x4680000046800000
GLOBL shift141<>(SB), RODATA|NOPTR, $32
DATA words15<>+0(SB)/8, $0x7fff7fff7fff7fff
DATA words15<>+8(SB)/8, $0x7fff7fff7fff7fff
DATA words15<>+16(SB)/8, $0x7fff7fff7fff7fff
DATA words15<>+24(SB)/8, $0x7fff7fff7fff7fff
GLOBL words15<>(SB), RODATA|NOPTR, $32
DATA words7<>+0(SB)/8, $0x0080008000800080
DATA words7<>+8(SB)/8, $0x0080008000800080
DATA words7<>+16(SB)/8, $0x0080008000800080
DATA words7<>+24(SB)/8, $0x0080008000800080
GLOBL words7<>(SB), RODATA|NOPTR, $32
DATA magnitude<>+0(SB)/4, $0x7fffffff
GLOBL magnitude<>(SB), RODATA|NOPTR, $4
DATA maxE4M3<>+0(SB)/4, $0x43e00000
GLOBL maxE4M3<>(SB), RODATA|NOPTR, $4
DATA power<>+0(SB)/4, $0x7f800000
GLOBL power<>(SB), RODATA|NOPTR, $4
DATA half16<>+0(SB)/4, $0x00007fff
GLOBL half16<>(SB), RODATA|NOPTR, $4
DATA minusOne<>+0(SB)/4, $0xbf800000
GLOBL minusOne<>(SB), RODATA|NOPTR, $4

// Eight weights at src to floats.
#define LOADBF16(src, y) \
	VPMOVZXWD src, y; \
	VPSLLD    $16, y, y
#define LOADF16(src, y) \
	VCVTPH2PS src, y
#define LOADF32(src, y) \
	VMOVUPS src, y

// The quotients in y rounded to the weights' type, in q; x is q's lower half. Y14 is
// zero.
#define ROUNDBF16(y, q, x) \
	VPSRLD $16, y, q; \
	VPAND  one<>(SB), q, q; \
	VPADDD Y11, q, q; \
	VPADDD y, q, q; \
	VPBLENDW $0xaa, q, Y14, q
#define ROUNDF16(y, q, x) \
	VCVTPS2PH $0, y, x; \
	VCVTPH2PS x, q
#define ROUNDF32(y, q, x) \
	VMOVAPS y, q

// Codes c of rounded quotients q, as e4m3 in kernel.go has them; t is lost. The
// squares of what is lost and of y are added up.
#define E4M3(y, q, t, c, lost, size) \
	VPSRLD $31, q, c; \
	VPSLLD $7, c, c; \
	VPAND  Y14, q, q; \
	VMINPS Y13, q, q; \
	VPAND  Y12, q, t; \
	VPMAXSD minPower<>(SB), t, t; \
	VPSRLD $20, t, Y8; \
	VPSUBD bias<>(SB), Y8, Y8; \
	VPADDD Y8, c, c; \
	VPADDD shift20<>(SB), t, t; \
	VADDPS t, q, q; \
	VPSUBD t, q, Y8; \
	VPADDD Y8, c, c; \
	VSUBPS t, q, q; \
	VPAND  Y14, y, t; \
	VSUBPS q, t, q; \
	VMULPS q, q, q; \
	VADDPS q, lost, lost; \
	VMULPS y, y, y; \
	VADDPS y, size, size

// The same for integers between Y12 and Y13.
#define INTEGER(y, q, t, c, lost, size) \
	VMAXPS Y12, q, q; \
	VMINPS Y13, q, q; \
	VCVTPS2DQ q, c; \
	VCVTDQ2PS c, t; \
	VSUBPS t, y, t; \
	VMULPS t, t, t; \
	VADDPS t, lost, lost; \
	VMULPS y, y, y; \
	VADDPS y, size, size

// Codes of eight and eight to sixteen bytes.
#define BYTES(words, bytes) \
	words      Y10, Y3, Y3; \
	VPERMQ     $0xd8, Y3, Y3; \
	VEXTRACTI128 $1, Y3, X2; \
	bytes      X2, X3, X3; \
	VMOVDQU    X3, (DI)

#define STEP(load, round, encode, off, words, bytes) \
	load((SI), Y0); \
	load(off(SI), Y9); \
	VDIVPS Y15, Y0, Y0; \
	VDIVPS Y15, Y9, Y9; \
	round(Y0, Y1, X1); \
	encode(Y0, Y1, Y2, Y3, Y4, Y6); \
	round(Y9, Y1, X1); \
	encode(Y9, Y1, Y2, Y10, Y5, Y7); \
	BYTES(words, bytes); \
	ADDQ   $(2*off), SI; \
	ADDQ   $16, DI; \
	SUBQ   $16, CX

#define SUMS \
	VMOVUPS (DX), Y4; \
	VMOVUPS 32(DX), Y5; \
	VMOVUPS 64(DX), Y6; \
	VMOVUPS 96(DX), Y7

#define STORE \
	VMOVUPS Y4, (DX); \
	VMOVUPS Y5, 32(DX); \
	VMOVUPS Y6, 64(DX); \
	VMOVUPS Y7, 96(DX); \
	VZEROUPPER

// As E4M3, for the magnitudes of eight bfloat16, which unpacking over zeros makes
// floats. A saturating subtraction of words takes the smallest normal power away.
#define MAGNITUDES(y, c, lost, size) \
	VPSRLD   $16, y, Y1; \
	VPAND    one<>(SB), Y1, Y1; \
	VPADDD   Y11, Y1, Y1; \
	VPADDD   y, Y1, Y1; \
	VPBLENDW $0xaa, Y1, Y14, Y1; \
	VMINPS   Y13, Y1, Y1; \
	VPAND    Y12, Y1, Y2; \
	VPSUBUSW minPower<>(SB), Y2, Y2; \
	VPSRLD   $20, Y2, c; \
	VPADDD   shift141<>(SB), Y2, Y2; \
	VADDPS   Y2, Y1, Y1; \
	VPSUBD   Y2, Y1, Y8; \
	VPADDD   Y8, c, c; \
	VSUBPS   Y2, Y1, Y1; \
	VSUBPS   Y1, y, Y1; \
	VMULPS   Y1, Y1, Y1; \
	VADDPS   Y1, lost, lost; \
	VMULPS   y, y, Y1; \
	VADDPS   Y1, size, size

// Unpacking leaves weights 0 to 3 and 8 to 11 in one register and the others in
// the other, and so must be the sums. It undoes itself.
#define CROSS(a, b, t) \
	VPERM2F128 $0x20, b, a, t; \
	VPERM2F128 $0x31, b, a, b; \
	VMOVAPS    t, a

// func fp8BF16AVX2(dst, src *byte, n int, scale float32, r *residue)
TEXT ·fp8BF16AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	MOVQ r+32(FP), DX
	VPXOR Y14, Y14, Y14
	VBROADCASTSS maxE4M3<>(SB), Y13
	VBROADCASTSS power<>(SB), Y12
	VBROADCASTSS half16<>(SB), Y11
	SUMS
	CROSS(Y4, Y5, Y0)
	CROSS(Y6, Y7, Y0)

loop:
	VMOVDQU      (SI), Y9
	VPSRLW       $8, Y9, Y10
	VPAND        words7<>(SB), Y10, Y10
	VPAND        words15<>(SB), Y9, Y9
	VPUNPCKLWD   Y9, Y14, Y0
	VPUNPCKHWD   Y9, Y14, Y9
	VDIVPS       Y15, Y0, Y0
	VDIVPS       Y15, Y9, Y9
	MAGNITUDES(Y0, Y3, Y4, Y6)
	MAGNITUDES(Y9, Y0, Y5, Y7)
	VPACKUSDW    Y0, Y3, Y3
	VPOR         Y10, Y3, Y3
	VEXTRACTI128 $1, Y3, X2
	VPACKUSWB    X2, X3, X3
	VMOVDQU      X3, (DI)
	ADDQ         $32, SI
	ADDQ         $16, DI
	SUBQ         $16, CX
	JNE          loop
	CROSS(Y4, Y5, Y0)
	CROSS(Y6, Y7, Y0)
	STORE
	RET

// func fp8F16AVX2(dst, src *byte, n int, scale float32, r *residue)
TEXT ·fp8F16AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	MOVQ r+32(FP), DX
	VBROADCASTSS magnitude<>(SB), Y14
	VBROADCASTSS maxE4M3<>(SB), Y13
	VBROADCASTSS power<>(SB), Y12
	VBROADCASTSS half16<>(SB), Y11
	SUMS

loop:
	STEP(LOADF16, ROUNDF16, E4M3, 16, VPACKUSDW, VPACKUSWB)
	JNE  loop
	STORE
	RET

// func fp8F32AVX2(dst, src *byte, n int, scale float32, r *residue)
TEXT ·fp8F32AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	MOVQ r+32(FP), DX
	VBROADCASTSS magnitude<>(SB), Y14
	VBROADCASTSS maxE4M3<>(SB), Y13
	VBROADCASTSS power<>(SB), Y12
	VBROADCASTSS half16<>(SB), Y11
	SUMS

loop:
	STEP(LOADF32, ROUNDF32, E4M3, 32, VPACKUSDW, VPACKUSWB)
	JNE  loop
	STORE
	RET

// func wholeBF16AVX2(dst, src *byte, n int, scale, top float32, r *residue)
TEXT ·wholeBF16AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	VBROADCASTSS top+28(FP), Y13
	MOVQ r+32(FP), DX
	VBROADCASTSS minusOne<>(SB), Y12
	VSUBPS Y13, Y12, Y12
	VBROADCASTSS half16<>(SB), Y11
	VPXOR Y14, Y14, Y14
	SUMS

loop:
	STEP(LOADBF16, ROUNDBF16, INTEGER, 16, VPACKSSDW, VPACKSSWB)
	JNE  loop
	STORE
	RET

// func wholeF16AVX2(dst, src *byte, n int, scale, top float32, r *residue)
TEXT ·wholeF16AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	VBROADCASTSS top+28(FP), Y13
	MOVQ r+32(FP), DX
	VBROADCASTSS minusOne<>(SB), Y12
	VSUBPS Y13, Y12, Y12
	VBROADCASTSS half16<>(SB), Y11
	SUMS

loop:
	STEP(LOADF16, ROUNDF16, INTEGER, 16, VPACKSSDW, VPACKSSWB)
	JNE  loop
	STORE
	RET

// func wholeF32AVX2(dst, src *byte, n int, scale, top float32, r *residue)
TEXT ·wholeF32AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	VBROADCASTSS top+28(FP), Y13
	MOVQ r+32(FP), DX
	VBROADCASTSS minusOne<>(SB), Y12
	VSUBPS Y13, Y12, Y12
	VBROADCASTSS half16<>(SB), Y11
	SUMS

loop:
	STEP(LOADF32, ROUNDF32, INTEGER, 32, VPACKSSDW, VPACKSSWB)
	JNE  loop
	STORE
	RET

// func peak16AVX2(src *byte, n int) uint32
TEXT ·peak16AVX2(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	VPXOR Y0, Y0, Y0
	VPCMPEQD Y1, Y1, Y1
	VPSRLW $1, Y1, Y1

loop:
	VPAND (SI), Y1, Y2
	VPMAXUW Y2, Y0, Y0
	ADDQ $32, SI
	SUBQ $16, CX
	JNE  loop

	// The least of the complements is the complement of the largest.
	VEXTRACTI128 $1, Y0, X1
	VPMAXUW X1, X0, X0
	VPCMPEQD X1, X1, X1
	VPXOR X1, X0, X0
	VPHMINPOSUW X0, X0
	VMOVD X0, AX
	XORL $0xffff, AX
	MOVWLZX AX, AX
	MOVL AX, ret+16(FP)
	VZEROUPPER
	RET

// func peak32AVX2(src *byte, n int) uint32
TEXT ·peak32AVX2(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	VPXOR Y0, Y0, Y0
	VPXOR Y3, Y3, Y3
	VPCMPEQD Y1, Y1, Y1
	VPSRLD $1, Y1, Y1

loop:
	VPAND (SI), Y1, Y2
	VPMAXUD Y2, Y0, Y0
	VPAND 32(SI), Y1, Y2
	VPMAXUD Y2, Y3, Y3
	ADDQ $64, SI
	SUBQ $16, CX
	JNE  loop

	VPMAXUD Y3, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0x4e, X0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0xb1, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD X0, AX
	MOVL AX, ret+16(FP)
	VZEROUPPER
	RET
