package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"llmops/model/safetensors"
)

// Format is how weights are stored.
type Format uint8

const (
	F32 Format = iota
	BF16
	F16
	E4M3
	Int8
	Int4 // a 32-bit word has eight, the first lowest, each plus 8
)

// Bytes is the size of Lanes weights.
func (f Format) Bytes() int {
	return [...]int{4 * Lanes, 2 * Lanes, 2 * Lanes, Lanes, Lanes, Lanes / 2}[f]
}

// Matrix is rows of weights. They lie as they are read by a product, four rows
// interleaved by Lanes elements, so that it reads memory from one end to the other.
// Products widen them to float32, which is exact.
type Matrix struct {
	Rows, Cols int
	Format     Format
	// With Group > 0 each group of so many elements of a row has a factor in Scales,
	// which is multiplied in as the elements are widened; the last may be shorter.
	Group  int
	Scales []float32
	data   []byte
}

// New makes a matrix of zeros. alloc gives n bytes from a 4-byte boundary.
func New(f Format, rows, cols, group int, alloc func(n int) []byte) Matrix {
	m := Matrix{Rows: rows, Cols: cols, Format: f, Group: group}
	m.data = alloc(m.quads() * 4 * m.steps() * f.Bytes())
	if group > 0 {
		m.Scales = make([]float32, rows*m.Groups())
	}
	return m
}

// Size is the number of bytes that New asks for.
func Size(f Format, rows, cols int) int { return (rows + 3) / 4 * 4 * cols / Lanes * f.Bytes() }

// Groups is how many scales a row has.
func (m *Matrix) Groups() int { return (m.Cols + m.Group - 1) / m.Group }

func (m *Matrix) quads() int { return (m.Rows + 3) / 4 }
func (m *Matrix) steps() int { return m.Cols / Lanes }

// at is where a step of a row lies.
func (m *Matrix) at(row, step int) int {
	return ((row/4*m.steps()+step)*4 + row%4) * m.Format.Bytes()
}

// Set takes whole rows, from row on, as a checkpoint stores them.
func (m *Matrix) Set(row int, src []byte) {
	size := m.Format.Bytes()
	for len(src) > 0 {
		for step := range m.steps() {
			at := m.at(row, step)
			copy(m.data[at:at+size], src[step*size:])
		}
		src = src[m.steps()*size:]
		row++
	}
}

// Row sets dst to a row.
func (m *Matrix) Row(dst []float32, row int) {
	size := m.Format.Bytes()
	for step := range m.steps() {
		scale := float32(1)
		if m.Group > 0 {
			scale = m.Scales[row*m.Groups()+step*Lanes/m.Group]
		}
		at := m.at(row, step)
		for lane := range Lanes {
			dst[step*Lanes+lane] = element(m.Format, m.data[at:at+size], lane) * scale
		}
	}
}

// element is one of the weights of a step.
func element(f Format, b []byte, lane int) float32 {
	switch f {
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b[4*lane:]))
	case BF16:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*lane:])) << 16)
	case F16:
		return safetensors.FromF16(binary.LittleEndian.Uint16(b[2*lane:]))
	case E4M3:
		return safetensors.FromE4M3(b[lane])
	case Int8:
		return float32(int8(b[lane]))
	case Int4:
		return float32(int(b[lane/2]>>(4*(lane%2))&15) - 8)
	}
	panic(fmt.Sprintf("kernel: format %d", f))
}

// A panel is what is widened at a time: it is to stay in the second-level cache
// while all rows of x pass by. For one row the first level will do.
const panelFloats, panelFloatsOfOne = 32 << 10, 4 << 10

// Room is how many floats Product needs for matrices of at most so many columns.
func Room(cols int) int { return max(panelFloats, 4*cols) }

