#include "textflag.h"

// Operands are in the assembler's order: the destination last. VSUBPS a, b, c is
// c = b - a, VDIVPS a, b, c is c = b / a.

DATA magnitudeZ<>+0(SB)/4, $0x7fffffff
GLOBL magnitudeZ<>(SB), RODATA|NOPTR, $4
DATA maxE4M3Z<>+0(SB)/4, $0x43e00000
GLOBL maxE4M3Z<>(SB), RODATA|NOPTR, $4
DATA powerZ<>+0(SB)/4, $0x7f800000
GLOBL powerZ<>(SB), RODATA|NOPTR, $4
DATA minPowerZ<>+0(SB)/4, $0x3c800000
GLOBL minPowerZ<>(SB), RODATA|NOPTR, $4
DATA shift20Z<>+0(SB)/4, $0x0a000000
GLOBL shift20Z<>(SB), RODATA|NOPTR, $4
DATA biasZ<>+0(SB)/4, $0x000003c8
GLOBL biasZ<>(SB), RODATA|NOPTR, $4
DATA half16Z<>+0(SB)/4, $0x00007fff
GLOBL half16Z<>(SB), RODATA|NOPTR, $4
DATA minusOneZ<>+0(SB)/4, $0xbf800000
GLOBL minusOneZ<>(SB), RODATA|NOPTR, $4
DATA words15Z<>+0(SB)/4, $0x7fff7fff
GLOBL words15Z<>(SB), RODATA|NOPTR, $4

// Sixteen weights at SI to floats in Z0.
#define LOADBF16 \
	VPMOVZXWD (SI), Z0; \
	VPSLLD    $16, Z0, Z0
#define LOADF16 \
	VCVTPH2PS (SI), Z0
#define LOADF32 \
	VMOVUPS (SI), Z0

// The quotients in Z0 rounded to the weights' type, in Z1.
#define ROUNDBF16 \
	VPSLLD $15, Z0, Z1; \
	VPSRLD $31, Z1, Z1; \
	VPADDD Z11, Z1, Z1; \
	VPADDD Z0, Z1, Z1; \
	VPSRLD $16, Z1, Z1; \
	VPSLLD $16, Z1, Z1
#define ROUNDF16 \
	VCVTPS2PH $0, Z0, Y1; \
	VCVTPH2PS Y1, Z1
#define ROUNDF32 \
	VMOVAPS Z0, Z1

// Codes in Z3 of rounded quotients, as e4m3 in kernel.go has them.
#define E4M3 \
	VPSRLD $31, Z1, Z3; \
	VPSLLD $7, Z3, Z3; \
	VPANDD Z14, Z1, Z1; \
	VMINPS Z13, Z1, Z1; \
	VPANDD Z12, Z1, Z2; \
	VPMAXSD Z10, Z2, Z2; \
	VPSRLD $20, Z2, Z4; \
	VPSUBD Z8, Z4, Z4; \
	VPADDD Z4, Z3, Z3; \
	VPADDD Z9, Z2, Z2; \
	VADDPS Z2, Z1, Z1; \
	VPSUBD Z2, Z1, Z4; \
	VPADDD Z4, Z3, Z3; \
	VSUBPS Z2, Z1, Z1; \
	VPANDD Z14, Z0, Z2; \
	VSUBPS Z1, Z2, Z2

// The same for integers between Z12 and Z13.
#define INTEGER \
	VMAXPS Z12, Z1, Z1; \
	VMINPS Z13, Z1, Z1; \
	VCVTPS2DQ Z1, Z3; \
	VCVTDQ2PS Z3, Z2; \
	VSUBPS Z2, Z0, Z2

// The squares of what is lost, Z2, and of what was there are added up.
#define STEP(load, round, encode, bytes) \
	load; \
	VDIVPS Z15, Z0, Z0; \
	round; \
	encode; \
	VMULPS Z2, Z2, Z2; \
	VADDPS Z2, Z6, Z6; \
	VMULPS Z0, Z0, Z0; \
	VADDPS Z0, Z7, Z7; \
	VPMOVDB Z3, (DI); \
	ADDQ   $bytes, SI; \
	ADDQ   $16, DI; \
	SUBQ   $16, CX

// func fp8BF16AVX512(dst, src *byte, n int, scale float32, r *residue)
TEXT ·fp8BF16AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z15
	MOVQ r+32(FP), DX
	VBROADCASTSS magnitudeZ<>(SB), Z14
	VBROADCASTSS maxE4M3Z<>(SB), Z13
	VBROADCASTSS powerZ<>(SB), Z12
	VBROADCASTSS half16Z<>(SB), Z11
	VBROADCASTSS minPowerZ<>(SB), Z10
	VBROADCASTSS shift20Z<>(SB), Z9
	VBROADCASTSS biasZ<>(SB), Z8
	VMOVUPS (DX), Z6
	VMOVUPS 64(DX), Z7

loop:
	STEP(LOADBF16, ROUNDBF16, E4M3, 32)
	JNE  loop
	VMOVUPS Z6, (DX)
	VMOVUPS Z7, 64(DX)
	VZEROUPPER
	RET

