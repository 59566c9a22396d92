package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"llmops/model/safetensors"
)

func random(rng *rand.Rand, n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(rng.NormFloat64())
	}
	return f
}

// exact is the slow obvious product, with the sum of the magnitudes, which bounds
// the error that an order of summing may make.
func exact(x, w []float32) (sum, magnitude float64) {
	for i := range x {
		p := float64(x[i]) * float64(w[i])
		sum += p
		magnitude += math.Abs(p)
	}
	return sum, magnitude
}

func near(t *testing.T, what string, got float32, want, magnitude float64) {
	t.Helper()
	if d := math.Abs(float64(got) - want); !(d <= magnitude*1e-6+1e-30) {
		t.Fatalf("%s is %g, want %g: off by %g", what, got, want, d)
	}
}

// Every shape gives the sums of the slow version, and to the bit those of one row
// and one column alone.
func TestDot(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for _, k := range []int{8, 16, 40, 264} {
		for rows := range 9 {
			for cols := range 19 {
				ldx, ldw, ldy := k+8*rng.IntN(3), k+8*rng.IntN(3), cols+rng.IntN(3)
				x, w := random(rng, rows*ldx+k), random(rng, cols*ldw+k)
				y := make([]float32, rows*ldy)
				for i := range y {
					y[i] = -1
				}
				Dot(y, ldy, x, ldx, w, ldw, rows, cols, k)
				for i := range rows {
					for j := range ldy {
						if j >= cols {
							if y[i*ldy+j] != -1 {
								t.Fatalf("%d × %d × %d: wrote behind row %d", rows, cols, k, i)
							}
							continue
						}
						a, b := x[i*ldx:i*ldx+k], w[j*ldw:j*ldw+k]
						want, magnitude := exact(a, b)
						near(t, "a product", y[i*ldy+j], want, magnitude)
						var alone [1]float32
						Dot(alone[:], 1, a, k, b, k, 1, 1, k)
						if alone[0] != y[i*ldy+j] {
							t.Fatalf("%d × %d × %d: element %d, %d is %g, alone %g", rows, cols, k, i, j, y[i*ldy+j], alone[0])
						}
					}
				}
			}
		}
	}
}

// randomMatrix gives a matrix with the values its rows stand for.
func randomMatrix(rng *rand.Rand, f Format, rows, cols, group int) (Matrix, []float32) {
	m := New(f, rows, cols, group, func(n int) []byte { return make([]byte, n) })
	for i := range m.Scales {
		m.Scales[i] = 0.1 + rng.Float32()
	}
	raw := make([]byte, rows*cols/Lanes*f.Bytes())
	for i := range raw {
		raw[i] = byte(rng.Uint32())
		switch {
		case f == E4M3 && raw[i]&0x7f == 0x7f:
			raw[i] = 3
		case f == F32 && i%4 == 3, (f == BF16 || f == F16) && i%2 == 1:
			raw[i] = raw[i]&0x80 | 0x3c | raw[i]&3
		}
	}
	m.Set(0, raw)
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = element(f, raw[i/Lanes*f.Bytes():], i%Lanes)
		if group > 0 {
			values[i] *= m.Scales[i/cols*m.Groups()+i%cols/group]
		}
	}
	return m, values
}

// Every format, row count and share of the columns gives to the bit what the values
// of the rows give one by one.
func TestProductEqualsDot(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 0))
	room := make([]float32, Room(1<<15))
	for _, f := range []Format{F32, BF16, F16, E4M3, Int8, Int4} {
		for _, group := range []int{0, 16, 32} {
			if group > 0 && (f == BF16 || f == F16) {
				continue
			}
			for _, size := range []struct{ rows, cols int }{{1, 8}, {4, 40}, {7, 72}, {66, 136}, {9, 16384}} {
				m, values := randomMatrix(rng, f, size.rows, size.cols, group)
				row := make([]float32, size.cols)
				m.Row(row, size.rows-1)
				if !slices.Equal(row, values[(size.rows-1)*size.cols:]) {
					t.Fatalf("format %d: a row is not what was set", f)
				}
				for rows := range 9 {
					x := random(rng, rows*size.cols)
					want, got := make([]float32, rows*size.rows), make([]float32, rows*size.rows)
					Dot(want, size.rows, x, size.cols, values, size.cols, rows, size.rows, size.cols)
					cut := size.rows / 8 * 4
					m.Product(got, x, rows, 0, cut, room)
					m.Product(got, x, rows, cut, size.rows, room)
					if !slices.Equal(got, want) {
						t.Fatalf("format %d in groups of %d, %d × %d, %d rows: %v, want %v", f, group, size.rows, size.cols, rows, got, want)
					}
				}
			}
		}
	}
}

