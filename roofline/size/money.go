package size

import (
	"math"

	"llmops/roofline/cost"
)

// fleet is how many nodes the peak takes.
func (s *Sheet) fleet() {
	in, v := s.In, s.Value
	rate := in.Number("traffic.rate")
	s.add("fleet.decode_demand", TokenRate, rate*in.Number("traffic.output"), "output at the peak", "traffic.rate * traffic.output")
	s.add("fleet.input_demand", TokenRate, rate*in.Number("traffic.input"), "input at the peak", "traffic.rate * traffic.input")
	s.add("fleet.prefill_demand", TokenRate, v("fleet.input_demand")*(1-in.Number("traffic.prefix_hits")), "that no cache has", "fleet.input_demand * (1 - traffic.prefix_hits)")
	s.add("fleet.decode_nodes", Count, v("fleet.decode_demand")/v("decode.rate"), "nodes that decode", "fleet.decode_demand / decode.rate")
	s.add("fleet.prefill_nodes", Count, v("fleet.prefill_demand")/v("prefill.rate"), "nodes that prefill", "fleet.prefill_demand / prefill.rate")
	s.add("fleet.capacity", Count, v("fleet.decode_nodes")+v("fleet.prefill_nodes"), "nodes that the peak takes", "fleet.decode_nodes + fleet.prefill_nodes")
	s.add("fleet.nodes", Count, math.Ceil(in.Number("fleet.headroom")*v("fleet.capacity"))+in.Number("fleet.spare"), "nodes to have", "ceil(fleet.headroom * fleet.capacity) + fleet.spare")
	s.add("fleet.gpus", Count, v("fleet.nodes")*in.Number("node.gpus"), "GPUs to have", "fleet.nodes * node.gpus")
}

// Capacity is what a node of the sheet does.
func (s *Sheet) Capacity() cost.Capacity {
	return cost.Capacity{Decode: s.Value("decode.rate"), Prefill: s.Value("prefill.rate")}
}

// Use is what the peak asks for in so many seconds.
func (s *Sheet) Use(seconds float64) cost.Use {
	in := s.In
	return cost.Use{Requests: 1, Input: in.Number("traffic.input"), Cached: in.Number("traffic.input") * in.Number("traffic.prefix_hits"), Output: in.Number("traffic.output")}.
		Times(in.Number("traffic.rate") * seconds)
}

// cost is what it comes to.
func (s *Sheet) cost() {
	in, v := s.In, s.Value
	s.add("cost.hour", Dollars, v("fleet.gpus")*in.Number("cost.gpu_hour"), "the fleet, an hour", "fleet.gpus * cost.gpu_hour")
	s.add("cost.month_total", Dollars, v("cost.hour")*in.Number("cost.month"), "the fleet, a month", "cost.hour * cost.month")
	hour := s.Use(3600 * in.Number("traffic.load"))
	s.add("cost.output_hour", Tokens, hour.Output, "output an hour, in the mean", "fleet.decode_demand * traffic.load * 3600")
	s.add("cost.input_hour", Tokens, hour.Input, "input an hour, cached or not", "fleet.input_demand * traffic.load * 3600")
	c := s.Capacity()
	p := c.Prices(v("cost.hour"), hour)
	s.add("cost.decode_share", Share, c.DecodeShare(hour), "decoding's of the nodes", "fleet.decode_nodes / fleet.capacity")
	s.add("cost.prefill_share", Share, 1-c.DecodeShare(hour), "prefill's of the nodes", "1 - cost.decode_share")
	s.add("cost.output", Dollars, p.PerMillionOutput, "1M output tokens", "cost.hour * cost.decode_share / (cost.output_hour / 1e6)")
	if hour.Input > 0 {
		s.add("cost.input", Dollars, p.PerMillionInput, "1M input tokens", "cost.hour * cost.prefill_share / (cost.input_hour / 1e6)")
	}
	s.add("cost.request", Dollars, p.PerRequest, "a served request", "cost.hour / (traffic.rate * traffic.load * 3600)")
	if in.Has("cost.output_month") {
		s.add("cost.all_output", Dollars, v("cost.month_total")/in.Number("cost.output_month")*1e6, "1M output tokens that pay for all", "cost.month_total / (cost.output_month / 1e6)")
	} else {
		s.add("cost.all_output", Dollars, v("cost.hour")/hour.Output*1e6, "1M output tokens that pay for all", "cost.hour / (cost.output_hour / 1e6)")
	}
	s.breakEven()
}

