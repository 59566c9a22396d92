package openai

import (
	"bytes"
	"errors"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func readAll(r io.Reader, max int) (events []string, err error) {
	er := NewReader(r, max)
	for {
		ev, err := er.Next()
		if err != nil {
			return events, err
		}
		s := string(ev.Data)
		if ev.Name != "" {
			s = ev.Name + "=" + s
		}
		events = append(events, s)
	}
}

func TestReader(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
		err      error
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"a", "b"}, io.EOF},
		{"no space", "data:a\n\n", []string{"a"}, io.EOF},
		{"one space only is taken", "data:  a\n\n", []string{" a"}, io.EOF},
		{"crlf", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}, io.EOF},
		{"cr", "data: a\r\rdata: b\r\r", []string{"a", "b"}, io.EOF},
		{"mixed", "data: a\r\ndata: b\n\rdata: c\r\n\n", []string{"a\nb", "c"}, io.EOF},
		{"several lines", "data: a\ndata:\ndata: c\n\n", []string{"a\n\nc"}, io.EOF},
		{"comments and other fields", ": ping\n\nid: 7\nretry: 9\ndata: a\n: x\n\n:\n\n", []string{"a"}, io.EOF},
		{"named", "event: error\ndata: {}\n\ndata: b\n\n", []string{"error={}", "b"}, io.EOF},
		{"name without data is dropped", "event: x\n\ndata: b\n\n", []string{"b"}, io.EOF},
		{"empty data counts", "data\n\n", []string{""}, io.EOF},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []string{"a"}, io.EOF},
		{"no closing blank line", "data: a\n\ndata: [DONE]\n", []string{"a", "[DONE]"}, io.EOF},
		{"cut within a line", "data: a\n\ndata: {\"x\"", []string{"a"}, io.ErrUnexpectedEOF},
		{"empty", "", nil, io.EOF},
		{"no final blank but several newlines", "\n\n\ndata: a\n\n\n\n", []string{"a"}, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Byte by byte, each event must come the same as in one read.
			for i, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in)), iotest.DataErrReader(strings.NewReader(tt.in))} {
				got, err := readAll(r, 0)
				if !slices.Equal(got, tt.want) || err != tt.err {
					t.Errorf("reader %d: got %q, %v; want %q, %v", i, got, err, tt.want, tt.err)
				}
			}
		})
	}
}

func TestReaderBounds(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	if got, err := readAll(strings.NewReader("data: "+long+"\n\n"), 0); err != io.EOF || len(got) != 1 || got[0] != long {
		t.Errorf("a long event: %d events, %v", len(got), err)
	}
	for name, in := range map[string]string{
		"one line":      "data: " + long + "\n\n",
		"without end":   long,
		"several lines": strings.Repeat("data: "+long[:1000]+"\n", 100),
	} {
		if _, err := readAll(strings.NewReader(in), 8192); !errors.Is(err, ErrTooLong) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	want := errors.New("reset")
	if got, err := readAll(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(want)), 0); err != want || len(got) != 1 {
		t.Errorf("got %q, %v", got, err)
	}
}

// An event is delivered as soon as its blank line is there: a reader that
// asked for one more byte would hold each token back until the next.
func TestReaderDoesNotWait(t *testing.T) {
	pr, pw := io.Pipe()
	defer pr.Close()
	got := make(chan string)
	go func() {
		er := NewReader(pr, 0)
		for {
			ev, err := er.Next()
			if err != nil {
				close(got)
				return
			}
			got <- string(ev.Data)
		}
	}()
	for _, s := range []string{"data: a\n\n", "data: b\r\n\r\n", "data: c\r\r"} {
		if _, err := io.WriteString(pw, s); err != nil {
			t.Fatal(err)
		}
		if g := <-got; !strings.Contains(s, g) {
			t.Errorf("got %q after %q", g, s)
		}
	}
	pw.Close()
	<-got
}

