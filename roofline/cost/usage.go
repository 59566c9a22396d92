package cost

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Record is one served request: a line of a usage file, which is JSON Lines. Fields
// that are not listed are passed over, so that richer records can be read, as routers
// write them.
type Record struct {
	Time     time.Time `json:"time"` // when it ended, RFC 3339
	Tenant   string    `json:"tenant,omitempty"`
	Workload string    `json:"workload,omitempty"`
	Adapter  string    `json:"adapter,omitempty"`
	Input    int64     `json:"input_tokens"`
	Cached   int64     `json:"cached_tokens"` // of Input; absent is none
	Output   int64     `json:"output_tokens"`
}

const (
	// maxLine bounds what a damaged file makes us hold.
	maxLine = 1 << 20
	// maxTokens of a request is above any context and far below where sums overflow.
	maxTokens = 1 << 32
)

// Left counts what is in usage files and in no bill.
type Left struct {
	Unknown  int `json:"unknown,omitempty"`  // answered, and nobody told the tokens: they are null
	Unserved int `json:"unserved,omitempty"` // with a status of 400 or more: refused, failed, or left by the client
	Cut      int `json:"cut,omitempty"`      // last lines that are cut, as a router that is killed leaves one
}

// Read calls fn for each record of a usage file, holding one line at a time, and counts
// what it passes over. It stops at the first line that is none, and says which; and at
// fn's first error.
func (l *Left) Read(r io.Reader, fn func(Record) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var long []byte
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) && len(long) <= maxLine {
				line, err = in.ReadSlice('\n')
				long = append(long, line...)
			}
			if line = long; len(line) > maxLine {
				return fmt.Errorf("reading usage, line %d: longer than %d bytes; want one JSON object a line", n, maxLine)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading usage, line %d: %w", n, err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if errors.Is(err, io.EOF) && !json.Valid(line) {
				l.Cut++
				return nil
			}
			rec, billed, bad := l.parse(line)
			if bad != nil {
				return fmt.Errorf("reading usage, line %d: %w", n, bad)
			}
			if billed {
				if err := fn(rec); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return nil
		}
	}
}

