package quantise

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"llmops/model/safetensors"
)

var floats = []safetensors.DType{safetensors.BF16, safetensors.F16, safetensors.F32}

// using is a kernel of the given set for weights of type d.
func using(set *kernels, d safetensors.DType) *kernel {
	k := &kernel{fast: set}
	k.set(d)
	return k
}

// oracle follows the reference's words one by one, for one row under one scale:
// divide, round to the weights' type, clamp, round to a code.
func oracle(values []float32, d safetensors.DType, to scheme) (codes []byte, scale float32) {
	a := arithmeticOf(d)
	var lo, hi float32
	for _, x := range values {
		lo, hi = min(lo, x), max(hi, x)
	}
	scale = a.round(max(-lo, hi) / to.half())
	if scale == 0 {
		scale = a.eps
	}
	for _, x := range values {
		q := float64(a.round(x / scale))
		if to.float {
			codes = append(codes, nearestE4M3(math.Min(math.Max(q, -448), 448)))
			continue
		}
		top := float64(int(1)<<(to.bits-1)) - 1
		codes = append(codes, byte(int8(math.RoundToEven(math.Min(math.Max(q, -top-1), top)))))
	}
	return codes, scale
}

// nearestE4M3 tries every code: the nearest, and of two the even one.
func nearestE4M3(x float64) byte {
	best, dist := byte(0), math.Inf(1)
	for c := range 256 {
		v := float64(safetensors.FromE4M3(byte(c)))
		if v != v || (v == 0 && math.Signbit(v) != math.Signbit(x)) {
			continue
		}
		d := math.Abs(v - x)
		if d < dist || d == dist && c&1 == 0 {
			best, dist = byte(c), d
		}
	}
	return best
}

// encoded is what the set makes of the row.
func encoded(set *kernels, values []float32, d safetensors.DType, to scheme) (codes []byte, scale float32, r residue) {
	var raw []byte
	for _, x := range values {
		raw = appendFloat(raw, d, x)
	}
	k := using(set, d)
	scale = arithmeticOf(d).scale(k.amax(raw), to.half())
	codes = make([]byte, len(values))
	if to.float {
		k.fp8(codes, raw, scale)
	} else {
		k.whole(codes, raw, scale, float32(int(1)<<(to.bits-1))-1)
	}
	return codes, scale, k.r
}

func sets() []*kernels { return append(assembly(), &portable) }

// Every kernel of every type equals the oracle, and all of them lose the same.
func TestKernelsMatchTheOracle(t *testing.T) {
	for _, set := range sets() {
		for _, d := range floats {
			for _, name := range []string{FP8Dynamic, Int8, Int4} {
				t.Run(fmt.Sprint(set.name, " ", d, " ", name), func(t *testing.T) {
					a, r := arithmeticOf(d), rand.New(rand.NewPCG(1, uint64(d)))
					for trial := range 300 {
						values := make([]float32, 1+r.IntN(3*chunk))
						spread := r.Float64() * 4
						for i := range values {
							values[i] = a.round(float32(r.NormFloat64() * math.Exp(r.NormFloat64()*spread)))
						}
						if trial == 0 {
							clear(values)
							values[0] = float32(math.Copysign(0, -1))
						}
						if !finite(a.round(peak(values))) { // a half has overflowed
							continue
						}
						compare(t, set, values, d, schemes[name])
					}
				})
			}
		}
	}
}

func peak(values []float32) (top float32) {
	for _, v := range values {
		top = max(top, v, -v)
	}
	return top
}

func compare(t *testing.T, set *kernels, values []float32, d safetensors.DType, to scheme) {
	t.Helper()
	want, wantScale := oracle(values, d, to)
	codes, scale, r := encoded(set, values, d, to)
	if scale != wantScale {
		t.Fatalf("scale %v, want %v", scale, wantScale)
	}
	for i := range want {
		if codes[i] != want[i] {
			t.Fatalf("%v of %d, scale %v: code %#x, want %#x", values[i], len(values), scale, codes[i], want[i])
		}
	}
	if _, _, other := encoded(&portable, values, d, to); r != other {
		t.Fatalf("residue %v, want %v", r, other)
	}
}

