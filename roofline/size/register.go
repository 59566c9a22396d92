// Package size says what a deployment of a model needs, from a register of
// assumptions that each say where they come from and what breaks if they are wrong.
//
// A [Register] is a file of them. [Resolve] settles each key: a what-if wins over a
// case, a case over a row, a row over the config.json and the GPU's row of the
// catalogue, and those over a default. [Compute] makes the [Sheet] of numbers; each
// has a formula in terms of others, so that it can be explained with its values, and
// the keys that it rests on follow from the formula and are not claimed. [Layouts] and
// [Recommend] compare ways to lay the model out, [Sweep] and [Tornado] move keys, and
// [Check] holds what a document says against what the model gives.
//
// Times and sizes come from package roofline and prices from roofline/cost: formulas
// here describe them, and a test evaluates each text against the number beside it.
// Everything is a pure function of its arguments; nothing is measured here, but
// measured values may be set, and then replace what would be modelled.
package size

import (
	"fmt"
	"maps"
	"slices"

	"llmops/model"
	"llmops/roofline"
)

// Row is a line of the register: some keys that stand and fall together.
type Row struct {
	ID      string    `json:"id"`
	Is      string    `json:"is"`
	Source  string    `json:"source"`
	IfWrong string    `json:"if_wrong"`
	Set     []Setting `json:"-"`
	Line    int       `json:"-"` // in the file
}

// Setting gives a key its value, and perhaps the range in which it is believed to be.
type Setting struct {
	Key       string
	Value     Value
	Low, High *Value
	Measured  string // the run or file that measured it; empty: it is assumed
}

// Case is a named set of what-ifs.
type Case struct {
	Name string
	Is   string
	Set  []Setting
}

// Register is a file of assumptions.
type Register struct {
	Name   string
	Rows   []Row
	Cases  []Case
	Claims []Claim
	Shapes map[string]model.Shape // by what model.config is set to
}

// FindCase finds a case; the empty name is the register itself.
func (r *Register) FindCase(name string) (Case, bool) {
	if name == "" {
		return Case{}, true
	}
	i := slices.IndexFunc(r.Cases, func(c Case) bool { return c.Name == name })
	if i < 0 {
		return Case{}, false
	}
	return r.Cases[i], true
}

// Origin is where a value comes from.
type Origin struct {
	Row    string `json:"row"` // the row's ID; else default, what-if or measured
	Source string `json:"source"`
	Low    *Value `json:"-"`
	High   *Value `json:"-"`
}

// Origins that are no row.
const (
	FromDefault  = "default"
	FromWhatIf   = "what-if"
	FromMeasured = "measured"
)

// Inputs are settled assumptions. Immutable.
type Inputs struct {
	values map[string]Value
	from   map[string]Origin
	shapes map[string]model.Shape
	rows   []string // in the order of the register
}

// Has tells whether a key has a value.
func (in Inputs) Has(key string) bool { _, ok := in.values[key]; return ok }

// Number is a key's value; 0 where it has none.
func (in Inputs) Number(key string) float64 { return in.values[key].Number }

// Text is the value of a key whose unit is Text.
func (in Inputs) Text(key string) string { return in.values[key].Text }

// Value and where it comes from.
func (in Inputs) Value(key string) (Value, Origin, bool) {
	v, ok := in.values[key]
	return v, in.from[key], ok
}

// Resolve settles all keys, with some set as what-ifs.
func Resolve(r *Register, whatIf ...Setting) (Inputs, error) {
	in := Inputs{values: map[string]Value{}, from: map[string]Origin{}, shapes: r.Shapes}
	for _, row := range r.Rows {
		in.rows = append(in.rows, row.ID)
	}
	for _, k := range keys {
		if k.Default == "" {
			continue
		}
		v, err := k.Parse(k.Default)
		if err != nil {
			return in, fmt.Errorf("the default of %w", err)
		}
		in.set(k.Name, v, Origin{Row: FromDefault, Source: "default of llmops"})
	}
	var rows []layered
	for _, row := range r.Rows {
		for _, s := range row.Set {
			rows = append(rows, layered{s, Origin{row.ID, row.Source, s.Low, s.High}})
		}
	}
	if err := in.layer(rows); err != nil {
		return in, err
	}
	return in.With(whatIf...)
}