// func fp8F16AVX512(dst, src *byte, n int, scale float32, r *residue)
TEXT ·fp8F16AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z15
	MOVQ r+32(FP), DX
	VBROADCASTSS magnitudeZ<>(SB), Z14
	VBROADCASTSS maxE4M3Z<>(SB), Z13
	VBROADCASTSS powerZ<>(SB), Z12
	VBROADCASTSS half16Z<>(SB), Z11
	VBROADCASTSS minPowerZ<>(SB), Z10
	VBROADCASTSS shift20Z<>(SB), Z9
	VBROADCASTSS biasZ<>(SB), Z8
	VMOVUPS (DX), Z6
	VMOVUPS 64(DX), Z7

loop:
	STEP(LOADF16, ROUNDF16, E4M3, 32)
	JNE  loop
	VMOVUPS Z6, (DX)
	VMOVUPS Z7, 64(DX)
	VZEROUPPER
	RET

// func fp8F32AVX512(dst, src *byte, n int, scale float32, r *residue)
TEXT ·fp8F32AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z15
	MOVQ r+32(FP), DX
	VBROADCASTSS magnitudeZ<>(SB), Z14
	VBROADCASTSS maxE4M3Z<>(SB), Z13
	VBROADCASTSS powerZ<>(SB), Z12
	VBROADCASTSS half16Z<>(SB), Z11
	VBROADCASTSS minPowerZ<>(SB), Z10
	VBROADCASTSS shift20Z<>(SB), Z9
	VBROADCASTSS biasZ<>(SB), Z8
	VMOVUPS (DX), Z6
	VMOVUPS 64(DX), Z7

loop:
	STEP(LOADF32, ROUNDF32, E4M3, 64)
	JNE  loop
	VMOVUPS Z6, (DX)
	VMOVUPS Z7, 64(DX)
	VZEROUPPER
	RET

// func wholeBF16AVX512(dst, src *byte, n int, scale, top float32, r *residue)
TEXT ·wholeBF16AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z15
	VBROADCASTSS top+28(FP), Z13
	MOVQ r+32(FP), DX
	VBROADCASTSS minusOneZ<>(SB), Z12
	VSUBPS Z13, Z12, Z12
	VBROADCASTSS half16Z<>(SB), Z11
	VMOVUPS (DX), Z6
	VMOVUPS 64(DX), Z7

loop:
	STEP(LOADBF16, ROUNDBF16, INTEGER, 32)
	JNE  loop
	VMOVUPS Z6, (DX)
	VMOVUPS Z7, 64(DX)
	VZEROUPPER
	RET

// func wholeF16AVX512(dst, src *byte, n int, scale, top float32, r *residue)
TEXT ·wholeF16AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z15
	VBROADCASTSS top+28(FP), Z13
	MOVQ r+32(FP), DX
	VBROADCASTSS minusOneZ<>(SB), Z12
	VSUBPS Z13, Z12, Z12
	VBROADCASTSS half16Z<>(SB), Z11
	VMOVUPS (DX), Z6
	VMOVUPS 64(DX), Z7

loop:
	STEP(LOADF16, ROUNDF16, INTEGER, 32)
	JNE  loop
	VMOVUPS Z6, (DX)
	VMOVUPS Z7, 64(DX)
	VZEROUPPER
	RET

// func wholeF32AVX512(dst, src *byte, n int, scale, top float32, r *residue)
TEXT ·wholeF32AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z15
	VBROADCASTSS top+28(FP), Z13
	MOVQ r+32(FP), DX
	VBROADCASTSS minusOneZ<>(SB), Z12
	VSUBPS Z13, Z12, Z12
	VBROADCASTSS half16Z<>(SB), Z11
	VMOVUPS (DX), Z6
	VMOVUPS 64(DX), Z7

loop:
	STEP(LOADF32, ROUNDF32, INTEGER, 64)
	JNE  loop
	VMOVUPS Z6, (DX)
	VMOVUPS Z7, 64(DX)
	VZEROUPPER
	RET

// func peak16AVX512(src *byte, n int) uint32
TEXT ·peak16AVX512(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS words15Z<>(SB), Z1
	VPXORD Z0, Z0, Z0
	TESTQ $16, CX
	JEQ  pairs
	VPAND (SI), Y1, Y0 // clears the upper half
	ADDQ $32, SI
	SUBQ $16, CX
	JEQ  done

pairs:
	VPANDD (SI), Z1, Z2
	VPMAXUW Z2, Z0, Z0
	ADDQ $64, SI
	SUBQ $32, CX
	JNE  pairs

done:
	VEXTRACTI64X4 $1, Z0, Y1
	VPMAXUW Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUW X1, X0, X0

	// The least of the complements is the complement of the largest.
	VPCMPEQD X1, X1, X1
	VPXOR X1, X0, X0
	VPHMINPOSUW X0, X0
	VMOVD X0, AX
	XORL $0xffff, AX
	MOVWLZX AX, AX
	MOVL AX, ret+16(FP)
	VZEROUPPER
	RET

// func peak32AVX512(src *byte, n int) uint32
TEXT ·peak32AVX512(SB), NOSPLIT, $0-20
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS magnitudeZ<>(SB), Z1
	VPXORD Z0, Z0, Z0

loop:
	VPANDD (SI), Z1, Z2
	VPMAXUD Z2, Z0, Z0
	ADDQ $64, SI
	SUBQ $16, CX
	JNE  loop

	VEXTRACTI64X4 $1, Z0, Y1
	VPMAXUD Y1, Y0, Y0
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