// FuzzKernels gives all kernels rows of any bits.
func FuzzKernels(f *testing.F) {
	f.Add([]byte{0, 0x80, 1, 0, 0x80, 0x3f, 0xff, 0x7f, 0x34, 0x12}, uint8(0))
	f.Add(make([]byte, 200), uint8(4))
	f.Fuzz(func(t *testing.T, raw []byte, which uint8) {
		d := floats[which%3]
		to := schemes[[]string{FP8Dynamic, Int8, Int4}[which/3%3]]
		width := int(d.Bits() / 8)
		raw = raw[:len(raw)/width*width]
		if len(raw) == 0 {
			return
		}
		values := make([]float32, len(raw)/width)
		if _, err := safetensors.Floats(values, d, raw); err != nil {
			t.Fatal(err)
		}
		top := using(&portable, d).amax(raw)
		for _, set := range sets() {
			if got := using(set, d).amax(raw); math.Float32bits(got) != math.Float32bits(top) {
				t.Fatalf("%s: amax %v, want %v", set.name, got, top)
			}
			if finite(top) {
				compare(t, set, values, d, to)
			}
		}
	})
}

// A row is refused wherever NaN or Inf stands in it, tail included.
func TestPeaksSeeWhatIsNotFinite(t *testing.T) {
	for _, set := range sets() {
		for _, d := range floats {
			width := int(d.Bits() / 8)
			for n := 1; n < 70; n++ {
				for at := range n {
					raw := make([]byte, n*width)
					bits := map[safetensors.DType]uint32{safetensors.BF16: 0xff81, safetensors.F16: 0x7c00, safetensors.F32: 0x7f800001}[d]
					if width == 2 {
						binary.LittleEndian.PutUint16(raw[2*at:], uint16(bits))
					} else {
						binary.LittleEndian.PutUint32(raw[4*at:], bits)
					}
					if got := using(set, d).amax(raw); finite(got) {
						t.Fatalf("%s %v: %d of %d is not finite, amax is %v", set.name, d, at, n, got)
					}
				}
			}
		}
	}
}

// Every bfloat16 and every half under a scale of 1, and what lies around the
// edges of E4M3.
func TestEveryCode(t *testing.T) {
	for _, d := range floats[:2] {
		var raw []byte
		var values []float32
		for bits := range 1 << 16 {
			b := binary.LittleEndian.AppendUint16(nil, uint16(bits))
			var v [1]float32
			if _, err := safetensors.Floats(v[:], d, b); err != nil {
				t.Fatal(err)
			}
			if finite(v[0]) {
				raw, values = append(raw, b...), append(values, v[0])
			}
		}
		for _, set := range sets() {
			k, codes := using(set, d), make([]byte, len(values))
			k.fp8(codes, raw, 1)
			for i, v := range values {
				if want := safetensors.ToE4M3(clamp(v, -448, 448)); codes[i] != want {
					t.Fatalf("%s %v: %v is %#x, want %#x", set.name, d, v, codes[i], want)
				}
			}
		}
	}
	for x, want := range map[float32]byte{448: 0x7e, 464: 0x7e, 465: 0x7e, 0x1p-9: 1, 0x1p-10: 0, 0x1.8p-10: 1, 0x1.8p-9: 2, 0x1p-6: 8, -448: 0xfe, float32(math.Copysign(0, -1)): 0x80} {
		if got, v := e4m3(x); got != want || v != float32(math.Abs(float64(safetensors.FromE4M3(want)))) {
			t.Errorf("e4m3(%v) = %#x, %v; want %#x", x, got, v, want)
		}
	}
}