// With are the same assumptions with some set otherwise.
func (in Inputs) With(whatIf ...Setting) (Inputs, error) {
	out := Inputs{maps.Clone(in.values), maps.Clone(in.from), in.shapes, in.rows}
	var all []layered
	for _, s := range whatIf {
		from := Origin{Row: FromWhatIf, Source: "what if", Low: s.Low, High: s.High}
		if s.Measured != "" {
			from.Row, from.Source = FromMeasured, s.Measured
		}
		all = append(all, layered{s, from})
	}
	return out, out.layer(all)
}

type layered struct {
	Setting
	from Origin
}

// layer sets some keys. A model or GPU that is named in it brings its figures, which
// win over those of the layer below and yield to what is set beside it.
func (in Inputs) layer(all []layered) error {
	for _, s := range all {
		switch s.Key {
		case "model.config":
			shape, ok := in.shapes[s.Value.Text]
			if !ok {
				return fmt.Errorf("model.config is %q, which was not read", s.Value.Text)
			}
			if err := CheckShape(shape); err != nil {
				return fmt.Errorf("model.config %s: %w", s.Value.Text, err)
			}
			from := Origin{Row: s.from.Row, Source: s.Value.Text}
			for key, n := range map[string]int64{
				"model.parameters": shape.Parameters(), "model.layers": int64(shape.Layers), "model.hidden": int64(shape.Hidden),
				"model.heads": int64(shape.Heads), "model.kv_heads": int64(shape.KVHeads), "model.head_dim": int64(shape.HeadDim),
			} {
				in.set(key, Value{Number: float64(n)}, from)
			}
		case "node.gpu":
			in.catalogue(s.Value.Text, s.from.Row)
		}
	}
	for _, s := range all {
		in.set(s.Key, s.Value, s.from)
	}
	return nil
}

func (in Inputs) set(key string, v Value, from Origin) {
	in.values[key], in.from[key] = v, from
}

// catalogue takes a GPU's figures over.
func (in Inputs) catalogue(name, row string) {
	g, _ := roofline.Lookup(name)
	for key, f := range map[string]roofline.Figure{
		"node.memory": g.Memory, "node.bandwidth": g.Bandwidth, "node.flops": g.BF16, "node.flops_fp8": g.FP8, "fabric.bandwidth": g.Link,
	} {
		source := fmt.Sprintf("%s: %s, %s", name, f.Source, f.Counts)
		if f.Counts == roofline.OneDirection {
			reached := roofline.Assumed().LinkShare
			f.Value *= reached
			source += fmt.Sprintf(", of which an all-reduce reaches %.0f%%", 100*reached)
		}
		if f.Value == 0 {
			delete(in.values, key)
			delete(in.from, key)
			continue
		}
		in.set(key, Value{Number: f.Value}, Origin{Row: row, Source: source})
	}
}

// shape is the model's, with what is set by hand.
func (in Inputs) shape() model.Shape {
	s, ok := in.shapes[in.Text("model.config")]
	if !ok {
		s.Family = "by hand"
	}
	n := func(key string) int { return int(in.Number(key)) }
	s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim = n("model.layers"), n("model.hidden"), n("model.heads"), n("model.kv_heads"), n("model.head_dim")
	if s.SlidingLayers != nil && len(s.SlidingLayers) != s.Layers {
		s.SlidingLayers, s.SlidingWindow = nil, 0
	}
	return s
}

// needed are the keys without which nothing can be said.
var needed = []string{
	"model.parameters", "model.layers", "model.hidden", "model.heads", "model.kv_heads", "model.head_dim", "node.memory", "node.bandwidth", "node.flops",
	"traffic.rate", "traffic.input", "traffic.output", "traffic.context", "traffic.load", "layout.batch", "cost.gpu_hour",
}

// check says what is missing or cannot be together.
func (in Inputs) check() error {
	for _, key := range needed {
		if !in.Has(key) {
			hint := "give it in a row"
			switch key[:5] {
			case "model":
				hint = "give model.config, or it by hand"
			case "node.":
				hint = "give node.gpu, or it by hand"
			}
			return fmt.Errorf("%s is not set: %s", key, hint)
		}
	}
	fp8 := in.Text("decode.arithmetic") == "fp8" || in.Text("prefill.arithmetic") == "fp8"
	gpus, tp, copyGPUs := in.Number("node.gpus"), in.Number("layout.tp"), in.Number("layout.tp")*in.Number("layout.pp")*in.Number("layout.ep")
	switch {
	case fp8 && !in.Has("node.flops_fp8"):
		return fmt.Errorf("fp8 arithmetic is asked for and node.flops_fp8 is not set: the GPU has none, or give it by hand")
	case copyGPUs > 1 && !in.Has("fabric.bandwidth"):
		return fmt.Errorf("fabric.bandwidth is not set, and a copy over %g GPUs needs it", copyGPUs)
	case in.Number("lora.adapters") > 0 && in.Text("model.config") == "":
		return fmt.Errorf("lora.adapters needs model.config: the room for an adapter follows from all of the model's matrices")
	case in.Number("layout.ep") > gpus:
		return fmt.Errorf("experts over %g GPUs and nodes of %g: dealing them across nodes is not modelled", in.Number("layout.ep"), gpus)
	}
	if s, ok := in.shapes[in.Text("model.config")]; ok && s.MaxPositions > 0 && in.Number("slo.long_prompt") > float64(s.MaxPositions) {
		return fmt.Errorf("slo.long_prompt is %g, and the model ends at %d tokens", in.Number("slo.long_prompt"), s.MaxPositions)
	}
	if tp > gpus {
		return in.refuseAcross()
	}
	return nil
}

