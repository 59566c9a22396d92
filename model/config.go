package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// object reads config.json key by key, because families spell one thing in
// several ways and leave null where others leave a key out.
type object map[string]json.RawMessage

func (o object) object(key string) object {
	var v object
	if json.Unmarshal(o[key], &v) != nil {
		return nil
	}
	return v
}

func (o object) str(key string) string {
	var v string
	if json.Unmarshal(o[key], &v) != nil {
		return ""
	}
	return v
}

func (o object) strs(key string) []string {
	var v []string
	if json.Unmarshal(o[key], &v) != nil {
		return nil
	}
	return v
}

func (o object) flag(key string, otherwise bool) bool {
	var v *bool
	if json.Unmarshal(o[key], &v) != nil || v == nil {
		return otherwise
	}
	return *v
}

func (o object) float(keys ...string) float64 {
	for _, key := range keys {
		var v *float64
		if json.Unmarshal(o[key], &v) == nil && v != nil {
			return *v
		}
	}
	return 0
}

func (o object) num(keys ...string) int {
	for _, key := range keys {
		var v *int
		if json.Unmarshal(o[key], &v) == nil && v != nil {
			return *v
		}
	}
	return 0
}

func (o object) ints(key string) []int {
	var v []int
	if json.Unmarshal(o[key], &v) != nil || len(v) == 0 {
		return nil
	}
	return v
}

// ids reads a token id that may be one number or a list.
func (o object) ids(key string) []int {
	var many []int
	if json.Unmarshal(o[key], &many) == nil {
		return many
	}
	var one int
	if json.Unmarshal(o[key], &one) == nil {
		return []int{one}
	}
	return nil
}

// rope reads both spellings: rope_theta beside rope_scaling, and rope_parameters
// of newer writers, which holds everything.
func (o object) rope() Rope {
	p := o.object("rope_parameters")
	if inner := p.object("full_attention"); inner != nil {
		p = inner
	}
	if p == nil {
		p = o.object("rope_scaling")
	}
	r := Rope{
		Theta:       p.float("rope_theta"),
		Type:        p.str("rope_type"),
		Factor:      p.float("factor"),
		LowFreq:     p.float("low_freq_factor"),
		HighFreq:    p.float("high_freq_factor"),
		OriginalMax: p.num("original_max_position_embeddings"),
		Partial:     p.float("partial_rotary_factor"),

		AttentionFactor: p.float("attention_factor"),
		BetaFast:        p.float("beta_fast"),
		BetaSlow:        p.float("beta_slow"),
		Mscale:          p.float("mscale"),
		MscaleAllDim:    p.float("mscale_all_dim"),
		Smooth:          !p.flag("truncate", true),
	}
	if r.Theta == 0 {
		r.Theta = o.float("rope_theta", "rotary_emb_base")
	}
	if r.Type == "" {
		r.Type = p.str("type")
	}
	if r.Type == "" {
		r.Type = "default"
	}
	if r.Partial == 0 {
		r.Partial = o.float("partial_rotary_factor", "rotary_pct")
	}
	if r.OriginalMax == 0 {
		r.OriginalMax = o.num("original_max_position_embeddings")
	}
	return r
}

// Quantisation is the summary of config.json's quantization_config. Method is
// "compressed-tensors", "fp8", "gptq", …; Groups is in order of name and only
// compressed-tensors has it. Block and Activations are those of "fp8".
type Quantisation struct {
	Method string       `json:"method"`
	Format string       `json:"format,omitempty"`
	Ignore []string     `json:"ignore,omitempty"`
	Groups []QuantGroup `json:"groups,omitempty"`
	Status string       `json:"status,omitempty"`
	KV     *QuantArgs   `json:"kv,omitempty"`

	Block       []int  `json:"block,omitempty"`       // rows and columns to a scale; nil: one a matrix
	Activations string `json:"activations,omitempty"` // dynamic, static
}

