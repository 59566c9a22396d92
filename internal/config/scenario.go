package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"llmops/model"
	"llmops/roofline"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/estimate"
	"llmops/serving/router"
	"llmops/serving/sim"
	"llmops/serving/slo"
)

type scenarioFile struct {
	APIVersion scalar `yaml:"apiVersion"`
	Kind       scalar `yaml:"kind"`
	Seed       scalar `yaml:"seed"`
	Duration   scalar `yaml:"duration"`
	Warmup     scalar `yaml:"warmup"`
	Interval   scalar `yaml:"interval"`
	Fleet      struct {
		Nodes          scalar `yaml:"nodes"`
		GPUs           scalar `yaml:"gpus"`
		GPU            scalar `yaml:"gpu"`
		TensorParallel scalar `yaml:"tensor_parallel"`
	} `yaml:"fleet"`
	Model struct {
		Config     scalar `yaml:"config"`
		Parameters scalar `yaml:"parameters"`
		Weights    scalar `yaml:"weights"`
		KV         scalar `yaml:"kv"`
		Arithmetic scalar `yaml:"arithmetic"`
	} `yaml:"model"`
	Engine struct {
		MaxNumSeqs scalar `yaml:"max_num_seqs"`
		StepTokens scalar `yaml:"step_tokens"`
		Chunk      scalar `yaml:"chunk"`
		BlockSize  scalar `yaml:"block_size"`
		KVTokens   scalar `yaml:"kv_tokens"`
		Admit      scalar `yaml:"admit"`
		Role       scalar `yaml:"role"`
	} `yaml:"engine"`
	Assume struct {
		HBM                scalar `yaml:"hbm"`
		FLOPs              scalar `yaml:"flops"`
		Link               scalar `yaml:"link"`
		EndToEnd           scalar `yaml:"end_to_end"`
		Reserve            scalar `yaml:"reserve"`
		Fixed              scalar `yaml:"fixed"`
		Collective         scalar `yaml:"collective"`
		PrefillCollectives scalar `yaml:"prefill_collectives"`
	} `yaml:"assume"`
	Router struct {
		Streams   scalar `yaml:"streams"`
		Queue     scalar `yaml:"queue"`
		QueueTime scalar `yaml:"queue_time"`
	} `yaml:"router"`
	Arrivals struct {
		Process     scalar `yaml:"process"`
		Rate        scalar `yaml:"rate"`
		CV          scalar `yaml:"cv"`
		Concurrency scalar `yaml:"concurrency"`
		Bursts      struct {
			Every scalar `yaml:"every"`
			For   scalar `yaml:"for"`
			Times scalar `yaml:"times"`
		} `yaml:"bursts"`
	} `yaml:"arrivals"`
	Tenants []struct {
		Name     scalar      `yaml:"name"`
		Share    scalar      `yaml:"share"`
		Priority scalar      `yaml:"priority"`
		Prompt   lengthsFile `yaml:"prompt"`
		Output   lengthsFile `yaml:"output"`
		Prefix   struct {
			Groups scalar `yaml:"groups"`
			Tokens scalar `yaml:"tokens"`
			Zipf   scalar `yaml:"zipf"`
		} `yaml:"prefix"`
	} `yaml:"tenants"`
	Faults []struct {
		Kind    scalar `yaml:"kind"`
		Replica scalar `yaml:"replica"`
		At      scalar `yaml:"at"`
		For     scalar `yaml:"for"`
		Factor  scalar `yaml:"factor"`
	} `yaml:"faults"`
	SLO struct {
		TTFT scalar `yaml:"ttft"`
		TPOT scalar `yaml:"tpot"`
	} `yaml:"slo"`
}

type lengthsFile struct {
	Mean   scalar   `yaml:"mean"`
	CV     scalar   `yaml:"cv"`
	Min    scalar   `yaml:"min"`
	Max    scalar   `yaml:"max"`
	Values []scalar `yaml:"values"`
}

