package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"llmops/fleet"
)

// Blobs keeps each blob as an object named by its digest.
type Blobs struct {
	b   *Bucket
	tmp string // where a blob waits until its name is known
}

var _ fleet.Blobs = (*Blobs)(nil)

// NewBlobs keeps them below b. tmp is a folder for what is on its way.
func NewBlobs(b *Bucket, tmp string) *Blobs { return &Blobs{b, tmp} }

// BlobKey is where a blob is below the bucket's prefix.
func BlobKey(digest string) (string, error) {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(h); !ok || err != nil || len(raw) != sha256.Size || h != strings.ToLower(h) {
		return "", fmt.Errorf("blob digest %q is not sha256: and 64 hexadecimal digits", digest)
	}
	return "blobs/" + h[:2] + "/" + h, nil
}

// Put implements fleet.Blobs.
func (s *Blobs) Put(ctx context.Context, r io.Reader) (digest string, n int64, err error) {
	f, err := os.CreateTemp(s.tmp, ".blob-")
	if err != nil {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	sum := sha256.New()
	if n, err = io.Copy(io.MultiWriter(f, sum), r); err != nil {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	key, err := BlobKey(digest)
	if err != nil {
		return "", 0, err
	}
	if has, err := s.Has(ctx, digest); has || err != nil {
		return digest, n, err
	}
	return digest, n, s.b.Write(ctx, key, io.NewSectionReader(f, 0, n), n)
}

// Open implements fleet.Blobs.
func (s *Blobs) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	key, err := BlobKey(digest)
	if err != nil {
		return nil, err
	}
	return s.b.Open(ctx, key)
}

// Has implements fleet.Blobs.
func (s *Blobs) Has(ctx context.Context, digest string) (bool, error) {
	key, err := BlobKey(digest)
	if err != nil {
		return false, err
	}
	if _, err := s.b.Stat(ctx, key); errors.Is(err, fleet.ErrNotFound) {
		return false, nil
	} else {
		return err == nil, err
	}
}
