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

// Reader reads server-sent events as the HTML standard defines them: lines end
// in LF, CRLF or CR, data lines are joined, comments and unknown fields are
// skipped. It never waits for a byte that the event at hand does not need.
type Reader struct {
	src        io.Reader
	buf        []byte
	start, end int // unread bytes
	scanned    int // no line end in buf[start:scanned]
	skipLF     bool
	begun      bool
	err        error
	data       []byte
	max        int
}

// NewReader reads events of at most max bytes from r; 0 is MaxEvent.
func NewReader(r io.Reader, max int) *Reader {
	if max <= 0 {
		max = MaxEvent
	}
	return &Reader{src: r, buf: make([]byte, 4096), max: max}
}

// Next returns the next event that has data. At the end of the stream it
// returns io.EOF, and io.ErrUnexpectedEOF when the stream ends within a line.
// An event whose closing blank line is missing is still delivered: several
// servers end with a single line feed after [DONE].
func (r *Reader) Next() (Event, error) {
	var ev Event
	r.data = r.data[:0]
	has := false
	for {
		line, err := r.line()
		if err == io.EOF && has {
			ev.Data = r.data
			return ev, nil
		}
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if has {
				ev.Data = r.data
				return ev, nil
			}
			ev.Name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if has {
				r.data = append(r.data, '\n')
			}
			if len(r.data)+len(value) > r.max {
				return Event{}, ErrTooLong
			}
			r.data = append(r.data, value...)
			has = true
		case "event":
			ev.Name = string(value)
		}
	}
}

func (r *Reader) line() ([]byte, error) {
	for {
		if r.skipLF && r.start < r.end {
			if r.buf[r.start] == '\n' {
				r.start++
				r.scanned = max(r.scanned, r.start)
			}
			r.skipLF = false
		}
		if !r.begun && r.end-r.start >= 3 {
			if bytes.HasPrefix(r.buf[r.start:r.end], []byte("\xef\xbb\xbf")) {
				r.start += 3
				r.scanned = r.start
			}
			r.begun = true
		}
		b := r.buf[r.scanned:r.end]
		i := bytes.IndexByte(b, '\n')
		if i >= 0 {
			b = b[:i]
		}
		if j := bytes.IndexByte(b, '\r'); j >= 0 {
			i, r.skipLF = j, true
		}
		if i >= 0 {
			line := r.buf[r.start : r.scanned+i]
			r.start = r.scanned + i + 1
			r.scanned = r.start
			return line, nil
		}
		r.scanned = r.end
		if r.err != nil {
			if r.err == io.EOF && r.start < r.end {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, r.err
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

func (r *Reader) fill() error {
	if r.start > 0 {
		copy(r.buf, r.buf[r.start:r.end])
		r.end -= r.start
		r.scanned -= r.start
		r.start = 0
	}
	if r.end == len(r.buf) {
		if r.end > r.max {
			return ErrTooLong
		}
		r.buf = append(r.buf, make([]byte, len(r.buf))...)
	}
	// A reader that keeps returning 0, nil is broken; bufio gives it 100 tries.
	for range 100 {
		n, err := r.src.Read(r.buf[r.end:])
		r.end += n
		if err != nil {
			r.err = err
			return nil
		}
		if n > 0 {
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
