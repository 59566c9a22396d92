package route

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
)

// Table is a split made ready for choosing. It is immutable and safe for
// concurrent use; the zero Table has no version.
type Table struct {
	versions []string
	upto     []uint32 // exclusive ends in parts per million
}

// NewTable prepares shares. Versions are laid out by name, so that of two
// versions the one whose share grows keeps every conversation it had.
func NewTable(shares map[string]uint32) Table {
	var t Table
	sum := uint32(0)
	for _, v := range slices.Sorted(maps.Keys(shares)) {
		if shares[v] == 0 {
			continue
		}
		sum += shares[v]
		t.versions = append(t.versions, v)
		t.upto = append(t.upto, sum)
	}
	return t
}

// Pick is the version for hash, "" when none has that share. All routers give
// the same answer for the same shares and hash. It does not allocate.
func (t *Table) Pick(hash uint64) string {
	at := point(hash)
	for i, end := range t.upto {
		if at < end {
			return t.versions[i]
		}
	}
	return ""
}

// Pick is the version that the intent gives to a conversation's hash in a
// router's zone and pool.
func Pick(in Intent, zone, pool string, hash uint64) string {
	s, _ := in.For(zone, pool)
	t := NewTable(s.Shares)
	return t.Pick(hash)
}

// Mirrored tells whether the request of hash belongs to a mirrored share. It
// is drawn independently of the version that serves it.
func Mirrored(share uint32, hash uint64) bool {
	return point(mix(hash, mirrorSeed)) < share
}

// point maps a hash evenly onto 0 … Million-1.
func point(hash uint64) uint32 {
	hi, _ := bits.Mul64(hash, Million)
	return uint32(hi)
}

const (
	hashSeed   = 0x9e3779b97f4a7c15
	hashSecret = 0xd6e8feb86659fd93
	mirrorSeed = 0xa0761d6478bd642f
)

// Hash is the unit of randomisation: the conversation under its run, so that
// a new run draws anew. It is the same in every router and every build.
func Hash(run, conversation string) uint64 {
	return Mix(Sum([]byte(run)), Sum([]byte(conversation)))
}

// Mix joins two hashes in order.
func Mix(a, b uint64) uint64 { return mix(mix(a, hashSecret)^b, hashSeed) }

// Sum hashes b at some 8 bytes a multiplication: prompts reach a megabyte, and
// a byte at a time would take longer than the whole choice may. It resists
// chance, not an adversary, who could only choose his own arm.
func Sum(b []byte) uint64 {
	h := uint64(len(b)) ^ hashSeed
	for len(b) >= 16 {
		h = mix(binary.LittleEndian.Uint64(b)^h, binary.LittleEndian.Uint64(b[8:])^hashSecret)
		b = b[16:]
	}
	if len(b) > 0 {
		var tail [16]byte
		copy(tail[:], b)
		h = mix(binary.LittleEndian.Uint64(tail[:])^h, binary.LittleEndian.Uint64(tail[8:])^hashSecret)
	}
	return mix(h^hashSeed, hashSecret)
}

// mix folds the 128-bit product, the step of wyhash.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
