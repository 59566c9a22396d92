package embedded

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"llmops/model/tokenizer"
	"llmops/serving/embedded/bert"
)

// maxWaiting bounds the texts that wait: eight of the largest requests.
const maxWaiting = 8 * maxTexts

var errFull = errors.New("too many texts are waiting: try again later")

// batcher computes the texts of all requests together, first come, first served. A
// step takes what waits when the one before it ends, and never waits for more.
type batcher struct {
	model     *bert.Encoder
	maxInputs int
	maxTokens int
	metrics   *encoderMetrics
	done      chan struct{} // closed when run has ended

	mu      sync.Mutex
	waiting []text        // guarded by mu
	closed  bool          // guarded by mu
	wake    chan struct{} // of capacity 1
}

// text is one input of a request.
type text struct {
	in    tokenizer.Encoding
	of    *group
	index int
	since time.Time
}

// group is what a request waits for.
type group struct {
	gone <-chan struct{} // closed when the request is: nobody computes for it then
	rows [][]float32
	left int   // the loop's
	err  error // set before done is closed
	done chan struct{}
}

func newBatcher(m *bert.Encoder, maxInputs, maxTokens int, metrics *encoderMetrics) *batcher {
	return &batcher{model: m, maxInputs: maxInputs, maxTokens: maxTokens, metrics: metrics, done: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// compute gives a row for each input: its embedding, or its score.
func (b *batcher) compute(ctx context.Context, in []tokenizer.Encoding) ([][]float32, error) {
	g := &group{gone: ctx.Done(), rows: make([][]float32, len(in)), left: len(in), done: make(chan struct{})}
	now := time.Now()
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return nil, errClosed
	case len(b.waiting)+len(in) > maxWaiting:
		b.mu.Unlock()
		return nil, errFull
	}
	for i, one := range in {
		b.waiting = append(b.waiting, text{one, g, i, now})
	}
	b.metrics.waits(len(b.waiting))
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	select {
	case <-g.done:
		return g.rows, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *batcher) run(ctx context.Context) {
	defer close(b.done)
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			b.close()
			return
		}
		for batch := b.next(); len(batch) > 0; batch = b.next() {
			if ctx.Err() != nil {
				b.finish(batch, nil, errClosed)
				break
			}
			rows, err := b.step(ctx, batch)
			if err == nil || len(batch) == 1 {
				b.finish(batch, rows, told(ctx, err))
				continue
			}
			// One text's failure is not the others'.
			for i := range batch {
				rows, err := b.step(ctx, batch[i:i+1])
				b.finish(batch[i:i+1], rows, told(ctx, err))
			}
		}
	}
}

// told is what a request hears of err.
func told(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errClosed
	}
	return err
}

// close fails what waits and what still comes.
func (b *batcher) close() {
	b.mu.Lock()
	waiting := b.waiting
	b.waiting, b.closed = nil, true
	b.metrics.waits(0)
	b.mu.Unlock()
	b.finish(waiting, nil, errClosed)
}

// next takes a step's texts, and drops those that nobody waits for.
func (b *batcher) next() []text {
	b.mu.Lock()
	defer b.mu.Unlock()
	var batch []text
	tokens, n := 0, 0
	for ; n < len(b.waiting) && len(batch) < b.maxInputs; n++ {
		t := b.waiting[n]
		select {
		case <-t.of.gone:
			b.metrics.finished(t, "abort")
			continue
		default:
		}
		if tokens += len(t.in.IDs); tokens > b.maxTokens && len(batch) > 0 {
			break
		}
		batch = append(batch, t)
	}
	if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
		b.waiting = nil // the texts before it are held no longer
	}
	b.metrics.waits(len(b.waiting))
	return batch
}

func (b *batcher) step(ctx context.Context, batch []text) ([][]float32, error) {
	b.metrics.begin(batch)
	in := make([]tokenizer.Encoding, len(batch))
	for i, t := range batch {
		in[i] = t.in
	}
	if !b.model.Scores() {
		return b.model.Embed(ctx, in)
	}
	scores, err := b.model.Score(ctx, in)
	rows := make([][]float32, len(scores))
	for i := range scores {
		rows[i] = scores[i : i+1]
	}
	return rows, err
}

func (b *batcher) finish(batch []text, rows [][]float32, err error) {
	for i, t := range batch {
		reason := "stop"
		if err != nil {
			reason = "error"
		}
		b.metrics.finished(t, reason)
		g := t.of
		select {
		case <-g.done: // an earlier text failed
			continue
		default:
		}
		if err == nil {
			g.rows[t.index] = rows[i]
		}
		if g.left--; err != nil || g.left == 0 {
			g.err = err
			close(g.done)
		}
	}
	b.metrics.end()
}

// cosine is 0 where a vector has no direction.
func cosine(x, y []float32) float64 {
	var xy, xx, yy float64
	for i := range x {
		a, b := float64(x[i]), float64(y[i])
		xy += a * b
		xx += a * a
		yy += b * b
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return xy / math.Sqrt(xx*yy)
}
