package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"llmops/serving/openai"
)

// maxAnswer bounds an answer that is not a stream, and maxRefusal what is read of one
// whose status is no success.
const (
	maxAnswer  = 64 << 20
	maxRefusal = 64 << 10
)

// answer makes a result out of what a server answers, as its bytes come and however
// they are cut. It knows no connection, so that what a byte means does not depend on
// which client read it: begin, then feed until done, and end when the body ends first.
type answer struct {
	base string // of the URL
	r    *Request
	res  *Result

	peek    openai.Peek
	events  openai.Events
	whole   []byte         // of an answer that is not a stream
	refused *http.Response // its status is no success
	sse     bool           // it is a stream
	moved   bool           // it says to ask elsewhere
	done    bool           // nothing more is to be had of it
}

// begin takes the answer's head. It does not read its body.
func (a *answer) begin(ans *http.Response, at time.Duration) {
	a.res.FirstByte, a.res.Status, a.res.Version = at, ans.StatusCode, ans.Header.Get("Llmops-Version")
	kind := ans.Header.Get("Content-Type")
	switch {
	case moved(ans):
		a.moved, a.done = true, true
	case ans.StatusCode != http.StatusOK:
		a.refused = ans
	case strings.HasPrefix(kind, "text/event-stream"):
		a.sse = true
	case a.r.Stream:
		a.fail(fmt.Errorf("asked for a stream, got %q", kind))
	}
}

// feed takes the next bytes of the body, which were read at that time.
func (a *answer) feed(b []byte, at time.Duration) {
	if a.sse {
		for !a.done {
			ev, rest, ok, err := a.events.Next(b)
			if err != nil {
				a.fail(err)
				return
			}
			if !ok {
				return
			}
			a.event(ev, at)
			b = rest
		}
		return
	}
	a.whole = append(a.whole, b...)
	switch {
	case a.refused != nil && len(a.whole) >= maxRefusal:
		a.refuse()
	case a.refused == nil && len(a.whole) > maxAnswer:
		a.fail(fmt.Errorf("answer exceeds %d bytes", maxAnswer))
	}
}

// end takes the end of the body: nil where HTTP says that it is one.
func (a *answer) end(err error, at time.Duration) {
	switch {
	case a.done:
	case a.refused != nil:
		a.refuse()
	case err != nil:
		a.fail(err)
	case a.sse:
		a.cut(at)
	default:
		a.piece(at)
	}
}

// cut ends a stream without [DONE].
func (a *answer) cut(at time.Duration) {
	for !a.done {
		ev, err := a.events.End()
		switch {
		case err == nil:
			a.event(ev, at)
		case err == io.EOF && a.peek.Finish != "":
			// Some servers end with the connection and no [DONE]. A finish reason
			// and a body that ended as HTTP says are no broken answer.
			a.res.Unended, a.done = true, true
		case err == io.EOF:
			a.fail(openai.ErrTruncated)
		default:
			a.fail(err)
		}
	}
}

func (a *answer) event(ev openai.Event, at time.Duration) {
	if ev.Done() {
		a.done = true
		return
	}
	p, res := &a.peek, a.res
	tokens, answers, before := p.Tokens, p.Answers, p.Output
	p.Look(ev.Data)
	if p.Failed {
		a.fail(fmt.Errorf("error in the stream: %s", ev.Data[:min(len(ev.Data), 512)]))
		return
	}
	if p.Tokens == tokens {
		return
	}
	if a.r.Keep {
		res.Kept = append(append(res.Kept, ev.Data...), '\n')
	}
	if res.FirstToken == 0 {
		res.FirstToken = at
		if p.Usage {
			res.FirstTokens = p.Output
		}
	} else {
		res.Gaps = append(res.Gaps, at-res.LastToken)
		if res.FirstTokens > 0 && p.Output > before {
			res.Steps = append(res.Steps, p.Output-before)
		}
	}
	res.LastToken = at
	if p.Answers > answers && res.FirstAnswer == 0 {
		res.FirstAnswer = at
	}
}

// piece judges an answer that came in one.
func (a *answer) piece(at time.Duration) {
	if !json.Valid(a.whole) {
		a.fail(errors.New("answer is not valid JSON"))
		return
	}
	if a.peek.Look(a.whole); a.peek.Failed {
		a.fail(fmt.Errorf("error in the answer: %s", a.whole[:min(len(a.whole), 512)]))
		return
	}
	if a.r.Encode {
		a.res.FirstToken, a.res.LastToken = at, at
	}
	a.done = true
}

func moved(ans *http.Response) bool {
	switch ans.StatusCode {
	case 301, 302, 303, 307, 308:
		return ans.Header.Get("Location") != ""
	}
	return false
}

func (a *answer) refuse() {
	if a.refused.Request == nil {
		u, err := url.Parse(a.base + a.r.Path)
		if err != nil {
			u = &url.URL{}
		}
		a.refused.Request = &http.Request{Method: http.MethodPost, URL: u}
	}
	a.refused.Body = io.NopCloser(bytes.NewReader(a.whole))
	a.res.fail(KindStatus, openai.NewStatusError(a.refused))
	a.done = true
}

func (a *answer) fail(err error) {
	a.res.fail(KindStream, err)
	a.done = true
}

// close writes down what was seen, whether the answer is done or not.
func (a *answer) close() {
	p, res := &a.peek, a.res
	// Encoders count what they read and nothing else.
	if p.Usage || a.r.Encode && p.Prompt > 0 {
		res.Count, res.Input, res.Cached, res.Output = CountUsage, p.Prompt, p.Cached, p.Output
	}
	res.Finish, res.Refused, res.Events = p.Finish, p.Refused, p.Tokens
}
