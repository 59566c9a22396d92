package embedded

import (
	"fmt"
	"net/http"
	"strconv"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// maxStops bounds the stop strings of a request.
const maxStops = 16

// wants is what a request asks for beside its prompts and their limits: what chat and
// completions share.
type wants struct {
	sampling core.Sampling
	n        int      // answers a prompt
	stop     []int    // ids
	texts    []string // stop strings
	salt     string
	adapter  string
	priority int
	transfer *openai.KVTransfer // nil: nothing is handed over
	guide    func() core.Guide  // nil: the answer is free
}

// wants checks what chat and completions share. The status is that of the error.
func (s *Server) wants(q *openai.Sampling) (a wants, status int, err *openai.Error) {
	if a.adapter, status, err = s.modelOf(q.Model); err != nil {
		return a, status, err
	}
	if a.sampling, a.n, err = s.sampling(q); err != nil {
		return a, http.StatusBadRequest, err
	}
	switch {
	case len(q.Stop) > maxStops:
		err = openai.Invalid("stop", "stop has %d strings: want at most %d", len(q.Stop), maxStops)
	case q.Priority != nil && (*q.Priority < -1<<31 || *q.Priority > 1<<31-1):
		err = openai.Invalid("priority", "priority is %d: want 32 bits", *q.Priority)
	default:
		if err = s.checkTransfer(q, a.n); err == nil {
			a.guide, err = s.structured(q)
		}
	}
	for _, one := range q.Stop {
		if one == "" {
			err = openai.Invalid("stop", "stop has an empty string, which every text contains")
		}
	}
	if err != nil {
		return a, http.StatusBadRequest, err
	}
	set(&a.priority, q.Priority)
	a.transfer = q.KVTransferParams
	a.texts, a.salt = q.Stop, q.CacheSalt
	if !q.IgnoreEOS {
		a.stop = s.defaults.stop
	}
	return a, 0, nil
}

// modelOf finds the adapter that a model's name means; the base has none, and no
// name at all is as good as its own.
func (s *Server) modelOf(name string) (key string, status int, err *openai.Error) {
	if name == "" || name == s.o.Name {
		return "", 0, nil
	}
	if a, ok := s.adapters.find(name); ok {
		return a.key, 0, nil
	}
	return "", http.StatusNotFound, s.unknownModel(name)
}

func (s *Server) unknownModel(name string) *openai.Error {
	here := strconv.Quote(s.o.Name)
	for _, a := range s.adapters.list() {
		here += ", " + strconv.Quote(a.name)
	}
	return &openai.Error{
		Message: fmt.Sprintf("the model %q does not exist here: this server has %s", name, here), Type: openai.TypeNotFound, Param: "model", Code: "model_not_found",
	}
}