// refuseAcross says what a layer over several nodes would come to.
func (in Inputs) refuseAcross() error {
	d := in.deployment("decode.arithmetic")
	d.Assume.LinkBytesPerSecond, d.Assume.CollectiveSeconds = in.Number("across.bandwidth"), in.Number("across.latency")
	r, err := roofline.New(d)
	if err != nil {
		return err
	}
	s := r.DecodeStep(int(in.Number("layout.batch")), int(in.Number("traffic.context")))
	return fmt.Errorf("layout.tp is %d and a node has %g GPUs: layers are not split across nodes. Each step would wait %s for its all-reduces, and TPOT be %s where %s are promised; use replicas, or layout.pp",
		d.TensorParallel, in.Number("node.gpus"), Seconds.Format(s.AllReduceSeconds), Seconds.Format(s.Seconds), Seconds.Format(in.Number("slo.tpot")))
}

// deployment is one copy, with its arithmetic from a key.
func (in Inputs) deployment(arithmetic string) roofline.Deployment {
	n := func(key string) int { return int(in.Number(key)) }
	fig := func(key string) roofline.Figure { return roofline.Figure{Value: in.Number(key)} }
	link := fig("fabric.bandwidth")
	link.Counts = roofline.Reached
	shape := in.shape()
	weight, _ := roofline.WeightBytes(in.Text("weights.dtype"))
	kv, _ := roofline.KVBytes(in.Text("kv.dtype"))
	d := roofline.Deployment{
		GPU:            roofline.GPU{Name: cmpOr(in.Text("node.gpu"), "node.gpu"), Memory: fig("node.memory"), Bandwidth: fig("node.bandwidth"), BF16: fig("node.flops"), FP8: fig("node.flops_fp8"), Link: link},
		TensorParallel: n("layout.tp"), PipelineParallel: n("layout.pp"), ExpertParallel: n("layout.ep"),
		Shape: shape, Parameters: in.Number("model.parameters"),
		WeightBytes: weight, KVBytes: kv,
		FP8Arithmetic: in.Text(arithmetic) == "fp8", PoolBytes: in.Number("kv.pool"),
		Assume: roofline.Assumptions{
			HBMShare: in.Number("share.hbm"), FLOPShare: in.Number("share.flops"), LinkShare: 1, EndToEndShare: in.Number("share.end_to_end"),
			ReserveShare: in.Number("reserve.share"), OverlapShare: in.Number("fabric.overlap"),
			FixedSeconds: in.Number("decode.fixed"), CollectiveSeconds: in.Number("fabric.latency"),
			PrefillCollectives: in.Text("prefill.collectives") == "yes",
		},
	}
	if n("lora.adapters") > 0 {
		d.LoRA = roofline.LoRA{Adapters: n("lora.adapters"), Rank: n("lora.rank")}
	}
	if in.Text("reserve.model") == "vllm" {
		d.Reserve = roofline.VLLMReserve(shape, d.TensorParallel)
		d.Reserve.Utilisation = in.Number("reserve.utilisation")
		for key, p := range map[string]*float64{
			"reserve.activations": &d.Reserve.ActivationBytes, "reserve.others": &d.Reserve.OtherBytes, "reserve.graphs": &d.Reserve.GraphBytes,
		} {
			if in.Has(key) {
				*p = in.Number(key)
			}
		}
	}
	if d.GPUs() > n("node.gpus") {
		d.Assume.StageLinkBytesPerSecond, d.Assume.StageSeconds = in.Number("across.bandwidth"), in.Number("across.latency")
	}
	return d
}
