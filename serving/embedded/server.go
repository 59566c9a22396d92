package embedded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"llmops/model"
	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/guide"
	"llmops/serving/embedded/llama"
	"llmops/serving/openai"
)

// Server is the engine behind its API.
type Server struct {
	*front
	o           Options
	shape       model.Shape
	tok         *tokenizer.Tokenizer
	estimated   string // what the executor says of itself; empty: it computes
	tmpl        *chat.Template
	noTemplate  error
	defaults    defaults
	vocabulary  func() (*guide.Vocabulary, error) // made at the first use
	fingerprint string
	created     int64
	loop        *loop
	metrics     *metrics
	adapters    registry
	handover    *handover // nil: nothing is handed over
	sleeper     sleeper   // nil: the executor cannot
	stop        context.CancelFunc
	asked       atomic.Uint64 // requests for an answer
}

// New loads the checkpoint and starts the engine. A checkpoint that cannot be
// served is an error that names the file and the tensor. Close ends it.
func New(o Options) (*Server, error) {
	shape, err := model.LoadShape(o.ModelDir)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(o.ModelDir)
	if err != nil {
		return nil, err
	}
	if n := tok.Size(); n > shape.Vocab {
		return nil, fmt.Errorf("loading %s: tokenizer.json has %d tokens, config.json a vocabulary of %d", o.ModelDir, n, shape.Vocab)
	}
	var exec core.Executor
	estimated := ""
	if o.Estimate != nil {
		e, err := newEstimate(o, shape, tok.Size())
		if err != nil {
			return nil, err
		}
		exec, estimated = e, e.Describe()
		o.KVBlocks = cmp.Or(o.KVBlocks, min(e.Blocks(), estimatedBlocks))
		o.MaxNumSeqs, o.MaxBatchedTokens = cmp.Or(o.MaxNumSeqs, estimatedNumSeqs), cmp.Or(o.MaxBatchedTokens, estimatedBatchedTokens)
	} else if err := llama.Check(shape); err != nil {
		return nil, fmt.Errorf("loading %s: %w", o.ModelDir, err)
	}
	o, err = o.withDefaults(shape.MaxPositions)
	if err != nil {
		return nil, err
	}
	if exec == nil {
		m, err := llama.Load(o.ModelDir, shape, llama.Options{
			Tokens: o.MaxBatchedTokens, Length: o.MaxModelLen, Blocks: o.KVBlocks, Threads: o.Threads, MaxLoRARank: o.LoRA.MaxRank, KV: o.KV,
		})
		if err != nil {
			return nil, err
		}
		exec = computed{m}
	}
	s := &Server{front: newFront(o.Version, o.MaxBody), o: o, shape: shape, tok: tok, estimated: estimated, created: time.Now().Unix()}
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
	s.vocabulary = sync.OnceValues(func() (*guide.Vocabulary, error) { return guide.TokenizerVocabulary(s.tok, s.defaults.stop) })
	if s.fingerprint, err = fingerprint(o, shape); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(o.Name, o.KVBlocks)
	c, err := core.New(core.Limits{
		Sequences: o.MaxNumSeqs, Tokens: o.MaxBatchedTokens, Blocks: o.KVBlocks, Chunk: o.Chunk, Overcommit: o.Overcommit,
		Adapters: o.LoRA.Max, Record: o.KVEvents.Endpoint != "",
	})
	if err != nil {
		return nil, err
	}
	s.loop = newLoop(c, exec, s.metrics)
	if err := s.attach(exec); err != nil {
		return nil, err
	}
	if len(o.Fault.list) > 0 {
		s.loop.exec = slow{exec, o.Fault.list}
	}
	if o.KVEvents.Endpoint != "" {
		if s.loop.events, err = newPublisher(o.KVEvents); err != nil {
			return nil, err
		}
	}
	s.routes()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go s.loop.run(ctx)
	for _, name := range slices.Sorted(maps.Keys(o.LoRA.Modules)) {
		if err := s.addAdapter(name, o.LoRA.Modules[name]); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
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
	s.mux.HandleFunc("POST /v1/chat/completions", s.counted(s.chat))
	s.mux.HandleFunc("POST /v1/completions", s.counted(s.completions))
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("POST /reset_prefix_cache", s.resetCache)
	if s.o.KVTransfer.produces() {
		s.mux.HandleFunc("GET /kv/{id}", s.giveKV)
	}
	if s.sleeper != nil {
		s.mux.HandleFunc("POST /sleep", s.sleep)
		s.mux.HandleFunc("POST /wake_up", s.wakeUp)
		s.mux.HandleFunc("GET /is_sleeping", s.isSleeping)
	}
	s.mux.HandleFunc("POST /v1/load_lora_adapter", s.loadAdapter)
	s.mux.HandleFunc("POST /v1/unload_lora_adapter", s.unloadAdapter)
	s.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		// A scraper that left needs no error.
		_ = s.metrics.write(w)
	})
}

// Close stops the engine; requests under way get an error.
func (s *Server) Close() error {
	s.stop()
	<-s.loop.done
	if s.loop.events != nil {
		s.loop.events.close()
	}
	return nil
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	all := openai.Models{Object: "list", Data: []openai.Model{{
		ID: s.o.Name, Object: "model", Created: s.created, OwnedBy: "llmops", Root: s.o.ModelDir, MaxModelLen: s.o.MaxModelLen,
		Quantisation: s.shape.Quant.Scheme(),
		Meta:         map[string]string{"version": s.o.Version, "fingerprint": s.fingerprint, "fault": s.o.Fault.String()},
	}}}
	if s.estimated != "" {
		all.Data[0].Meta[openai.MetaEstimate] = s.estimated
		all.Data[0].Quantisation = cmp.Or(s.o.Estimate.Weights, "bf16")
	}
	for _, a := range s.adapters.list() {
		all.Data = append(all.Data, openai.Model{ID: a.name, Object: "model", Created: a.created, OwnedBy: "llmops", Root: a.dir, Parent: s.o.Name, MaxModelLen: s.o.MaxModelLen})
	}
	s.answer(w, all)
}
