package router

import "bytes"

// maxSniff bounds the event, or the unstreamed answer, that is looked into.
// What is larger passes through unread.
const maxSniff = 4 << 20

// seen is what an answer has shown so far.
type seen struct {
	tokens  int  // events that bear output
	finish  bool // a finish reason came
	refused bool // content_filter, or a refusal
	failed  bool // an error inside of the stream
	done    bool // [DONE]
	usage   bool
	prompt  int
	output  int
	cached  int
	text    uint64 // hash of the first choice's content, however it was cut
}

const fnvOffset, fnvPrime = 14695981039346656037, 1099511628211

// look reads one JSON document: an event's data or a whole answer.
func (s *seen) look(data []byte) {
	c := cursor{b: data}
	if !c.open('{') {
		return
	}
	token := false
	for {
		key, ok := c.member()
		if !ok {
			break
		}
		switch string(key) {
		case "choices":
			if !c.open('[') {
				c.value()
				continue
			}
			for first := true; c.element(); first = false {
				if s.choice(&c, first) {
					token = true
				}
			}
		case "usage":
			s.count(&c)
		case "error":
			if filled(c.value()) {
				s.failed = true
			}
		default:
			c.value()
		}
		if c.bad {
			break
		}
	}
	if token {
		s.tokens++
	}
}

// choice reads one choice; token tells whether it bears output.
func (s *seen) choice(c *cursor, first bool) (token bool) {
	if !c.open('{') {
		c.value()
		return false
	}
	for {
		key, ok := c.member()
		if !ok || c.bad {
			return token
		}
		switch string(key) {
		case "delta", "message":
			if !c.open('{') {
				c.value()
				continue
			}
			if s.delta(c, first) {
				token = true
			}
		case "text":
			if s.content(c.value(), first) {
				token = true
			}
		case "finish_reason":
			if raw := c.value(); filled(raw) {
				s.finish = true
				if string(raw) == `"content_filter"` {
					s.refused = true
				}
			}
		default:
			c.value()
		}
	}
}

func (s *seen) delta(c *cursor, first bool) (token bool) {
	for {
		key, ok := c.member()
		if !ok || c.bad {
			return token
		}
		switch string(key) {
		case "content":
			if s.content(c.value(), first) {
				token = true
			}
		case "refusal":
			if filled(c.value()) {
				token, s.refused = true, true
			}
		case "reasoning", "reasoning_content", "tool_calls":
			if filled(c.value()) {
				token = true
			}
		default:
			c.value()
		}
	}
}

func (s *seen) content(raw []byte, first bool) bool {
	if !filled(raw) {
		return false
	}
	if first && raw[0] == '"' {
		if s.text == 0 {
			s.text = fnvOffset
		}
		for _, b := range raw[1 : len(raw)-1] {
			s.text = (s.text ^ uint64(b)) * fnvPrime
		}
	}
	return true
}

func (s *seen) count(c *cursor) {
	if !c.open('{') {
		c.value()
		return
	}
	for {
		key, ok := c.member()
		if !ok || c.bad {
			return
		}
		switch string(key) {
		case "completion_tokens":
			if n, ok := number(c.value()); ok {
				s.output, s.usage = n, true
			}
		case "prompt_tokens":
			if n, ok := number(c.value()); ok {
				s.prompt = n
			}
		case "prompt_tokens_details":
			if !c.open('{') {
				c.value()
				continue
			}
			for {
				key, ok := c.member()
				if !ok || c.bad {
					break
				}
				raw := c.value()
				if n, ok := number(raw); ok && string(key) == "cached_tokens" {
					s.cached = n
				}
			}
		default:
			c.value()
		}
	}
}

// events finds the data of server-sent events in a stream that comes in any
// pieces, and copies only what was cut.
type events struct {
	seen
	line  []byte // the beginning of a line that goes on
	data  []byte // data lines of the event at hand
	has   bool
	big   bool // the event at hand is over the limit
	wasCR bool
}

// feed takes the next piece of the stream.
func (e *events) feed(p []byte) {
	for len(p) > 0 {
		if e.wasCR {
			e.wasCR = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		i := bytes.IndexByte(p, '\n')
		rest := p
		if i >= 0 {
			rest = p[:i]
		}
		if j := bytes.IndexByte(rest, '\r'); j >= 0 {
			i, e.wasCR = j, true
		}
		if i < 0 {
			e.keep(&e.line, p)
			return
		}
		line := p[:i]
		p = p[i+1:]
		if len(e.line) > 0 {
			e.keep(&e.line, line)
			line = e.line
		}
		// The usual case: the event's only data line and its end are here, and
		// nothing needs to be copied.
		if value, ok := dataLine(line); ok && !e.has && !e.big && len(p) > 0 && p[0] == '\n' && !e.wasCR {
			e.event(value)
			p = p[1:]
		} else {
			e.take(line)
		}
		e.line = e.line[:0]
	}
}

// end takes what a stream without a closing blank line leaves behind.
func (e *events) end() {
	if len(e.line) == 0 {
		e.take(nil)
	}
}

func (e *events) take(line []byte) {
	if len(line) == 0 {
		if e.has && !e.big {
			e.event(e.data)
		}
		e.has, e.big, e.data = false, false, e.data[:0]
		return
	}
	value, ok := dataLine(line)
	if !ok {
		return
	}
	if e.has {
		e.data = append(e.data, '\n')
	}
	e.has = true
	e.keep(&e.data, value)
}

func (e *events) keep(to *[]byte, p []byte) {
	if len(*to)+len(p) > maxSniff {
		e.big = true
		*to = (*to)[:0]
		return
	}
	*to = append(*to, p...)
}

func (e *events) event(data []byte) {
	if string(data) == "[DONE]" {
		e.done = true
		return
	}
	e.look(data)
}

// dataLine is the value of a data field.
func dataLine(line []byte) ([]byte, bool) {
	if len(line) < 4 || string(line[:4]) != "data" {
		return nil, false
	}
	line = line[4:]
	if len(line) == 0 {
		return line, true
	}
	if line[0] != ':' {
		return nil, false
	}
	line = line[1:]
	if len(line) > 0 && line[0] == ' ' {
		line = line[1:]
	}
	return line, true
}
