package trace

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mooncakeBlock is the tokens of a prefix block in Mooncake's traces (FAST'25
// release): the last block of a prompt may be part of one.
const mooncakeBlock = 512

var mooncake = Format{
	Name: "mooncake", Unit: "milliseconds", Columns: []string{"timestamp", "input_length", "output_length", "hash_ids"},
	claims: func(h []byte) bool { return keys(h, "timestamp", "input_length", "output_length", "hash_ids") },
	read: func(in *bufio.Reader, t *Trace) error {
		return jsonLines(in, func(n int, m member) error {
			r := Row{Size: mooncakeBlock, Input: m.count("input_length"), Output: m.count("output_length")}
			r.At = m.at("timestamp", time.Millisecond)
			m.get("hash_ids", &r.Blocks)
			if want := (r.Input + mooncakeBlock - 1) / mooncakeBlock; m.err == nil && len(r.Blocks) != want {
				return fmt.Errorf("%d hash_ids for %d tokens, want %d of %d each", len(r.Blocks), r.Input, want, mooncakeBlock)
			}
			return m.then(func() { t.add(n, r) })
		})
	},
}

// replay is what guidellm replays and vLLM's timed_trace defaults to: Mooncake's
// names in seconds and without blocks.
var replay = Format{
	Name: "replay", Unit: "seconds", Columns: []string{"timestamp", "input_length", "output_length"},
	claims: func(h []byte) bool {
		return keys(h, "timestamp", "input_length", "output_length") && !keys(h, "hash_ids")
	},
	read: func(in *bufio.Reader, t *Trace) error {
		return jsonLines(in, func(n int, m member) error {
			r := Row{Input: m.count("input_length"), Output: m.count("output_length"), At: m.at("timestamp", time.Second)}
			return m.then(func() { t.add(n, r) })
		})
	},
}

// own is llmops' text-free trace: what a router or a benchmark may write down
// without keeping a word of anybody's.
var own = Format{
	Name: "llmops", Unit: "seconds", Columns: []string{"at", "input", "output"},
	claims: func(h []byte) bool { return keys(h, "at", "input", "output") },
	read: func(in *bufio.Reader, t *Trace) error {
		return jsonLines(in, func(n int, m member) error {
			r := Row{Input: m.count("input"), Output: m.count("output"), At: m.at("at", time.Second)}
			m.maybe("blocks", &r.Blocks)
			m.maybe("block", &r.Size)
			m.maybe("class", &r.Class)
			m.maybe("session", &r.Session)
			if len(r.Blocks) > 0 && r.Size <= 0 {
				return errors.New("blocks without block, their size in tokens")
			}
			return m.then(func() { t.add(n, r) })
		})
	},
}

var shareGPT = Format{
	Name: "sharegpt", Columns: []string{"conversations"},
	claims: func(h []byte) bool {
		h = bytes.TrimSpace(h)
		return len(h) > 0 && h[0] == '[' && bytes.Contains(h, []byte(`"conversations"`))
	},
	read: func(in *bufio.Reader, t *Trace) error {
		dec := json.NewDecoder(in)
		if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
			return errors.New("want a list of conversations")
		}
		for n := 1; dec.More(); n++ {
			var c struct {
				Conversations []struct{ From, Value string }
			}
			if err := dec.Decode(&c); err != nil {
				return fmt.Errorf("conversation %d: %w", n, err)
			}
			if len(c.Conversations) < 2 || c.Conversations[0].Value == "" || c.Conversations[1].Value == "" {
				if t.Dropped++; t.Why == "" {
					t.Why = fmt.Sprintf("conversation %d has no question with an answer", n)
				}
				continue
			}
			t.Rows = append(t.Rows, Row{Text: c.Conversations[0].Value, Reply: c.Conversations[1].Value})
		}
		_, err := dec.Token() // a list that is cut off is no list
		return err
	},
}

var azure = Format{
	Name: "azure", Unit: "time of day", Columns: []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
	claims: func(h []byte) bool { return columns(h, "TIMESTAMP", "ContextTokens", "GeneratedTokens") },
	read: func(in *bufio.Reader, t *Trace) error {
		var base time.Time
		zoned := false
		return table(in, []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, func(n int, get func(string) string) error {
			at, zone, err := moment(get("TIMESTAMP"))
			if err != nil {
				return err
			}
			if base.IsZero() {
				base, zoned = at, zone
			}
			if zone != zoned {
				return fmt.Errorf("%q and earlier lines: some times name their zone and some do not", get("TIMESTAMP"))
			}
			r := Row{At: at.Sub(base)}
			if r.Input, err = whole(get, "ContextTokens"); err != nil {
				return err
			}
			if r.Output, err = whole(get, "GeneratedTokens"); err != nil {
				return err
			}
			t.add(n, r)
			return nil
		})
	},
}

// moment reads a time of the Azure traces: of 2023 with seven digits behind the
// second and no zone, of 2024 with a zone as well.
func moment(s string) (at time.Time, zoned bool, err error) {
	s = strings.TrimSuffix(strings.Replace(s, "T", " ", 1), " UTC")
	if at, err = time.Parse("2006-01-02 15:04:05", s); err == nil {
		return at, false, nil
	}
	if at, err = time.Parse("2006-01-02 15:04:05Z07:00", s); err == nil {
		return at.UTC(), true, nil
	}
	return at, false, fmt.Errorf("%.40q is no time such as 2023-11-16 18:15:46.6805900", s)
}