func TestRoundings(t *testing.T) {
	for _, c := range []struct{ in, bf16, f16 float32 }{
		{1 + 1.0/256, 1, 1 + 1.0/256},             // tie to even in bf16
		{1 + 3.0/256, 1 + 1.0/64, 1 + 3.0/256},    // tie to even upwards
		{1 + 1.0/2048, 1, 1},                      // tie to even in f16
		{1 + 3.0/2048, 1, 1 + 1.0/512},            //
		{6.0e-8, toBF16(6.0e-8), 1.0 / (1 << 24)}, // the smallest half
		{-0.1, -0.10009765625, -0.0999755859375},  //
	} {
		if got := toBF16(c.in); got != c.bf16 {
			t.Errorf("toBF16(%v) = %v, want %v", c.in, got, c.bf16)
		}
		if got := toF16(c.in); got != c.f16 {
			t.Errorf("toF16(%v) = %v, want %v", c.in, got, c.f16)
		}
	}
	for bits := range 0x7c00 {
		f := safetensors.FromF16(uint16(bits))
		if got, neg := halfBits(f), halfBits(-f); int(got) != bits || int(neg) != bits|0x8000 || toF16(f) != f {
			t.Fatalf("half %#x is %v, comes back as %#x", bits, f, got)
		}
	}
	// Between two halves the nearer one, of two the even.
	for bits := range 0x7bff {
		lo, hi := safetensors.FromF16(uint16(bits)), safetensors.FromF16(uint16(bits+1))
		mid, even := (lo+hi)/2, []float32{lo, hi}[bits&1]
		if toF16(mid) != even || toF16(math.Nextafter32(mid, lo)) != lo || toF16(-math.Nextafter32(mid, hi)) != -hi {
			t.Fatalf("between %v and %v: %v", lo, hi, toF16(mid))
		}
	}
	if !math.IsInf(float64(toF16(65520)), 1) || toF16(65519) != 65504 || halfBits(toF16(-1e9)) != 0xfc00 || halfBits(float32(math.NaN())) != 0x7e00 {
		t.Error("the edges of halves are wrong")
	}
}

// A row of -8…-1 under scale 1 packs to 0x76543210.
func TestPacking(t *testing.T) {
	codes := []byte{0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff, 0, 0, 0, 0, 0, 0, 0, 7}
	dst := make([]byte, 8)
	pack4(dst, codes)
	if got := binary.LittleEndian.Uint32(dst); got != 0x76543210 {
		t.Errorf("packed %#x", got)
	}
	if got := binary.LittleEndian.Uint32(dst[4:]); got != 0xf8888888 {
		t.Errorf("packed %#x", got)
	}
	pack8(codes)
	if codes[0] != 0x78 || codes[8] != 0x80 || codes[15] != 0x87 {
		t.Errorf("packed % x", codes)
	}
}

// The error of a report is that of the values that come out.
func TestResidueIsTheError(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, d := range floats {
		values := make([]float32, 1000)
		for i := range values {
			values[i] = arithmeticOf(d).round(float32(r.NormFloat64() * 0.02))
		}
		codes, scale, residue := encoded(fastest, values, d, schemes[FP8Dynamic])
		var lost, size float64
		for i, v := range values {
			e := float64(v) - float64(safetensors.FromE4M3(codes[i]))*float64(scale)
			lost, size = lost+e*e, size+float64(v)*float64(v)
		}
		var sum errorSum
		residue.take(&sum, scale)
		if math.Abs(sum.lost/lost-1) > 1e-4 || math.Abs(sum.size/size-1) > 1e-4 || residue.lost[0] != 0 {
			t.Errorf("%v: lost %v of %v, want %v of %v", d, sum.lost, sum.size, lost, size)
		}
	}
}

// A strip is encoded into memory that is there.
func TestEncodeAllocatesNothing(t *testing.T) {
	for _, set := range sets() {
		for _, name := range []string{FP8Dynamic, FP8Block, Int8, Int4} {
			s := &strip{to: schemes[name], kernel: kernel{fast: set}}
			s.kernel.set(safetensors.BF16)
			s.raw = make([]byte, 2*128*257)
			allocs := testing.AllocsPerRun(10, func() {
				if _, err := s.encode(257, 0, 0); err != nil {
					t.Fatal(err)
				}
				s.packed()
			})
			if allocs > 0 {
				t.Errorf("%s %s: %v allocations a strip", set.name, name, allocs)
			}
		}
	}
}

func BenchmarkKernels(b *testing.B) {
	for _, set := range sets() {
		for _, d := range floats {
			for _, name := range []string{FP8Dynamic, Int8, Int8Weight} {
				b.Run(set.name+"/"+d.String()+"/"+name, func(b *testing.B) {
					s := &strip{to: schemes[name], kernel: kernel{fast: set}}
					s.kernel.set(d)
					r := rand.New(rand.NewPCG(1, 1))
					for range 16 * 4096 {
						s.raw = appendFloat(s.raw, d, arithmeticOf(d).round(float32(r.NormFloat64()*0.02)))
					}
					b.SetBytes(int64(len(s.raw)))
					b.ReportAllocs()
					for b.Loop() {
						if _, err := s.encode(4096, 0, 0); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