// Scenario reads a scenario of a simulation. Paths in it are relative to its folder.
func Scenario(path string) (sim.Scenario, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return sim.Scenario{}, err
	}
	var f scenarioFile
	src, err := decode(path, &f)
	if err != nil {
		return sim.Scenario{}, err
	}
	r := &reader{path: path, src: src}
	s := f.scenario(r)
	if err := r.err(); err != nil {
		return s, err
	}
	// What only several keys together can get wrong has no line of its own.
	if err := s.Check(); err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", path, err))
	}
	return s, r.err()
}

func (f *scenarioFile) scenario(r *reader) sim.Scenario {
	r.oneOf("apiVersion", f.APIVersion, "", "llmops/v1")
	r.oneOf("kind", f.Kind, "", "Scenario")
	s := sim.Scenario{
		Seed:     uint64(r.whole("seed", f.Seed, 1)),
		Duration: r.span("duration", f.Duration, 0),
		Warmup:   r.duration("warmup", f.Warmup, 0),
		Interval: r.span("interval", f.Interval, 0),
		Fleet:    f.fleet(r),
		Router: sim.Router{
			Streams:   r.integer("router.streams", f.Router.Streams, router.DefaultStreams),
			Queue:     r.integer("router.queue", f.Router.Queue, router.DefaultQueue),
			QueueTime: r.span("router.queue_time", f.Router.QueueTime, router.DefaultQueueTime),
		},
		Arrivals: f.arrivals(r),
		SLO: slo.Class{
			TTFT: slo.Bound{Quantile: 0.95, Limit: r.span("slo.ttft", f.SLO.TTFT, 0)},
			TPOT: slo.Bound{Quantile: 0.95, Limit: r.span("slo.tpot", f.SLO.TPOT, 0)},
		},
	}
	if !f.Duration.set() {
		r.missing("duration", "it is how much traffic is simulated")
	}
	f.tenants(r, &s)
	f.faults(r, &s)
	return s
}

func (f *scenarioFile) fleet(r *reader) sim.Fleet {
	weights, kv := estimate.DTypes()
	t := sim.Fleet{
		Nodes: r.integer("fleet.nodes", f.Fleet.Nodes, 1),
		GPUs:  r.integer("fleet.gpus", f.Fleet.GPUs, 8),
		Engine: estimate.Options{
			GPU:            r.text(f.Fleet.GPU, ""),
			TensorParallel: r.integer("fleet.tensor_parallel", f.Fleet.TensorParallel, 1),
			Parameters:     r.number("model.parameters", f.Model.Parameters, 0),
			Weights:        r.oneOf("model.weights", f.Model.Weights, "bf16", weights...),
			KV:             r.oneOf("model.kv", f.Model.KV, "bf16", kv...),
			FP8Arithmetic:  r.oneOf("model.arithmetic", f.Model.Arithmetic, "bf16", "bf16", "fp8") == "fp8",
			Assume:         f.assume(r),
			BlockSize:      r.integer("engine.block_size", f.Engine.BlockSize, core.BlockSize),
		},
		Sequences:  r.integer("engine.max_num_seqs", f.Engine.MaxNumSeqs, sim.DefaultSequences),
		StepTokens: r.integer("engine.step_tokens", f.Engine.StepTokens, sim.DefaultStepTokens),
		Overcommit: r.oneOf("engine.admit", f.Engine.Admit, "reserve", "reserve", "overcommit") == "overcommit",
		DecodeOnly: r.oneOf("engine.role", f.Engine.Role, "both", "both", "decode") == "decode",
	}
	if f.Engine.Chunk.set() {
		t.Chunk = r.integer("engine.chunk", f.Engine.Chunk, 0)
	}
	if f.Engine.KVTokens.set() {
		t.KVTokens = r.integer("engine.kv_tokens", f.Engine.KVTokens, 0)
	}
	if f.Fleet.GPU.set() {
		r.oneOf("fleet.gpu", f.Fleet.GPU, "", estimate.GPUs()...)
	} else {
		r.missing("fleet.gpu", "engines are estimated from its data sheet")
	}
	if f.Model.Config.set() {
		path := abs(filepath.Dir(r.path), f.Model.Config.text)
		var err error
		if t.Engine.Shape, err = readShape(path); err != nil {
			r.complain(f.Model.Config, "model.config: %v", err)
		}
	} else {
		r.missing("model.config", "give the config.json of the model, or the folder that holds it")
	}
	// Whether the model fits is found out here, where the line can be shown.
	if len(r.errs) == 0 {
		if _, err := estimate.New(t.Engine); err != nil {
			r.complain(cmpSet(f.Fleet.TensorParallel, f.Fleet.GPU), "%v", err)
		}
	}
	return t
}

