package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"unicode/utf8"

	"llmops/serving/openai"
)

// VersionHeader names the version on every response, which the router compares
// with its decision.
const VersionHeader = "Llmops-Version"

// front is what every engine's API shares: bodies in, answers and errors out, and
// draining. It is safe for concurrent use.
type front struct {
	version string
	maxBody int64 // bytes of a request
	mux     *http.ServeMux

	mu       sync.Mutex
	draining bool          // guarded by mu
	sleeping bool          // guarded by mu
	inFlight int           // guarded by mu
	idle     chan struct{} // closed when nothing is in flight; nil: nobody waits; guarded by mu
}

func newFront(version string, maxBody int64) *front {
	f := &front{version: version, maxBody: maxBody, mux: http.NewServeMux()}
	f.mux.HandleFunc("GET /health", f.health)
	f.mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		f.answer(w, map[string]string{"version": f.version})
	})
	f.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		openai.WriteError(w, http.StatusNotFound, &openai.Error{Message: r.Method + " " + r.URL.Path + " is not served here", Type: openai.TypeNotFound})
	})
	return f
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.version != "" {
		w.Header().Set(VersionHeader, f.version)
	}
	f.mux.ServeHTTP(w, r)
}

// counted refuses new work while draining or asleep and keeps others waiting for
// old work.
func (f *front) counted(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		if f.draining || f.sleeping {
			err := &openai.Error{Message: "the engine is draining", Type: openai.TypeUnavailable, Code: "draining"}
			if !f.draining {
				err.Message, err.Code = "the engine is asleep: POST /wake_up first", "sleeping"
			}
			f.mu.Unlock()
			openai.WriteError(w, http.StatusServiceUnavailable, err)
			return
		}
		f.inFlight++
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.inFlight--
			if f.inFlight == 0 && f.idle != nil {
				close(f.idle)
				f.idle = nil
			}
		}()
		h(w, r)
	}
}

// Drain makes /health answer 503, refuses new requests and waits until those under
// way have ended, or ctx has.
func (f *front) Drain(ctx context.Context) error {
	f.mu.Lock()
	f.draining = true
	f.mu.Unlock()
	return f.quiet(ctx)
}

// quiet waits until nothing is in flight. New work is refused by then, or it may
// wait for ever.
func (f *front) quiet(ctx context.Context) error {
	f.mu.Lock()
	if f.inFlight == 0 {
		f.mu.Unlock()
		return nil
	}
	if f.idle == nil {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		return fmt.Errorf("draining: %d requests are still under way: %w", f.inFlight, ctx.Err())
	}
}

func (f *front) health(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	draining := f.draining
	f.mu.Unlock()
	if draining {
		openai.WriteError(w, http.StatusServiceUnavailable, &openai.Error{Message: "the engine is draining", Type: openai.TypeUnavailable, Code: "draining"})
		return
	}
	w.WriteHeader(http.StatusOK)
}

// read decodes a request body, or answers and returns false.
func (f *front) read(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, f.maxBody))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		openai.WriteError(w, http.StatusRequestEntityTooLarge, &openai.Error{
			Message: fmt.Sprintf("the request body is over the limit of %d bytes", f.maxBody), Type: openai.TypeInvalid, Code: "body_too_large",
		})
		return false
	case err != nil:
		openai.WriteError(w, http.StatusBadRequest, openai.Invalid("", "reading the request body: %v", err))
		return false
	case !utf8.Valid(body):
		openai.WriteError(w, http.StatusBadRequest, openai.Invalid("", "the request body is not valid UTF-8"))
		return false
	}
	if err := openai.Decode(bytes.NewReader(body), v); err != nil {
		var api *openai.Error
		if !errors.As(err, &api) {
			api = openai.Invalid("", "%v", err)
		}
		openai.WriteError(w, http.StatusBadRequest, api)
		return false
	}
	return true
}

func (f *front) answer(w http.ResponseWriter, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		openai.WriteError(w, http.StatusInternalServerError, &openai.Error{Message: err.Error(), Type: openai.TypeServer})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A client that left needs no error.
	_, _ = w.Write(b.Bytes())
}

// fail answers with what went wrong inside; ctx says whether anybody listens.
func (f *front) fail(w http.ResponseWriter, ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, errClosed):
		openai.WriteError(w, http.StatusServiceUnavailable, &openai.Error{Message: err.Error(), Type: openai.TypeUnavailable})
	default:
		openai.WriteError(w, http.StatusInternalServerError, &openai.Error{Message: err.Error(), Type: openai.TypeServer})
	}
}

func newID(prefix string) string { return prefix + rand.Text() }
