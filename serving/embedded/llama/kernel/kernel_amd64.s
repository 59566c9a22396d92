#include "textflag.h"

// Operands are in the assembler's order: the destination last, and
// VFMADD231PS a, b, c sets c += b·a.

DATA p1<>+0(SB)/8, $0x3ab743ce3ab743ce
DATA p1<>+8(SB)/8, $0x3ab743ce3ab743ce
DATA p1<>+16(SB)/8, $0x3ab743ce3ab743ce
DATA p1<>+24(SB)/8, $0x3ab743ce3ab743ce
GLOBL p1<>(SB), RODATA|NOPTR, $32
DATA p2<>+0(SB)/8, $0x3c0889083c088908
DATA p2<>+8(SB)/8, $0x3c0889083c088908
DATA p2<>+16(SB)/8, $0x3c0889083c088908
DATA p2<>+24(SB)/8, $0x3c0889083c088908
GLOBL p2<>(SB), RODATA|NOPTR, $32
DATA p3<>+0(SB)/8, $0x3d2aa9c13d2aa9c1
DATA p3<>+8(SB)/8, $0x3d2aa9c13d2aa9c1
DATA p3<>+16(SB)/8, $0x3d2aa9c13d2aa9c1
DATA p3<>+24(SB)/8, $0x3d2aa9c13d2aa9c1
GLOBL p3<>(SB), RODATA|NOPTR, $32
DATA p4<>+0(SB)/8, $0x3e2aaaaa3e2aaaaa
DATA p4<>+8(SB)/8, $0x3e2aaaaa3e2aaaaa
DATA p4<>+16(SB)/8, $0x3e2aaaaa3e2aaaaa
DATA p4<>+24(SB)/8, $0x3e2aaaaa3e2aaaaa
GLOBL p4<>(SB), RODATA|NOPTR, $32
DATA p5<>+0(SB)/8, $0x3f0000003f000000
DATA p5<>+8(SB)/8, $0x3f0000003f000000
DATA p5<>+16(SB)/8, $0x3f0000003f000000
DATA p5<>+24(SB)/8, $0x3f0000003f000000
GLOBL p5<>(SB), RODATA|NOPTR, $32
DATA log2e<>+0(SB)/4, $0x3fb8aa3b
GLOBL log2e<>(SB), RODATA|NOPTR, $4
DATA ln2hi<>+0(SB)/4, $0x3f318000
GLOBL ln2hi<>(SB), RODATA|NOPTR, $4
DATA ln2lo<>+0(SB)/4, $0xb95e8083
GLOBL ln2lo<>(SB), RODATA|NOPTR, $4
DATA p0<>+0(SB)/4, $0x39506967
GLOBL p0<>(SB), RODATA|NOPTR, $4
DATA one<>+0(SB)/4, $0x3f800000
GLOBL one<>(SB), RODATA|NOPTR, $4
DATA low<>+0(SB)/4, $0xc2ae0000
GLOBL low<>(SB), RODATA|NOPTR, $4
DATA high<>+0(SB)/4, $0x42b00000
GLOBL high<>(SB), RODATA|NOPTR, $4
DATA notbit14<>+0(SB)/4, $0xbfffbfff
GLOBL notbit14<>(SB), RODATA|NOPTR, $4
DATA eight<>+0(SB)/4, $8
GLOBL eight<>(SB), RODATA|NOPTR, $4
DATA fifteen<>+0(SB)/4, $15
GLOBL fifteen<>(SB), RODATA|NOPTR, $4
DATA nibbles<>+0(SB)/8, $0x0000000400000000
DATA nibbles<>+8(SB)/8, $0x0000000c00000008
DATA nibbles<>+16(SB)/8, $0x0000001400000010
DATA nibbles<>+24(SB)/8, $0x0000001c00000018
GLOBL nibbles<>(SB), RODATA|NOPTR, $32

// Four registers of partial sums a, b, c, d to four sums in a's lower half.
#define REDUCE4(a, b, c, d, xa, t) \
	VHADDPS b, a, a \
	VHADDPS d, c, c \
	VHADDPS c, a, a \
	VEXTRACTF128 $1, a, t \
	VADDPS t, xa, xa

// The same for one register of partial sums, to the same bits.
#define REDUCE1(a, xa, t) \
	VHADDPS a, a, a \
	VHADDPS a, a, a \
	VEXTRACTF128 $1, a, t \
	VADDPS t, xa, xa