// API is the price list that the assumptions name.
func (s *Sheet) API() (cost.API, bool) {
	in := s.In
	a := cost.API{Input: in.Number("api.input"), Cached: in.Number("api.input"), Output: in.Number("api.output")}
	if in.Has("api.cached") {
		a.Cached = in.Number("api.cached")
	}
	return a, in.Has("api.input") && in.Has("api.output")
}

// BreakEven compares a month of the fleet with an API.
func (s *Sheet) BreakEven(a cost.API) cost.Comparison {
	in := s.In
	return cost.BreakEven(cost.Month{
		GPUs: s.Value("cost.month_total"), Team: in.Number("cost.team"), Full: s.Use(3600 * in.Number("cost.month")), Load: in.Number("traffic.load"),
		Batch: in.Number("cost.backfill"), SpotShare: in.Number("cost.spot"), SpotDiscount: in.Number("cost.spot_discount"),
	}, a)
}

func (s *Sheet) breakEven() {
	a, ok := s.API()
	if !ok {
		return
	}
	c := s.BreakEven(a)
	cached := when(s.In.Has("api.cached"), "api.cached", "api.input")
	s.add("cost.self", Dollars, c.Self, "a month with people and spot", "cost.month_total * (1 - cost.spot * cost.spot_discount) + cost.team")
	full := "((1 - traffic.prefix_hits) * api.input + traffic.prefix_hits * " + cached + ") * fleet.input_demand + api.output * fleet.decode_demand"
	s.add("cost.api_full", Dollars, a.Costs(s.Use(3600*s.In.Number("cost.month"))), "what the API asks for a month at the peak", "("+full+") * 3600 * cost.month / 1e6")
	s.add("cost.api", Dollars, c.API, "what it asks for this load and the batch work", "cost.api_full * (traffic.load + cost.backfill)")
	if s.Value("cost.api_full") > 0 {
		s.add("cost.even_load", Share, c.Load, "load at which both cost the same", "cost.self / cost.api_full - cost.backfill")
	}
	if c.PeakToAverage > 0 {
		s.add("cost.even_peak", Count, c.PeakToAverage, "peak over mean at which they do", "1 / cost.even_load")
	}
}

// batch is a job without a service level.
func (s *Sheet) batch() {
	in := s.In
	for _, k := range []string{"batch.documents", "batch.input", "batch.output", "batch.decode", "batch.prefill"} {
		if !in.Has(k) {
			return
		}
	}
	c := cost.Capacity{Decode: in.Number("batch.decode"), Prefill: in.Number("batch.prefill")}
	d, p := c.GPUHours(cost.Use{Input: in.Number("batch.input"), Output: in.Number("batch.output")}.Times(in.Number("batch.documents")))
	s.add("batch.decode_hours", Hours, d, "GPU-hours of decoding", "batch.documents * batch.output / batch.decode / 3600")
	s.add("batch.prefill_hours", Hours, p, "GPU-hours of prefill", "batch.documents * batch.input / batch.prefill / 3600")
	s.add("batch.hours", Hours, d+p, "GPU-hours, if neither overlaps", "batch.decode_hours + batch.prefill_hours")
	s.add("batch.cost", Dollars, (d+p)*in.Number("cost.gpu_hour"), "the job", "batch.hours * cost.gpu_hour")
}

// caps are what a router lets a copy have.
func (s *Sheet) caps() {
	if !s.has("decode.limit_batch") {
		return
	}
	streams := min(s.In.Number("layout.batch"), s.Value("decode.limit_batch"))
	s.add("cap.streams", Count, streams, "streams that a router lets a copy have", "min(layout.batch, decode.limit_batch)")
	s.add("cap.kv_tokens", Tokens, streams*s.In.Number("traffic.context"), "tokens that it lets them hold", "cap.streams * traffic.context")
	s.add("cap.long_streams", Count, math.Floor(s.Value("cap.kv_tokens")/s.In.Number("slo.long_prompt")), "of the longest prompts, that is", "floor(cap.kv_tokens / slo.long_prompt)")
}
