package router

import (
	"net/http"
	"strings"

	"llmops/serving/openai"
)

// sniffer looks into an answer as it passes, streamed or not.
type sniffer struct {
	sse    bool
	ev     events
	cut    *cutter // nil: the client gets all
	whole  *[]byte // an answer in one piece, as far as it is looked into
	broken bool    // too large, or no JSON
}

func (s *sniffer) begin(ans *answer) {
	ct := first(ans.Header, "Content-Type")
	s.sse = strings.HasPrefix(ct, "text/event-stream") && ans.Status == http.StatusOK
	s.broken = !s.sse && !strings.HasPrefix(ct, "application/json")
	if !s.sse && !s.broken {
		s.whole = buffers.Get().(*[]byte)
	}
}

func (s *sniffer) end() {
	if s.whole != nil {
		release(s.whole)
		s.whole = nil
	}
}

// feed takes a piece and gives what the client may have now; token tells whether it
// brought output of a stream.
func (s *sniffer) feed(into *openai.Peek, p []byte) (out []byte, token bool) {
	switch {
	case s.sse:
		before := s.ev.Tokens
		if s.cut != nil {
			p = s.cut.feed(&s.ev, p)
		} else {
			s.ev.feed(p)
		}
		*into = s.ev.Peek
		return p, s.ev.Tokens > before
	case s.broken:
	case len(*s.whole)+len(p) > maxSniff:
		s.broken = true
	default:
		*s.whole = append(*s.whole, p...)
	}
	return p, false
}

// rest gives what was held of a stream that is over, however it ended.
func (s *sniffer) rest() []byte {
	if !s.sse || s.cut == nil {
		return nil
	}
	return s.cut.end(&s.ev)
}

// outcome judges an answer that was read to its end.
func (s *sniffer) outcome(into *openai.Peek, status int) outcome {
	switch {
	case status == http.StatusTooManyRequests || status >= 500:
		return failed
	case status >= 400:
		return invalid
	case s.sse:
		s.ev.end()
		*into = s.ev.Peek
		if into.Failed || !s.ev.done {
			return failed
		}
	case !s.broken:
		into.Look(*s.whole)
		if into.Failed {
			return failed
		}
	}
	return done
}

// left judges a stream whose client left: one that had its end was served.
func (s *sniffer) left(into *openai.Peek) outcome {
	if s.sse && s.ev.done && !into.Failed {
		return done
	}
	return cancelled
}