// func dot3(y *float32, ldy int, x *float32, ldx int, w *float32, ldw int, quads, steps int)
TEXT ·dot3(SB), NOSPLIT, $0-64
	MOVQ y+0(FP), BX
	MOVQ ldy+8(FP), R13
	MOVQ x+16(FP), SI
	MOVQ ldx+24(FP), R8
	MOVQ w+32(FP), DI
	MOVQ ldw+40(FP), R10
	MOVQ quads+48(FP), CX
	MOVQ steps+56(FP), DX
	SHLQ $2, R13
	SHLQ $2, R8
	SHLQ $2, R10
	LEAQ (R10)(R10*2), R11

quad:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	MOVQ SI, R9
	MOVQ DI, R12
	MOVQ DX, AX

step:
	VMOVUPS (R9), Y12
	VMOVUPS (R9)(R8*1), Y13
	VMOVUPS (R9)(R8*2), Y14
	VMOVUPS (R12), Y15
	VFMADD231PS Y15, Y12, Y0
	VFMADD231PS Y15, Y13, Y4
	VFMADD231PS Y15, Y14, Y8
	VMOVUPS (R12)(R10*1), Y15
	VFMADD231PS Y15, Y12, Y1
	VFMADD231PS Y15, Y13, Y5
	VFMADD231PS Y15, Y14, Y9
	VMOVUPS (R12)(R10*2), Y15
	VFMADD231PS Y15, Y12, Y2
	VFMADD231PS Y15, Y13, Y6
	VFMADD231PS Y15, Y14, Y10
	VMOVUPS (R12)(R11*1), Y15
	VFMADD231PS Y15, Y12, Y3
	VFMADD231PS Y15, Y13, Y7
	VFMADD231PS Y15, Y14, Y11
	ADDQ $32, R9
	ADDQ $32, R12
	DECQ AX
	JNZ  step

	REDUCE4(Y0, Y1, Y2, Y3, X0, X12)
	REDUCE4(Y4, Y5, Y6, Y7, X4, X12)
	REDUCE4(Y8, Y9, Y10, Y11, X8, X12)
	VMOVUPS X0, (BX)
	VMOVUPS X4, (BX)(R13*1)
	VMOVUPS X8, (BX)(R13*2)
	ADDQ    $16, BX
	LEAQ    (DI)(R10*4), DI
	DECQ    CX
	JNZ     quad
	VZEROUPPER
	RET

// func dot1(y, x, w *float32, ldw int, octs, steps int)
TEXT ·dot1(SB), NOSPLIT, $0-48
	MOVQ y+0(FP), BX
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), DI
	MOVQ ldw+24(FP), R10
	MOVQ octs+32(FP), CX
	MOVQ steps+40(FP), DX
	SHLQ $2, R10
	LEAQ (R10)(R10*2), R11

oct:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	MOVQ SI, R9
	MOVQ DI, R12
	LEAQ (DI)(R10*4), R13
	MOVQ DX, AX

step:
	VMOVUPS (R9), Y12
	VFMADD231PS (R12), Y12, Y0
	VFMADD231PS (R12)(R10*1), Y12, Y1
	VFMADD231PS (R12)(R10*2), Y12, Y2
	VFMADD231PS (R12)(R11*1), Y12, Y3
	VFMADD231PS (R13), Y12, Y4
	VFMADD231PS (R13)(R10*1), Y12, Y5
	VFMADD231PS (R13)(R10*2), Y12, Y6
	VFMADD231PS (R13)(R11*1), Y12, Y7
	ADDQ $32, R9
	ADDQ $32, R12
	ADDQ $32, R13
	DECQ AX
	JNZ  step

	REDUCE4(Y0, Y1, Y2, Y3, X0, X12)
	REDUCE4(Y4, Y5, Y6, Y7, X4, X12)
	VMOVUPS X0, (BX)
	VMOVUPS X4, 16(BX)
	ADDQ    $32, BX
	LEAQ    (DI)(R10*8), DI
	DECQ    CX
	JNZ     oct
	VZEROUPPER
	RET

// func dot11(x, w *float32, steps int) float32
TEXT ·dot11(SB), NOSPLIT, $0-28
	MOVQ   x+0(FP), SI
	MOVQ   w+8(FP), DI
	MOVQ   steps+16(FP), AX
	VXORPS Y0, Y0, Y0

