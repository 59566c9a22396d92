package embedded

import (
	"crypto/sha256"
	"encoding/binary"
)

// BlockSize is the number of tokens in one block of the cache.
const BlockSize = 16

// blockKey names the content of a full block and of all blocks before it, so that
// equal keys mean equal keys and values. Half of a SHA-256 keeps a tenant from
// constructing another's.
type blockKey [16]byte

// rootKey begins the chain of one salt: tenants with different salts share nothing.
func rootKey(salt string) blockKey {
	sum := sha256.Sum256([]byte("salt:" + salt))
	return blockKey(sum[:16])
}

func (k blockKey) next(tokens []int) blockKey {
	var b [16 + 4*BlockSize]byte
	copy(b[:], k[:])
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(b[16+4*i:], uint32(t))
	}
	sum := sha256.Sum256(b[:])
	return blockKey(sum[:16])
}

// pool hands out blocks. A block that nobody uses stays in the cache until its
// place is needed, the longest unused first; blocks without content go before those.
type pool struct {
	blocks   []block
	head     int32 // of the free list, the next to be taken; -1 for none
	tail     int32
	free     int
	reserved int // free blocks promised to admitted sequences
	cached   map[blockKey]int32
}

type block struct {
	refs       int32
	prev, next int32
	key        blockKey
	keyed      bool
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n), head: -1, tail: -1, cached: make(map[blockKey]int32)}
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

// take gives an empty block; the caller has reserved it.
func (p *pool) take() int32 {
	i := p.head
	if i < 0 {
		panic("embedded: taking a block that was not reserved")
	}
	p.unlink(i)
	b := &p.blocks[i]
	if b.keyed {
		delete(p.cached, b.key)
		b.keyed = false
	}
	b.refs = 1
	return i
}

// share uses a cached block once more.
func (p *pool) share(i int32) {
	if p.blocks[i].refs == 0 {
		p.unlink(i)
	}
	p.blocks[i].refs++
}

func (p *pool) release(i int32) {
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

// keep enters a full block into the cache, unless one with its content is there.
func (p *pool) keep(i int32, key blockKey) {
	if _, ok := p.cached[key]; ok {
		return
	}
	b := &p.blocks[i]
	b.key, b.keyed = key, true
	p.cached[key] = i
}

// used counts the blocks that some sequence holds.
func (p *pool) used() int { return len(p.blocks) - p.free }