// QuantGroup says how the modules that Targets matches are quantised.
type QuantGroup struct {
	Name        string     `json:"name"`
	Format      string     `json:"format,omitempty"`
	Targets     []string   `json:"targets"`
	Weights     *QuantArgs `json:"weights,omitempty"`
	Activations *QuantArgs `json:"input_activations,omitempty"`
}

// QuantArgs is one quantisation as compressed-tensors writes it.
type QuantArgs struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`     // int, float
	Strategy  string `json:"strategy"` // tensor, channel, group, block, token
	GroupSize int    `json:"group_size,omitempty"`
	Block     []int  `json:"block_structure,omitempty"`
	Symmetric bool   `json:"symmetric"`
	Dynamic   bool   `json:"dynamic"`
	ActOrder  string `json:"actorder,omitempty"`
}

func (a *QuantArgs) String() string {
	if a == nil {
		return "none"
	}
	s := fmt.Sprintf("%s%d %s", a.Type, a.Bits, a.Strategy)
	if a.GroupSize > 0 {
		s += fmt.Sprintf(" %d", a.GroupSize)
	}
	return s
}

// Scheme is a short name for people: "fp8 channel", "int4 group 128", the
// method's own name when there are no groups.
func (q *Quantisation) Scheme() string {
	if q == nil {
		return "none"
	}
	if len(q.Groups) == 0 || q.Groups[0].Weights == nil {
		return q.Method
	}
	w := *q.Groups[0].Weights
	if w.Type == "float" {
		w.Type = "fp"
	}
	return w.String()
}

func parseQuantisation(outer, inner object) (*Quantisation, error) {
	raw := inner["quantization_config"]
	if o := outer["quantization_config"]; len(o) > 0 {
		raw = o
	} else if len(raw) == 0 {
		raw = outer["compression_config"]
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var c object
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("reading quantization_config: %w", err)
	}
	q := &Quantisation{Method: c.str("quant_method"), Format: c.str("format"), Ignore: c.strs("ignore"), Status: c.str("quantization_status")}
	if q.Method == "fp8" {
		q.Activations = c.str("activation_scheme")
		q.Block = c.ints("weight_block_size")
		q.Ignore = append(c.strs("modules_to_not_convert"), c.strs("ignored_layers")...)
	}
	if err := readInto(c, "kv_cache_scheme", &q.KV); err != nil {
		return nil, err
	}
	groups := c.object("config_groups")
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		var g object
		if err := json.Unmarshal(groups[name], &g); err != nil {
			return nil, fmt.Errorf("reading quantization_config group %s: %w", name, err)
		}
		qg := QuantGroup{Name: name, Format: g.str("format"), Targets: g.strs("targets")}
		if err := readInto(g, "weights", &qg.Weights); err != nil {
			return nil, fmt.Errorf("quantization_config group %s: %w", name, err)
		}
		if err := readInto(g, "input_activations", &qg.Activations); err != nil {
			return nil, fmt.Errorf("quantization_config group %s: %w", name, err)
		}
		if qg.Format == "" {
			qg.Format = q.Format
		}
		q.Groups = append(q.Groups, qg)
	}
	return q, nil
}

func readInto(o object, key string, into **QuantArgs) error {
	a := o.object(key)
	if a == nil {
		if raw := o[key]; len(raw) > 0 && string(raw) != "null" {
			return fmt.Errorf("reading %s: want an object or null", key)
		}
		return nil
	}
	// dynamic is true, false or "local"; only the last is not a bool, and it is dynamic.
	var local string
	dynamic := a.flag("dynamic", false) || (json.Unmarshal(a["dynamic"], &local) == nil && local != "")
	*into = &QuantArgs{
		Bits: a.num("num_bits"), Type: a.str("type"), Strategy: a.str("strategy"), GroupSize: a.num("group_size"), Block: a.ints("block_structure"),
		Symmetric: a.flag("symmetric", true), Dynamic: dynamic, ActOrder: a.str("actorder"),
	}
	return nil
}
