package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmops/roofline/size"
)

const shipped = "../../examples/assumptions.yaml"

// The published designs' numbers as they were recomputed by hand, to the digit that is
// given, and by which key and case the shipped register prints each.
var golden = []struct{ key, name, says string }{
	{"kv.token_bytes", "", "327,680B"}, {"kv.token_bytes", "fp8", "163,840B"}, {"kv.token_bytes", "kv64", "2.5MiB"},
	{"kv.long_bytes", "", "10.74GB"},
	{"kv.pool_bytes", "", "1,165.6GB"}, {"kv.pool_tokens", "", "3,557,128"}, {"kv.streams", "", "1,736.9"}, {"kv.reserved_streams", "", "108.6"},
	{"kv.pool_bytes", "fp8", "1,235.6GB"}, {"kv.pool_tokens", "fp8", "7,541,503"},
	{"decode.memory", "", "9.06ms"}, {"decode.compute", "", "6.46ms"}, {"decode.all_reduce", "", "4.22ms"},
	{"decode.step", "", "14.77ms"}, {"decode.tpot", "", "24.62ms"}, {"decode.rate", "", "7,797/s"},
	{"decode.knee", "", "208.6"}, {"decode.knee", "8k", "52.2"},
	{"decode.limit_batch", "", "277"}, {"decode.limit_kv_tokens", "", "567,296"}, {"decode.limit_rate", "", "9,235/s"},
	{"decode.memory", "fp8", "4.53ms"}, {"decode.step", "fp8", "12.18ms"}, {"decode.rate", "fp8", "9,460/s"},
	{"decode.step", "fp8-math", "10.25ms"}, {"decode.rate", "fp8-math", "11,244/s"},
	{"prefill.linear", "", "286.7TFLOP"}, {"prefill.attention", "", "11.0TFLOP"}, {"prefill.attention_share", "", "3.7%"}, {"prefill.time", "", "119.3ms"}, {"prefill.rate", "", "17,170/s"},
	{"prefill.long_linear", "", "4,587.5TFLOP"}, {"prefill.long_attention", "", "2,814.7TFLOP"}, {"prefill.long_attention_share", "", "38.0%"},
	{"ttft.p50", "", "147ms"}, {"ttft.p95", "", "354ms"},
	{"transfer.bytes", "", "671MB"}, {"transfer.time", "", "26.8ms"},
	{"across.all_reduce", "", "40.0ms"}, {"across.tpot", "", "84.3ms"},
	{"fleet.decode_nodes", "", "9.62"}, {"fleet.prefill_nodes", "", "10.48"}, {"fleet.capacity", "", "20.10"}, {"fleet.nodes", "", "26"},
	{"fleet.decode_nodes", "hits80", "9.62"}, {"fleet.prefill_nodes", "hits80", "5.24"}, {"fleet.capacity", "hits80", "14.86"}, {"fleet.nodes", "hits80", "19"},
	{"cost.hour", "", "$624"}, {"cost.month_total", "", "$449,280"}, {"cost.output", "", "$2.457"}, {"cost.input", "", "$0.45"},
	{"cost.output_hour", "", "121.5M"}, {"cost.input_hour", "", "729.0M"}, {"cost.decode_share", "", "47.8%"}, {"cost.prefill_share", "", "52.2%"},
	// The second design.
	{"kv.streams", "8b", "59.6"}, {"kv.streams", "8b-10", "52.2"}, {"fleet.decode_demand", "second", "10,000/s"}, {"fleet.nodes", "second", "5"},
	{"weights.bytes", "int4", "37.1GB"}, {"kv.token_bytes", "8b", "131,072B"}, {"kv.reserved_streams", "8b-40gib", "10.0"}, {"kv.reserved_streams", "8b-40gb", "9.3"},
	{"kv.pool_bytes", "70b-80gb", "506GB"}, {"kv.streams", "70b-80gb", "188.5"}, {"kv.streams", "70b-80gb-fp8", "377.0"}, {"decode.single_bound", "8b", "206/s"},
	{"cost.month_total", "second", "$87,600"}, {"cost.all_output", "second-13b", "$6.74"},
	{"batch.decode_hours", "documents", "111.1h"}, {"batch.prefill_hours", "documents", "83.3h"}, {"batch.hours", "documents", "194.4h"}, {"batch.cost", "documents", "$583"},
	// Where the designs are wrong by their own model: what the model gives.
	{"prefill.long_time", "", "2,966ms"}, {"prefill.long_compute", "", "1,779ms"},
	{"decode.limit_rate", "40ms", "10,837/s"}, {"decode.limit_batch", "40ms", "433"}, {"decode.limit_rate", "tp4-40ms", "10,102/s"}, {"decode.limit_batch", "tp4-40ms", "202"},
	{"decode.limit_rate", "45ms", "10,994/s"}, {"decode.limit_rate", "tp4-45ms", "11,256/s"}, {"layout.flip_tpot", "", "44ms"}, {"decode.limit_rate", "tp4", "6,604/s"},
	{"prefill.all_reduce", "collectives", "32.6ms"}, {"prefill.time", "collectives", "173.6ms"}, {"ttft.p95", "collectives", "408ms"},
	{"prefill.class_time", "", "247ms"}, {"ttft.class_p95", "", "426ms"},
	{"decode.headroom_cost", "", "15.6%"}, {"decode.tpot", "overlap", "17.6ms"},
}

