package llama

import (
	"encoding/binary"
	"math"

	"llmops/model/safetensors"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama/kernel"
)

// cache holds keys or values of one layer by block, then KV head, then token.
type cache struct {
	dim    int
	f32    []float32
	half   []uint16  // bfloat16
	code   []byte    // E4M3
	scales []float32 // of each KV head, for codes
}

func newCache(kind string, n, dim int, scales []float32) cache {
	c := cache{dim: dim}
	switch kind {
	case KVBF16:
		c.half = make([]uint16, n)
	case KVFP8:
		c.code, c.scales = make([]byte, n), scales
	default:
		c.f32 = make([]float32, n)
	}
	return c
}

// put stores the vector of one token and head at element at.
func (c *cache) put(at, head int, v []float32) {
	switch {
	case c.f32 != nil:
		copy(c.f32[at:], v)
	case c.half != nil:
		for i, x := range v {
			b := math.Float32bits(x)
			c.half[at+i] = uint16((b + 0x7fff + b>>16&1) >> 16)
		}
	default:
		s := c.scales[head]
		for i, x := range v {
			c.code[at+i] = safetensors.ToE4M3(max(-safetensors.MaxE4M3, min(x/s, safetensors.MaxE4M3)))
		}
	}
}

// tokens gives n vectors from element at on, in room where they are not float32.
func (c *cache) tokens(room []float32, at, head, n int) []float32 {
	room = room[:n*c.dim]
	switch {
	case c.f32 != nil:
		return c.f32[at : at+n*c.dim]
	case c.half != nil:
		kernel.WidenBF16(room, c.half[at:])
	default:
		kernel.WidenE4M3(room, c.code[at:], c.scales[head])
	}
	return room
}

// layerCache is that of both.
type layerCache struct{ k, v cache }

// Kinds of Options.KV.
const (
	KVFloat32 = "float32"
	KVBF16    = "bf16"
	KVFP8     = "fp8"
)

// slot is the element where a KV head's part of a block begins.
func (m *Executor) slot(block int32, head int) int {
	return (int(block)*m.shape.KVHeads + head) * core.BlockSize * m.shape.HeadDim
}

// appendTo appends n elements from at on as they lie in memory, little-endian.
func (c *cache) appendTo(b []byte, at, n int) []byte {
	switch {
	case c.f32 != nil:
		for _, v := range c.f32[at : at+n] {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	case c.half != nil:
		for _, v := range c.half[at : at+n] {
			b = binary.LittleEndian.AppendUint16(b, v)
		}
	default:
		b = append(b, c.code[at:at+n]...)
	}
	return b
}

// read is the reverse of appendTo.
func (c *cache) read(at, n int, b []byte) {
	switch {
	case c.f32 != nil:
		for i := range c.f32[at : at+n] {
			c.f32[at+i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case c.half != nil:
		for i := range c.half[at : at+n] {
			c.half[at+i] = binary.LittleEndian.Uint16(b[2*i:])
		}
	default:
		copy(c.code[at:at+n], b)
	}
}
