package quantise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// The keys are those of the reference's own writer, and no others: older readers
// refuse a group with a key that they do not know.
func TestConfig(t *testing.T) {
	for scheme, want := range map[string]string{
		FP8Dynamic: "float-quantized float8 channel/ dynamic token/", FP8Block: "float-quantized float8 block/128x128 dynamic group/128",
		FP8BlockUE8M0: "float-quantized float8 block/128x128 dynamic group/128",
		FP8Static:     "float-quantized float8 tensor/ static tensor/", Int8: "int-quantized int8 channel/ dynamic token/",
		Int8Weight: "pack-quantized int8 group/128", Int4: "pack-quantized int4 group/128", Int4Tensor: "pack-quantized int4 tensor/",
	} {
		b, err := json.Marshal(schemes[scheme].config([]string{"lm_head"}, false))
		if err != nil {
			t.Fatal(err)
		}
		type args struct {
			Bits      int            `json:"num_bits"`
			Type      string         `json:"type"`
			Symmetric bool           `json:"symmetric"`
			Strategy  string         `json:"strategy"`
			Dynamic   bool           `json:"dynamic"`
			Group     *int           `json:"group_size"`
			Block     []int          `json:"block_structure"`
			ActOrder  *string        `json:"actorder"`
			Observer  *string        `json:"observer"`
			Kwargs    map[string]any `json:"observer_kwargs"`
		}
		var c struct {
			Groups map[string]struct {
				Format  string   `json:"format"`
				Targets []string `json:"targets"`
				Weights args     `json:"weights"`
				In      *args    `json:"input_activations"`
				Out     *args    `json:"output_activations"`
			} `json:"config_groups"`
			Format    string         `json:"format"`
			Ratio     *float64       `json:"global_compression_ratio"`
			Ignore    []string       `json:"ignore"`
			KV        *args          `json:"kv_cache_scheme"`
			Method    string         `json:"quant_method"`
			Status    string         `json:"quantization_status"`
			Sparsity  map[string]any `json:"sparsity_config"`
			Transform map[string]any `json:"transform_config"`
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		g := c.Groups["group_0"]
		size := func(a args) string {
			switch {
			case a.Group != nil:
				return fmt.Sprint(*a.Group)
			case a.Block != nil:
				return fmt.Sprintf("%dx%d", a.Block[0], a.Block[1])
			}
			return ""
		}
		got := fmt.Sprintf("%s %s%d %s/%s", g.Format, g.Weights.Type, g.Weights.Bits, g.Weights.Strategy, size(g.Weights))
		if g.In != nil {
			got += fmt.Sprintf(" %s %s/%s", map[bool]string{true: "dynamic", false: "static"}[g.In.Dynamic], g.In.Strategy, size(*g.In))
		}
		if got != want || c.Format != g.Format || c.Method != "compressed-tensors" || c.Status != "compressed" || !g.Weights.Symmetric || g.Weights.Dynamic || !slices.Equal(g.Targets, []string{"Linear"}) {
			t.Errorf("%s: %s, want %s in\n%s", scheme, got, want, b)
		}
	}
}