func TestMix(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0))
	for _, d := range []int{8, 16, 24, 32, 72, 128} {
		for rows := range 7 {
			for _, n := range []int{0, 1, 5, 16} {
				ldw := n + 3
				weights, v, start := random(rng, rows*ldw+n), random(rng, n*d), random(rng, rows*d)
				out := slices.Clone(start)
				Mix(out, weights, ldw, v, rows, n, d)
				for i := range rows {
					for j := range d {
						want := float64(start[i*d+j])
						magnitude := math.Abs(want)
						for p := range n {
							term := float64(weights[i*ldw+p]) * float64(v[p*d+j])
							want += term
							magnitude += math.Abs(term)
						}
						near(t, "a weighted sum", out[i*d+j], want, magnitude)
					}
					alone := slices.Clone(start[i*d : (i+1)*d])
					Mix(alone, weights[i*ldw:], n, v, 1, n, d)
					if !slices.Equal(alone, out[i*d:(i+1)*d]) {
						t.Fatalf("%d rows, %d weights, %d columns: row %d is another alone", rows, n, d, i)
					}
				}
			}
		}
	}
}

func TestSoftmax(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0))
	inf := float32(math.Inf(-1))
	for _, n := range []int{8, 16, 48, 400} {
		row := random(rng, n)
		for i := range row {
			row[i] *= 40
		}
		row[0], row[n-1] = inf, inf
		const scale = 0.35
		var sum float64
		top := float64(slices.Max(row))
		for _, v := range row {
			sum += math.Exp((float64(v) - top) * scale)
		}
		got := slices.Clone(row)
		Softmax(got, scale)
		for i, v := range row {
			power := (float64(v) - top) * scale
			want := math.Exp(power) / sum
			// The power itself is rounded, to 2⁻²³ of its size.
			if d := math.Abs(float64(got[i]) - want); i > 0 && i < n-1 && d > (1e-6-3e-7*power)*want+1e-37 {
				t.Fatalf("%d elements: %g, want %g", n, got[i], want)
			}
		}
		if got[0] != 0 || got[n-1] != 0 {
			t.Error("what is masked has weight")
		}
		// Masked elements around change no bit.
		wide := make([]float32, n+16)
		for i := range wide {
			wide[i] = inf
		}
		copy(wide[8:], row)
		Softmax(wide, scale)
		if !slices.Equal(wide[8:n+8], got) {
			t.Error("masked elements around a row change it")
		}
	}
}

func TestExp(t *testing.T) {
	x := make([]float32, 8)
	up := []float32{1, 1, 1, 1, 1, 1, 1, 1}
	for v := float32(-86.9); v < 88; v += 0.0137 {
		want := math.Exp(float64(v))
		if d := math.Abs(float64(exp(v)) - want); d > want*3e-7 {
			t.Fatalf("exp(%g) = %g, want %g", v, exp(v), want)
		}
		for i := range x {
			x[i] = -v
		}
		SiLU(x, x, up)
		gate := -float64(v)
		if want := gate / (1 + math.Exp(-gate)); math.Abs(float64(x[3])-want) > math.Abs(want)*4e-7 {
			t.Fatalf("silu(%g) = %g, want %g", gate, x[3], want)
		}
	}
	nan := float32(math.NaN())
	row := []float32{nan, 200, -200, 0, 88.5, -88.5, 1, -1}
	SiLU(row, row, up)
	if row[0] == row[0] || row[1] != 200 || row[2] > 0 || row[2] < -1e-35 {
		t.Errorf("silu at the ends: %v", row)
	}
}

func TestWiden(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 0))
	for _, n := range []int{8, 32, 72, 256} {
		codes, halves, got := make([]byte, n), make([]uint16, n), make([]float32, n)
		for i := range codes {
			codes[i] = byte(rng.IntN(127) + 128*rng.IntN(2))
			halves[i] = uint16(rng.IntN(0x7f80) + 0x8000*rng.IntN(2))
		}
		const scale = 0.37
		WidenE4M3(got, codes, scale)
		for i, v := range got {
			if want := safetensors.FromE4M3(codes[i]) * scale; v != want {
				t.Fatalf("E4M3 %#x is %g, want %g", codes[i], v, want)
			}
		}
		WidenBF16(got, halves)
		for i, v := range got {
			if want := math.Float32frombits(uint32(halves[i]) << 16); v != want {
				t.Fatalf("bf16 %#x is %g, want %g", halves[i], v, want)
			}
		}
	}
}

func TestRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 0))
	for _, n := range []int{8, 40, 256} {
		x, weight, got := random(rng, n), random(rng, n), make([]float32, n)
		var squares float64
		for _, v := range x {
			squares += float64(v) * float64(v)
		}
		RMSNorm(got, x, weight, 1e-5)
		for i, v := range x {
			want := float64(v) * float64(weight[i]) / math.Sqrt(squares/float64(n)+1e-5)
			near(t, "a norm", got[i], want, math.Abs(want))
		}
		copy(got, x)
		Add(got, weight)
		for i := range got {
			if got[i] != x[i]+weight[i] {
				t.Fatalf("a sum is %g, want %g", got[i], x[i]+weight[i])
			}
		}
		x[n-3] = -77
		if got := MaxAbs(x); got != 77 {
			t.Errorf("the largest magnitude is %g, want 77", got)
		}
	}
}

