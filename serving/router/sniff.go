package router

import (
	"bytes"

	"llmops/serving/openai"
)

// maxSniff bounds the event, or the unstreamed answer, that is looked into.
// What is larger passes through unread.
const maxSniff = 4 << 20

// events finds the data of server-sent events in a stream that comes in any
// pieces, and copies only what was cut.
type events struct {
	openai.Peek
	done  bool   // [DONE] came
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
	e.Look(data)
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
