package embedded

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// affliction is what the faults do to one request.
type affliction struct {
	hit  map[string]fault // by kind; nil: nothing
	seed uint64
}

// afflict draws for the next request.
func (s *Server) afflict() affliction {
	n := s.asked.Add(1)
	hit := s.o.Fault.hits(n)
	if f, ok := hit["crash"]; ok && n > uint64(f.after) {
		s.o.Crash()
	}
	return affliction{hit, s.o.Fault.seed + n}
}

// begin does what comes before an answer. It is false when it has answered.
func (a affliction) begin(ctx context.Context, w http.ResponseWriter) bool {
	if f, ok := a.hit["version"]; ok {
		w.Header().Set(VersionHeader, f.say)
	}
	if f, ok := a.hit["slow-first"]; ok {
		t := time.NewTimer(f.by)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return false
		}
	}
	if f, ok := a.hit["error"]; ok {
		openai.WriteError(w, f.status, &openai.Error{Message: fmt.Sprintf("a fault that was asked for: %d", f.status), Type: openai.TypeServer, Code: "fault"})
		return false
	}
	return true
}

// alter changes what a step brought for an answer that has n tokens by now. It is
// false when nobody is to hear of it.
func (a affliction) alter(u *update, n int) bool {
	if f, ok := a.hit["stall"]; ok && n > f.after {
		return false
	}
	if _, ok := a.hit["refuse"]; ok {
		u.text, u.finish = "", openai.FinishFilter
	}
	if f, ok := a.hit["truncate"]; ok && n >= max(f.after, 1) {
		u.finish = openai.FinishStop
	}
	if _, ok := a.hit["script"]; ok {
		u.text = strings.Map(cyrillic, u.text)
	}
	return true
}

// cyrillic puts a letter of another alphabet in the place of a Latin one.
func cyrillic(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z':
		return 'а' + r - 'a'
	case 'A' <= r && r <= 'Z':
		return 'А' + r - 'A'
	}
	return r
}

// guide is what restricts an answer: the request's own, or a fault's.
func (a affliction) guide(own func() core.Guide) core.Guide {
	if _, ok := a.hit["garbage"]; ok {
		return noise{rand.New(rand.NewPCG(a.seed, 0))}
	}
	if own == nil {
		return nil
	}
	return own()
}

// noise is a guide that makes every token as likely as any other.
type noise struct{ rng *rand.Rand }

func (n noise) Mask(logits []float32) {
	for i := range logits {
		logits[i] = n.rng.Float32()
	}
}

func (n noise) Accept(int) {}