func TestWriter(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewWriter(rec)
	for _, err := range []error{
		w.Send(map[string]string{"a": "<x>\n"}), w.Comment("ping"), w.Error(&Error{Message: "gone"}), w.Done(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !rec.Flushed || !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/event-stream") {
		t.Errorf("flushed %v, header %v", rec.Flushed, rec.Header())
	}
	got, err := readAll(rec.Body, 0)
	want := []string{`{"a":"<x>\n"}`, `{"error":{"code":null,"message":"gone","param":null,"type":""}}`, "[DONE]"}
	if !slices.Equal(got, want) || err != io.EOF {
		t.Errorf("got %q, %v", got, err)
	}
}

// slowEvents is the standard's algorithm line by line, the obvious way.
func slowEvents(in []byte) (events []string, cut bool) {
	s := strings.TrimPrefix(string(in), "\xef\xbb\xbf")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(s, "\n")
	cut = lines[len(lines)-1] != ""
	lines = lines[:len(lines)-1]
	var data []string
	name := ""
	emit := func() {
		if data != nil {
			e := strings.Join(data, "\n")
			if name != "" {
				e = name + "=" + e
			}
			events = append(events, e)
		}
		data, name = nil, ""
	}
	for _, l := range lines {
		if l == "" {
			emit()
			continue
		}
		field, value, _ := strings.Cut(l, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			data = append(data, value)
		case "event":
			name = value
		}
	}
	if !cut {
		emit()
	}
	return events, cut
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{"data: a\n\n", "event: x\r\ndata: a\rdata:b\n\n:c\n\n", "\xef\xbb\xbfdata\n\ndata: [DONE]", "\xef\xbbdata: a\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		want, cut := slowEvents(in)
		for _, r := range []io.Reader{bytes.NewReader(in), iotest.OneByteReader(bytes.NewReader(in)), iotest.HalfReader(bytes.NewReader(in))} {
			got, err := readAll(r, 0)
			if !slices.Equal(got, want) || err != map[bool]error{true: io.ErrUnexpectedEOF, false: io.EOF}[cut] {
				t.Fatalf("%q: got %q, %v; want %q, cut %v", in, got, err, want, cut)
			}
		}
	})
}

// pushAll gives in to an Events in pieces of the lengths in cuts, again and again.
func pushAll(in []byte, cuts []byte) (events []string, err error) {
	var s Events
	take := func(ev Event) {
		e := string(ev.Data)
		if ev.Name != "" {
			e = ev.Name + "=" + e
		}
		events = append(events, e)
	}
	for i := 0; len(in) > 0; i++ {
		n := len(in)
		if len(cuts) > 0 {
			n = min(n, 1+int(cuts[i%len(cuts)]))
		}
		// A piece's bytes are gone when the next comes.
		piece := bytes.Clone(in[:n])
		for rest := piece; ; {
			ev, r, ok, err := s.Next(rest)
			if err != nil {
				return events, err
			}
			if !ok {
				break
			}
			take(ev)
			rest = r
		}
		clear(piece)
		in = in[n:]
	}
	for {
		ev, err := s.End()
		if err != nil {
			return events, err
		}
		take(ev)
	}
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\n\ndata: bcd\n\n", "event: x\r\ndata: a\rdata:b\n\n:c\n\n", "\xef\xbb\xbfdata\n\ndata: [DONE]", "\n\xef\xbb\xbfdata: a\n\n", "data:\ndata: a\ndata\n\n"} {
		f.Add([]byte(s), []byte{0, 2, 6})
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		want, cut := slowEvents(in)
		got, err := pushAll(in, cuts)
		if !slices.Equal(got, want) || err != map[bool]error{true: io.ErrUnexpectedEOF, false: io.EOF}[cut] {
			t.Fatalf("%q cut by %v: got %q, %v; want %q, cut %v", in, cuts, got, err, want, cut)
		}
	})
}

// Whole events need no memory, and what an event in pieces needed is not kept.
func TestEventsKeepsLittle(t *testing.T) {
	var s Events
	whole := []byte("data: " + strings.Repeat("a", 200) + "\n\n")
	if n := testing.AllocsPerRun(100, func() {
		if _, _, ok, _ := s.Next(whole); !ok {
			t.Fatal("no event")
		}
	}); n != 0 || cap(s.line)+cap(s.data) != 0 {
		t.Errorf("%v allocations an event, %d bytes kept", n, cap(s.line)+cap(s.data))
	}
	large := []byte("data: " + strings.Repeat("a", 1<<20) + "\ndata: b\n\n")
	for i, b := range [][]byte{large[:1<<19], large[1<<19 : len(large)-4], large[len(large)-4:], whole} {
		if ev, _, ok, err := s.Next(b); ok != (i > 1) || err != nil || i == 2 && len(ev.Data) != 1<<20+2 {
			t.Fatalf("piece %d: %v, %v, %d bytes", i, ok, err, len(ev.Data))
		}
	}
	if n := cap(s.line) + cap(s.data); n > 2*keptBytes {
		t.Errorf("%d bytes kept", n)
	}
}

func BenchmarkReader(b *testing.B) {
	chunk := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	in := strings.Repeat(chunk, 100)
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(strings.NewReader(in), 0)
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
	}
}
