package router

import (
	"bytes"
	"encoding/json"

	"llmops/serving/openai"
	"llmops/serving/route"
)

// prefixBytes of the first user message, with everything before it, are what
// requests must share to be sent to the same replica: behind one system prompt
// come many documents, and behind one document many questions.
const prefixBytes = 256

// wish is what the router needs to know of a request's body. All slices lie in
// the body.
type wish struct {
	model    []byte // raw, without quotes
	at, end  int    // where the quoted model stands in the body
	opening  []byte // messages up to the first user message, or the prompt
	prefix   []byte // the part of it that a cache may know
	tokens   int    // a rough count of the prompt's tokens
	stream   bool
	messages bool
}

// scan reads a request body without decoding it.
func scan(body []byte) (w wish, err *openai.Error) {
	c := cursor{b: body}
	if !c.open('{') {
		return w, openai.Invalid("", "request body is not a JSON object")
	}
	for {
		key, ok := c.member()
		if !ok {
			break
		}
		c.space()
		if string(key) == "messages" {
			w.talk(&c)
			continue
		}
		at := c.i
		raw := c.value()
		if c.bad {
			break
		}
		switch string(key) {
		case "model":
			// Two readers could take either of two names: the one that was
			// routed by must be the one that is served.
			if w.model != nil {
				return w, openai.Invalid("model", "model is sent twice")
			}
			if raw[0] != '"' || len(raw) == 2 {
				return w, openai.Invalid("model", "model must be a non-empty string")
			}
			w.at, w.end = at, c.i
			w.model = raw[1 : len(raw)-1]
			if bytes.IndexByte(w.model, '\\') >= 0 {
				var s string
				if json.Unmarshal(raw, &s) != nil {
					return w, openai.Invalid("model", "model is not a valid string")
				}
				w.model = []byte(s)
			}
		case "prompt":
			if !w.messages {
				w.opening, w.prefix = raw, raw[:min(len(raw), prefixBytes)]
				w.tokens = promptTokens(raw)
			}
		case "stream":
			w.stream = string(raw) == "true"
		}
	}
	switch {
	case c.bad:
		return w, openai.Invalid("", "request body is not valid JSON near byte %d", c.i)
	case c.peek() != 0:
		return w, openai.Invalid("", "request body has data after the JSON object")
	case w.model == nil:
		return w, openai.Invalid("model", "model is missing")
	}
	return w, nil
}

// talk walks through messages once and notes where the first one of the user
// ends, and the prefix a few bytes into it.
func (w *wish) talk(c *cursor) {
	from := c.i
	w.messages = true
	if c.open('[') {
		found := false
		for c.element() && !c.bad {
			at := c.i
			if user := message(c); user && !found {
				found = true
				w.opening, w.prefix = c.b[from:c.i], c.b[from:min(c.i, at+prefixBytes)]
			}
		}
		if !found {
			w.opening = c.b[from:c.i]
			w.prefix = w.opening
		}
	} else {
		w.opening = c.value()
		w.prefix = w.opening
	}
	w.tokens = (c.i - from) / 4
}

// message takes one message and tells whether it is the user's.
func message(c *cursor) (user bool) {
	if !c.open('{') {
		c.value()
		return false
	}
	for {
		key, ok := c.member()
		if !ok || c.bad {
			return user
		}
		role := string(key) == "role"
		if v := c.value(); role && string(v) == `"user"` {
			user = true
		}
	}
}

// promptTokens counts token ids exactly and text at four bytes a token.
func promptTokens(raw []byte) int {
	c := cursor{b: raw}
	if c.open('[') {
		if p := c.peek(); p == '[' || p >= '0' && p <= '9' {
			return bytes.Count(raw, []byte(",")) + 1
		}
	}
	return len(raw) / 4
}

// conversation is the unit that is randomised: what the client says it is,
// else the tenant and how the conversation began.
func conversation(header string, tenant uint64, w *wish) uint64 {
	if header != "" {
		return route.Sum([]byte(header))
	}
	return route.Mix(tenant, route.Sum(w.opening))
}
