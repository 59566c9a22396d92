package bert

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/tokenizer"
)

var public = flag.String("public", "", "folder of a public model with a golden.json by bench/golden/bert.py --of")

// golden is one input and what transformers gives for it.
type golden struct {
	Text   string
	Second *string
	IDs    []int
	Vector string
}

func (g golden) want(t testing.TB) []float32 {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(g.Vector)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

func load(t testing.TB, dir string, o Options) (*Encoder, []golden) {
	t.Helper()
	e, err := Load(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g []golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return e, g
}

// encode makes the inputs, which must have the reference's ids.
func encode(t testing.TB, e *Encoder, gs []golden) []tokenizer.Encoding {
	t.Helper()
	var in []tokenizer.Encoding
	for _, g := range gs {
		one := e.Tokenizer().Single(g.Text, e.Length())
		if g.Second != nil {
			var err error
			if one, err = e.Tokenizer().Pair(g.Text, *g.Second, e.Length()); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(one.IDs, g.IDs) {
			t.Fatalf("ids of %q are %v, want %v", g.Text, one.IDs, g.IDs)
		}
		in = append(in, one)
	}
	return in
}

// run embeds or scores.
func run(t testing.TB, e *Encoder, in []tokenizer.Encoding) [][]float32 {
	t.Helper()
	if !e.Scores() {
		out, err := e.Embed(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	scores, err := e.Score(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]float32
	for _, s := range scores {
		out = append(out, []float32{s})
	}
	return out
}

func compare(t *testing.T, dir string, within float64) {
	e, gs := load(t, dir, Options{Threads: 2})
	var worst float64
	for i, got := range run(t, e, encode(t, e, gs)) {
		want := gs[i].want(t)
		if len(got) != len(want) {
			t.Fatalf("%q has %d values, want %d", gs[i].Text, len(got), len(want))
		}
		for j := range got {
			worst = max(worst, math.Abs(float64(got[j])-float64(want[j])))
		}
	}
	t.Logf("%s: the largest difference is %.2g", dir, worst)
	if !(worst <= within) {
		t.Errorf("%s: the largest difference is %g, want at most %g", dir, worst, within)
	}
}

func TestGolden(t *testing.T) {
	for _, name := range []string{"mean", "cls", "cross"} {
		t.Run(name, func(t *testing.T) { compare(t, filepath.Join("testdata", name), 5e-6) })
	}
	if *public != "" {
		t.Run("public", func(t *testing.T) { compare(t, *public, 1e-6) })
	}
}

func TestErf(t *testing.T) {
	var worst float64
	for x := float32(-8); x <= 8; x += 1.0 / 4096 {
		worst = max(worst, math.Abs(float64(erf(x))-math.Erf(float64(x))))
	}
	if worst > 4e-7 {
		t.Errorf("erf is wrong by %g", worst)
	}
}

func TestResultsAreTheirOwn(t *testing.T) {
	for _, name := range []string{"mean", "cross"} {
		e, gs := load(t, filepath.Join("testdata", name), Options{})
		in := encode(t, e, gs)
		var alone [][]float32
		for _, one := range in {
			alone = append(alone, run(t, e, []tokenizer.Encoding{one})...)
		}
		for _, o := range []Options{{Tokens: 1}, {Threads: 3}, {Threads: 2, Tokens: 100}} {
			e, _ := load(t, filepath.Join("testdata", name), o)
			for i, v := range run(t, e, in) {
				if !slices.Equal(v, alone[i]) {
					t.Errorf("%s with %+v: input %d depends on its batch", name, o, i)
				}
			}
		}
	}
}

func TestRefusedInputs(t *testing.T) {
	e, _ := load(t, "testdata/mean", Options{})
	for want, in := range map[string]tokenizer.Encoding{
		"no tokens":     {},
		"65 tokens":     {IDs: make([]int, 65), Types: make([]int, 65)},
		"and 0 types":   {IDs: []int{1}},
		"token 9999":    {IDs: []int{9999}, Types: []int{0}},
		"of type 7":     {IDs: []int{1}, Types: []int{7}},
		"token -1 of t": {IDs: []int{-1}, Types: []int{0}},
	} {
		if _, err := e.Embed(t.Context(), []tokenizer.Encoding{in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if _, err := e.Score(t.Context(), nil); err == nil {
		t.Error("an embedding model scores")
	}
	cross, gs := load(t, "testdata/cross", Options{})
	if _, err := cross.Embed(t.Context(), nil); err == nil {
		t.Error("a cross-encoder embeds")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cross.Score(ctx, encode(t, cross, gs)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after a cancellation", err)
	}
}

// broken copies a model with one file changed.
func broken(t *testing.T, from, file, old, new string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", from))); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, file)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(b), old, new, 1)
	if changed == string(b) {
		t.Fatalf("%s: nothing to replace", file)
	}
	if err := os.WriteFile(name, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRefusedModels(t *testing.T) {
	for _, tt := range []struct{ from, file, old, new, want string }{
		{"mean", "config.json", `"BertModel"`, `"BertLMHeadModel"`, "BertLMHeadModel"},
		{"mean", "config.json", `"model_type": "bert"`, `"model_type": "roberta"`, "roberta"},
		{"mean", "config.json", `"hidden_act": "gelu"`, `"hidden_act": "silu"`, "silu"},
		{"mean", "config.json", `"num_attention_heads": 3`, `"num_attention_heads": 6`, "multiples of 8"},
		{"mean", "config.json", `"num_hidden_layers": 2`, `"num_hidden_layers": 3`, `"encoder.layer.2.attention.self.query.weight" is missing`},
		{"mean", "config.json", `"intermediate_size": 32`, `"intermediate_size": 40`, "has the shape [32 24]"},
		{"mean", "config.json", `"type_vocab_size": 2`, `"type_vocab_size": 0`, "type_vocab_size is 0"},
		{"mean", "config.json", `"vocab_size": `, `"vocab_size": 1, "x": `, "tokenizer.json has"},
		{"cross", "config.json", `"0": "LABEL_0"`, `"0": "LABEL_0", "1": "B"`, "2 labels"},
		{"cross", "config.json", `"hidden_act"`, `"sbert_ce_default_activation_function": "torch.nn.Tanh", "hidden_act"`, "Tanh"},
		{"mean", "1_Pooling/config.json", `"pooling_mode_cls_token": false`, `"pooling_mode_cls_token": true`, "cls_token mean_tokens"},
		{"mean", "modules.json", "models.Normalize", "models.Dense", `"sentence_transformers.models.Dense" is not supported`},
		{"mean", "modules.json", "1_Pooling", "../x", "not a folder in it"},
		{"mean", "modules.json", "1_Pooling", "2_Pooling", "2_Pooling/config.json is missing"},
		{"mean", "modules.json", "[", "{", "parsing modules.json"},
		{"mean", "sentence_bert_config.json", "false", "true", "do_lower_case"},
		{"mean", "tokenizer.json", "WordPiece", "Unigram", "Unigram"},
	} {
		if _, err := Load(broken(t, tt.from, tt.file, tt.old, tt.new), Options{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %s: error %v, want one with %q", tt.file, tt.new, err, tt.want)
		}
	}
	identity, _ := load(t, broken(t, "cross", "config.json", `"hidden_act"`, `"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}, "hidden_act"`), Options{})
	cross, gs := load(t, "testdata/cross", Options{})
	in := encode(t, cross, gs)
	for i, logit := range run(t, identity, in) {
		if got, want := 1/(1+math.Exp(-float64(logit[0]))), run(t, cross, in)[i][0]; math.Abs(got-float64(want)) > 1e-6 {
			t.Errorf("the sigmoid of the logit is %g, the score %g", got, want)
		}
	}
}

func TestIs(t *testing.T) {
	for name, want := range map[string][2]bool{"mean": {true, false}, "cross": {true, true}} {
		s, err := model.LoadShape(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if Is(s) != want[0] || Scores(s) != want[1] {
			t.Errorf("%s: Is %v, Scores %v", name, Is(s), Scores(s))
		}
	}
	if Is(model.Shape{Family: "llama", Architectures: []string{"LlamaForCausalLM"}}) {
		t.Error("a decoder is taken for an encoder")
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, name := range []string{"mean", "cross"} {
		b, err := os.ReadFile(filepath.Join("testdata", name, "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseConfig(b); err == nil && (c.activation == nil || c.Hidden/c.Heads < 1) {
			t.Errorf("%+v is taken", c)
		}
	})
}

func BenchmarkEmbed(b *testing.B) {
	if *public == "" {
		b.Skip("needs -public")
	}
	e, _ := load(b, *public, Options{})
	in := make([]tokenizer.Encoding, 16)
	tokens := 0
	for i := range in {
		in[i] = e.Tokenizer().Single(strings.Repeat("the gross weight of the container is stated on the bill of lading ", 1+i%4), e.Length())
		tokens += len(in[i].IDs)
	}
	for b.Loop() {
		if _, err := e.Embed(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(tokens*b.N)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(len(in)*b.N)/b.Elapsed().Seconds(), "texts/s")
}