func TestShippedAssumptionsGiveEveryNumber(t *testing.T) {
	r, err := Assumptions(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range golden {
		r.Claims = append(r.Claims, size.Claim{Text: g.key + " of " + g.name, Key: g.key, Case: g.name, Says: g.says})
	}
	for _, g := range []size.Claim{
		{Key: "fleet.nodes", Case: "hits80", Against: "base", Says: "-26.9%"}, {Key: "cost.output", Case: "load65", Against: "base", Says: "-30.8%"},
		{Key: "fleet.capacity", Case: "fp8", Against: "base", Says: "-8.4%"}, {Key: "fleet.capacity", Case: "fp8-prefill", Against: "base", Says: "-34.5%"},
		{Key: "fleet.decode_nodes", Against: "fp8", Says: "21.3%"}, {Key: "fleet.capacity", Against: "fp8", Says: "9.2%"},
	} {
		g.Text = fmt.Sprintf("%s of %q against %q", g.Key, g.Case, g.Against)
		r.Claims = append(r.Claims, g)
	}
	all, err := size.Check(r)
	if err != nil {
		t.Fatal(err)
	}
	printed := map[string]bool{} // by a claim of the file
	for _, c := range all {
		if c.Line > 0 {
			printed[c.Key+c.Case] = true
			continue
		}
		if c.Verdict != size.Agrees {
			t.Errorf("%s is %s (%v), want %s", c.Text, c.Answer, c.Gives, c.Says)
		}
		if c.Against == "" && !printed[c.Key+c.Case] && c.Key+c.Case != "fleet.decode_nodeshits80" {
			t.Errorf("%s is not printed: no claim of the file is about it", c.Text)
		}
	}
}

// The nine places where the designs contradict their own model, and nothing else.
func TestShippedContradictions(t *testing.T) {
	r, err := Assumptions(shipped)
	if err != nil {
		t.Fatal(err)
	}
	all, err := size.Check(r)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range all {
		switch c.Verdict {
		case size.Contradicts, size.BinaryUnit:
			got = append(got, c.Key+" "+c.Case+": "+c.Says+", "+c.Answer)
			if c.Why == "" {
				t.Errorf("%s is contradicted and does not say why", c.Text)
			}
		}
	}
	want := []string{
		"prefill.long_time : 1,779ms, 2,966 ms", // 1
		"ttft.long_p95 : <=2500ms, 3,145 ms",
		"ttft.p95 collectives: <=400ms, 408.3 ms",     // 3
		"ttft.class_p95 : <=400ms, 426.4 ms",          // 4
		"decode.limit_rate : 7,797/s, 9,235 tokens/s", // 2
		"layout.best_tp 40ms: 4, 8",
		"decode.headroom_cost : 18%, 15.6%",            // 5
		"fleet.capacity fp8: -35%..-20%, -8.4%",        // 7
		"fleet.capacity base: ~25%, +9.2%",             // 6
		"decode.tpot overlap: 24.62ms, 17.60 ms",       // 8
		"kv.token_bytes : 0.31MB, 327,680 B = 320 KiB", // 9
		"kv.sequence_bytes 8k: ~2.5GB, 2.68 GB = 2.50 GiB",
	}
	if !slices.Equal(got, want) {
		t.Errorf("contradicted are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAssumptionsAreRefused(t *testing.T) {
	src, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	shape, err := os.ReadFile("../../examples/simulate/llama-70b.json")
	if err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string][2]string{
		`:19: unknown field "sauce"`:                                                     {"    source: a representative", "    sauce: a representative"},
		":18: there is no assumption \"model.layer\"":                                    {"model.parameters: 70e9}", "model.layer: 80}"},
		":28: node.memory is \"192\", want a number such":                                {"node.memory: 192GB", "node.memory: 192"},
		":33: share.hbm is set in line 28 already":                                       {"node.flops: 1300TFLOP/s", "node.flops: 1300TFLOP/s, share.hbm: 70%"},
		":33: share.hbm is \"70\", want a number such as 70%":                            {"share.hbm: 70%}", "share.hbm: 70}"},
		":34: range of share.hbm is \"75%..80%\" and its va":                             {"60%..80%", "75%..80%"},
		":34: range of share.hbm is \"60%\", want low..high":                             {"60%..80%", "60%"},
		":34: range of share.flops is \"60%..80%\", want low":                            {"range: {share.hbm: 60", "range: {share.flops: 60"},
		"a row of the register needs id, source, if_wrong":                               {"    if_wrong: decode rate\n", ""},
		"id is \"A4\", want one of its own":                                              {"id: A5", "id: A4"},
		"mapping key \"set\" already defined":                                            {"    if_wrong: decode rate\n", "    if_wrong: decode rate\n    set: {share.hbm: 60%}\n"},
		"traffic.rate is not set: give it in a row":                                      {"traffic.rate: 300/s, ", ""},
		"model.config: parsing":                                                          {"simulate/llama-70b.json", "assumptions.yaml.json"},
		"claim \"weights of 70B in bf16\": \"weights.bite\" is no number":                {"key: weights.bytes, says: 140GB", "key: weights.bite, says: 140GB"},
		"it says \"140\", want a number such as 192GB":                                   {"says: 140GB", "says: 140"},
		"there is no case \"kv65\"":                                                      {"case: kv64", "case: kv65"},
		"a claim needs text, key and says":                                               {", says: 140GB", ""},
		":103: layout.tp is 16 and a node has 8 GPUs: layers are not split across nodes": {"layout.tp: 8, layout.batch: 192", "layout.tp: 16, layout.batch: 192"},
		"3 GPUs": {"set: {layout.tp: 4}}", "set: {layout.tp: 3}}"},
		"kind is \"Scenario\", want one of: Assumptions":      {"kind: Assumptions", "kind: Scenario"},
		"sequence stands where keys with values are expected": {"set: {share.hbm: 70%}", "set: [share.hbm]"},
	} {
		text := strings.Replace(string(src), edit[0], edit[1], 1)
		if text == string(src) {
			t.Errorf("%q is not in the file", edit[0])
		}
		// The range's row, and its line, must not hide what is tried here.
		if strings.Contains(edit[0], "traffic.rate") {
			text = strings.Replace(text, "traffic.rate: 200/s..600/s, ", "", 1)
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "assumptions.yaml")
		for name, b := range map[string][]byte{path: []byte(text), filepath.Join(dir, "simulate", "llama-70b.json"): shape, path + ".json": []byte(`{"model_type":"llama"`)} {
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Assumptions(path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q for %q: error is %v, want %q in it", edit[1], edit[0], err, want)
		}
	}
}

// Whatever the file holds, it is read or refused; what is read makes numbers.
// Registers are long, and making each that is of interest shorter takes the fuzzer a
// minute: with -fuzzminimizetime 10x it tries a thousand times as many.
func FuzzAssumptions(f *testing.F) {
	src, err := os.ReadFile(shipped)
	if err != nil {
		f.Fatal(err)
	}
	head, _, _ := strings.Cut(string(src), "# What if, by name.")
	head = strings.Replace(head, "model.config: simulate/llama-70b.json", "model.layers: 80, model.hidden: 8192, model.heads: 64, model.kv_heads: 8, model.head_dim: 128", 1)
	f.Add(head)
	f.Add(head + "cases:\n  - {name: a, set: {layout.tp: 4}}\nclaims:\n  - {text: t, key: fleet.nodes, says: ~26, case: a, against: base}\n")
	f.Add("register:\n  - set: {a: {b: c}}\n")
	dir := f.TempDir()
	path := filepath.Join(dir, "assumptions.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "config") { // other files are not what is tried
			return
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Assumptions(path)
		if err != nil {
			return
		}
		s, err := r.Sheet("")
		if err != nil {
			t.Fatalf("it was read, and has no numbers: %v", err)
		}
		for _, n := range s.Numbers {
			if n.Value != n.Value {
				t.Fatalf("%s is no number", n.Key)
			}
		}
	})
}
