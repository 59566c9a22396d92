// Package trace reads recordings of LLM traffic that others published, and our
// own text-free ones.
//
// A format is an adapter: it declares the unit of its times and the columns that
// it needs, and [Read] holds the file to both. Units are never guessed; a file
// whose rate would be absurd in its format's unit is refused, since that is what a
// wrong unit looks like. Rows that had no answer are left out and counted.
//
// What is read is plain data. The package makes no requests and no prompts.
package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Trace is a recording.
type Trace struct {
	Format  string `json:"format"`
	Unit    string `json:"unit"` // of the file's times
	Rows    []Row  `json:"-"`
	Dropped int    `json:"dropped,omitempty"` // rows without input or output
	Why     string `json:"why,omitempty"`     // of the first of these
	Cut     int    `json:"cut,omitempty"`     // files that end within a line, which was passed over
}

// Row is one request.
type Row struct {
	At      time.Duration // since the first row; 0 where the format has no times
	Input   int           // tokens; 0: unknown, and Text is there
	Output  int           // tokens; 0: unknown, and Text is there
	Blocks  []uint64      // the prompt's prefix blocks, of Size tokens each
	Size    int
	Class   string
	Session string
	Text    string // of the prompt
	Reply   string // of the answer

	bytes int // of the prompt, where blocks are of bytes
}

// Format is an adapter's name and what it declares.
type Format struct {
	Name    string
	Unit    string // of times; empty: it has none
	Columns []string
	read    func(in *bufio.Reader, t *Trace) error
	claims  func(head []byte) bool
	// Of the records of routers alone, where there are several of them: rows come in
	// the order in which requests ended, and all are known before blocks have a size.
	unordered bool
	finish    func(t *Trace)
}

// Formats are all adapters.
func Formats() []Format {
	return []Format{mooncake, azure, burstgpt, vidur, replay, shareGPT, own, records}
}

// Options of Read.
type Options struct {
	Format string // empty: the one whose columns the file has
	Sort   bool   // put rows in the order of their times instead of refusing disorder
}

// MaxRate is the highest mean rate of a trace, in requests a second, that is
// believed. The busiest published traces have some ten.
const MaxRate = 1000

// head is how much of a file is looked at to find its format.
const head = 64 << 10

// Read reads a recording, which may be several files of one format whose times are of
// one clock. Errors name the line.
func Read(o Options, files ...io.Reader) (*Trace, error) {
	var f Format
	t := &Trace{}
	for i, in := range files {
		b := bufio.NewReaderSize(in, head)
		start, err := b.Peek(head)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if len(bytes.TrimSpace(start)) == 0 {
			if len(files) > 1 {
				continue // a router that is about to write
			}
			return nil, errors.New("reading a trace: the file is empty")
		}
		if f, err = pick(start, cmp.Or(o.Format, f.Name)); err != nil {
			return nil, err
		}
		if err := f.read(b, t); err != nil {
			if len(files) > 1 {
				err = fmt.Errorf("file %d: %w", i+1, err)
			}
			return nil, fmt.Errorf("reading a %s trace: %w", f.Name, err)
		}
	}
	if f.Name == "" {
		return nil, errors.New("reading a trace: all files are empty")
	}
	t.Format, t.Unit = f.Name, f.Unit
	if f.finish != nil {
		f.finish(t)
	}
	if err := t.check(f, o.Sort || f.unordered); err != nil {
		return nil, fmt.Errorf("reading a %s trace: %w", f.Name, err)
	}
	return t, nil
}

func pick(start []byte, name string) (Format, error) {
	var names []string
	for _, f := range Formats() {
		if name == f.Name || name == "" && f.claims(start) {
			return f, nil
		}
		names = append(names, f.Name)
	}
	if name != "" {
		return Format{}, fmt.Errorf("trace format %q is not known; there are %s", name, strings.Join(names, ", "))
	}
	line, _, _ := bytes.Cut(start, []byte("\n"))
	return Format{}, fmt.Errorf("no trace format has the columns of line 1, %.120q; name one of %s", line, strings.Join(names, ", "))
}

// check holds rows to what every format promises.
func (t *Trace) check(f Format, sort bool) error {
	if len(t.Rows) == 0 {
		if t.Dropped > 0 {
			return fmt.Errorf("none of %d rows can be sent: %s", t.Dropped, t.Why)
		}
		return errors.New("it has no rows")
	}
	if f.Unit == "" {
		return nil
	}
	if sort {
		slices.SortStableFunc(t.Rows, func(a, b Row) int { return int(min(1, max(-1, a.At-b.At))) })
	}
	first := t.Rows[0].At
	for i := range t.Rows {
		if i > 0 && t.Rows[i].At-first < t.Rows[i-1].At {
			return fmt.Errorf("request %d comes before the one in front of it; times must not go back (sorting is an option)", i+1)
		}
		t.Rows[i].At -= first
	}
	if rate := t.Rate(); rate > MaxRate {
		return fmt.Errorf("its times in %s make %.3g requests a second, more than %d: they are in another unit, or the file is of another format", f.Unit, rate, MaxRate)
	}
	return nil
}

// Rate is the mean of requests a second; 0 without times or of a single row.
func (t *Trace) Rate() float64 {
	last := t.Rows[len(t.Rows)-1].At
	if last <= 0 {
		return 0
	}
	return float64(len(t.Rows)-1) / last.Seconds()
}

// Times are the rows' arrivals, speed times as fast as recorded.
func (t *Trace) Times(speed float64) []time.Duration {
	out := make([]time.Duration, len(t.Rows))
	for i, r := range t.Rows {
		out[i] = time.Duration(float64(r.At) / speed)
	}
	return out
}

// add takes a row, or leaves it out and says why.
func (t *Trace) add(line int, r Row) {
	why := ""
	switch {
	case r.Input < 0 || r.Output < 0:
		why = "a negative length"
	case r.Input == 0 && r.Text == "":
		why = "no input tokens"
	case r.Output == 0 && r.Text == "":
		why = "no output tokens: the request failed"
	case r.Input > maxLength || r.Output > maxLength:
		why = fmt.Sprintf("more than %d tokens", maxLength)
	}
	if why == "" {
		t.Rows = append(t.Rows, r)
		return
	}
	t.drop(line, why)
}

// drop leaves a row out.
func (t *Trace) drop(line int, why string) {
	if t.Dropped == 0 {
		t.Why = fmt.Sprintf("line %d: %s", line, why)
	}
	t.Dropped++
}

// maxLength is above the longest context of any model.
const maxLength = 16 << 20
