package kernel

import (
	"encoding/binary"
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

func TestDotBF16EqualsWidenedDot(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 0))
	for cols := range 12 {
		const k, ldw = 72, 80
		w := make([]uint16, cols*ldw+k)
		for i := range w {
			w[i] = uint16(math.Float32bits(float32(rng.NormFloat64())) >> 16)
		}
		wide := make([]float32, len(w))
		WidenBF16(wide, w)
		x := random(rng, k)
		got, want := make([]float32, cols), make([]float32, cols)
		DotBF16(got, x, w, ldw, cols, k)
		Dot(want, cols, x, k, wide, ldw, 1, cols, k)
		if !slices.Equal(got, want) {
			t.Fatalf("%d columns: %v, want %v", cols, got, want)
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
	const n = 256
	bytes, halves, words := make([]byte, n), make([]uint16, n), make([]uint32, n/8)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	bytes[0x7f], bytes[0xff] = 0, 0 // NaN as E4M3
	rng := rand.New(rand.NewPCG(5, 0))
	for i := range halves {
		halves[i] = uint16(rng.Uint32())
		if halves[i]>>10&31 == 31 {
			halves[i] = 3 // subnormal
		}
	}
	for i := range words {
		words[i] = rng.Uint32()
	}
	got := make([]float32, n)
	check := func(name string, want func(i int) float32) {
		t.Helper()
		for i, v := range got {
			if v != want(i) {
				t.Fatalf("%s: element %d is %g, want %g", name, i, v, want(i))
			}
		}
	}
	const scale = 0.37
	WidenE4M3(got, bytes, scale)
	check("E4M3", func(i int) float32 { return safetensors.FromE4M3(bytes[i]) * scale })
	WidenInt8(got, bytes, scale)
	check("int8", func(i int) float32 { return float32(int8(bytes[i])) * scale })
	WidenInt4(got, words, scale)
	check("int4", func(i int) float32 { return float32(int(words[i/8]>>(4*(i%8))&15)-8) * scale })
	WidenF16(got, halves)
	check("f16", func(i int) float32 { return safetensors.FromF16(halves[i]) })
	WidenBF16(got, halves)
	check("bf16", func(i int) float32 { return math.Float32frombits(uint32(halves[i]) << 16) })
}

// The Go versions, where the others exist too.
func TestWithoutAssembly(t *testing.T) {
	if !simd {
		t.Skip("this machine has no other versions")
	}
	simd = false
	defer func() { simd = true }()
	for name, test := range map[string]func(*testing.T){
		"dot": TestDot, "bf16": TestDotBF16EqualsWidenedDot, "mix": TestMix, "softmax": TestSoftmax, "exp": TestExp, "widen": TestWiden,
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
	for _, c := range []struct {
		name          string
		rows, cols, k int
	}{{"128x32x1024", 126, 32, 1024}, {"8x32x1024", 8, 32, 1024}, {"1x32x1024", 1, 32, 1024}, {"48x16x64", 48, 16, 64}} {
		b.Run(c.name, func(b *testing.B) {
			x, w, y := random(rng, c.rows*c.k), random(rng, c.cols*c.k), make([]float32, c.rows*c.cols)
			for b.Loop() {
				Dot(y, c.cols, x, c.k, w, c.k, c.rows, c.cols, c.k)
			}
			b.ReportMetric(2*float64(c.rows*c.cols*c.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

func BenchmarkDotBF16(b *testing.B) {
	const k = 1024
	for _, cols := range []int{256, 64 << 10} {
		b.Run(map[bool]string{true: "cached", false: "memory"}[cols == 256], func(b *testing.B) {
			w, x, y := make([]uint16, cols*k), make([]float32, k), make([]float32, cols)
			for i := range w {
				w[i] = uint16(i)
			}
			for b.Loop() {
				DotBF16(y, x, w, k, cols, k)
			}
			b.ReportMetric(2*float64(cols*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
		})
	}
}
