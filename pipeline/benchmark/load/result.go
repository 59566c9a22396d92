package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Kind says how a request failed; empty: it did not.
type Kind string

// The kinds of failures.
const (
	KindConnect   Kind = "connect"   // no answer began
	KindStatus    Kind = "status"    // a status that is no success
	KindStream    Kind = "stream"    // the answer broke off or told an error
	KindTimeout   Kind = "timeout"   // it took longer than Options.Timeout
	KindCancelled Kind = "cancelled" // the run was stopped
	KindLimit     Kind = "limit"     // it was due and not sent: too many were open
)

// Count says where the number of output tokens is from.
type Count string

// The sources of a token count. There is no third: events are not tokens.
const (
	CountUsage   Count = "usage"
	CountUnknown Count = "unknown"
)

// Result is what happened to one request. Times count from the start of the
// run; one that is zero did not happen, but for Scheduled.
type Result struct {
	ID          int           `json:"id"`
	Class       string        `json:"class,omitempty"`
	Stream      bool          `json:"stream"`
	Scheduled   time.Duration `json:"scheduled_ns"`
	Sent        time.Duration `json:"sent_ns,omitempty"`         // handed to the transport
	FirstByte   time.Duration `json:"first_byte_ns,omitempty"`   // the answer's head
	FirstToken  time.Duration `json:"first_token_ns,omitempty"`  // of a stream
	FirstAnswer time.Duration `json:"first_answer_ns,omitempty"` // the first token that is no reasoning
	LastToken   time.Duration `json:"last_token_ns,omitempty"`   // of a stream
	End         time.Duration `json:"end_ns"`                    // nothing more comes

	Gaps   []time.Duration `json:"gaps_ns,omitempty"` // between events with tokens
	Steps  []int           `json:"steps,omitempty"`   // tokens of each event behind the first, where every one said so
	Events int             `json:"events,omitempty"`  // with tokens

	Input       int   `json:"input,omitempty"`  // tokens, when Count is usage
	Cached      int   `json:"cached,omitempty"` // of these, from the prefix cache
	Output      int   `json:"output,omitempty"`
	FirstTokens int   `json:"first_tokens,omitempty"` // in the first event; 0: unknown
	Count       Count `json:"count"`
	Want        int   `json:"want,omitempty"`
	Own         int   `json:"own,omitempty"` // output tokens by a count of our own; 0: not counted

	Conversation string `json:"conversation,omitempty"`
	Turn         int    `json:"turn,omitempty"`    // of a session, from 0
	Unended      bool   `json:"unended,omitempty"` // complete by its finish reason, and no [DONE] came

	Status  int    `json:"status,omitempty"`
	Finish  string `json:"finish,omitempty"`
	Refused bool   `json:"refused,omitempty"`
	Version string `json:"version,omitempty"` // who answered, by its own word
	Kind    Kind   `json:"kind,omitempty"`
	Error   string `json:"error,omitempty"`

	Kept   []byte        `json:"-"` // the data of the events with tokens, a line each, of a Request with Keep
	opened time.Duration // counted as open since; not kept
}

func (r *Result) fail(k Kind, err error) { r.Kind, r.Error = k, err.Error() }

// OK tells that the answer is complete.
func (r *Result) OK() bool { return r.Kind == "" }

// TTFT is the time to the first token since the arrival was due.
func (r *Result) TTFT() (time.Duration, bool) { return r.FirstToken - r.Scheduled, r.FirstToken > 0 }

// TTFTSent is the time to the first token since the request was sent.
func (r *Result) TTFTSent() (time.Duration, bool) { return r.FirstToken - r.Sent, r.FirstToken > 0 }

// TTFO is the time to the first token that is no reasoning.
func (r *Result) TTFO() (time.Duration, bool) { return r.FirstAnswer - r.Scheduled, r.FirstAnswer > 0 }

// E2E is the time to the last token since the arrival was due; an answer in one
// piece has its last token at its end.
func (r *Result) E2E() (time.Duration, bool) {
	end := r.last()
	return end - r.Scheduled, end > 0
}

