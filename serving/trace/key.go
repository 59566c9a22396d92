package trace

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Key is what hashes in records are made under. Who has the records and not the key
// cannot try whether a prompt that he knows, or a credential, is among them. Records of
// several routers can be compared when their keys are the same.
type Key [32]byte

// KeyFile is the key's name in a folder of records. Routers with folders of their own
// make records that can be compared when each is given the same.
const KeyFile = "key"

// NewKey is a key that nobody has.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// ReadKey reads a key: 64 hexadecimal digits.
func ReadKey(path string) (k Key, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return k, fmt.Errorf("reading the key of records: %w", err)
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(raw) != len(k) {
		return k, fmt.Errorf("reading the key of records: %s is not %d hexadecimal digits; openssl rand -hex %d makes them", path, 2*len(k), len(k))
	}
	return Key(raw), nil
}

// MakeKey reads the key at path, and makes one where there is none. Of several
// processes that make it at a time all get the same.
func MakeKey(path string) (Key, error) {
	k, err := ReadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	k = NewKey()
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // for its owner alone
	if err != nil {
		return k, fmt.Errorf("making the key of records: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = fmt.Fprintf(tmp, "%x\n", k[:])
	if err = errors.Join(err, tmp.Close()); err == nil {
		// Whole from its first moment, and only if nobody else was faster.
		err = os.Link(tmp.Name(), path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return k, fmt.Errorf("making the key of records: %w", err)
	}
	return ReadKey(path)
}

// what hashes are of, so that none is that of something else.
const (
	ofTenant  = 't'
	ofSession = 's'
	ofPrompt  = 'p'
	ofBlock   = 'b'
)

// Tenant stands for a credential: 48 bits are enough to tell a fleet's tenants apart.
func (k *Key) Tenant(credential string) string {
	b := make([]byte, 0, 256)
	b = append(append(append(b, k[:]...), ofTenant), credential...)
	sum := sha256.Sum256(b)
	out := append(make([]byte, 0, 16), "key-"...)
	return string(hex.AppendEncode(out, sum[:6]))
}

// Session stands for a conversation by a hash of it.
func (k *Key) Session(conversation uint64) string {
	var b [41]byte
	copy(b[:], k[:])
	b[32] = ofSession
	binary.LittleEndian.PutUint64(b[33:], conversation)
	sum := sha256.Sum256(b[:])
	return hex.EncodeToString(sum[:6])
}

// Blocks appends the hashes of the first whole blocks of a prompt to dst, each of all
// bytes up to its end, so that equal hashes are equal beginnings. The parts of before
// are what an engine reads, or knows its cache by, ahead of the prompt. Hashes have 52
// bits, which every reader of JSON takes as they are.
func (k *Key) Blocks(dst []uint64, prompt []byte, before ...[]byte) []uint64 {
	if len(prompt) < BlockBytes {
		return dst
	}
	h := sha256.New()
	h.Write(k[:])
	h.Write([]byte{ofPrompt})
	var n [8]byte
	for _, p := range before {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	var b [len(Key{}) + 1 + 8 + BlockBytes]byte
	copy(b[:], k[:])
	b[32] = ofBlock
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	for i := 0; i < MaxBlocks && len(prompt) >= BlockBytes; i++ {
		copy(b[33:], sum[:8])
		copy(b[41:], prompt[:BlockBytes])
		sum = sha256.Sum256(b[:])
		dst = append(dst, binary.LittleEndian.Uint64(sum[:])>>12)
		prompt = prompt[BlockBytes:]
	}
	return dst
}
