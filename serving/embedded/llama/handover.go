package llama

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"llmops/serving/embedded/core"
)

// KV holds the keys and values of a sequence's first tokens, for another engine of
// the same model. It is not changed after it was made.
type KV struct {
	shape  kvShape
	tokens int
	data   []byte // by layer, keys before values, then KV head, then token
}

// kvShape is what two engines must agree on.
type kvShape struct {
	layers, heads, dim int
	kind               string // of Options.KV
	model              [32]byte
}

// kinds are in the order of their numbers in the binary form.
var kinds = []string{KVFloat32, KVBF16, KVFP8}

func elementSize(kind string) int { return 4 >> slices.Index(kinds, kind) }

func (s kvShape) String() string {
	return fmt.Sprintf("%d layers of %d heads of %d %s elements of model %x", s.layers, s.heads, s.dim, s.kind, s.model[:6])
}

// vector is the size of what one token has in one head.
func (s kvShape) vector() int { return s.dim * elementSize(s.kind) }

// Tokens is how many there are.
func (kv *KV) Tokens() int { return kv.tokens }

func (m *Executor) kvShape() kvShape {
	return kvShape{m.shape.Layers, m.shape.KVHeads, m.shape.HeadDim, m.kv, m.fingerprint}
}

// Export copies the keys and values of a sequence's first tokens out of its blocks.
func (m *Executor) Export(blocks []int32, tokens int) *KV {
	kv := &KV{shape: m.kvShape(), tokens: tokens}
	kv.data = make([]byte, 0, 2*kv.shape.layers*kv.shape.heads*tokens*kv.shape.vector())
	m.each(blocks, 0, tokens, func(c *cache, at, n, _, _ int) {
		kv.data = c.appendTo(kv.data, at, n)
	})
	return kv
}

// each calls fn for the stretches of each layer, keys before values, that hold the
// positions from to end: n elements of c from element at on, which are of the given
// stretch of a KV from position pos on.
func (m *Executor) each(blocks []int32, from, end int, fn func(c *cache, at, n, stretch, pos int)) {
	d := m.shape.HeadDim
	for l := range m.cache {
		for i, c := range []*cache{&m.cache[l].k, &m.cache[l].v} {
			for h := range m.shape.KVHeads {
				for pos := from; pos < end; {
					n := min(core.BlockSize-pos%core.BlockSize, end-pos)
					fn(c, m.slot(blocks[pos/core.BlockSize], h)+pos%core.BlockSize*d, n*d, (2*l+i)*m.shape.KVHeads+h, pos)
					pos += n
				}
			}
		}
	}
}

// Accepts tells why kv is not of this engine's model and kind of cache. It is safe
// for concurrent use.
func (m *Executor) Accepts(kv *KV) error {
	if want := m.kvShape(); kv.shape != want {
		return fmt.Errorf("keys and values are of %v, this engine has %v: both must run one model with one kind of cache", kv.shape, want)
	}
	return nil
}

// take puts what a row imports into its blocks.
func (m *Executor) take(r core.Row) error {
	kv, ok := r.Seq.Import.(*KV)
	if !ok {
		return fmt.Errorf("sequence %d imports a %T: want a *llama.KV", r.Seq.ID, r.Seq.Import)
	}
	if err := m.Accepts(kv); err != nil {
		return fmt.Errorf("sequence %d: %w", r.Seq.ID, err)
	}
	if kv.tokens < r.Start {
		return fmt.Errorf("sequence %d imports %d tokens: there are %d", r.Seq.ID, r.Start, kv.tokens)
	}
	size := kv.shape.vector()
	m.each(r.Blocks, r.ImportFrom, r.Start, func(c *cache, at, n, stretch, pos int) {
		c.read(at, n, kv.data[(stretch*kv.tokens+pos)*size:])
	})
	return nil
}

// magic begins the binary form; its last byte is the version.
const magic = "llmopsK\x01"

// header follows magic, little-endian.
type header struct {
	Kind, Layers, Heads, Dim, Tokens uint32
	Model                            [32]byte
}

const headerSize = len(magic) + 5*4 + 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// MarshalBinary implements encoding.BinaryMarshaler.
func (kv *KV) MarshalBinary() ([]byte, error) {
	s := kv.shape
	b := make([]byte, 0, headerSize+len(kv.data)+4)
	b = append(b, magic...)
	b, err := binary.Append(b, binary.LittleEndian, header{
		uint32(slices.Index(kinds, s.kind)), uint32(s.layers), uint32(s.heads), uint32(s.dim), uint32(kv.tokens), s.model,
	})
	if err != nil {
		return nil, err
	}
	b = append(b, kv.data...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It keeps no part of b.
func (kv *KV) UnmarshalBinary(b []byte) error {
	if !bytes.HasPrefix(b, []byte(magic)) {
		return errors.New("parsing keys and values: they do not begin as version 1 does")
	}
	if len(b) < headerSize+4 {
		return fmt.Errorf("parsing keys and values: %d bytes are less than the header", len(b))
	}
	var h header
	if _, err := binary.Decode(b[len(magic):], binary.LittleEndian, &h); err != nil {
		return fmt.Errorf("parsing keys and values: %w", err)
	}
	if h.Kind >= uint32(len(kinds)) {
		return fmt.Errorf("parsing keys and values: elements of kind %d are unknown", h.Kind)
	}
	data := b[headerSize : len(b)-4]
	size := uint64(elementSize(kinds[h.Kind])) * 2
	for _, n := range []uint32{h.Layers, h.Heads, h.Dim, h.Tokens} {
		if n == 0 || n > 1<<28 || size > uint64(len(data))/uint64(n) { // the product stays below the length
			return fmt.Errorf("parsing keys and values: %d bytes for %d layers of %d heads of %d elements for %d tokens", len(data), h.Layers, h.Heads, h.Dim, h.Tokens)
		}
		size *= uint64(n)
	}
	if size != uint64(len(data)) {
		return fmt.Errorf("parsing keys and values: %d bytes, want %d: they were cut or lengthened", len(data), size)
	}
	if sum := crc32.Checksum(b[:len(b)-4], castagnoli); sum != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return errors.New("parsing keys and values: their checksum is wrong")
	}
	*kv = KV{
		shape:  kvShape{int(h.Layers), int(h.Heads), int(h.Dim), kinds[h.Kind], h.Model},
		tokens: int(h.Tokens), data: slices.Clone(data),
	}
	return nil
}