step:
	VMOVUPS     (SI), Y12
	VFMADD231PS (DI), Y12, Y0
	ADDQ        $32, SI
	ADDQ        $32, DI
	DECQ        AX
	JNZ         step
	REDUCE1(Y0, X0, X12)
	VMOVSS      X0, ret+24(FP)
	VZEROUPPER
	RET

// func dotBF16(y, x *float32, w *uint16, ldw int, quads, steps int)
TEXT ·dotBF16(SB), NOSPLIT, $0-48
	MOVQ y+0(FP), BX
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), DI
	MOVQ ldw+24(FP), R10
	MOVQ quads+32(FP), CX
	MOVQ steps+40(FP), DX
	SHLQ $1, R10
	LEAQ (R10)(R10*2), R11

quad:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	MOVQ   SI, R9
	MOVQ   DI, R12
	MOVQ   DX, AX

step:
	VMOVUPS     (R9), Y12
	VPMOVZXWD   (R12), Y4
	VPMOVZXWD   (R12)(R10*1), Y5
	VPMOVZXWD   (R12)(R10*2), Y6
	VPMOVZXWD   (R12)(R11*1), Y7
	VPSLLD      $16, Y4, Y4
	VPSLLD      $16, Y5, Y5
	VPSLLD      $16, Y6, Y6
	VPSLLD      $16, Y7, Y7
	VFMADD231PS Y4, Y12, Y0
	VFMADD231PS Y5, Y12, Y1
	VFMADD231PS Y6, Y12, Y2
	VFMADD231PS Y7, Y12, Y3
	ADDQ        $32, R9
	ADDQ        $16, R12
	DECQ        AX
	JNZ         step

	REDUCE4(Y0, Y1, Y2, Y3, X0, X12)
	VMOVUPS X0, (BX)
	ADDQ    $16, BX
	LEAQ    (DI)(R10*4), DI
	DECQ    CX
	JNZ     quad
	VZEROUPPER
	RET

// func mix4(out *float32, ldo int, weights *float32, ldw int, v *float32, ldv int, n int)
TEXT ·mix4(SB), NOSPLIT, $0-56
	MOVQ out+0(FP), BX
	MOVQ ldo+8(FP), R8
	MOVQ weights+16(FP), SI
	MOVQ ldw+24(FP), R10
	MOVQ v+32(FP), DI
	MOVQ ldv+40(FP), R9
	MOVQ n+48(FP), CX
	SHLQ $2, R8
	SHLQ $2, R9
	SHLQ $2, R10
	LEAQ (R8)(R8*2), R12
	LEAQ (R10)(R10*2), R11
	VMOVUPS (BX), Y0
	VMOVUPS 32(BX), Y1
	VMOVUPS (BX)(R8*1), Y2
	VMOVUPS 32(BX)(R8*1), Y3
	VMOVUPS (BX)(R8*2), Y4
	VMOVUPS 32(BX)(R8*2), Y5
	VMOVUPS (BX)(R12*1), Y6
	VMOVUPS 32(BX)(R12*1), Y7

position:
	VMOVUPS (DI), Y12
	VMOVUPS 32(DI), Y13
	VBROADCASTSS (SI), Y8
	VFMADD231PS Y12, Y8, Y0
	VFMADD231PS Y13, Y8, Y1
	VBROADCASTSS (SI)(R10*1), Y9
	VFMADD231PS Y12, Y9, Y2
	VFMADD231PS Y13, Y9, Y3
	VBROADCASTSS (SI)(R10*2), Y10
	VFMADD231PS Y12, Y10, Y4
	VFMADD231PS Y13, Y10, Y5
	VBROADCASTSS (SI)(R11*1), Y11
	VFMADD231PS Y12, Y11, Y6
	VFMADD231PS Y13, Y11, Y7
	ADDQ $4, SI
	ADDQ R9, DI
	DECQ CX
	JNZ  position

	VMOVUPS Y0, (BX)
	VMOVUPS Y1, 32(BX)
	VMOVUPS Y2, (BX)(R8*1)
	VMOVUPS Y3, 32(BX)(R8*1)
	VMOVUPS Y4, (BX)(R8*2)
	VMOVUPS Y5, 32(BX)(R8*2)
	VMOVUPS Y6, (BX)(R12*1)
	VMOVUPS Y7, 32(BX)(R12*1)
	VZEROUPPER
	RET

