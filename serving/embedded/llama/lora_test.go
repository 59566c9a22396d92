package llama

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/serving/embedded/core"
)

const adapterConfig = `{"peft_type":"LORA","r":3,"lora_alpha":6,"use_rslora":false,"target_modules":["q_proj","down_proj"],"bias":"none","modules_to_save":null,"rank_pattern":{}}`

// newAdapter makes random halves for the modules of every layer.
func newAdapter(s model.Shape, rank int, seed uint64, modules ...string) checkpoint {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := checkpoint{}
	for l := range s.Layers {
		for _, m := range modules {
			t := targets(s)[m]
			for i, shape := range [][]int64{{int64(rank), int64(t.in)}, {int64(t.out), int64(rank)}} {
				var data []byte
				for range shape[0] * shape[1] {
					data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(rng.NormFloat64()*0.2)))
				}
				c[fmt.Sprintf("base_model.model.model.layers.%d.%s.lora_%c.weight", l, m, 'A'+i)] = tensor{safetensors.F32, shape, data}
			}
		}
	}
	return c
}

// writeAdapter puts an adapter where LoadAdapter finds it.
func (c checkpoint) writeAdapter(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	c.write(t, dir, "")
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "adapter_model.safetensors")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// merge adds scale · B · A to the weights.
func (c checkpoint) merge(t *testing.T, w map[string][]float64, scale float64) {
	for name, a := range c {
		module, ok := strings.CutSuffix(name, ".lora_A.weight")
		if !ok {
			continue
		}
		b, x := c[module+".lora_B.weight"], a.floats(t)
		y, to := b.floats(t), w[strings.TrimPrefix(module, "base_model.model.")+".weight"]
		rank, in := int(a.shape[0]), int(a.shape[1])
		for i := range to {
			for r := range rank {
				to[i] += scale * y[i/in*rank+r] * x[r*in+i%in]
			}
		}
	}
}

var allModules = []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}

func newAdapterEngine(t *testing.T, dir string) *engine {
	t.Helper()
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := Load(dir, shape, Options{Tokens: 40, Length: 128, Blocks: 64, Threads: 2, MaxLoRARank: 16})
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.New(core.Limits{Sequences: 8, Tokens: 40, Blocks: 64, Adapters: 4})
	if err != nil {
		t.Fatal(err)
	}
	return &engine{core: c, exec: exec}
}

