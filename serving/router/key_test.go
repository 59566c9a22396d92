package router

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmops/fleet"
	"llmops/serving/route"
)

// counted counts the reads of the key.
type counted struct {
	fleet.Store
	reads atomic.Int64
}

func (c *counted) Get(ctx context.Context, name string) (fleet.Doc, error) {
	if name == route.KeyName {
		c.reads.Add(1)
	}
	return c.Store.Get(ctx, name)
}

// Whoever reaches the admin address but not the store moves no traffic.
func TestPushesAreSigned(t *testing.T) {
	s := &counted{Store: newStore(t)}
	d := route.New("m", "run", "v1")
	rev := putRoute(t, s, d)
	clock := &skewed{start: time.Now()}
	r, _ := start(t, clock.options(Options{Store: s, Renew: time.Hour}))
	until(t, "the route is read", func() bool { st, ok := r.State("m"); return ok && st.Read >= 0 })
	srv := httptest.NewServer(r.Admin())
	defer srv.Close()
	push := func(k route.Key) error {
		_, err := (&route.Admin{Base: srv.URL, Key: k}).Push(t.Context(), rev+1, route.Claim(d, "thief"))
		return err
	}
	refused := func(name string, k route.Key) {
		t.Helper()
		var e *route.AdminError
		if err := push(k); !errors.As(err, &e) || e.Status != 401 || !strings.Contains(e.Message, "not signed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused("no key, and there is none", nil)
	refused("a key, and there is none", route.Key("0123456789abcdef0123456789abcdef"))
	key := newKey(t, s)
	read := s.reads.Load()
	// A push that the key does not fit has it read, but not each.
	for range 20 {
		refused("a wrong key", route.Key("0123456789abcdef0123456789abcdef"))
	}
	if n := s.reads.Load() - read; n > 1 {
		t.Errorf("20 wrong pushes had the store read %d times", n)
	}
	clock.jump(keyPause)
	if err := push(key); err != nil {
		t.Errorf("a key that was made after the router had started: %v", err)
	}
	// Once it is known, no push has it read.
	read = s.reads.Load()
	if err := push(key); err != nil || s.reads.Load() != read {
		t.Errorf("%v, %d reads", err, s.reads.Load()-read)
	}
}