// func mix1x4(out, weights, v *float32, ldv int, n int)
TEXT ·mix1x4(SB), NOSPLIT, $0-40
	MOVQ    out+0(FP), BX
	MOVQ    weights+8(FP), SI
	MOVQ    v+16(FP), DI
	MOVQ    ldv+24(FP), R9
	MOVQ    n+32(FP), CX
	SHLQ    $2, R9
	VMOVUPS (BX), Y0
	VMOVUPS 32(BX), Y1
	VMOVUPS 64(BX), Y2
	VMOVUPS 96(BX), Y3

position:
	VBROADCASTSS (SI), Y8
	VFMADD231PS  (DI), Y8, Y0
	VFMADD231PS  32(DI), Y8, Y1
	VFMADD231PS  64(DI), Y8, Y2
	VFMADD231PS  96(DI), Y8, Y3
	ADDQ         $4, SI
	ADDQ         R9, DI
	DECQ         CX
	JNZ          position
	VMOVUPS      Y0, (BX)
	VMOVUPS      Y1, 32(BX)
	VMOVUPS      Y2, 64(BX)
	VMOVUPS      Y3, 96(BX)
	VZEROUPPER
	RET

// func mix1(out, weights, v *float32, ldv int, n int)
TEXT ·mix1(SB), NOSPLIT, $0-40
	MOVQ    out+0(FP), BX
	MOVQ    weights+8(FP), SI
	MOVQ    v+16(FP), DI
	MOVQ    ldv+24(FP), R9
	MOVQ    n+32(FP), CX
	SHLQ    $2, R9
	VMOVUPS (BX), Y0

position:
	VBROADCASTSS (SI), Y8
	VFMADD231PS  (DI), Y8, Y0
	ADDQ         $4, SI
	ADDQ         R9, DI
	DECQ         CX
	JNZ          position
	VMOVUPS      Y0, (BX)
	VZEROUPPER
	RET

// EXP sets Y0 to e^Y0, as exp does, with Y1 to Y3 as scratch.
#define EXP_CONSTANTS \
	VBROADCASTSS log2e<>(SB), Y8 \
	VBROADCASTSS ln2hi<>(SB), Y9 \
	VBROADCASTSS ln2lo<>(SB), Y10 \
	VBROADCASTSS p0<>(SB), Y11 \
	VBROADCASTSS one<>(SB), Y12 \
	VBROADCASTSS low<>(SB), Y13 \
	VBROADCASTSS high<>(SB), Y14

#define EXP \
	VCMPPS $1, Y13, Y0, Y3 \
	VMINPS Y0, Y14, Y0 \
	VMULPS Y8, Y0, Y1 \
	VROUNDPS $8, Y1, Y1 \
	VFNMADD231PS Y9, Y1, Y0 \
	VFNMADD231PS Y10, Y1, Y0 \
	VMOVAPS Y11, Y2 \
	VFMADD213PS p1<>(SB), Y0, Y2 \
	VFMADD213PS p2<>(SB), Y0, Y2 \
	VFMADD213PS p3<>(SB), Y0, Y2 \
	VFMADD213PS p4<>(SB), Y0, Y2 \
	VFMADD213PS p5<>(SB), Y0, Y2 \
	VMULPS Y0, Y2, Y2 \
	VFMADD213PS Y0, Y0, Y2 \
	VADDPS Y12, Y2, Y2 \
	VCVTPS2DQ Y1, Y1 \
	VPSLLD $23, Y1, Y1 \
	VPADDD Y12, Y1, Y1 \
	VMULPS Y1, Y2, Y2 \
	VANDNPS Y2, Y3, Y0

// func softmax8(row *float32, steps int, scale float32)
TEXT ·softmax8(SB), NOSPLIT, $0-20
	MOVQ         row+0(FP), SI
	MOVQ         steps+8(FP), CX
	VBROADCASTSS scale+16(FP), Y7
	EXP_CONSTANTS
	MOVQ         SI, DI
	MOVQ         CX, AX
	VMOVUPS      (DI), Y5

