package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"llmops/serving/openai"
)

// Traffic is a recording of requests with their times, a line of JSON each:
//
//	{"at": 0.25, "messages": [{"role": "user", "content": "…"}], "max_tokens": 32}
//
// at is in seconds. Instead of messages a line for an encoder has its input, or a
// query and documents. Lines that name the same conversation are turns of one;
// every other line is a conversation of its own.
type Traffic struct {
	at     []time.Duration
	lines  []trafficLine
	period time.Duration
}

type trafficLine struct {
	At           *float64         `json:"at"`
	Messages     []openai.Message `json:"messages"`
	Input        string           `json:"input"`
	Query        string           `json:"query"`
	Documents    []string         `json:"documents"`
	MaxTokens    *int             `json:"max_tokens"`
	Temperature  *float64         `json:"temperature"`
	Conversation string           `json:"conversation"`
}

// ReadTraffic reads a recording. Errors name the line.
func ReadTraffic(in io.Reader) (*Traffic, error) {
	t := &Traffic{}
	err := lines(in, func(n int, line []byte) error {
		bad := func(err error) error { return fmt.Errorf("reading traffic: line %d: %w", n, err) }
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		var l trafficLine
		if err := dec.Decode(&l); err != nil {
			return bad(err)
		}
		switch {
		case l.At == nil:
			return bad(errors.New("at is missing"))
		case !(*l.At >= 0 && *l.At < math.MaxInt32):
			return bad(fmt.Errorf("at is %v, want seconds from 0", *l.At))
		case l.kinds() != 1:
			return bad(errors.New("messages are missing, or for an encoder input, or query with documents; one of them"))
		case l.MaxTokens != nil && *l.MaxTokens < 1:
			return bad(fmt.Errorf("max_tokens is %d, want 1 or more", *l.MaxTokens))
		}
		at := time.Duration(math.Round(*l.At * float64(time.Second)))
		if len(t.at) > 0 && at < t.at[len(t.at)-1] {
			return bad(fmt.Errorf("at goes back from %v to %v", t.at[len(t.at)-1], at))
		}
		t.at = append(t.at, at)
		t.lines = append(t.lines, l)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(t.at) == 0 {
		return nil, errors.New("reading traffic: no requests")
	}
	// The next pass begins a mean gap after the last request.
	last := t.at[len(t.at)-1]
	t.period = last + max(last/time.Duration(max(1, len(t.at)-1)), time.Millisecond)
	return t, nil
}

// Rate is the recording's mean of requests a second.
func (t *Traffic) Rate() float64 { return float64(len(t.at)) / t.period.Seconds() }

// Len is the number of recorded requests.
func (t *Traffic) Len() int { return len(t.at) }

// Replay sends the recording to model again and again, at its own rate times
// speed. Each arrival is a conversation of its own, but for recorded turns of
// one, which are together in each pass. Conversations are named after prefix,
// which must differ between replays, so that a router draws each anew.
func (t *Traffic) Replay(model, prefix string, speed float64) (Pacer, Source, error) {
	if !(speed > 0) || math.IsInf(speed, 0) {
		return nil, nil, fmt.Errorf("replaying at %v times the recorded speed: want a positive number", speed)
	}
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) / speed) }
	at := slices.Clone(t.at)
	for i := range at {
		at[i] = scale(at[i])
	}
	requests := make([]*Request, len(at))
	for i := range t.lines {
		r, err := t.lines[i].request(model)
		if err != nil {
			return nil, nil, fmt.Errorf("making request %d of the traffic: %w", i, err)
		}
		requests[i] = r
	}
	return Loop(at, max(scale(t.period), 1)), func(i int) (*Request, error) {
		k := i % len(requests)
		r := *requests[k]
		r.Conversation = prefix + "-" + strconv.Itoa(i)
		if talk := t.lines[k].Conversation; talk != "" {
			r.Conversation = prefix + "-" + strconv.Itoa(i/len(requests)) + "-" + talk
		}
		return &r, nil
	}, nil
}

// kinds counts the kinds of request that a line could be.
func (l *trafficLine) kinds() (n int) {
	if len(l.Messages) > 0 {
		n++
	}
	if l.Input != "" {
		n++
	}
	if l.Query != "" && len(l.Documents) > 0 {
		n++
	}
	return n
}

func (l *trafficLine) request(model string) (*Request, error) {
	switch {
	case l.Input != "":
		return Embed(model, l.Input)
	case l.Query != "":
		return Rerank(model, l.Query, l.Documents)
	}
	return Chat(openai.ChatRequest{Sampling: openai.Sampling{Model: model, MaxTokens: l.MaxTokens, Temperature: l.Temperature}, Messages: l.Messages}, false)
}
