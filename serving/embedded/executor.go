package embedded

import (
	"errors"
	"fmt"

	"llmops/model"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
	"llmops/serving/embedded/llama"
)

// Estimate asks for the time that a named GPU would take instead of an answer: the
// tokens are made up. The checkpoint needs its config.json and tokenizer.json, but
// no weights.
type Estimate struct {
	GPU            string // of the catalogue
	TensorParallel int    // default 1
	Weights        string // bf16 (the default), fp8, int8 or int4
	KV             string // bf16 (the default) or fp8
	AnswerTokens   int    // mean length of an answer; 0: up to its limit
}

// Defaults of Options with an Estimate, which are vLLM's for a GPU.
const (
	estimatedNumSeqs       = 256
	estimatedBatchedTokens = 2048
	// estimatedBlocks is beyond what any GPU holds of a model worth estimating.
	estimatedBlocks = 1 << 20
)

func newEstimate(o Options, shape model.Shape, vocab int) (*estimate.Executor, error) {
	shape.Vocab = min(shape.Vocab, vocab)
	return estimate.New(estimate.Options{
		GPU: o.Estimate.GPU, TensorParallel: o.Estimate.TensorParallel, Shape: shape, Weights: o.Estimate.Weights, KV: o.Estimate.KV,
		AnswerTokens: o.Estimate.AnswerTokens, RealTime: true,
	})
}

// attach gives the server what its executor can do beside computing, and refuses
// what was asked for and it cannot.
func (s *Server) attach(exec core.Executor) error {
	o := s.o
	s.sleeper, _ = exec.(sleeper)
	if o.KVTransfer.Role != "" {
		t, ok := exec.(transfer)
		if !ok {
			return errors.New("this executor cannot hand keys and values over")
		}
		s.handover = newHandover(t)
	}
	s.metrics.lora.max = o.LoRA.Max
	if o.LoRA.Max > 0 {
		loader, ok := exec.(adapterLoader)
		if !ok {
			return errors.New("this executor computes without adapters")
		}
		s.loop.residents = &residents{loader: loader, max: o.LoRA.MaxLoaded, dirs: make(map[string]string)}
	}
	return nil
}

// computed is the executor of a real model as a Server wants it.
type computed struct{ *llama.Executor }

// Export implements transfer.
func (c computed) Export(blocks []int32, tokens int) ([]byte, error) {
	return c.Executor.Export(blocks, tokens).MarshalBinary()
}

// Import implements transfer.
func (c computed) Import(b []byte) (any, int, error) {
	kv := new(llama.KV)
	if err := kv.UnmarshalBinary(b); err != nil {
		return nil, 0, fmt.Errorf("reading keys and values: %w", err)
	}
	if err := c.Accepts(kv); err != nil {
		return nil, 0, err
	}
	return kv, kv.Tokens(), nil
}