most:
	VMAXPS (DI), Y5, Y5
	ADDQ   $32, DI
	DECQ   AX
	JNZ    most
	VEXTRACTF128 $1, Y5, X4
	VMAXPS       X4, X5, X5
	VPERMILPS    $0x4e, X5, X4
	VMAXPS       X4, X5, X5
	VPERMILPS    $0xb1, X5, X4
	VMAXPS       X4, X5, X5
	VBROADCASTSS X5, Y5
	VXORPS       Y6, Y6, Y6
	MOVQ         SI, DI
	MOVQ         CX, AX

power:
	VMOVUPS (DI), Y0
	VSUBPS  Y5, Y0, Y0
	VMULPS  Y7, Y0, Y0
	EXP
	VMOVUPS Y0, (DI)
	VADDPS  Y0, Y6, Y6
	ADDQ    $32, DI
	DECQ    AX
	JNZ     power
	REDUCE1(Y6, X6, X4)
	VDIVSS       X6, X12, X6
	VBROADCASTSS X6, Y6

divide:
	VMULPS  (SI), Y6, Y0
	VMOVUPS Y0, (SI)
	ADDQ    $32, SI
	DECQ    CX
	JNZ     divide
	VZEROUPPER
	RET

// func silu8(dst, gate, up *float32, steps int)
TEXT ·silu8(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), BX
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DI
	MOVQ steps+24(FP), CX
	EXP_CONSTANTS
	VXORPS Y6, Y6, Y6

step:
	VMOVUPS (SI), Y5
	VSUBPS  Y5, Y6, Y0
	EXP
	VADDPS  Y12, Y0, Y0
	VDIVPS  Y0, Y5, Y0
	VMULPS  (DI), Y0, Y0
	VMOVUPS Y0, (BX)
	ADDQ    $32, SI
	ADDQ    $32, DI
	ADDQ    $32, BX
	DECQ    CX
	JNZ     step
	VZEROUPPER
	RET

// func widenBF16(dst *float32, src *uint16, steps int)
TEXT ·widenBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX

step:
	VPMOVZXWD (SI), Y0
	VPSLLD $16, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $16, SI
	ADDQ $32, DI
	DECQ CX
	JNZ step
	VZEROUPPER
	RET

// func widenF16(dst *float32, src *uint16, steps int)
TEXT ·widenF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX

step:
	VCVTPH2PS (SI), Y0
	VMOVUPS Y0, (DI)
	ADDQ $16, SI
	ADDQ $32, DI
	DECQ CX
	JNZ step
	VZEROUPPER
	RET

// A code's bits, its sign twice, are moved to where a half has them: exponent and
// mantissa are then those of 2⁻⁸ of its value, subnormal ones too.
//
// func widenE4M3(dst *float32, src *byte, steps int, scale float32)
TEXT ·widenE4M3(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX
	VBROADCASTSS scale+24(FP), Y7
	VBROADCASTSS notbit14<>(SB), X6

step:
	VPMOVSXBW (SI), X0
	VPSLLW $7, X0, X0
	VPAND X6, X0, X0
	VCVTPH2PS X0, Y0
	VMULPS Y7, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $8, SI
	ADDQ $32, DI
	DECQ CX
	JNZ step
	VZEROUPPER
	RET

// func widenInt8(dst *float32, src *byte, steps int, scale float32)
TEXT ·widenInt8(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX
	VBROADCASTSS scale+24(FP), Y7

step:
	VPMOVSXBD (SI), Y0
	VCVTDQ2PS Y0, Y0
	VMULPS Y7, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $8, SI
	ADDQ $32, DI
	DECQ CX
	JNZ step
	VZEROUPPER
	RET

// func widenInt4(dst *float32, src *uint32, steps int, scale float32)
TEXT ·widenInt4(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ steps+16(FP), CX
	VBROADCASTSS scale+24(FP), Y7
	VMOVUPS nibbles<>(SB), Y6
	VBROADCASTSS fifteen<>(SB), Y5
	VBROADCASTSS eight<>(SB), Y4

step:
	VPBROADCASTD (SI), Y0
	VPSRLVD Y6, Y0, Y0
	VPAND Y5, Y0, Y0
	VPSUBD Y4, Y0, Y0
	VCVTDQ2PS Y0, Y0
	VMULPS Y7, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $4, SI
	ADDQ $32, DI
	DECQ CX
	JNZ step
	VZEROUPPER
	RET
