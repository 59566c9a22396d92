package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

const digestPrefix = "sha256:"

// Digest names bytes by their content: "sha256:" and 64 lower-case hex digits.
type Digest string

// ParseDigest accepts only the canonical spelling.
func ParseDigest(s string) (Digest, error) {
	d := Digest(s)
	if !d.Valid() {
		return "", fmt.Errorf("parsing digest %q: want sha256: and 64 lower-case hex digits", s)
	}
	return d, nil
}

// DigestOf is the digest of b.
func DigestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// DigestFrom reads r to its end and returns the digest and the bytes read.
func DigestFrom(r io.Reader) (Digest, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err != nil {
		return "", n, err
	}
	return Digest(digestPrefix + hex.EncodeToString(h.Sum(nil))), n, nil
}

// Valid reports whether d is canonical.
func (d Digest) Valid() bool {
	hexed, ok := strings.CutPrefix(string(d), digestPrefix)
	if !ok || len(hexed) != 2*sha256.Size {
		return false
	}
	for _, c := range []byte(hexed) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Hex is d without its algorithm.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// Short is the first twelve hex digits: enough for people, never for lookup.
func (d Digest) Short() string { return d.Hex()[:min(12, len(d.Hex()))] }
