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
	c := openai.NewCursor(body)
	if !c.Open('{') {
		return w, openai.Invalid("", "request body is not a JSON object")
	}
	for {
		key, ok := c.Member()
		if !ok {
			break
		}
		c.Kind()
		if string(key) == "messages" {
			w.talk(&c, body)
			continue
		}
		at := c.Pos()
		raw := c.Value()
		if c.Bad() {
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
			w.at, w.end = at, c.Pos()
			w.model = raw[1 : len(raw)-1]
			if bytes.IndexByte(w.model, '\\') >= 0 {
				var s string
				if json.Unmarshal(raw, &s) != nil {
					return w, openai.Invalid("model", "model is not a valid string")
				}
				w.model = []byte(s)
			}
		case "prompt", "input", "query", "text_1":
			if !w.messages {
				w.opening, w.prefix = raw, raw[:min(len(raw), prefixBytes)]
				w.tokens += promptTokens(raw)
			}
		case "documents", "text_2":
			w.tokens += promptTokens(raw)
		case "stream":
			w.stream = string(raw) == "true"
		}
	}
	switch {
	case c.Bad():
		return w, openai.Invalid("", "request body is not valid JSON near byte %d", c.Pos())
	case c.Kind() != 0:
		return w, openai.Invalid("", "request body has data after the JSON object")
	case w.model == nil:
		return w, openai.Invalid("model", "model is missing")
	}
	return w, nil
}

// talk walks through messages once and notes where the first one of the user
// ends, and the prefix a few bytes into it.
func (w *wish) talk(c *openai.Cursor, body []byte) {
	from := c.Pos()
	w.messages = true
	if c.Open('[') {
		found := false
		for c.Element() && !c.Bad() {
			at := c.Pos()
			if user := message(c); user && !found {
				found = true
				w.opening, w.prefix = body[from:c.Pos()], body[from:min(c.Pos(), at+prefixBytes)]
			}
		}
		if !found {
			w.opening = body[from:c.Pos()]
			w.prefix = w.opening
		}
	} else {
		w.opening = c.Value()
		w.prefix = w.opening
	}
	w.tokens = (c.Pos() - from) / 4
}

// message takes one message and tells whether it is the user's.
func message(c *openai.Cursor) (user bool) {
	if !c.Open('{') {
		c.Value()
		return false
	}
	for {
		key, ok := c.Member()
		if !ok || c.Bad() {
			return user
		}
		role := string(key) == "role"
		if v := c.Value(); role && string(v) == `"user"` {
			user = true
		}
	}
}

// promptTokens counts token ids exactly and text at four bytes a token.
func promptTokens(raw []byte) int {
	c := openai.NewCursor(raw)
	if c.Open('[') {
		if p := c.Kind(); p == '[' || p >= '0' && p <= '9' {
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
