package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"llmops/pipeline/download/transfer"
)

// lockPause is how often a lock is tried that another process holds.
const lockPause = 100 * time.Millisecond

// keep sees to it that the blob of a file is there and whole, and returns its digests.
// It holds the lock that huggingface_hub takes for the same blob.
func (c *cache) keep(ctx context.Context, x *transfer.Fetcher, r *transfer.Remote) (s transfer.Sums, err error) {
	lock := flock.New(c.lock(r.File))
	if err := os.MkdirAll(filepath.Dir(lock.Path()), 0o755); err != nil {
		return s, err
	}
	if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
		return s, fmt.Errorf("waiting for %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Close() }()
	return x.Keep(ctx, r, c.blob(r.File))
}