func (f *scenarioFile) assume(r *reader) roofline.Assumptions {
	a, d := f.Assume, roofline.Assumed()
	return roofline.Assumptions{
		HBMShare:           r.share("assume.hbm", a.HBM, d.HBMShare),
		FLOPShare:          r.share("assume.flops", a.FLOPs, d.FLOPShare),
		LinkShare:          r.share("assume.link", a.Link, d.LinkShare),
		EndToEndShare:      r.share("assume.end_to_end", a.EndToEnd, d.EndToEndShare),
		ReserveShare:       r.share("assume.reserve", a.Reserve, d.ReserveShare),
		FixedSeconds:       r.seconds("assume.fixed", a.Fixed, d.FixedSeconds),
		CollectiveSeconds:  r.seconds("assume.collective", a.Collective, d.CollectiveSeconds),
		PrefillCollectives: r.oneOf("assume.prefill_collectives", a.PrefillCollectives, "false", "true", "false") == "true",
	}
}

func (f *scenarioFile) arrivals(r *reader) sim.Arrivals {
	in := f.Arrivals
	a := sim.Arrivals{
		Process: sim.Process(r.oneOf("arrivals.process", in.Process, string(sim.Poisson), string(sim.Poisson), string(sim.Constant), string(sim.Gamma), string(sim.Closed))),
		Rate:    r.rate("arrivals.rate", in.Rate, 0),
		CV:      r.number("arrivals.cv", in.CV, 0),
		Bursts: sim.Bursts{
			Every: r.span("arrivals.bursts.every", in.Bursts.Every, 0), For: r.span("arrivals.bursts.for", in.Bursts.For, 0),
			Times: r.number("arrivals.bursts.times", in.Bursts.Times, 0),
		},
	}
	if in.Concurrency.set() {
		a.Concurrency = r.integer("arrivals.concurrency", in.Concurrency, 0)
	}
	closed := a.Process == sim.Closed
	for _, k := range []struct {
		key       string
		value     scalar
		belongs   bool
		otherwise string
	}{
		{"rate", in.Rate, !closed, "closed clients send as fast as they are answered"},
		{"concurrency", in.Concurrency, closed, "it is of the process closed"},
		{"cv", in.CV, a.Process == sim.Gamma, "it is of the process gamma"},
	} {
		if k.value.set() && !k.belongs {
			r.complain(k.value, "arrivals.%s does not go with the process %s: %s", k.key, a.Process, k.otherwise)
		}
		if !k.value.set() && k.belongs {
			r.missing("arrivals."+k.key, "the process "+string(a.Process)+" needs it")
		}
	}
	return a
}

