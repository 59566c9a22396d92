package core

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// BlockSize is the usual number of tokens in one block of the cache.
const BlockSize = 16

// Key names the content of a full block and of all blocks before it, so that
// equal keys mean equal keys and values. The zero Key is before the first block.
type Key [16]byte

// Hash continues a chain of keys. Root is the key before the first block of a
// salt and an adapter, which share nothing with any other. All bits of a key are to
// be as good as random.
type Hash interface {
	Root(salt, adapter string) Key
	Next(parent Key, tokens []int) Key
}

// sha is the usual Hash: half of a SHA-256 keeps a tenant from constructing
// another's.
type sha struct{}

func (sha) Root(salt, adapter string) Key {
	sum := sha256.Sum256(append(binary.AppendUvarint([]byte("salt:"), uint64(len(salt))), salt+adapter...))
	return Key(sum[:16])
}

func (sha) Next(k Key, tokens []int) Key {
	var room [16 + 4*BlockSize]byte
	b := append(room[:0], k[:]...)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// BlockEvent is a change of what the prefix cache holds.
type BlockEvent struct {
	Kind    BlockEventKind
	Key     Key
	Parent  Key    // of BlockStored; zero for a first block
	Tokens  []int  // of BlockStored
	Adapter string // of BlockStored
	Salt    string // of BlockStored
}

// BlockEventKind is what happened.
type BlockEventKind uint8

// A block's content can be found from BlockStored on until BlockRemoved;
// AllBlocksCleared removes every one.
const (
	BlockStored BlockEventKind = iota
	BlockRemoved
	AllBlocksCleared
)

// pool hands out blocks. A block that nobody uses stays in the cache until its
// place is needed, the longest unused first; blocks without content go before those.
type pool struct {
	blocks   []block
	head     int32 // of the free list, the next to be taken; -1 for none
	tail     int32
	free     int
	reserved int     // free blocks promised to admitted sequences
	buckets  []int32 // first blocks of the chains of the cache, by key; -1 for none
	evicted  uint64
	removed  func(Key) // nil: nobody wants to know
}

type block struct {
	refs       int32
	prev, next int32 // of the free list
	same       int32 // the next block of the same bucket; -1 for none
	key        Key
	keyed      bool // in the cache
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n), head: -1, tail: -1, buckets: make([]int32, 1<<bits.Len(uint(n)))}
	p.clear()
	for i := range n {
		p.pushBack(int32(i))
	}
	return p
}

func (p *pool) pushBack(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = p.tail, -1
	if p.tail >= 0 {
		p.blocks[p.tail].next = i
	} else {
		p.head = i
	}
	p.tail = i
	p.free++
}

func (p *pool) pushFront(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = -1, p.head
	if p.head >= 0 {
		p.blocks[p.head].prev = i
	} else {
		p.tail = i
	}
	p.head = i
	p.free++
}

func (p *pool) unlink(i int32) {
	b := &p.blocks[i]
	if b.prev >= 0 {
		p.blocks[b.prev].next = b.next
	} else {
		p.head = b.next
	}
	if b.next >= 0 {
		p.blocks[b.next].prev = b.prev
	} else {
		p.tail = b.prev
	}
	p.free--
}

// take gives an empty block; the caller knows that one is free.
func (p *pool) take() int32 {
	i := p.head
	if i < 0 {
		panic("core: taking a block where none is free")
	}
	p.unlink(i)
	b := &p.blocks[i]
	if b.keyed {
		p.forget(i)
		p.evicted++
	}
	b.refs = 1
	return i
}

// clear empties the cache.
func (p *pool) clear() {
	for i := range p.buckets {
		p.buckets[i] = -1
	}
	for i := range p.blocks {
		p.blocks[i].keyed = false
	}
}

// bucket is where the blocks of a key are chained. Keys are hashes already, so that
// their own bits choose; a map would hash them once more and need more memory.
func (p *pool) bucket(key Key) *int32 {
	return &p.buckets[binary.LittleEndian.Uint64(key[:])&uint64(len(p.buckets)-1)]
}

// find looks a block up in the cache.
func (p *pool) find(key Key) (i int32, ok bool) {
	for i = *p.bucket(key); i >= 0; i = p.blocks[i].same {
		if p.blocks[i].key == key {
			return i, true
		}
	}
	return -1, false
}

// forget takes block i out of the cache.
func (p *pool) forget(i int32) {
	b := &p.blocks[i]
	at := p.bucket(b.key)
	for *at != i {
		at = &p.blocks[*at].same
	}
	*at, b.keyed = b.same, false
	if p.removed != nil {
		p.removed(b.key)
	}
}

// share uses a cached block once more.
func (p *pool) share(i int32) {
	if p.blocks[i].refs == 0 {
		p.unlink(i)
	}
	p.blocks[i].refs++
}

// release gives blocks back. The last one goes first: a chain is useless without
// its beginning.
func (p *pool) release(blocks []int32) {
	for n := len(blocks) - 1; n >= 0; n-- {
		i := blocks[n]
		b := &p.blocks[i]
		b.refs--
		switch {
		case b.refs > 0:
		case b.keyed:
			p.pushBack(i)
		default:
			p.pushFront(i)
		}
	}
}

// keep enters a full block into the cache and reports whether it is new there.
func (p *pool) keep(i int32, key Key) bool {
	if _, ok := p.find(key); ok {
		return false
	}
	b, first := &p.blocks[i], p.bucket(key)
	b.key, b.keyed, b.same = key, true, *first
	*first = i
	return true
}

// used counts the blocks that some sequence holds.
func (p *pool) used() int { return len(p.blocks) - p.free }