var burstgpt = Format{
	Name: "burstgpt", Unit: "seconds", Columns: []string{"Timestamp", "Model", "Request tokens", "Response tokens"},
	claims: func(h []byte) bool { return columns(h, "Timestamp", "Model", "Request tokens", "Response tokens") },
	read: func(in *bufio.Reader, t *Trace) error {
		// Later releases have more columns in between; they are found by name.
		return table(in, []string{"Timestamp", "Model", "Request tokens", "Response tokens"}, func(n int, get func(string) string) error {
			at, err := seconds(get("Timestamp"))
			if err != nil {
				return err
			}
			r := Row{At: at, Class: get("Model"), Session: get("Session ID")}
			if r.Input, err = whole(get, "Request tokens"); err != nil {
				return err
			}
			if r.Output, err = whole(get, "Response tokens"); err != nil {
				return err
			}
			t.add(n, r)
			return nil
		})
	},
}

var vidur = Format{
	Name: "vidur", Unit: "seconds", Columns: []string{"arrived_at", "num_prefill_tokens", "num_decode_tokens"},
	claims: func(h []byte) bool { return columns(h, "arrived_at", "num_prefill_tokens", "num_decode_tokens") },
	read: func(in *bufio.Reader, t *Trace) error {
		return table(in, []string{"arrived_at", "num_prefill_tokens", "num_decode_tokens"}, func(n int, get func(string) string) error {
			at, err := seconds(get("arrived_at"))
			if err != nil {
				return err
			}
			r := Row{At: at}
			if r.Input, err = whole(get, "num_prefill_tokens"); err != nil {
				return err
			}
			if r.Output, err = whole(get, "num_decode_tokens"); err != nil {
				return err
			}
			t.add(n, r)
			return nil
		})
	},
}

// table reads CSV with a header and calls fn for each row; columns are found by
// name.
func table(in io.Reader, need []string, fn func(line int, get func(string) string) error) error {
	r := csv.NewReader(in)
	header, err := r.Read()
	if err != nil {
		return err
	}
	at := map[string]int{}
	for i, h := range header {
		at[strings.TrimSpace(strings.TrimPrefix(h, "\ufeff"))] = i
	}
	for _, n := range need {
		if _, ok := at[n]; !ok {
			return fmt.Errorf("column %q is missing; line 1 has %s", n, strings.Join(header, ", "))
		}
	}
	r.ReuseRecord = true
	for {
		// A row with another number of fields is an error of its own: a file that
		// was cut short shall not pass for a shorter one.
		row, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		line, _ := r.FieldPos(0)
		get := func(name string) string {
			if i, ok := at[name]; ok {
				return strings.TrimSpace(row[i])
			}
			return ""
		}
		if err := fn(line, get); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func whole(get func(string) string, name string) (int, error) {
	// Some releases write counts as 12.0.
	s := strings.TrimSuffix(get(name), ".0")
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%s is %.40q, want a number of tokens", name, get(name))
	}
	return n, nil
}

func seconds(s string) (time.Duration, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f < math.MaxInt64/1e9/2) {
		return 0, fmt.Errorf("%.40q is no time in seconds", s)
	}
	return time.Duration(math.Round(f * 1e9)), nil
}

// columns tells whether the first line of h has all names.
func columns(h []byte, names ...string) bool {
	line, _, _ := bytes.Cut(h, []byte("\n"))
	have := strings.Split(strings.TrimPrefix(strings.TrimSpace(string(line)), "\ufeff"), ",")
	for _, n := range names {
		if !slices.ContainsFunc(have, func(s string) bool { return strings.TrimSpace(s) == n }) {
			return false
		}
	}
	return true
}

// keys tells whether the object on the first line of h has all names.
func keys(h []byte, names ...string) bool {
	line, _, _ := bytes.Cut(bytes.TrimSpace(h), []byte("\n"))
	var m map[string]json.RawMessage
	if json.Unmarshal(line, &m) != nil {
		// The line is longer than what was looked at.
		if len(line) == 0 || line[0] != '{' {
			return false
		}
		for _, n := range names {
			if !bytes.Contains(line, []byte(`"`+n+`"`)) {
				return false
			}
		}
		return true
	}
	for _, n := range names {
		if _, ok := m[n]; !ok {
			return false
		}
	}
	return true
}

// member reads the members of one line's object; its first error stays.
type member struct {
	all map[string]json.RawMessage
	err error
}

func (m *member) get(name string, to any) {
	if _, ok := m.all[name]; !ok && m.err == nil {
		m.err = fmt.Errorf("%s is missing", name)
	}
	m.maybe(name, to)
}

func (m *member) maybe(name string, to any) {
	raw, ok := m.all[name]
	if !ok || m.err != nil {
		return
	}
	if err := json.Unmarshal(raw, to); err != nil {
		m.err = fmt.Errorf("%s is %.40q: %w", name, raw, err)
	}
}

func (m *member) count(name string) (n int) {
	m.get(name, &n)
	return n
}

func (m *member) at(name string, unit time.Duration) time.Duration {
	var f float64
	m.get(name, &f)
	if d := f * float64(unit); m.err == nil && !(d >= 0 && d < math.MaxInt64/2) {
		m.err = fmt.Errorf("%s is %v, want a time from 0", name, f)
	}
	if m.err != nil {
		return 0
	}
	return time.Duration(math.Round(f * float64(unit)))
}

func (m *member) then(fn func()) error {
	if m.err == nil {
		fn()
	}
	return m.err
}

// maxLine bounds a line: a prompt of a million tokens in blocks of 16.
const maxLine = 8 << 20

func jsonLines(in io.Reader, fn func(n int, m member) error) error {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 0
	for s.Scan() {
		n++
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		var m member
		if err := json.Unmarshal(s.Bytes(), &m.all); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := fn(n, m); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d is longer than %d bytes", n+1, maxLine)
	}
	return s.Err()
}