func TestAdaptersEqualMergedWeights(t *testing.T) {
	dir := filepath.Join("testdata", "llama")
	ids := make([]int, 30)
	for i := range ids {
		ids[i] = (i*53 + 5) % 320
	}
	for name, tt := range map[string]struct {
		rank    int
		config  string
		scale   float64
		modules []string
	}{
		"all":  {8, `{"peft_type":"LORA","r":8,"lora_alpha":4,"target_modules":"all-linear","bias":"none"}`, 0.5, allModules},
		"two":  {3, adapterConfig, 2, []string{"self_attn.q_proj", "mlp.down_proj"}},
		"root": {9, `{"peft_type":"LORA","r":9,"lora_alpha":6,"use_rslora":true,"target_modules":["mlp.up_proj","v_proj"]}`, 2, []string{"mlp.up_proj", "self_attn.v_proj"}},
	} {
		e := newAdapterEngine(t, dir)
		a := newAdapter(e.exec.shape, tt.rank, 7, tt.modules...)
		if err := e.exec.LoadAdapter("a", a.writeAdapter(t, tt.config)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w := readCheckpoint(t, dir).plain(t)
		a.merge(t, w, tt.scale)
		want := oracle(e.exec.shape, w, ids, rounder{})
		e.run(t, &core.Sequence{Prompt: ids, Max: 1, Adapter: "a", Sampling: core.Sampling{Top: -1}})
		for i, v := range e.exec.logits[:e.exec.shape.Vocab] {
			if math.Abs(float64(v)-want[i]) > 1e-4 {
				t.Errorf("%s: logit %d is %g, want %g", name, i, v, want[i])
				break
			}
		}
	}
}

// bench/golden/adapter.py has written what peft computes with an adapter it saved.
func TestAdapterEqualsPEFT(t *testing.T) {
	dir := filepath.Join("testdata", "llama-lora")
	var g golden
	readGolden(t, filepath.Join(dir, "golden.json"), &g)
	raw, err := base64.StdEncoding.DecodeString(g.Logits[len(g.IDs)-1])
	if err != nil {
		t.Fatal(err)
	}
	e := newAdapterEngine(t, filepath.Join("testdata", "llama"))
	if err := e.exec.LoadAdapter("a", dir); err != nil {
		t.Fatal(err)
	}
	e.run(t, &core.Sequence{Prompt: g.IDs, Max: 1, Adapter: "a", Sampling: core.Sampling{Top: -1}})
	for i, v := range e.exec.logits[:e.exec.shape.Vocab] {
		want := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		if !(math.Abs(float64(v-want)) <= tolerance) {
			t.Fatalf("logit %d is %g, want %g", i, v, want)
		}
	}
}

// Rows of one batch have adapters of their own, to the bit what they have alone.
func TestAdaptersInOneBatch(t *testing.T) {
	dir := filepath.Join("testdata", "llama")
	build := func() *engine {
		e := newAdapterEngine(t, dir)
		for name, a := range map[string]checkpoint{"a": newAdapter(e.exec.shape, 3, 1, "self_attn.q_proj", "mlp.down_proj"), "b": newAdapter(e.exec.shape, 3, 2, "self_attn.v_proj")} {
			if err := e.exec.LoadAdapter(name, a.writeAdapter(t, adapterConfig)); err != nil {
				t.Fatal(err)
			}
		}
		return e
	}
	seq := func(adapter string) *core.Sequence {
		s := &core.Sequence{Adapter: adapter, Max: 5, Sampling: core.Sampling{Top: 320}}
		for i := range 21 {
			s.Prompt = append(s.Prompt, (i*29+3)%320)
		}
		return s
	}
	names := []string{"a", "", "b", "a"}
	var seqs []*core.Sequence
	for _, n := range names {
		seqs = append(seqs, seq(n))
	}
	together, _ := build().run(t, seqs...)
	for i, n := range names {
		alone, _ := build().run(t, seq(n))
		if !reflect.DeepEqual(alone[0], together[i]) {
			t.Errorf("adapter %q: another result in the batch than alone", n)
		}
	}
	if reflect.DeepEqual(together[0], together[1]) || reflect.DeepEqual(together[0], together[2]) {
		t.Error("adapters change nothing")
	}
	e := build()
	e.exec.UnloadAdapter("a")
	if err := e.core.Add(0, seq("a")); err != nil {
		t.Fatal(err)
	}
	var b core.Batch
	e.core.Next(0, &b)
	if _, err := e.exec.Step(t.Context(), &b, make([]core.Token, 8)); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("a row with an adapter that is gone: %v", err)
	}
}

