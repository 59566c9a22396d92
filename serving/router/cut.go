package router

import "bytes"

// cutter takes out of a stream what its client did not ask for: the event with usage
// and without a choice, which the router asked for to know the tokens. All else passes
// byte for byte. An event goes out when it is whole, which no client can tell: none can
// use a part of one.
type cutter struct {
	held, spare []byte // of an event that goes on, and the buffer that it was in before
	line        int    // where the line at hand begins in held
	off         bool   // all passes: the stream is not cut into lines as we know them
}

// feed shows the next piece of a stream to e and gives what of it, and of what was held,
// the client may have, until the next call. The piece may be written to.
func (c *cutter) feed(e *events, p []byte) []byte {
	if c.off {
		e.feed(p)
		return p
	}
	line := 0
	if len(c.held) > 0 {
		c.held = append(c.held, p...)
		p, line = c.held, c.line
	}
	kept, at := 0, 0
	for {
		var end int
		if end, line = eventEnd(p, line); end == 0 {
			break
		}
		e.Bare = false
		e.feed(p[at:end])
		if !e.Bare {
			if kept != at {
				copy(p[kept:], p[at:end])
			}
			kept += end - at
		}
		at = end
	}
	rest := p[at:]
	if len(rest) > maxSniff || loneCR(rest) {
		c.off = true
		e.feed(rest)
		kept += copy(p[kept:], rest)
		rest = nil
	}
	c.spare, c.line = append(c.spare[:0], rest...), line-at
	c.held, c.spare = c.spare, c.held
	return p[:kept]
}

// end gives what is held of a stream that is over, once.
func (c *cutter) end(e *events) []byte {
	rest := c.held
	c.held = nil
	e.feed(rest)
	return rest
}

// eventEnd is the end of the first event in p, behind its blank line, looked for from
// the beginning of a line on; 0 when the event goes on. line is where to look next.
func eventEnd(p []byte, from int) (end, line int) {
	for {
		i := bytes.IndexByte(p[from:], '\n')
		if i < 0 {
			return 0, from
		}
		blank := i == 0 || i == 1 && p[from] == '\r'
		if from += i + 1; blank {
			return from, from
		}
	}
}

// loneCR tells lines that end without a line feed, which the standard allows and no
// engine writes.
func loneCR(p []byte) bool {
	for {
		i := bytes.IndexByte(p, '\r')
		if i < 0 || i == len(p)-1 {
			return false
		}
		if p = p[i+1:]; p[0] != '\n' {
			return true
		}
	}
}
