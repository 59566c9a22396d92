package size_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"llmops/internal/config"
	"llmops/roofline/size"
)

func register(t testing.TB) *size.Register {
	t.Helper()
	r, err := config.Assumptions("../../examples/assumptions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func settings(t testing.TB, r *size.Register, whatIf ...string) []size.Setting {
	t.Helper()
	var out []size.Setting
	for _, w := range whatIf {
		s, err := config.WhatIf(r, w)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

func sheet(t testing.TB, r *size.Register, whatIf ...string) *size.Sheet {
	t.Helper()
	s, err := r.Sheet("", settings(t, r, whatIf...)...)
	if err != nil {
		t.Fatalf("%v: %v", whatIf, err)
	}
	return s
}

// worlds are assumptions under which every formula takes each of its forms.
var worlds = map[string][]string{
	"dense":              nil,
	"one GPU":            {"layout.tp=1", "slo.tpot=100ms", "layout.batch=8"},
	"two stages":         {"layout.tp=4", "layout.pp=2"},
	"stages on two":      {"layout.pp=2", "node.memory=80GB"},
	"three copies of 2":  {"layout.tp=2", "node.gpus=7", "slo.tpot=90ms", "layout.batch=16"},
	"experts, split":     {"model.config=testdata/mixtral.json"},
	"experts, staged":    {"model.config=testdata/mixtral.json", "layout.tp=4", "layout.pp=2"},
	"experts, dealt":     {"model.config=testdata/mixtral.json", "layout.tp=1", "layout.ep=8", "prefill.collectives=yes"},
	"latent":             {"model.config=testdata/deepseek.json", "weights.dtype=fp8"},
	"latent, dealt":      {"model.config=testdata/deepseek.json", "weights.dtype=fp8", "layout.tp=1", "layout.ep=8"},
	"sliding":            {"model.config=testdata/gemma2.json", "traffic.context=8192", "prefill.prompt=8192"},
	"reserve of vLLM":    {"reserve.model=vllm", "reserve.graphs=1GiB"},
	"adapters":           {"lora.adapters=8", "lora.rank=64"},
	"measured":           {"kv.pool=900GB", "decode.measured=6000/s", "prefill.measured=15000/s"},
	"overlap":            {"fabric.overlap=50%", "prefill.collectives=yes"},
	"overlap all, slow":  {"fabric.overlap=100%", "fabric.bandwidth=10GB/s", "prefill.collectives=yes"},
	"a real GPU":         {"node.gpu=h200-sxm", "decode.arithmetic=fp8", "prefill.arithmetic=fp8"},
	"batch job, spot":    {"batch.documents=2e6", "batch.input=3000", "batch.output=500", "batch.decode=2500/s", "batch.prefill=20000/s", "cost.spot=50%", "cost.spot_discount=60%", "cost.backfill=20%"},
	"nothing to prefill": {"traffic.input=0", "cost.output_month=13e9"},
}

// Each formula, read as an expression over the numbers that it names, gives the number
// that it stands beside.
func TestFormulasSayWhatIsComputed(t *testing.T) {
	r := register(t)
	said := map[string]bool{}
	for world, whatIf := range worlds {
		s := sheet(t, r, whatIf...)
		for _, n := range s.Numbers {
			if n.Prose {
				continue
			}
			said[n.Key] = true
			got, err := evaluate(n.Formula, s)
			if err != nil {
				t.Errorf("%s: %s: %v", world, n.Key, err)
				continue
			}
			if math.Abs(got-n.Value) > 1e-9*max(math.Abs(got), math.Abs(n.Value), 1e-12) {
				t.Errorf("%s: %s is %v, and %s gives %v", world, n.Key, n.Value, n.Formula, got)
			}
		}
	}
	if len(said) < 75 {
		t.Errorf("%d formulas were tried", len(said))
	}
}

// evaluate computes a Go expression whose selectors are numbers and assumptions.
func evaluate(formula string, s *size.Sheet) (float64, error) {
	e, err := parser.ParseExpr(formula)
	if err != nil {
		return 0, err
	}
	return value(e, s)
}

func value(e ast.Expr, s *size.Sheet) (float64, error) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return value(e.X, s)
	case *ast.BasicLit:
		return strconv.ParseFloat(e.Value, 64)
	case *ast.SelectorExpr:
		key := e.X.(*ast.Ident).Name + "." + e.Sel.Name
		v := s.Value(key)
		if math.IsNaN(v) {
			return 0, fmt.Errorf("%s is neither a number nor an assumption", key)
		}
		return v, nil
	case *ast.BinaryExpr:
		x, err := value(e.X, s)
		if err != nil {
			return 0, err
		}
		y, err := value(e.Y, s)
		if err != nil {
			return 0, err
		}
		return map[token.Token]float64{token.ADD: x + y, token.SUB: x - y, token.MUL: x * y, token.QUO: x / y}[e.Op], nil
	case *ast.CallExpr:
		var args []float64
		for _, a := range e.Args {
			v, err := value(a, s)
			if err != nil {
				return 0, err
			}
			args = append(args, v)
		}
		switch e.Fun.(*ast.Ident).Name {
		case "min":
			return slices.Min(args), nil
		case "max":
			return slices.Max(args), nil
		case "floor":
			return math.Floor(args[0]), nil
		case "ceil":
			return math.Ceil(args[0]), nil
		case "pow":
			return math.Pow(args[0], args[1]), nil
		}
	}
	return 0, fmt.Errorf("%T in a formula", e)
}

// No assumption moves a number that does not name it, through other numbers or itself.
func TestNumbersRestOnWhatTheyName(t *testing.T) {
	r := register(t)
	for world, whatIf := range worlds {
		base := sheet(t, r, whatIf...)
		compared := world == "dense" // which costs more than all other numbers
		if compared {
			base.Compare()
		}
		rests := map[string][]string{}
		for _, n := range base.Numbers {
			rests[n.Key] = base.RestsOn(n.Key)
		}
		for _, k := range size.Keys() {
			v, _, ok := base.In.Value(k.Name)
			if !ok {
				continue
			}
			var others []size.Value
			switch {
			case k.Choices != nil:
				for _, c := range k.Choices {
					others = append(others, size.Value{Text: c})
				}
			case k.Unit == size.Text:
				continue
			case k.Whole || k.Unit == size.Tokens:
				others = []size.Value{{Number: v.Number*2 + 1}, {Number: math.Ceil(v.Number / 2)}}
			default:
				others = []size.Value{{Number: v.Number * 0.9}, {Number: min(v.Number*1.1+0.01, cmpMax(k.Max))}}
			}
			for _, other := range others {
				in, err := base.In.With(size.Setting{Key: k.Name, Value: other})
				if err != nil {
					t.Fatal(err)
				}
				moved, err := size.Compute(in)
				if err != nil {
					continue // no such deployment
				}
				if compared {
					moved.Compare()
				}
				for _, n := range base.Numbers {
					m, ok := moved.Find(n.Key)
					if ok && math.Abs(m.Value-n.Value) > 1e-9*math.Abs(n.Value) && !slices.Contains(rests[n.Key], k.Name) && !slices.Contains(moved.RestsOn(n.Key), k.Name) {
						t.Errorf("%s: %s moves %s from %v to %v, which rests on %v", world, k.Name, n.Key, n.Value, m.Value, rests[n.Key])
					}
				}
			}
		}
	}
}

func cmpMax(m float64) float64 {
	if m == 0 {
		return math.Inf(1)
	}
	return m
}

// Assumptions and numbers do not share names, or a formula could mean either.
func TestNamesAreApart(t *testing.T) {
	r := register(t)
	for world, whatIf := range worlds {
		seen := map[string]bool{}
		for _, n := range sheet(t, r, whatIf...).Numbers {
			if _, err := size.FindKey(n.Key); err == nil || seen[n.Key] {
				t.Errorf("%s: %s is there twice", world, n.Key)
			}
			seen[n.Key] = true
		}
	}
}

// What is printed as JSON has no number that JSON has not.
func TestAllOfItIsJSON(t *testing.T) {
	r := register(t)
	for _, world := range []string{"dense", "latent, dealt", "one GPU", "nothing to prefill"} {
		s := sheet(t, r, worlds[world]...)
		bars, err := size.Tornado(s, "cost.output")
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []any{s.Numbers, size.Recommend(s), bars} {
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("%s: %v", world, err)
			}
		}
	}
}

