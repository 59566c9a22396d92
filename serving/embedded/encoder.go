package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"llmops/model"
	"llmops/model/tokenizer"
	"llmops/serving/embedded/bert"
	"llmops/serving/openai"
)

// Defaults of an Encoder.
const (
	DefaultEncoderSeqs = 64
	// DefaultEncoderTokens keeps a step of a small model under half a second on one
	// core, because a text that arrives waits for the step that is under way.
	DefaultEncoderTokens = 512
)

// encoderFaults are those that need no tokens to be generated.
var encoderFaults = []string{"crash", "error", "slow-first", "version"}

// Encoder is the engine of an encoder behind its API: embeddings, reranking and
// scores, computed by package bert. Texts of all requests that wait are computed
// together, and each result is the same as alone. It is safe for concurrent use.
type Encoder struct {
	*front
	o           Options
	shape       model.Shape
	model       *bert.Encoder
	tok         *tokenizer.Tokenizer
	fingerprint string
	created     int64
	batcher     *batcher
	metrics     *encoderMetrics
	stop        context.CancelFunc
	asked       atomic.Uint64
}

// IsEncoder reports whether a model is one for NewEncoder, rather than for New.
func IsEncoder(s model.Shape) bool { return bert.Is(s) }

// NewEncoder loads the checkpoint and starts the engine. Of the options MaxNumSeqs
// and MaxBatchedTokens bound the texts of a step; those of decoders alone are
// refused. Close ends it.
func NewEncoder(o Options) (*Encoder, error) {
	shape, err := model.LoadShape(o.ModelDir)
	if err != nil {
		return nil, err
	}
	if err := checkEncoder(o); err != nil {
		return nil, fmt.Errorf("loading %s: %w", o.ModelDir, err)
	}
	length, err := bert.Length(o.ModelDir)
	if err != nil {
		return nil, err
	}
	o.MaxNumSeqs = cmp.Or(o.MaxNumSeqs, DefaultEncoderSeqs)
	o.MaxBatchedTokens = cmp.Or(o.MaxBatchedTokens, max(DefaultEncoderTokens, length, o.MaxNumSeqs))
	if o, err = o.withDefaults(length); err != nil {
		return nil, err
	}
	if o.MaxBatchedTokens < o.MaxModelLen {
		return nil, fmt.Errorf("maximum tokens in a step is %d: want at least the maximum model length, %d", o.MaxBatchedTokens, o.MaxModelLen)
	}
	e := &Encoder{front: newFront(o.Version, o.MaxBody), o: o, shape: shape, created: time.Now().Unix(), metrics: newEncoderMetrics(o.Name)}
	if e.model, err = bert.Load(o.ModelDir, bert.Options{Threads: o.Threads, Tokens: o.MaxBatchedTokens}); err != nil {
		return nil, err
	}
	e.tok = e.model.Tokenizer()
	if e.fingerprint, err = fingerprint(o, shape); err != nil {
		return nil, err
	}
	e.batcher = newBatcher(e.model, o.MaxNumSeqs, o.MaxBatchedTokens, e.metrics)
	e.routes()
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go e.batcher.run(ctx)
	return e, nil
}

func checkEncoder(o Options) error {
	switch {
	case o.Estimate != nil, o.Chunk != 0, o.Overcommit, o.KVBlocks != 0, o.LoRA.Max != 0 || len(o.LoRA.Modules) > 0, o.KVEvents.Endpoint != "", o.KVTransfer != KVTransfer{}:
		return errors.New("an encoder has no estimates, caches, adapters or chunks: leave their options out")
	}
	for _, f := range o.Fault.list {
		if !slices.Contains(encoderFaults, f.kind) {
			return fmt.Errorf("the fault %s is one of answers that are generated: an encoder has %v", f.kind, encoderFaults)
		}
	}
	return nil
}

// Options are the effective ones.
func (e *Encoder) Options() Options { return e.o }

// kind is what the model is for.
func (e *Encoder) kind() string {
	if e.model.Scores() {
		return "rerank"
	}
	return "embedding"
}

func (e *Encoder) routes() {
	e.mux.HandleFunc("POST /v1/embeddings", e.counted(e.embeddings))
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		e.mux.HandleFunc("POST "+path, e.counted(e.rerank))
	}
	for _, path := range []string{"/score", "/v1/score"} {
		e.mux.HandleFunc("POST "+path, e.counted(e.score))
	}
	e.mux.HandleFunc("GET /v1/models", e.models)
	e.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		// A scraper that left needs no error.
		_ = e.metrics.write(w)
	})
}

// Close stops the engine; requests under way get an error.
func (e *Encoder) Close() error {
	e.stop()
	<-e.batcher.done
	return nil
}

func (e *Encoder) models(w http.ResponseWriter, r *http.Request) {
	e.answer(w, openai.Models{Object: "list", Data: []openai.Model{{
		ID: e.o.Name, Object: "model", Created: e.created, OwnedBy: "llmops", Root: e.o.ModelDir, MaxModelLen: e.o.MaxModelLen,
		Quantisation: e.shape.Quant.Scheme(),
		Meta:         map[string]string{"version": e.o.Version, "fingerprint": e.fingerprint, "fault": e.o.Fault.String(), "kind": e.kind()},
	}}})
}
