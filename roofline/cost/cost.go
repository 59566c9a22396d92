// Package cost turns GPU-hours into prices: of a million tokens, of a request, of a
// tenant, and against an API that sells the same.
//
// A bill is split by what was done for it: the node-seconds of decoding, which output
// tokens take, and of prefill, which input tokens take that no cache had. [Capacity]
// says how many tokens a node does in a second, [Use] what was asked for; both may be
// modelled or recorded. [Read] reads recorded usage, [Tally] adds it up, [Tally.Bill]
// splits a bill by it, and [BreakEven] compares with a price list.
//
// All is dollars, tokens and seconds, and pure but for Read. Values are safe to share
// but for a Tally, which belongs to one goroutine. What an output token costs grows
// with its context, which nothing here knows: tenants with long contexts pay too little.
package cost

// Capacity is how many tokens a node does in a second when it does nothing else.
type Capacity struct {
	Decode  float64 `json:"decode_tokens_per_second"`
	Prefill float64 `json:"prefill_tokens_per_second"`
}

// Use is what was asked of a fleet, in tokens. Cached ones are of the input.
type Use struct {
	Requests float64 `json:"requests"`
	Input    float64 `json:"input_tokens"`
	Cached   float64 `json:"cached_tokens"`
	Output   float64 `json:"output_tokens"`
}

// Add is both together.
func (u Use) Add(v Use) Use {
	return Use{u.Requests + v.Requests, u.Input + v.Input, u.Cached + v.Cached, u.Output + v.Output}
}

// Times is u, f times.
func (u Use) Times(f float64) Use {
	return Use{u.Requests * f, u.Input * f, u.Cached * f, u.Output * f}
}

// HitShare is the cache's of the input; 0 of none.
func (u Use) HitShare() float64 { return ratio(u.Cached, u.Input) }

// NodeSeconds are those that u takes.
func (c Capacity) NodeSeconds(u Use) (decode, prefill float64) {
	return ratio(u.Output, c.Decode), ratio(u.Input-u.Cached, c.Prefill)
}

// DecodeShare is decoding's of the node-seconds of u; 0 of none.
func (c Capacity) DecodeShare(u Use) float64 {
	decode, prefill := c.NodeSeconds(u)
	return ratio(decode, decode+prefill)
}

// Price is what a bill comes to for each of what it bought; 0 of what it did not.
type Price struct {
	PerMillionInput  float64 `json:"dollars_per_million_input"` // of all input, cached or not
	PerMillionOutput float64 `json:"dollars_per_million_output"`
	PerRequest       float64 `json:"dollars_per_request"`
}

// million tokens is what prices are of.
const million = 1e6

// Prices splits a bill over u by node share.
func (c Capacity) Prices(dollars float64, u Use) Price {
	share := c.DecodeShare(u)
	if u.Output+u.Input == 0 {
		return Price{}
	}
	return Price{
		PerMillionInput:  ratio(dollars*(1-share), u.Input/million),
		PerMillionOutput: ratio(dollars*share, u.Output/million),
		PerRequest:       ratio(dollars, u.Requests),
	}
}

// ratio is 0 of nothing.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// API is a price list, in dollars a million tokens.
type API struct {
	Input  float64 `json:"input"`
	Cached float64 `json:"cached_input"`
	Output float64 `json:"output"`
}

// Costs is what u costs there.
func (a API) Costs(u Use) float64 {
	return ((u.Input-u.Cached)*a.Input + u.Cached*a.Cached + u.Output*a.Output) / million
}

// Month is a fleet and its people for a month.
type Month struct {
	GPUs float64 // dollars, at full price
	Team float64 // dollars: on call, upgrades, onboarding
	Full Use     // what the fleet serves when it is at its peak all month
	Load float64 // the mean share of that peak

	// Batch is the share of the peak that batch work fills up with in quiet hours.
	// It needs no GPUs of its own, and the API would charge for it.
	Batch float64

	// SpotShare of the GPUs can be interrupted and costs SpotDiscount less.
	SpotShare    float64
	SpotDiscount float64
}

// Comparison is a fleet against an API that sells the same.
type Comparison struct {
	Self float64 `json:"self_dollars"` // of the month, people included
	API  float64 `json:"api_dollars"`  // for the same tokens, batch work included
	// Load is the mean share of the peak at which both cost the same, batch work
	// counted beside it; above 1 there is none, below 0 the batch work pays for all.
	Load float64 `json:"break_even_load"`
	// PeakToAverage is the spikiest traffic that breaks even: 1/Load; 0 for none.
	PeakToAverage float64 `json:"break_even_peak_to_average"`
}

// Cheaper tells whether the fleet is.
func (c Comparison) Cheaper() bool { return c.Self < c.API }

// BreakEven compares m with a. The fleet costs the same at any load, the API's bill
// grows with it: the load at which they meet is self / API at full load − batch.
func BreakEven(m Month, a API) Comparison {
	full := a.Costs(m.Full)
	c := Comparison{
		Self: m.GPUs*(1-m.SpotShare*m.SpotDiscount) + m.Team,
		API:  full * (m.Load + m.Batch),
	}
	c.Load = ratio(c.Self, full) - m.Batch
	if full <= 0 {
		c.Load = 2 // an API that costs nothing is never met
	}
	if c.Load > 0 && c.Load <= 1 {
		c.PeakToAverage = 1 / c.Load
	}
	return c
}

// GPUHours are those of a job of documents that are prefilled and decoded by one GPU
// at the given rates, one after the other: both overlap in part, so it is an upper
// bound.
func (c Capacity) GPUHours(u Use) (decode, prefill float64) {
	d, p := c.NodeSeconds(u)
	return d / 3600, p / 3600
}