// A measured cache bounds the batch of the layout that it was measured of.
func TestMeasuredPoolBoundsTheBatch(t *testing.T) {
	r := register(t)
	s := sheet(t, r, "kv.pool=134217728000B") // 409,600 tokens, 200 streams
	a := size.Recommend(s)
	if s.Value("decode.limit_batch") != 200 || a.Options[3].Batch != 200 || a.Options[2].Batch != 99 {
		t.Errorf("the edge is %v; layouts are %+v", s.Value("decode.limit_batch"), a.Options)
	}
}

func TestExplained(t *testing.T) {
	s := sheet(t, register(t))
	n, _ := s.Find("decode.memory")
	if got, want := s.Substituted(n), "(17.50 GB + 192 / 1 * 2,048 * 40,960 B) / (5.30 TB/s * 70%)"; got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	if got, want := strings.Join(s.RowsOf("decode.memory"), " "), "A1 A2 A3 A4 A9 B4 default"; got != want {
		t.Errorf("it rests on %s, want %s", got, want)
	}
	if got := s.RestsOn("cost.gpu_hour"); !slices.Equal(got, []string{"cost.gpu_hour"}) {
		t.Errorf("an assumption rests on %v", got)
	}
}

func TestRefused(t *testing.T) {
	r := register(t)
	for want, whatIf := range map[string][]string{
		"layers are not split across nodes. Each step would wait 42.55 ms": {"layout.tp=16"},
		"3 GPUs":                              {"layout.tp=3"},
		"leave nothing on each of 1 GPUs":     {"layout.tp=1", "node.memory=80GB"},
		"slo.long_prompt is 65536, and the":   {"slo.long_prompt=65536"},
		"the model has none":                  {"layout.tp=1", "layout.ep=8"},
		"dealing them across nodes":           {"model.config=testdata/mixtral.json", "layout.tp=1", "layout.ep=16"},
		"fp8 arithmetic is asked for":         {"node.gpu=a100-80gb", "decode.arithmetic=fp8"},
		"cannot share 7 KV heads":             {"model.kv_heads=7"},
		"80 layers cannot be cut into 81":     {"layout.pp=81"},
		"experts over 8 GPUs with layers spl": {"model.config=testdata/mixtral.json", "layout.ep=8"},
	} {
		_, err := r.Sheet("", settings(t, r, whatIf...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error is %v, want %q in it", whatIf, err, want)
		}
	}
	for want, text := range map[string]string{
		"want KEY=VALUE":                        "layout.tp",
		"did you mean traffic.prefix_hits?":     "traffic.prefix_hit=80%",
		"did you mean layout.tp":                "tp=4",
		"llmops size --keys":                    "zzzzzz=1",
		"want a number such as 70%":             "share.hbm=0.7",
		"want at most 100%":                     "share.hbm=120%",
		"want a whole number":                   "layout.tp=2.5",
		"want more than 0":                      "layout.batch=0",
		"want one of: bf16, fp8, int8, int4":    "weights.dtype=fp4",
		"want one of: assumed-192gb, a100-80gb": "node.gpu=h100",
		`model_type "mamba2" is not a family`:   "model.config=testdata/mamba.json",
		"no such file":                          "model.config=testdata/none.json",
		"such as 192GB or 80GiB":                "node.memory=192",
		"such as 30ms":                          "slo.tpot=30",
		"such as $3.00":                         "cost.gpu_hour=3EUR",
	} {
		if _, err := config.WhatIf(r, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q in it", text, err, want)
		}
	}
}

// A GPU that is named brings its figures, which yield to those beside it only.
func TestLayers(t *testing.T) {
	r := register(t)
	s := sheet(t, r, "node.gpu=h100-sxm", "node.memory=79.18GiB", "layout.tp=4", "layout.batch=8", "slo.tpot=90ms")
	for key, want := range map[string]float64{"node.bandwidth": 3.35e12, "node.memory": 79.18 * (1 << 30), "fabric.bandwidth": 450e9 * 0.67, "node.gpus": 8} {
		if got := s.In.Number(key); math.Abs(got/want-1) > 1e-12 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	v, from, _ := s.In.Value("node.bandwidth")
	if !strings.Contains(from.Source, "h100-sxm: llm-analysis hardware table, peak") || from.Row != size.FromWhatIf || v.Number == 0 {
		t.Errorf("the bandwidth is from %+v", from)
	}
	if s := sheet(t, r, "model.config=testdata/mixtral.json"); s.In.Number("model.parameters") < 46e9 || s.In.Number("model.parameters") > 47e9 {
		t.Errorf("a model that is named brings %v parameters", s.In.Number("model.parameters"))
	}
}
