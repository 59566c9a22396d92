// Package safetensors reads and writes the safetensors format: one file, or a
// folder of shards under an index.
//
// A File gives the Header of one file and any bytes of its tensors, without
// reading the rest; a Checkpoint does the same for a whole model, after checking
// that index and headers agree. A Writer lays tensors out as the reference writer
// does, takes their bytes in any order and replaces the target at once on Commit.
// Reading and Writer.WriteAt are safe for concurrent use.
//
// It refuses what the format's reference implementation refuses, duplicate keys
// and pickled weights besides. It never holds a whole tensor and gives no meaning
// to names.
package safetensors

import (
	"fmt"
	"math"
)

// DType is an element type. The order is that of the format's enumeration:
// rising alignment, which is how writers sort.
type DType uint8

const (
	Bool DType = iota + 1
	F4
	F6E2M3
	F6E3M2
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64
	F64
	I64
	U64
)

var dtypes = [...]struct {
	name string
	bits int64
}{
	Bool: {"BOOL", 8}, F4: {"F4", 4}, F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6}, U8: {"U8", 8}, I8: {"I8", 8},
	F8E5M2: {"F8_E5M2", 8}, F8E4M3: {"F8_E4M3", 8}, F8E8M0: {"F8_E8M0", 8}, F8E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16}, I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32},
	C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// ParseDType knows the format's names only.
func ParseDType(s string) (DType, error) {
	for d := Bool; int(d) < len(dtypes); d++ {
		if dtypes[d].name == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %q", s)
}

func (d DType) String() string {
	if d < Bool || int(d) >= len(dtypes) {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits is the size of one element.
func (d DType) Bits() int64 { return dtypes[d].bits }

// Tensor is one entry of a header. Begin and End are offsets into the data that
// follows the header.
type Tensor struct {
	Name       string
	DType      DType
	Shape      []int64
	Begin, End int64
}

// Size is the tensor's length in bytes.
func (t Tensor) Size() int64 { return t.End - t.Begin }

// Elements is the product of the shape; of rank 0 it is 1.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// bytesFor is the size that dtype and shape ask for.
func bytesFor(d DType, shape []int64) (int64, error) {
	n := int64(1)
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("dimension %d is negative", dim)
		}
		if dim != 0 && n > math.MaxInt64/dim {
			return 0, fmt.Errorf("shape %v overflows", shape)
		}
		n *= dim
	}
	if n > math.MaxInt64/d.Bits() {
		return 0, fmt.Errorf("shape %v overflows", shape)
	}
	if bits := n * d.Bits(); bits%8 == 0 {
		return bits / 8, nil
	}
	return 0, fmt.Errorf("%d elements of %s do not fill whole bytes", n, d)
}