func (f *scenarioFile) tenants(r *reader, s *sim.Scenario) {
	for _, in := range f.Tenants {
		t := sim.Tenant{
			Name:     r.text(in.Name, ""),
			Share:    r.share("tenants.share", in.Share, 1),
			Priority: r.whole("tenants.priority", in.Priority, 0),
			Prompt:   in.Prompt.lengths(r, "tenants.prompt"),
			Output:   in.Output.lengths(r, "tenants.output"),
		}
		if in.Prefix.Groups.set() || in.Prefix.Tokens.set() || in.Prefix.Zipf.set() {
			t.Prefix = sim.Prefix{
				Groups: r.integer("tenants.prefix.groups", in.Prefix.Groups, 1),
				Tokens: r.integer("tenants.prefix.tokens", in.Prefix.Tokens, 0),
				Zipf:   r.number("tenants.prefix.zipf", in.Prefix.Zipf, 0),
			}
			if size := s.Fleet.Engine.BlockSize; t.Prefix.Tokens < size {
				r.complain(cmpSet(in.Prefix.Tokens, cmpSet(in.Prefix.Groups, in.Prefix.Zipf)), "tenants.prefix.tokens is %d, want at least engine.block_size, %d: only whole blocks are shared", t.Prefix.Tokens, size)
			}
		}
		if t.Name == "" || slices.ContainsFunc(s.Tenants, func(o sim.Tenant) bool { return o.Name == t.Name }) {
			r.complain(cmpSet(in.Name, cmpSet(in.Share, in.Prompt.Mean)), "a tenant needs a name of its own")
		}
		s.Tenants = append(s.Tenants, t)
	}
	if len(f.Tenants) == 0 {
		r.missing("tenants", "nobody asks for anything otherwise")
	}
}

func (l *lengthsFile) lengths(r *reader, key string) sim.Lengths {
	out := sim.Lengths{
		Mean: r.number(key+".mean", l.Mean, 0), CV: r.number(key+".cv", l.CV, 0),
		Min: r.integer(key+".min", l.Min, 1), Max: r.integer(key+".max", l.Max, 0x7fffffff),
	}
	for _, v := range l.Values {
		out.Values = append(out.Values, r.integer(key+".values", v, 1))
	}
	if !l.Max.set() {
		out.Max = 0
	}
	switch {
	case len(l.Values) == 0 && !l.Mean.set():
		r.missing(key, "give a mean, with a cv if lengths differ, or values")
	case len(l.Values) > 0 && l.Mean.set():
		r.complain(l.Mean, "%s has a mean and values, want one of both", key)
	case out.Max > 0 && out.Max < out.Min:
		r.complain(l.Max, "%s.max is less than %s.min", key, key)
	}
	return out
}

func (f *scenarioFile) faults(r *reader, s *sim.Scenario) {
	for _, in := range f.Faults {
		t := sim.Fault{
			Kind:    sim.FaultKind(r.oneOf("faults.kind", in.Kind, string(sim.Slow), string(sim.Slow), string(sim.Stall), string(sim.Crash))),
			Replica: r.whole("faults.replica", in.Replica, 0),
			At:      r.duration("faults.at", in.At, 0),
			For:     r.duration("faults.for", in.For, 0),
			Factor:  r.number("faults.factor", in.Factor, 0),
		}
		if in.Factor.set() != (t.Kind == sim.Slow) {
			r.complain(cmpSet(in.Factor, in.Kind), "a slow replica needs a factor, such as 1.15, and the other faults have none")
		}
		s.Faults = append(s.Faults, t)
	}
}

// readShape reads a config.json, or that in a folder.
func readShape(path string) (model.Shape, error) {
	if filepath.Ext(path) != ".json" {
		return model.LoadShape(path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return model.Shape{}, fmt.Errorf("reading model shape: %w", err)
	}
	s, err := model.ParseShape(b)
	if err != nil {
		return s, fmt.Errorf("parsing %s: %w", path, err)
	}
	return s, nil
}

// whole reads a number that may be 0.
func (r *reader) whole(key string, s scalar, def int) int {
	if !s.set() {
		return def
	}
	n, err := strconv.Atoi(s.text)
	if err != nil || n < 0 {
		r.complain(s, "%s is %q, want a whole number", key, s.text)
		return def
	}
	return n
}

// seconds reads a duration as a number of seconds.
func (r *reader) seconds(key string, s scalar, def float64) float64 {
	if !s.set() {
		return def
	}
	return r.duration(key, s, 0).Seconds()
}
