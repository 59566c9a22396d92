package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"llmops/fleet"
)

// Blobs keeps each blob as a file named by its digest. It may be used by any
// number of processes at once.
type Blobs struct{ dir string }

var _ fleet.Blobs = (*Blobs)(nil)

// OpenBlobs opens the blobs in dir, making it when it is not there.
func OpenBlobs(dir string) (*Blobs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening blobs: %w", err)
	}
	return &Blobs{dir}, nil
}

func (b *Blobs) file(digest string) (string, error) {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(h); !ok || err != nil || len(raw) != sha256.Size || h != strings.ToLower(h) {
		return "", fmt.Errorf("blob digest %q is not sha256: and 64 hexadecimal digits", digest)
	}
	return filepath.Join(b.dir, h[:2], h), nil
}

// Put implements fleet.Blobs.
func (b *Blobs) Put(ctx context.Context, r io.Reader) (string, int64, error) {
	f, err := renameio.NewPendingFile(filepath.Join(b.dir, "incoming"), renameio.WithTempDir(b.dir), renameio.WithPermissions(0o600))
	if err != nil {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	defer func() { _ = f.Cleanup() }()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), reader{ctx, r})
	if err != nil {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	digest := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	path, err := b.file(digest)
	if err != nil {
		return "", 0, err
	}
	if _, err := os.Stat(path); err == nil {
		return digest, n, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	if err := f.Sync(); err != nil {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", 0, fmt.Errorf("storing blob: %w", err)
	}
	return digest, n, nil
}

// reader ends a copy when its context does.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Open implements fleet.Blobs.
func (b *Blobs) Open(_ context.Context, digest string) (io.ReadCloser, error) {
	path, err := b.file(digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w", digest, fleet.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("opening blob: %w", err)
	}
	return f, nil
}

// Has implements fleet.Blobs.
func (b *Blobs) Has(_ context.Context, digest string) (bool, error) {
	path, err := b.file(digest)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
