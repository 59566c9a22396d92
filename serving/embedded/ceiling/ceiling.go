// Package ceiling measures what this machine can reach with the arithmetic of the
// embedded engine: how fast memory is read, and how many operations a second the
// engine's own products do. They are the two roofs of a replica without a GPU, as data
// sheets give them for one with.
//
// [Measure] takes the time of buffers far beyond the last-level cache and of products
// of whole batches, on one thread, which is what a replica computes with, and on all.
// A repetition in which other processes had the cores is left out, and too few that are
// left are no reading but an error. [Write] and [Read] keep the result with the machine
// that it is of, so that it is never taken for another's.
//
// Nothing here may run twice at a time: two measurements halve each other. It knows no
// model; what a model reaches under these ceilings is for the roofline to say.
package ceiling

import "time"

// Ceilings are what a machine reached. Figures are of this process's share of it.
type Ceilings struct {
	Measured    time.Time `json:"measured_at"`
	Took        float64   `json:"took_seconds"`
	Machine     Machine   `json:"machine"`
	BufferBytes int64     `json:"buffer_bytes"` // that was read, over all threads
	One         Rates     `json:"one_thread"`
	All         Rates     `json:"all_threads"`
}

// Machine is what ceilings depend on and are looked up by.
type Machine struct {
	Host        string `json:"host"`
	CPU         string `json:"cpu"`
	Arch        string `json:"arch"`
	Threads     int    `json:"threads"`      // that this process may run at a time
	CacheBytes  int64  `json:"cache_bytes"`  // of all last-level caches; 0: not known
	MemoryBytes int64  `json:"memory_bytes"` // 0: not known
}

// Rates are the readings on so many threads.
type Rates struct {
	Threads int     `json:"threads"`
	Read    Reading `json:"read_bytes_per_second"`     // of memory from one end to the other
	Row     Reading `json:"bf16_row_bytes_per_second"` // of bf16 weights by a product with one row, as in decoding one sequence
	F32     Reading `json:"f32_flops_per_second"`      // of a product of a batch with float32 weights
	BF16    Reading `json:"bf16_flops_per_second"`     // with bf16 weights, widened on the way
}

// Reading is what the undisturbed repetitions of one measurement came to, per second.
type Reading struct {
	Best      float64 `json:"best"`
	Median    float64 `json:"median"`
	Spread    float64 `json:"spread"`      // (best − median) / best
	N         int     `json:"repetitions"` // that were undisturbed
	Disturbed int     `json:"disturbed"`   // and were left out
}

// FLOPS is the best rate of products, whatever the weights are stored in.
func (r Rates) FLOPS() float64 { return max(r.F32.Best, r.BF16.Best) }

// Bandwidth is the best rate of reading. A product that reads faster than the plain
// loop shows that the loop is no ceiling.
func (r Rates) Bandwidth() float64 { return max(r.Read.Best, r.Row.Best) }

// Replica is what one of so many replicas of one thread each can have of the machine:
// what a thread reaches, or its part of what all do.
func (c *Ceilings) Replica(replicas int) (bytesPerSecond, flopsPerSecond float64) {
	n := float64(max(replicas, 1))
	return min(c.One.Bandwidth(), c.All.Bandwidth()/n), min(c.One.FLOPS(), c.All.FLOPS()/n)
}

// Cached reports whether so many bytes may stay in the last-level caches, so that the
// speed of memory bounds nothing.
func (c *Ceilings) Cached(bytes float64) bool {
	if c.Machine.CacheBytes == 0 {
		return bytes < float64(c.BufferBytes)
	}
	return bytes < 2*float64(c.Machine.CacheBytes)
}

// Warnings are what makes readings less than certain.
func (c *Ceilings) Warnings() (out []string) {
	for _, r := range []Rates{c.One, c.All} {
		out = append(out, r.warnings()...)
	}
	if c.Machine.CacheBytes == 0 {
		out = append(out, "the size of the last-level cache cannot be told here: the buffer may be in it in part")
	}
	return out
}
