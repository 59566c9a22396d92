package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"llmops/fleet"
	"llmops/serving/route"
)

// key is the fleet's, as this router last read it.
type key struct {
	mu   sync.Mutex // guards what follows
	key  route.Key
	read time.Duration // when a push that it did not fit had it read
}

// keyPause is between reads of the key for pushes that it does not fit: whoever may
// not push shall not have the store read either.
const keyPause = time.Second

// learn reads the key unless it is known, so that pushes are taken when the store is
// out of reach.
func (r *Router) learn(ctx context.Context) error {
	r.key.mu.Lock()
	known := r.key.key != nil
	r.key.mu.Unlock()
	if known {
		return nil
	}
	return r.readKey(ctx)
}

func (r *Router) readKey(ctx context.Context) error {
	k, err := route.ReadKey(ctx, r.o.Store)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil // nobody has pushed yet
	}
	if err != nil {
		return err
	}
	r.key.mu.Lock()
	r.key.key = k
	r.key.mu.Unlock()
	return nil
}

// signed tells whether a push comes from whoever may read the store.
func (r *Router) signed(ctx context.Context, body []byte, signature string) bool {
	fits := func() bool {
		r.key.mu.Lock()
		defer r.key.mu.Unlock()
		return r.key.key.Signed(body, signature)
	}
	if fits() {
		return true
	}
	r.key.mu.Lock()
	now := r.o.Now()
	early := r.key.read > 0 && now-r.key.read < keyPause
	if !early {
		r.key.read = now
	}
	r.key.mu.Unlock()
	if early {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, keyPause)
	defer cancel()
	if err := r.readKey(ctx); err != nil {
		r.o.Log.Warn("reading the key of pushes", "err", err)
		return false
	}
	return fits()
}
