// Package trace is what a router writes down of each request: who asked which
// version for how many tokens, when, and how it ended. There is never a word of a
// prompt or an answer in it, and no credential.
//
// A [Record] is a line of JSON, both of usage, as roofline/cost bills it, and of a
// trace that can be replayed: the arrival, the lengths, and a chain of hashes of the
// prompt's blocks, so that of two records everybody can tell how much of their prompts
// is the same, and nobody what it is. The hashes are made under a [Key]. A [Recorder]
// writes records to files of bounded size and number and never has a request wait for
// a disk; it may be shared. [Read] reads a file back.
//
// The package decides nothing about requests and does not sum them up.
package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// BlockBytes is the length of the prompt's blocks that are hashed, some hundred tokens
// of text. A last one that is not whole has no hash, as no cache has it.
const BlockBytes = 512

// MaxBlocks bounds the blocks of a record: the first 256 KiB of a prompt.
const MaxBlocks = 512

// MaxName bounds tenant and workload in bytes: clients send them.
const MaxName = 128

// Unknown is a number of tokens that nobody told.
const Unknown = -1

// Gone is the status of a request whose client did not wait for its end.
const Gone = 499

// Record is one request.
type Record struct {
	Time    time.Time // when it ended
	Arrived time.Time

	Tenant   string // of the header, or of a credential by Key.Tenant; empty: neither
	Workload string
	Session  string // equal for equal conversations, by Key.Session
	Model    string // the alias
	Adapter  string // that was asked for in the model's place; empty: none
	Version  string // that answered; empty: none was asked
	Endpoint string
	Stream   bool
	Status   int // that the client got, or Gone

	Input, Cached, Output int // tokens as the engine counted them, or Unknown
	Chunks                int // events of a stream with output in them

	Queued time.Duration // from the arrival to the choice of a replica
	TTFT   time.Duration // from the arrival to the first output of a stream; 0: none came
	Took   time.Duration // from the arrival to the end

	PromptBytes int      // of the request's messages or prompt
	Blocks      []uint64 // by Key.Blocks, of the first of these bytes
}

// timeLayout keeps microseconds: at a thousand requests a second order shows.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// Append writes r as a line to b, with its line feed. It allocates nothing when b has
// room and names are plain.
func (r *Record) Append(b []byte) []byte {
	b = append(b, `{"time":"`...)
	b = r.Time.UTC().AppendFormat(b, timeLayout)
	b = append(b, `","arrived":"`...)
	b = r.Arrived.UTC().AppendFormat(b, timeLayout)
	b = append(b, '"')
	b = appendText(b, "tenant", r.Tenant)
	b = appendText(b, "workload", r.Workload)
	b = appendText(b, "session", r.Session)
	b = appendText(b, "model", r.Model)
	b = appendText(b, "adapter", r.Adapter)
	b = appendText(b, "version", r.Version)
	b = appendText(b, "endpoint", r.Endpoint)
	b = append(b, `,"stream":`...)
	b = strconv.AppendBool(b, r.Stream)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = appendTokens(b, "input_tokens", r.Input)
	b = appendTokens(b, "cached_tokens", r.Cached)
	b = appendTokens(b, "output_tokens", r.Output)
	if r.Chunks > 0 {
		b = append(b, `,"chunks":`...)
		b = strconv.AppendInt(b, int64(r.Chunks), 10)
	}
	b = appendSeconds(b, "queued_s", r.Queued)
	if r.TTFT > 0 {
		b = appendSeconds(b, "ttft_s", r.TTFT)
	}
	b = appendSeconds(b, "duration_s", r.Took)
	b = append(b, `,"prompt_bytes":`...)
	b = strconv.AppendInt(b, int64(r.PromptBytes), 10)
	if len(r.Blocks) > 0 {
		b = append(b, `,"block_bytes":`...)
		b = strconv.AppendInt(b, BlockBytes, 10)
		b = append(b, `,"blocks":[`...)
		for i, h := range r.Blocks {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, h, 10)
		}
		b = append(b, ']')
	}
	return append(b, '}', '\n')
}

func appendTokens(b []byte, name string, n int) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	if n < 0 {
		return append(b, "null"...) // unknown is not 0
	}
	return strconv.AppendInt(b, int64(n), 10)
}

func appendSeconds(b []byte, name string, d time.Duration) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return strconv.AppendFloat(b, d.Round(time.Microsecond).Seconds(), 'f', -1, 64)
}