// parse reads a line; billed is false where it is counted as left out.
func (l *Left) parse(line []byte) (rec Record, billed bool, err error) {
	var raw struct {
		Record
		Status int             `json:"status"`
		Cached *int64          `json:"cached_tokens"`
		Input  json.RawMessage `json:"input_tokens"`
		Output json.RawMessage `json:"output_tokens"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return rec, false, fmt.Errorf("%w; want an object with time, input_tokens and output_tokens", err)
	}
	switch {
	case raw.Input == nil || raw.Output == nil:
		return rec, false, errors.New("input_tokens or output_tokens is missing; absent is unknown, not 0, and null says so")
	case raw.Time.IsZero():
		return rec, false, errors.New("time is missing; want RFC 3339, such as 2026-03-01T12:00:00Z")
	case raw.Status >= 400:
		l.Unserved++
		return rec, false, nil
	case string(raw.Input) == "null" || string(raw.Output) == "null":
		l.Unknown++
		return rec, false, nil
	}
	rec = raw.Record
	if err := errors.Join(json.Unmarshal(raw.Input, &rec.Input), json.Unmarshal(raw.Output, &rec.Output)); err != nil {
		return rec, false, fmt.Errorf("input_tokens %.40s, output_tokens %.40s: want numbers, or null: %w", raw.Input, raw.Output, err)
	}
	if raw.Cached != nil {
		rec.Cached = *raw.Cached
	}
	for _, n := range []int64{rec.Input, rec.Cached, rec.Output} {
		if n < 0 || n > maxTokens {
			return rec, false, fmt.Errorf("%d tokens: want between 0 and %d", n, int64(maxTokens))
		}
	}
	if rec.Cached > rec.Input {
		return rec, false, fmt.Errorf("cached_tokens %d is more than input_tokens %d, of which they are", rec.Cached, rec.Input)
	}
	return rec, true, nil
}

// Tally adds usage up. The zero Tally is empty.
type Tally struct {
	Total       Use
	Left        Left // what it does not have of the files
	First, Last time.Time

	tenants, workloads, adapters map[string]Use
	hours                        map[int64]Use // by hours since 1970
}

// Add counts one record.
func (t *Tally) Add(r Record) {
	if t.tenants == nil {
		t.tenants, t.workloads, t.adapters, t.hours = map[string]Use{}, map[string]Use{}, map[string]Use{}, map[int64]Use{}
	}
	u := Use{1, float64(r.Input), float64(r.Cached), float64(r.Output)}
	t.Total = t.Total.Add(u)
	t.tenants[r.Tenant] = t.tenants[r.Tenant].Add(u)
	t.workloads[r.Workload] = t.workloads[r.Workload].Add(u)
	t.adapters[r.Adapter] = t.adapters[r.Adapter].Add(u)
	hour := r.Time.Unix() / 3600
	t.hours[hour] = t.hours[hour].Add(u)
	if t.First.IsZero() || r.Time.Before(t.First) {
		t.First = r.Time
	}
	if r.Time.After(t.Last) {
		t.Last = r.Time
	}
}

// Read adds a usage file up.
func (t *Tally) Read(r io.Reader) error {
	return t.Left.Read(r, func(rec Record) error { t.Add(rec); return nil })
}

// Hours are those from the first hour with a record to the last, both whole: what a
// fleet stood ready for.
func (t *Tally) Hours() float64 {
	if len(t.hours) == 0 {
		return 0
	}
	return float64(t.Last.Unix()/3600 - t.First.Unix()/3600 + 1)
}

// PeakHour is the hour that took a fleet of capacity c the most, and the mean hour.
// Hours without a record count as idle.
func (t *Tally) PeakHour(c Capacity) (peak, mean Use) {
	most := -1.0
	for _, h := range slices.Sorted(maps.Keys(t.hours)) {
		u := t.hours[h]
		if d, p := c.NodeSeconds(u); d+p > most {
			peak, most = u, d+p
		}
	}
	return peak, t.Total.Times(ratio(1, t.Hours()))
}

// Line is one tenant's, workload's or adapter's part of a bill.
type Line struct {
	Name string `json:"name"` // empty: what named none
	Use
	Dollars float64 `json:"dollars"`
	Share   float64 `json:"share"`
	API     float64 `json:"api_dollars,omitempty"` // what an API would have asked for it
	Price
}

// Bill is a period's cost and who caused it. The lines of each kind add up to Dollars.
type Bill struct {
	Dollars   float64   `json:"dollars"`
	API       float64   `json:"api_dollars,omitempty"` // what an API would have asked
	Hours     float64   `json:"hours"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Total     Use       `json:"total"`
	HitShare  float64   `json:"cache_hit_share"`
	Busy      float64   `json:"busy_share"`      // node-seconds taken of those there were
	PeakBusy  float64   `json:"peak_busy_share"` // in the busiest hour
	Decode    float64   `json:"decode_share"`    // of the node-seconds taken
	Price     Price     `json:"price"`
	Tenants   []Line    `json:"tenants"`
	Workloads []Line    `json:"workloads"`
	Adapters  []Line    `json:"adapters"`
}

// Bill splits what nodes nodes cost at dollarsPerHour for all of them. Idle time is
// shared in proportion to use: somebody has to pay for it.
func (t *Tally) Bill(dollarsPerHour, nodes float64, c Capacity) Bill {
	hours := t.Hours()
	b := Bill{
		Dollars: dollarsPerHour * hours, Hours: hours, First: t.First, Last: t.Last,
		Total: t.Total, HitShare: t.Total.HitShare(), Decode: c.DecodeShare(t.Total),
	}
	peak, _ := t.PeakHour(c)
	busy := func(u Use, hours float64) float64 {
		d, p := c.NodeSeconds(u)
		return ratio(d+p, nodes*hours*3600)
	}
	b.Busy, b.PeakBusy = busy(t.Total, hours), busy(peak, 1)
	b.Price = c.Prices(b.Dollars, t.Total)
	lines := func(of map[string]Use) []Line {
		var out []Line
		d, p := c.NodeSeconds(t.Total)
		for name, u := range of {
			ud, up := c.NodeSeconds(u)
			l := Line{Name: name, Use: u, Share: ratio(ud+up, d+p)}
			l.Dollars = l.Share * b.Dollars
			l.Price = c.Prices(l.Dollars, u)
			out = append(out, l)
		}
		slices.SortFunc(out, func(x, y Line) int { return cmp.Or(cmp.Compare(y.Dollars, x.Dollars), cmp.Compare(x.Name, y.Name)) })
		return out
	}
	b.Tenants, b.Workloads, b.Adapters = lines(t.tenants), lines(t.workloads), lines(t.adapters)
	return b
}

// Compare fills in what an API would have asked for all of it and for each line.
func (b *Bill) Compare(a API) {
	b.API = a.Costs(b.Total)
	for _, lines := range [][]Line{b.Tenants, b.Workloads, b.Adapters} {
		for i := range lines {
			lines[i].API = a.Costs(lines[i].Use)
		}
	}
}
