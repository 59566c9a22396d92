package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// MaxEvent bounds one event of a stream. A chunk with the log probabilities
// of a whole vocabulary is the largest honest one, at some 10 MB.
const MaxEvent = 16 << 20

// ErrTooLong is an event larger than the bound.
var ErrTooLong = errors.New("event exceeds the size limit")

// Event is one server-sent event.
type Event struct {
	Name string
	Data []byte // lines joined by \n; valid until the next call
}

// Done reports the [DONE] event that ends a stream.
func (e Event) Done() bool { return string(e.Data) == "[DONE]" }

// Events takes server-sent events out of a stream's bytes as they come, however they
// are cut, and as the HTML standard defines them: lines end in LF, CRLF or CR, data
// lines are joined, comments and unknown fields are skipped. It reads nothing itself,
// never waits for a byte that the event at hand does not need, and keeps no bytes but
// those of an event that has not ended. Its zero value is at the beginning of a stream.
type Events struct {
	Max int // bytes of one event; 0: MaxEvent

	line   []byte // begun and not ended
	data   []byte // of the event at hand, joined
	name   string
	lines  int  // of data, in the event at hand
	skipLF bool // the last line ended in CR
	begun  bool // behind the place of a byte order mark
}

const byteOrderMark = "\xef\xbb\xbf"

// keptBytes is the largest buffer that stays with a stream between its events.
const keptBytes = 1 << 10

// Next returns the next event that has data, and what of b is behind it. Without one, ok
// is false and all of b has been taken. The event's data is valid until the next call
// and as long as b.
func (s *Events) Next(b []byte) (ev Event, rest []byte, ok bool, err error) {
	if s.lines == 0 && cap(s.data) > keptBytes {
		s.data = nil
	}
	var one []byte // the event's only line of data, where that lies in b
	for {
		line, rest, kept, ok := s.cut(b)
		if !ok {
			if one != nil {
				s.data = append(s.data[:0], one...)
			}
			if len(s.line) > s.max() {
				return Event{}, nil, false, ErrTooLong
			}
			return Event{}, nil, false, nil
		}
		b = rest
		if len(line) == 0 {
			ev, ok := s.end(one)
			if ok {
				return ev, b, true, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, colon)
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		switch string(field) {
		case "data":
			if len(s.data)*min(s.lines, 1)+len(one)+len(value) > s.max() {
				return Event{}, nil, false, ErrTooLong
			}
			switch {
			case s.lines == 0 && !kept && value != nil:
				one = value
			case s.lines == 0:
				s.data = append(s.data[:0], value...)
			default:
				if one != nil {
					s.data, one = append(s.data[:0], one...), nil
				}
				s.data = append(append(s.data, '\n'), value...)
			}
			s.lines++
		case "event":
			s.name = string(value)
		}
	}
}

var colon = []byte(":")

func (s *Events) max() int {
	if s.Max > 0 {
		return s.Max
	}
	return MaxEvent
}

// end is a blank line.
func (s *Events) end(one []byte) (ev Event, ok bool) {
	if ok = s.lines > 0; ok {
		ev = Event{Name: s.name, Data: s.data}
		if one != nil {
			ev.Data = one
		}
	}
	s.name, s.lines = "", 0
	return ev, ok
}

// cut takes a line off what is kept and b; without an end it keeps b. kept tells that
// the line lies in the buffer that the next call writes to, and not in b.
func (s *Events) cut(b []byte) (line, rest []byte, kept, ok bool) {
	if s.skipLF && len(b) > 0 {
		s.skipLF = false
		if b[0] == '\n' {
			b = b[1:]
		}
	}
	for !s.begun && len(b) > 0 {
		// The line has as many bytes of the mark as came, and nothing else.
		if b[0] != byteOrderMark[len(s.line)] {
			s.begun = true
			break
		}
		if s.line, b = append(s.line, b[0]), b[1:]; len(s.line) == len(byteOrderMark) {
			s.line, s.begun = s.line[:0], true
		}
	}
	i := bytes.IndexByte(b, '\n')
	before := b
	if i >= 0 {
		before = b[:i]
	}
	if j := bytes.IndexByte(before, '\r'); j >= 0 {
		i, s.skipLF = j, true
	}
	if i < 0 {
		s.line = append(s.line, b...)
		return nil, nil, false, false
	}
	if len(s.line) == 0 {
		return b[:i], b[i+1:], false, true
	}
	line = append(s.line, b[:i]...)
	if s.line = line[:0]; cap(line) > keptBytes {
		s.line = nil
	}
	return line, b[i+1:], true, true
}

// End is the end of the stream: io.EOF, and io.ErrUnexpectedEOF when it comes within a
// line. An event whose closing blank line is missing is still delivered, and End is
// called again: several servers end with a single line feed after [DONE].
func (s *Events) End() (Event, error) {
	if len(s.line) > 0 {
		return Event{}, io.ErrUnexpectedEOF
	}
	if ev, ok := s.end(nil); ok {
		return ev, nil
	}
	return Event{}, io.EOF
}

// Reader reads the Events of a stream.
type Reader struct {
	src    io.Reader
	buf    []byte
	rest   []byte // read and not yet taken
	events Events
	err    error
}

// NewReader reads events of at most max bytes from r; 0 is MaxEvent.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{src: r, buf: make([]byte, 4096), events: Events{Max: max}}
}