// E2ESent is E2E since the request was sent.
func (r *Result) E2ESent() (time.Duration, bool) {
	end := r.last()
	return end - r.Sent, end > 0
}

func (r *Result) last() time.Duration {
	if r.Stream {
		return r.LastToken
	}
	if r.OK() {
		return r.End
	}
	return 0
}

// TPOT is the time per output token after the first event. exact is false when
// the server did not say how many tokens that event had, and one was taken.
func (r *Result) TPOT() (d time.Duration, exact, ok bool) {
	n1 := max(r.FirstTokens, 1)
	if r.FirstToken == 0 || r.Count != CountUsage || r.Output <= n1 {
		return 0, false, false
	}
	return (r.LastToken - r.FirstToken) / time.Duration(r.Output-n1), r.FirstTokens > 0, true
}

// counted tells that every event said how many tokens it had.
func (r *Result) counted() bool {
	return r.FirstTokens > 0 && len(r.Steps) == len(r.Gaps) && r.Events == len(r.Gaps)+1
}

// arrivals calls fn for each event with its time and tokens: what the server
// said, else the answer's tokens in equal parts.
func (r *Result) arrivals(fn func(at time.Duration, tokens float64)) {
	if r.Count != CountUsage {
		return
	}
	if !r.Stream {
		fn(r.End, float64(r.Output))
		return
	}
	if r.FirstToken == 0 {
		return
	}
	share, at := float64(r.Output)/float64(len(r.Gaps)+1), r.FirstToken
	if r.counted() {
		share = float64(r.FirstTokens)
	}
	fn(at, share)
	for i, g := range r.Gaps {
		at += g
		if r.counted() {
			share = float64(r.Steps[i])
		}
		fn(at, share)
	}
}

// Lag is how late the request was sent.
func (r *Result) Lag() (time.Duration, bool) { return r.Sent - r.Scheduled, r.Sent > 0 }

// maxLine bounds a line of a result file: an answer of a million events.
const maxLine = 64 << 20

// Write appends r to w as a line of JSON. Each result is written as it ends, so
// that a run which is broken off loses none.
func Write(w io.Writer, r *Result) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Read calls fn for each result in in. A last line that is cut is an error,
// after fn has seen all others.
func Read(in io.Reader, fn func(*Result) error) error {
	return lines(in, func(n int, line []byte) error {
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		r := new(Result)
		if err := dec.Decode(r); err != nil {
			return fmt.Errorf("reading results: line %d: %w", n, err)
		}
		if r.Count != CountUsage && r.Count != CountUnknown {
			return fmt.Errorf("reading results: line %d: count %q is neither %s nor %s", n, r.Count, CountUsage, CountUnknown)
		}
		if err := r.believable(); err != nil {
			return fmt.Errorf("reading results: line %d: %w", n, err)
		}
		return fn(r)
	})
}

// believable holds what a file says to what can be.
func (r *Result) believable() error {
	const most = 1 << 24 // tokens of one answer
	for _, n := range append([]int{r.Input, r.Output, r.FirstTokens, r.Events, r.Own}, r.Steps...) {
		if n < 0 || n > most {
			return fmt.Errorf("a count of %d, want 0 to %d", n, most)
		}
	}
	for _, d := range append([]time.Duration{r.Scheduled, r.Sent, r.FirstByte, r.FirstToken, r.FirstAnswer, r.LastToken, r.End}, r.Gaps...) {
		if d < 0 || d > math.MaxInt64/4 {
			return fmt.Errorf("a time of %d ns", d)
		}
	}
	return nil
}

// lines calls fn for each line that is not empty, with its number from 1.
func lines(in io.Reader, fn func(n int, line []byte) error) error {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 0
	for s.Scan() {
		n++
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		if err := fn(n, s.Bytes()); err != nil {
			return err
		}
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("line %d is longer than %d bytes", n+1, maxLine)
		}
		return err
	}
	return nil
}
