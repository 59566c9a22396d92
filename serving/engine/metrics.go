package engine

// Signal is a quantity that every engine has a name of its own for.
type Signal string

// The signals. Counters grow; the others are gauges, but for the two histograms.
const (
	Running       Signal = "running"         // sequences being computed
	Waiting       Signal = "waiting"         // requests that wait
	KVUse         Signal = "kv_use"          // share of the cache that is held, 0 to 1
	PrefixQueries Signal = "prefix_queries"  // counter: tokens, or blocks, looked up
	PrefixHits    Signal = "prefix_hits"     // counter: of these, found
	PrefixHitRate Signal = "prefix_hit_rate" // where the engine gives only the ratio
	Preemptions   Signal = "preemptions"     // counter
	TTFT          Signal = "ttft"            // histogram, seconds
	ITL           Signal = "itl"             // histogram, seconds between tokens
)

// Metrics is where an engine exposes what, in Prometheus' text format. A signal that
// is not in Names has no name; an empty Path means that there is nothing to scrape.
type Metrics struct {
	Path  string
	Names map[Signal][]string // the newest name first
}

// Read returns the signal's value under the first of its names that value knows. It
// is false when there is none: what is absent is not 0.
func (m Metrics) Read(s Signal, value func(name string) (float64, bool)) (float64, bool) {
	for _, name := range m.Names[s] {
		if v, ok := value(name); ok {
			return v, true
		}
	}
	return 0, false
}