// Product sets the columns [from, to) of y, which has a column for each row of m, to
// the products of rows of x with rows of m. from is a multiple of 4, to too if it is
// not the last. room has Room floats.
func (m *Matrix) Product(y, x []float32, rows, from, to int, room []float32) {
	if rows == 0 || from == to {
		return
	}
	_, _ = y[(rows-1)*m.Rows+to-1], x[rows*m.Cols-1]
	steps, floats := m.steps(), panelFloats
	if rows == 1 {
		floats = panelFloatsOfOne
	}
	panel := max(1, floats/(4*m.Cols))
	last := (to + 3) / 4
	for quad := from / 4; quad < last; quad += panel {
		n := min(panel, last-quad)
		var w []float32
		src := m.data[quad*4*steps*m.Format.Bytes():]
		switch {
		case simd && rows == 1 && m.fused():
		case simd && m.Format == F32 && m.Group == 0:
			w = unsafe.Slice((*float32)(unsafe.Pointer(&src[0])), n*4*m.Cols)
		default:
			w = room[:n*4*m.Cols]
			m.widen(w, quad, n)
		}
		if over := (quad+n)*4 - m.Rows; over > 0 { // the last four rows are not all there
			n--
			for i := range rows {
				var four [4]float32
				if w == nil {
					m.fusedProduct(four[:], x, src[n*4*steps*m.Format.Bytes():], 1)
				} else {
					dotPacked(four[:], 4, x[i*m.Cols:], m.Cols, w[n*4*m.Cols:], 1, 1, steps)
				}
				copy(y[i*m.Rows+(quad+n)*4:], four[:4-over])
			}
			if n == 0 {
				return
			}
		}
		if w == nil {
			m.fusedProduct(y[quad*4:], x, src, n)
		} else {
			dotPacked(y[quad*4:], m.Rows, x, m.Cols, w, rows, n, steps)
		}
	}
}

// widen sets dst to n quads of rows, interleaved as they are.
func (m *Matrix) widen(dst []float32, quad, n int) {
	size := 4 * m.Format.Bytes()
	src := m.data[quad*m.steps()*size : (quad+n)*m.steps()*size]
	if m.Group == 0 {
		widen(dst, m.Format, src, &[4]float32{1, 1, 1, 1})
		return
	}
	groups := m.Groups()
	for q := range n {
		for g := range groups {
			var scales [4]float32
			for r := range 4 {
				if row := (quad+q)*4 + r; row < m.Rows {
					scales[r] = m.Scales[row*groups+g]
				}
			}
			first, end := q*m.steps()+g*m.Group/Lanes, q*m.steps()+min((g+1)*m.Group, m.Cols)/Lanes
			widen(dst[first*4*Lanes:end*4*Lanes], m.Format, src[first*size:end*size], &scales)
		}
	}
}

// widen sets dst to steps of four rows times their scales; halves have none.
func widen(dst []float32, f Format, src []byte, scales *[4]float32) {
	size := 4 * f.Bytes()
	if simd {
		widenSIMD(dst, f, src, len(src)/size, scales)
		return
	}
	for i := range dst {
		lane, row, step := i%Lanes, i/Lanes%4, i/Lanes/4
		dst[i] = element(f, src[step*size+row*f.Bytes():], lane)
		if f != BF16 && f != F16 {
			dst[i] *= scales[row]
		}
	}
}

// dotPacked is Dot for widened quads.
func dotPacked(y []float32, ldy int, x []float32, ldx int, w []float32, rows, quads, steps int) {
	if simd {
		dotPackedSIMD(y, ldy, x, ldx, w, rows, quads, steps)
		return
	}
	for i := range rows {
		for j := range quads * 4 {
			var s [Lanes]float32
			for step := range steps {
				a := x[i*ldx+step*Lanes : i*ldx+(step+1)*Lanes : i*ldx+(step+1)*Lanes]
				b := w[((j/4*steps+step)*4+j%4)*Lanes:][:Lanes:Lanes]
				for l := range s {
					s[l] += a[l] * b[l]
				}
			}
			y[i*ldy+j] = reduce(&s)
		}
	}
}

// WidenBF16 sets dst to bfloat16 values.
func WidenBF16(dst []float32, src []uint16) {
	if n := len(dst) / (4 * Lanes); simd && n > 0 {
		widenBF16(&dst[0], (*byte)(unsafe.Pointer(&src[0])), n)
		dst, src = dst[n*4*Lanes:], src[n*4*Lanes:]
	}
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[i]) << 16)
	}
}

// WidenE4M3 sets dst to F8_E4M3 values, none of them NaN, times scale.
func WidenE4M3(dst []float32, src []byte, scale float32) {
	if n := len(dst) / (4 * Lanes); simd && n > 0 {
		widenSIMD(dst, E4M3, src, n, &[4]float32{scale, scale, scale, scale})
		dst, src = dst[n*4*Lanes:], src[n*4*Lanes:]
	}
	for i := range dst {
		dst[i] = safetensors.FromE4M3(src[i]) * scale
	}
}