func appendText(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			text, err := json.Marshal(s)
			if err != nil { // of a string it cannot fail
				text = []byte(`""`)
			}
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// line is a Record as it is read. Fields that are not listed are passed over, so that
// files of later programs can be read.
type line struct {
	Time     time.Time `json:"time"`
	Arrived  time.Time `json:"arrived"`
	Tenant   string    `json:"tenant"`
	Workload string    `json:"workload"`
	Session  string    `json:"session"`
	Model    string    `json:"model"`
	Adapter  string    `json:"adapter"`
	Version  string    `json:"version"`
	Endpoint string    `json:"endpoint"`
	Stream   bool      `json:"stream"`
	Status   int       `json:"status"`
	Input    *int      `json:"input_tokens"`
	Cached   *int      `json:"cached_tokens"`
	Output   *int      `json:"output_tokens"`
	Chunks   int       `json:"chunks"`
	Queued   float64   `json:"queued_s"`
	TTFT     float64   `json:"ttft_s"`
	Took     float64   `json:"duration_s"`
	Bytes    int       `json:"prompt_bytes"`
	Block    int       `json:"block_bytes"`
	Blocks   []uint64  `json:"blocks"`
}

const (
	// maxTokens and maxSeconds are above what any request has, and far below where sums
	// of them overflow.
	maxTokens  = 1 << 32
	maxSeconds = 1e7
)

// Parse reads a line.
func Parse(b []byte) (Record, error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return Record{}, err
	}
	r := Record{Time: l.Time, Arrived: l.Arrived, Tenant: l.Tenant, Workload: l.Workload, Session: l.Session, Model: l.Model, Adapter: l.Adapter,
		Version: l.Version, Endpoint: l.Endpoint, Stream: l.Stream, Status: l.Status, Chunks: l.Chunks, PromptBytes: l.Bytes, Blocks: l.Blocks}
	switch {
	case l.Time.IsZero() || l.Arrived.IsZero():
		return Record{}, fmt.Errorf("time or arrived is missing; want RFC 3339, such as 2026-03-01T12:00:00Z")
	case l.Arrived.UTC().Year() < 1970 || l.Time.UTC().Year() > 2200: // beyond which nanoseconds do not reach
		return Record{}, fmt.Errorf("it was from %v to %v, which no router saw", l.Arrived, l.Time)
	case l.Time.Before(l.Arrived):
		return Record{}, fmt.Errorf("it ended at %v, before it arrived at %v", l.Time, l.Arrived)
	case l.Status < 100 || l.Status > 599:
		return Record{}, fmt.Errorf("status is %d, want one of HTTP", l.Status)
	case len(l.Blocks) > 0 && l.Block != BlockBytes:
		return Record{}, fmt.Errorf("its blocks are of %d bytes, and this program knows blocks of %d", l.Block, BlockBytes)
	case l.Bytes < 0 || len(l.Blocks) > l.Bytes/BlockBytes || len(l.Blocks) > MaxBlocks:
		return Record{}, fmt.Errorf("%d blocks of a prompt of %d bytes", len(l.Blocks), l.Bytes)
	case l.Chunks < 0:
		return Record{}, fmt.Errorf("%d chunks", l.Chunks)
	}
	for _, t := range []struct {
		from *int
		to   *int
	}{{l.Input, &r.Input}, {l.Cached, &r.Cached}, {l.Output, &r.Output}} {
		*t.to = Unknown
		if t.from == nil {
			continue
		}
		if *t.from < 0 || *t.from > maxTokens {
			return Record{}, fmt.Errorf("%d tokens: want between 0 and %d", *t.from, int64(maxTokens))
		}
		*t.to = *t.from
	}
	if r.Cached > r.Input {
		return Record{}, fmt.Errorf("cached_tokens %d is more than input_tokens %d, of which they are", r.Cached, r.Input)
	}
	for _, d := range []struct {
		from float64
		to   *time.Duration
	}{{l.Queued, &r.Queued}, {l.TTFT, &r.TTFT}, {l.Took, &r.Took}} {
		if !(d.from >= 0 && d.from <= maxSeconds) {
			return Record{}, fmt.Errorf("%v seconds: want between 0 and %v", d.from, float64(maxSeconds))
		}
		*d.to = time.Duration(d.from*1e6+0.5) * time.Microsecond
	}
	return r, nil
}