func TestUnloadableAdapters(t *testing.T) {
	const q = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
	with := func(old, new string) string { return strings.Replace(adapterConfig, old, new, 1) }
	for name, tt := range map[string]struct {
		damage func(checkpoint)
		config string
		want   []string
	}{
		"rank":            {nil, with(`"r":3`, `"r":17`), []string{"adapter_config.json", "r is 17", "16"}},
		"other rank":      {nil, with(`"r":3`, `"r":4`), []string{"lora_A.weight", "rank 3", "says 4"}},
		"DoRA":            {nil, with(`"bias"`, `"use_dora":true,"bias"`), []string{"use_dora"}},
		"bias":            {nil, with(`"none"`, `"all"`), []string{"bias"}},
		"modules to save": {nil, with(`"modules_to_save":null`, `"modules_to_save":["lm_head"]`), []string{"modules_to_save"}},
		"rank pattern":    {nil, with(`"rank_pattern":{}`, `"rank_pattern":{"q_proj":2}`), []string{"rank_pattern"}},
		"activated":       {nil, with(`"bias"`, `"alora_invocation_tokens":[3],"bias"`), []string{"alora_invocation_tokens"}},
		"type":            {nil, with("LORA", "IA3"), []string{"IA3"}},
		"module":          {nil, with(`"q_proj"`, `"lm_head"`), []string{"target_modules", "lm_head", "q_proj"}},
		"not json":        {nil, "{", []string{"adapter_config.json"}},
		"half":            {func(c checkpoint) { delete(c, q+"B.weight") }, "", []string{q + "B.weight", "missing"}},
		"base": {func(c checkpoint) { c[q+"A.weight"] = tensor{safetensors.F32, []int64{3, 16}, make([]byte, 192)} }, "",
			[]string{q + "A.weight", "[3 16]", "32 inputs", "another model"}},
		"outputs": {func(c checkpoint) { c[q+"B.weight"] = tensor{safetensors.F32, []int64{16, 3}, make([]byte, 192)} }, "",
			[]string{q + "B.weight", "[16 3]", "[32 3]"}},
		"layer": {func(c checkpoint) { c[strings.Replace(q, "1", "7", 1)+"A.weight"] = c[q+"A.weight"] }, "", []string{"layers.7", "has 2"}},
		"NaN":   {func(c checkpoint) { binary.LittleEndian.PutUint32(c[q+"A.weight"].data[8:], 0x7fc00000) }, "", []string{q + "A.weight", "NaN", "element 2"}},
		"head":  {func(c checkpoint) { c["base_model.model.lm_head.lora_A.weight"] = c[q+"A.weight"] }, "", []string{"base_model.model.lm_head.lora_A.weight"}},
		"strange module": {func(c checkpoint) { c["base_model.model.model.layers.0.mlp.router.lora_A.weight"] = c[q+"A.weight"] }, "",
			[]string{"mlp.router"}},
		"dtype": {func(c checkpoint) { c[q+"A.weight"] = tensor{safetensors.I8, []int64{3, 32}, make([]byte, 96)} }, "", []string{q + "A.weight", "I8"}},
		"empty": {func(c checkpoint) { clear(c) }, "", []string{"no tensors"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newAdapterEngine(t, filepath.Join("testdata", "llama"))
			c := newAdapter(e.exec.shape, 3, 1, "self_attn.q_proj", "mlp.down_proj")
			if tt.damage != nil {
				tt.damage(c)
			}
			err := e.exec.LoadAdapter("a", c.writeAdapter(t, cmp.Or(tt.config, adapterConfig)))
			if err == nil {
				t.Fatal("it loads")
			}
			for _, want := range append(tt.want, `adapter "a"`) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
			if len(e.exec.adapters) > 0 {
				t.Error("it is there all the same")
			}
		})
	}
	e := newAdapterEngine(t, filepath.Join("testdata", "llama"))
	dir := newAdapter(e.exec.shape, 3, 1, "mlp.down_proj").writeAdapter(t, adapterConfig)
	if err := os.Rename(filepath.Join(dir, "adapter_model.safetensors"), filepath.Join(dir, "adapter_model.bin")); err != nil {
		t.Fatal(err)
	}
	if err := e.exec.LoadAdapter("a", dir); err == nil || !strings.Contains(err.Error(), "pickled") {
		t.Errorf("pickled weights: %v", err)
	}
	e.exec.maxRank = 0
	if err := e.exec.LoadAdapter("a", dir); err == nil || !strings.Contains(err.Error(), "without adapters") {
		t.Errorf("an engine without adapters: %v", err)
	}
}

func FuzzParseAdapterConfig(f *testing.F) {
	f.Add([]byte(adapterConfig))
	f.Add([]byte(`{"peft_type":"LORA","r":1e3,"target_modules":{"a":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rank, scale, err := parseAdapterConfig(b, 64)
		if err == nil && (rank < 1 || rank > 64 || scale-scale != 0) {
			t.Errorf("accepts rank %d, scale %g", rank, scale)
		}
	})
}
