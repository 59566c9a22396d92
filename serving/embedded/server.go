package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"llmops/model"
	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama"
	"llmops/serving/openai"
)

// VersionHeader names the version on every response, which the router compares
// with its decision.
const VersionHeader = "Llmops-Version"

// Server is the engine behind its API.
type Server struct {
	o           Options
	shape       model.Shape
	tok         *tokenizer.Tokenizer
	tmpl        *chat.Template
	noTemplate  error
	defaults    defaults
	fingerprint string
	created     int64
	mux         *http.ServeMux
	loop        *loop
	metrics     *metrics
	stop        context.CancelFunc

	mu       sync.Mutex
	draining bool          // guarded by mu
	inFlight int           // guarded by mu
	idle     chan struct{} // closed when draining and nothing is in flight; guarded by mu
}

// New loads the checkpoint and starts the engine. A checkpoint that cannot be
// served is an error that names the file and the tensor. Close ends it.
func New(o Options) (*Server, error) {
	shape, err := model.LoadShape(o.ModelDir)
	if err != nil {
		return nil, err
	}
	if err := llama.Check(shape); err != nil {
		return nil, fmt.Errorf("loading %s: %w", o.ModelDir, err)
	}
	o, err = o.withDefaults(shape.MaxPositions)
	if err != nil {
		return nil, err
	}
	s := &Server{o: o, shape: shape, created: time.Now().Unix()}
	if s.tok, err = tokenizer.Load(o.ModelDir); err != nil {
		return nil, err
	}
	if n := s.tok.Size(); n > shape.Vocab {
		return nil, fmt.Errorf("loading %s: tokenizer.json has %d tokens, config.json a vocabulary of %d", o.ModelDir, n, shape.Vocab)
	}
	// Completions need no template, so that its lack only refuses chat.
	s.tmpl, err = chat.Load(o.ModelDir)
	if errors.Is(err, chat.ErrNoTemplate) {
		s.noTemplate = err
	} else if err != nil {
		return nil, err
	}
	if s.defaults, err = loadDefaults(o.ModelDir, shape); err != nil {
		return nil, err
	}
	c, err := core.New(core.Limits{Sequences: o.MaxNumSeqs, Tokens: o.MaxBatchedTokens, Blocks: o.KVBlocks})
	if err != nil {
		return nil, err
	}
	model, err := llama.Load(o.ModelDir, shape, llama.Options{Tokens: o.MaxBatchedTokens, Length: o.MaxModelLen, Blocks: o.KVBlocks, Threads: o.Threads})
	if err != nil {
		return nil, err
	}
	var exec core.Executor = model
	if o.Fault.SlowPrompt.PerToken > 0 {
		exec = slow{exec, o.Fault.SlowPrompt}
	}
	if s.fingerprint, err = fingerprint(o, shape); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(o.Name, o.KVBlocks)
	s.loop = newLoop(c, exec, s.metrics)
	s.routes()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go s.loop.run(ctx)
	return s, nil
}

// fingerprint changes with what may change an answer.
func fingerprint(o Options, shape model.Shape) (string, error) {
	b, err := json.Marshal(struct {
		Version   string
		Shape     model.Shape
		MaxLength int
	}{o.Version, shape, o.MaxModelLen})
	if err != nil {
		return "", fmt.Errorf("describing the engine: %w", err)
	}
	sum := sha256.Sum256(b)
	return "fp_" + hex.EncodeToString(sum[:6]), nil
}

// Options are the effective ones.
func (s *Server) Options() Options { return s.o }

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("POST /v1/chat/completions", s.counted(s.chat))
	s.mux.HandleFunc("POST /v1/completions", s.counted(s.completions))
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, map[string]string{"version": s.o.Version})
	})
	s.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		// A scraper that left needs no error.
		_ = s.metrics.write(w)
	})
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		openai.WriteError(w, http.StatusNotFound, &openai.Error{Message: r.Method + " " + r.URL.Path + " is not served here", Type: openai.TypeNotFound})
	})
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.o.Version != "" {
		w.Header().Set(VersionHeader, s.o.Version)
	}
	s.mux.ServeHTTP(w, r)
}

// counted refuses new work while draining and keeps Drain waiting for old work.
func (s *Server) counted(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.draining {
			s.mu.Unlock()
			openai.WriteError(w, http.StatusServiceUnavailable, &openai.Error{Message: "the engine is draining", Type: openai.TypeUnavailable, Code: "draining"})
			return
		}
		s.inFlight++
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.inFlight--
			if s.draining && s.inFlight == 0 {
				close(s.idle)
			}
		}()
		h(w, r)
	}
}

// Drain makes /health answer 503, refuses new requests and waits until those under
// way have ended, or ctx has.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining, s.idle = true, make(chan struct{})
		if s.inFlight == 0 {
			close(s.idle)
		}
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("draining: %d requests are still under way: %w", s.inFlight, ctx.Err())
	}
}

// Close stops the engine; requests under way get an error.
func (s *Server) Close() error {
	s.stop()
	<-s.loop.done
	return nil
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		openai.WriteError(w, http.StatusServiceUnavailable, &openai.Error{Message: "the engine is draining", Type: openai.TypeUnavailable, Code: "draining"})
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	s.answer(w, openai.Models{Object: "list", Data: []openai.Model{{
		ID: s.o.Name, Object: "model", Created: s.created, OwnedBy: "llmops", Root: s.o.ModelDir, MaxModelLen: s.o.MaxModelLen,
		Quantisation: s.shape.Quant.Scheme(),
		Meta:         map[string]string{"version": s.o.Version, "fingerprint": s.fingerprint, "fault": s.o.Fault.String()},
	}}})
}

func (s *Server) answer(w http.ResponseWriter, v any) {
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

// read decodes a request body, or answers and returns false.
func (s *Server) read(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.o.MaxBody))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		openai.WriteError(w, http.StatusRequestEntityTooLarge, &openai.Error{
			Message: fmt.Sprintf("the request body is over the limit of %d bytes", s.o.MaxBody), Type: openai.TypeInvalid, Code: "body_too_large",
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

// fail answers with what went wrong inside; ctx says whether anybody listens.
func (s *Server) fail(w http.ResponseWriter, ctx context.Context, err error) {
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
