package core

import (
	"context"
	"time"
)

// Executor computes a batch: one Token for each row, into out. It returns how long
// that took by the clock that counts; a virtual clock advances by it. An Executor
// is called by one goroutine.
type Executor interface {
	Step(ctx context.Context, b *Batch, out []Token) (took time.Duration, err error)
}
