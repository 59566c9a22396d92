package embedded

import (
	"context"
	"strings"
	"sync"
	"time"

	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// request is one sequence of a call, with the text that its tokens make. The
// loop's goroutine owns it from submit on.
type request struct {
	seq   *core.Sequence
	call  *call
	index int // of the choice
	text  *tokenizer.Stream
	stop  []string

	held      string // text that may be the beginning of a stop string
	generated int
	first     time.Duration // when the first and the last token came; 0: not yet
	last      time.Duration
}

// update is what one step brought for a choice.
type update struct {
	index  int
	cached int
	prompt []core.Token
	token  *core.Token
	text   string // that is now certain
	finish string
	reason any // the stop string or nothing
	err    error
}

// advance turns a core's event into text. A stop string ends the answer before it;
// text that may become one is held back.
func (r *request) advance(e core.Event) update {
	u := update{index: r.index, cached: e.Seq.Cached(), prompt: e.Prompt, finish: e.Finish}
	if e.Token == nil {
		return u
	}
	t := *e.Token
	u.token = &t
	r.generated++
	r.held += r.text.Push(e.Token.ID)
	if u.finish != "" {
		r.held += r.text.Flush()
	}
	if r.generated >= r.seq.Sampling.Min {
		if at, s := firstStop(r.held, r.stop); at >= 0 {
			u.text, u.finish, u.reason = r.held[:at], openai.FinishStop, s
			return u
		}
	}
	keep := 0
	if u.finish == "" {
		keep = pending(r.held, r.stop)
	}
	u.text = r.held[:len(r.held)-keep]
	r.held = r.held[len(u.text):]
	return u
}

// firstStop finds the stop string that begins first in text.
func firstStop(text string, stop []string) (at int, found string) {
	at = -1
	for _, s := range stop {
		if i := strings.Index(text, s); i >= 0 && (at < 0 || i < at) {
			at, found = i, s
		}
	}
	return at, found
}

// pending is the length of the longest end of text that begins a stop string.
func pending(text string, stop []string) int {
	longest := 0
	for _, s := range stop {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, s[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// call is what an HTTP handler waits for: the updates of all its requests. The
// loop never waits for a slow client, whose updates pile up to one a token.
type call struct {
	wake chan struct{} // of capacity 1

	mu      sync.Mutex
	updates []update // guarded by mu
}

func newCall() *call { return &call{wake: make(chan struct{}, 1)} }

func (c *call) push(u update) {
	c.mu.Lock()
	c.updates = append(c.updates, u)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next waits for updates.
func (c *call) next(ctx context.Context) ([]update, error) {
	for {
		c.mu.Lock()
		u := c.updates
		c.updates = nil
		c.mu.Unlock()
		if len(u) > 0 {
			return u, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
