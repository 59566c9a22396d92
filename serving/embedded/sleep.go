package embedded

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"llmops/serving/openai"
)

// sleeper is an executor that can give its memory back.
type sleeper interface {
	// Sleep frees the cache, at level 2 the weights too. Step may not be called.
	Sleep(level int)
	// Wake makes Step possible again, with an empty cache.
	Wake() error
}

// errAsleep is what requests get that were under way when the engine was put to sleep.
var errAsleep = fmt.Errorf("the engine was put to sleep: %w", errClosed)

// onLoop calls f on the loop's goroutine between two steps and waits for it.
func (s *Server) onLoop(f func(now time.Duration) error) error {
	done := make(chan error, 1)
	if err := s.loop.post(func(now time.Duration) { done <- f(now) }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-s.loop.done:
		return errClosed
	}
}

// setSleeping reports what it was before.
func (f *front) setSleeping(to bool) (was bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, f.sleeping = f.sleeping, to
	return was
}

// sleep is vLLM's POST /sleep?level=1&mode=abort. What is under way is broken off,
// or waited for with mode=wait.
func (s *Server) sleep(w http.ResponseWriter, r *http.Request) {
	level, mode := 1, "abort"
	switch v := r.URL.Query().Get("level"); v {
	case "", "1":
	case "2":
		level = 2
	default:
		openai.WriteError(w, http.StatusBadRequest, openai.Invalid("level", "level is %q: want 1 (give the cache back) or 2 (the weights too)", v))
		return
	}
	switch v := r.URL.Query().Get("mode"); v {
	case "", "abort":
	case "wait":
		mode = v
	default:
		openai.WriteError(w, http.StatusBadRequest, openai.Invalid("mode", "mode is %q: want abort or wait", v))
		return
	}
	if s.setSleeping(true) {
		return // is asleep, or going to be
	}
	if err := s.fallAsleep(r.Context(), level, mode); err != nil {
		s.setSleeping(false)
		s.fail(w, r.Context(), err)
	}
}

func (s *Server) fallAsleep(ctx context.Context, level int, mode string) error {
	if mode == "abort" {
		if err := s.onLoop(func(now time.Duration) error {
			for _, r := range s.loop.requests {
				s.loop.fail(now, r, errAsleep)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	return s.onLoop(func(time.Duration) error {
		for id := range s.loop.core.HeldIDs() {
			s.loop.core.Release(id)
		}
		if !s.loop.core.Reset() {
			return fmt.Errorf("putting the engine to sleep: its cache is in use")
		}
		s.loop.publish()
		s.sleeper.Sleep(level)
		if level > 1 && s.loop.residents != nil {
			s.loop.residents.order = nil // they went with the weights
		}
		s.metrics.sleep(level)
		return nil
	})
}

// wakeUp is vLLM's POST /wake_up.
func (s *Server) wakeUp(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	asleep := s.sleeping
	s.mu.Unlock()
	if !asleep {
		return
	}
	err := s.onLoop(func(time.Duration) error {
		if err := s.sleeper.Wake(); err != nil {
			return err
		}
		s.metrics.sleep(0)
		return nil
	})
	if err != nil {
		s.fail(w, r.Context(), err)
		return
	}
	s.setSleeping(false)
}

func (s *Server) isSleeping(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	asleep := s.sleeping
	s.mu.Unlock()
	s.answer(w, map[string]bool{"is_sleeping": asleep})
}

// resetCache is vLLM's POST /reset_prefix_cache.
func (s *Server) resetCache(w http.ResponseWriter, r *http.Request) {
	err := s.onLoop(func(time.Duration) error {
		if !s.loop.core.Reset() {
			return errBusy
		}
		s.loop.publish()
		return nil
	})
	switch err {
	case nil:
	case errBusy:
		openai.WriteError(w, http.StatusConflict, &openai.Error{Message: err.Error(), Type: openai.TypeInvalid, Code: "cache_in_use"})
	default:
		s.fail(w, r.Context(), err)
	}
}

var errBusy = fmt.Errorf("the prefix cache is in use: try again when nothing is under way")
