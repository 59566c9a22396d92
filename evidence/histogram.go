package evidence

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// mantissas are the upper edges within one decade. They hold the bounds that
// service levels are written in (0.3, 0.4, 0.5, 0.8, 2.5 …), so that counting
// what exceeds such a bound is exact and needs no interpolation.
var mantissas = [...]int64{100, 110, 120, 130, 140, 150, 160, 180, 200, 220, 250, 270, 300, 330, 350, 400, 450, 500, 550, 600, 650, 700, 750, 800, 900}

const (
	decades     = 7                          // from 100 µs to 1,000 s
	buckets     = decades*len(mantissas) + 2 // one more above, and the last edge's own
	edgeQuantum = time.Microsecond           // what a mantissa counts in the first decade
	lastEdge    = 1000 * time.Second         // where the next decade would begin
)

// edges[i] is the upper edge of bucket i; the last bucket has none.
var edges = func() (e [buckets - 1]time.Duration) {
	unit := edgeQuantum
	i := 0
	for range decades {
		for _, m := range mantissas {
			e[i] = time.Duration(m) * unit
			i++
		}
		unit *= 10
	}
	e[i] = lastEdge
	return e
}()

// Histogram counts durations in fixed buckets, so that histograms of different
// processes, versions and moments can be merged and subtracted exactly. A
// bucket holds what is above the last edge and at or below its own. The zero
// value is empty and ready; it is not safe for concurrent use.
//
// Its JSON form is an object from bucket index to count, without empty buckets.
type Histogram struct {
	counts [buckets]uint64
}

// Add counts one duration.
func (h *Histogram) Add(d time.Duration) { h.counts[bucketOf(d)]++ }

// bucketOf finds the first edge that is at or above d by bisection.
func bucketOf(d time.Duration) int {
	lo, hi := 0, len(edges)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if edges[mid] >= d {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
}

// Since returns the counts that were added after the earlier state old. ok is
// false when old is not an earlier state of the same counters, as after a
// restart; the result is then empty.
func (h *Histogram) Since(old *Histogram) (d Histogram, ok bool) {
	for i, c := range h.counts {
		if c < old.counts[i] {
			return Histogram{}, false
		}
		d.counts[i] = c - old.counts[i]
	}
	return d, true
}

// N is the number of durations counted.
func (h *Histogram) N() (n uint64) {
	for _, c := range h.counts {
		n += c
	}
	return n
}

// Over returns how many durations were above bound. Where bound lies within a
// bucket, all of that bucket counts as above: the answer errs on the side of
// too many. edge is the bound that was really used.
func (h *Histogram) Over(bound time.Duration) (over uint64, edge time.Duration) {
	i := bucketOf(bound)
	if i < len(edges) && edges[i] == bound {
		i++
	}
	if i > 0 {
		edge = edges[i-1]
	}
	for _, c := range h.counts[i:] {
		over += c
	}
	return over, edge
}

// Quantile returns the edges between which the q-quantile lies (the smallest
// duration that at least q·N are at or below). ok is false when h is empty.
// hi is negative when the quantile lies above the last edge.
func (h *Histogram) Quantile(q float64) (lo, hi time.Duration, ok bool) {
	n := h.N()
	if n == 0 {
		return 0, 0, false
	}
	need := q * float64(n)
	var seen uint64
	for i, c := range h.counts {
		seen += c
		if c == 0 || float64(seen) < need {
			continue
		}
		if i > 0 {
			lo = edges[i-1]
		}
		if i == len(edges) {
			return lo, -1, true
		}
		return lo, edges[i], true
	}
	return 0, 0, false
}

// MarshalJSON implements json.Marshaler.
func (h Histogram) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, c := range h.counts {
		if c == 0 {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, '"', ':')
		b = strconv.AppendUint(b, c, 10)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Histogram) UnmarshalJSON(b []byte) error {
	var sparse map[string]uint64
	if err := json.Unmarshal(b, &sparse); err != nil {
		return fmt.Errorf("reading histogram: %w", err)
	}
	*h = Histogram{}
	for k, c := range sparse {
		i, err := strconv.Atoi(k)
		if err != nil || i < 0 || i >= buckets || strconv.Itoa(i) != k {
			return fmt.Errorf("reading histogram: bucket %q is not one of 0 to %d", k, buckets-1)
		}
		h.counts[i] = c
	}
	return nil
}
