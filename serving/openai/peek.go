package openai

// Peek is what answers have shown of themselves, looked at one event or one
// whole answer after the other. Its zero value has seen nothing.
type Peek struct {
	Tokens  int    // events that bear output: text, reasoning, a refusal, a tool call
	Answers int    // of these, the ones with more than reasoning
	Finish  string // the finish reason
	Refused bool   // content_filter, or a refusal
	Failed  bool   // an error inside of the answer
	Usage   bool   // the counts below were sent
	Prompt  int
	Output  int
	Cached  int
	Told    bool   // that Cached was sent
	Bare    bool   // the newest document has usage and no choice
	Text    uint64 // hash of the first choice's text, however it was cut into events
}

const fnvOffset, fnvPrime = 14695981039346656037, 1099511628211

// Look reads one JSON document: an event's data or a whole answer.
func (p *Peek) Look(data []byte) {
	c := NewCursor(data)
	if !c.Open('{') {
		return
	}
	var got bears
	chose, counted := false, false
	p.Bare = false
	for {
		key, ok := c.Member()
		if !ok {
			break
		}
		switch string(key) {
		case "choices":
			if !c.Open('[') {
				c.Value()
				continue
			}
			for first := true; c.Element(); first = false {
				got |= p.choice(&c, first)
				chose = true
			}
		case "usage":
			counted = p.count(&c) || counted
		case "error":
			if filled(c.Value()) {
				p.Failed = true
			}
		default:
			c.Value()
		}
		if c.bad {
			break
		}
	}
	if got&output != 0 {
		p.Tokens++
	}
	if got&answer != 0 {
		p.Answers++
	}
	p.Bare = counted && !chose && !c.bad && !p.Failed
}

// bears is what a document adds to the output.
type bears uint8

const (
	output bears = 1 << iota
	answer
)

func (p *Peek) choice(c *Cursor, first bool) (got bears) {
	if !c.Open('{') {
		c.Value()
		return 0
	}
	for {
		key, ok := c.Member()
		if !ok || c.bad {
			return got
		}
		switch string(key) {
		case "delta", "message":
			if !c.Open('{') {
				c.Value()
				continue
			}
			got |= p.delta(c, first)
		case "text":
			got |= p.content(c.Value(), first)
		case "finish_reason":
			p.reason(c.Value())
		default:
			c.Value()
		}
	}
}

func (p *Peek) reason(raw []byte) {
	if !filled(raw) || raw[0] != '"' {
		return
	}
	// Known ones are not copied.
	switch raw = raw[1 : len(raw)-1]; string(raw) {
	case FinishStop:
		p.Finish = FinishStop
	case FinishLength:
		p.Finish = FinishLength
	case FinishTools:
		p.Finish = FinishTools
	case FinishFilter:
		p.Finish, p.Refused = FinishFilter, true
	default:
		p.Finish = string(raw)
	}
}

func (p *Peek) delta(c *Cursor, first bool) (got bears) {
	for {
		key, ok := c.Member()
		if !ok || c.bad {
			return got
		}
		switch string(key) {
		case "content":
			got |= p.content(c.Value(), first)
		case "refusal":
			if filled(c.Value()) {
				got, p.Refused = got|output|answer, true
			}
		case "tool_calls":
			if filled(c.Value()) {
				got |= output | answer
			}
		case "reasoning", "reasoning_content":
			if filled(c.Value()) {
				got |= output
			}
		default:
			c.Value()
		}
	}
}

func (p *Peek) content(raw []byte, first bool) bears {
	if !filled(raw) {
		return 0
	}
	if first && raw[0] == '"' {
		if p.Text == 0 {
			p.Text = fnvOffset
		}
		for _, b := range raw[1 : len(raw)-1] {
			p.Text = (p.Text ^ uint64(b)) * fnvPrime
		}
	}
	return output | answer
}

// count reads usage, and tells whether it had the output's tokens.
func (p *Peek) count(c *Cursor) (counted bool) {
	if !c.Open('{') {
		c.Value()
		return false
	}
	for {
		key, ok := c.Member()
		if !ok || c.bad {
			return counted
		}
		switch string(key) {
		case "completion_tokens":
			if n, ok := number(c.Value()); ok {
				p.Output, p.Usage, counted = n, true, true
			}
		case "prompt_tokens":
			if n, ok := number(c.Value()); ok {
				p.Prompt = n
			}
		case "prompt_tokens_details":
			if !c.Open('{') {
				c.Value()
				continue
			}
			for {
				key, ok := c.Member()
				if !ok || c.bad {
					break
				}
				raw := c.Value()
				if n, ok := number(raw); ok && string(key) == "cached_tokens" {
					p.Cached, p.Told = n, true
				}
			}
		default:
			c.Value()
		}
	}
}
