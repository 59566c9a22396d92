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
	text     []byte // all messages, or the prompt
	tools    []byte
	salt     []byte // cache_salt: prompts under another share no cache
	tokens   int    // a rough count of the prompt's tokens
	stream   bool
	messages bool
	usage    options
	close    int // where the body's last brace stands
}

// options is what the body says of usage at the end of a stream.
type options struct {
	there    int // how often stream_options are sent
	at, end  int // where their value stands in the body
	in       int // behind the brace that opens it; 0: it is no object
	said     bool
	from, to int  // of the value of include_usage, when it was said
	asked    bool // for usage
	running  bool // for usage in each event
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
		at := c.Pos()
		if string(key) == "messages" {
			w.talk(&c, body)
			w.text = body[at:c.Pos()]
			continue
		}
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
				w.opening, w.prefix, w.text = raw, raw[:min(len(raw), prefixBytes)], raw
				w.tokens += promptTokens(raw)
			}
		case "documents", "text_2":
			w.tokens += promptTokens(raw)
		case "stream":
			w.stream = string(raw) == "true"
		case "tools":
			w.tools = raw
		case "cache_salt":
			w.salt = raw
		case "stream_options":
			w.usage.read(raw, at)
		}
	}
	w.close = c.Pos() - 1
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

// read notes stream_options, whose value raw stands at at.
func (o *options) read(raw []byte, at int) {
	*o = options{there: o.there + 1, at: at, end: at + len(raw)}
	c := openai.NewCursor(raw)
	if !c.Open('{') {
		return
	}
	o.in = at + c.Pos()
	for {
		key, ok := c.Member()
		if !ok || c.Bad() {
			return
		}
		c.Kind()
		from := c.Pos()
		switch v := c.Value(); string(key) {
		case "include_usage":
			o.said, o.asked, o.from, o.to = true, string(v) == "true", at+from, at+c.Pos()
		case "continuous_usage_stats":
			o.running = string(v) == "true"
		}
	}
}

// askUsage makes a body that asks for usage at the end of the stream where the client
// did not; ok is false where it did, and where asking would change more than the end:
// what is sent twice or is no object is for the engine to refuse, and who asked for
// usage in each event and not at the end would get it in each. The slices of w stay
// what they were.
func (w *wish) askUsage(body []byte) (asks []byte, ok bool) {
	o := &w.usage
	switch {
	case !w.stream || o.asked || o.running || o.there > 1:
		return body, false
	case o.there == 0:
		// Only the brace moves, in the room that the body's buffer may have.
		return append(body[:w.close], `,"stream_options":{"include_usage":true}}`...), true
	case string(body[o.at:o.end]) == "null":
		return splice(body, o.at, o.end, `{"include_usage":true}`), true
	case o.said && (string(body[o.from:o.to]) == "false" || string(body[o.from:o.to]) == "null"):
		return splice(body, o.from, o.to, "true"), true
	case o.said || o.in == 0:
		return body, false
	case len(bytes.TrimSpace(body[o.in:o.end-1])) == 0:
		return splice(body, o.in, o.in, `"include_usage":true`), true
	}
	return splice(body, o.in, o.in, `"include_usage":true,`), true
}

// splice is a copy of body with text in the place of its bytes from from to to.
func splice(body []byte, from, to int, text string) []byte {
	out := make([]byte, 0, len(body)+len(text))
	out = append(append(out, body[:from]...), text...)
	return append(out, body[to:]...)
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