func TestRounding(t *testing.T) {
	x, e, whole := make([]float32, 8), make([]float32, 8), make([]float32, 8)
	check := func() {
		t.Helper()
		for _, scale := range []float32{1, 0.37} {
			RoundE4M3(e, x, scale)
			RoundInt8(whole, x, scale)
			for i, v := range x {
				q := v / scale
				if want := safetensors.FromE4M3(safetensors.ToE4M3(max(-448, min(q, 448)))); e[i] != want && q == q {
					t.Fatalf("%g rounds to %g as E4M3, want %g", q, e[i], want)
				}
				if want := float32(math.RoundToEven(float64(max(-128, min(q, 127))))); whole[i] != want && q == q {
					t.Fatalf("%g rounds to %g as int8, want %g", q, whole[i], want)
				}
				if q != q && (e[i] == e[i] || whole[i] == whole[i]) {
					t.Fatalf("NaN rounds to %g and %g", e[i], whole[i])
				}
			}
		}
	}
	for code := range 256 {
		v := safetensors.FromE4M3(byte(code))
		up := safetensors.FromE4M3(byte(code) + 1)
		copy(x, []float32{v, v * 1.0001, v * 0.97, v * 1.04, v + 0x1p-11, v - 0x1p-10, (v + up) / 2, 2 * v})
		check()
	}
	for i := range 300 {
		half := float32(i) - 150.5
		copy(x, []float32{half, half + 0.001, half - 0.001, half / 2, 1e30, -1e30, 0, float32(math.Inf(1))})
		check()
	}
}

// The Go versions, where the others exist too.
func TestWithoutAssembly(t *testing.T) {
	if !simd {
		t.Skip("this machine has no other versions")
	}
	simd = false
	defer func() { simd = true }()
	for name, test := range map[string]func(*testing.T){
		"dot": TestDot, "product": TestProductEqualsDot, "mix": TestMix, "softmax": TestSoftmax, "exp": TestExp, "widen": TestWiden, "rows": TestRows, "rounding": TestRounding,
	} {
		t.Run(name, test)
	}
}

// FuzzDot compares with the slow version on any finite floats, and the two
// implementations with each other.
func FuzzDot(f *testing.F) {
	f.Add(uint8(3), uint8(5), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb, 0xc})
	f.Add(uint8(7), uint8(9), make([]byte, 64))
	f.Fuzz(func(t *testing.T, rows, cols uint8, data []byte) {
		r, c, k := int(rows%8)+1, int(cols%20)+1, 24
		at := 0
		next := func() float32 {
			if len(data) < 4 {
				return 0.5
			}
			at = (at + 3) % (len(data) - 3)
			v := math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))
			if !(math.Abs(float64(v)) < 1e15) || math.Abs(float64(v)) < 1e-15 {
				return float32(at)
			}
			return v
		}
		x, w, y := make([]float32, r*k), make([]float32, c*k), make([]float32, r*c)
		for i := range x {
			x[i] = next()
		}
		for i := range w {
			w[i] = next()
		}
		Dot(y, c, x, k, w, k, r, c, k)
		for i := range r {
			for j := range c {
				a, b := x[i*k:(i+1)*k], w[j*k:(j+1)*k]
				want, magnitude := exact(a, b)
				near(t, "a product", y[i*c+j], want, magnitude)
				near(t, "a product in Go", dot(a, b), want, magnitude)
			}
		}
	})
}

func BenchmarkDot(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 0))
	const rows, cols, k = 48, 16, 64
	x, w, y := random(rng, rows*k), random(rng, cols*k), make([]float32, rows*cols)
	for b.Loop() {
		Dot(y, cols, x, k, w, k, rows, cols, k)
	}
	b.ReportMetric(2*rows*cols*k*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// BenchmarkProduct has a matrix larger than any cache.
func BenchmarkProduct(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 0))
	const n, k = 48 << 10, 1024
	for name, f := range map[string]Format{"f32": F32, "bf16": BF16, "fp8": E4M3, "int8": Int8, "int4": Int4} {
		for _, rows := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/%d", name, rows), func(b *testing.B) {
				m := New(f, n, k, 0, Huge)
				for i := range m.data {
					m.data[i] = byte(i) & 0x3f
				}
				x, y, room := random(rng, rows*k), make([]float32, rows*n), make([]float32, Room(k))
				for b.Loop() {
					m.Product(y, x, rows, 0, n, room)
				}
				seconds := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(float64(len(m.data))/seconds/1e9, "GB/s")
				b.ReportMetric(2*float64(rows)*n*k/seconds/1e9, "GFLOP/s")
			})
		}
	}
}