// Next returns the next event, whose data is valid until the next call, and at the end
// what Events.End says.
func (r *Reader) Next() (Event, error) {
	for {
		ev, rest, ok, err := r.events.Next(r.rest)
		if r.rest = rest; ok || err != nil {
			return ev, err
		}
		if r.err == io.EOF {
			return r.events.End()
		}
		if r.err != nil {
			return Event{}, r.err
		}
		if err := r.fill(); err != nil {
			return Event{}, err
		}
	}
}

func (r *Reader) fill() error {
	// A reader that keeps returning 0, nil is broken; bufio gives it 100 tries.
	for range 100 {
		n, err := r.src.Read(r.buf)
		if r.rest, r.err = r.buf[:n], err; n > 0 || err != nil {
			return nil
		}
	}
	return io.ErrNoProgress
}

// Writer writes server-sent events and flushes each.
type Writer struct {
	w   io.Writer
	rc  *http.ResponseController
	buf bytes.Buffer
	enc *json.Encoder
}

// NewWriter sets the headers of a stream on w. The status is sent with the
// first event.
func NewWriter(w http.ResponseWriter) *Writer {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s := &Writer{w: w, rc: http.NewResponseController(w)}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	return s
}

// Send writes v as JSON in one event.
func (w *Writer) Send(v any) error {
	w.buf.Reset()
	w.buf.WriteString("data: ")
	// The encoder ends with a line feed, the event with a second one.
	if err := w.enc.Encode(v); err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	w.buf.WriteByte('\n')
	return w.flush()
}

// Error writes e as an event, for a stream that has begun: its status is sent
// already, and no [DONE] may follow.
func (w *Writer) Error(e *Error) error {
	return w.Send(map[string]*Error{"error": e})
}

// Comment writes a comment line, which clients skip: it keeps a silent
// connection open.
func (w *Writer) Comment(s string) error {
	w.buf.Reset()
	w.buf.WriteString(": ")
	w.buf.WriteString(s)
	w.buf.WriteString("\n\n")
	return w.flush()
}

// Done writes the event that ends a stream.
func (w *Writer) Done() error {
	w.buf.Reset()
	w.buf.WriteString("data: [DONE]\n\n")
	return w.flush()
}

func (w *Writer) flush() error {
	if _, err := w.w.Write(w.buf.Bytes()); err != nil {
		return err
	}
	return w.rc.Flush()
}
