package llama

import (
	"bytes"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"llmops/model"
	"llmops/serving/embedded/core"
)

func handoverEngine(t testing.TB, name, kv string, threads int) *engine {
	t.Helper()
	dir := filepath.Join("testdata", name)
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := Load(dir, shape, Options{Tokens: 25, Length: 128, Blocks: 32, Threads: threads, KV: kv})
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.New(core.Limits{Sequences: 4, Tokens: 25, Blocks: 32})
	if err != nil {
		t.Fatal(err)
	}
	return &engine{core: c, exec: exec}
}

// A prompt computed by one engine goes on in another, to the bit as if it had
// stayed.
func TestHandOver(t *testing.T) {
	prompt := make([]int, 70)
	for i := range prompt {
		prompt[i] = (i*41 + 9) % 96
	}
	for _, kv := range []string{KVFloat32, KVBF16, KVFP8} {
		for _, tokens := range []int{70, 69, 40, 16, 1} {
			seq := func() *core.Sequence {
				return &core.Sequence{Prompt: prompt, Max: 6, Sampling: core.Sampling{Top: 96}}
			}
			stay := seq()
			stay.Hold = true
			first := handoverEngine(t, "mistral", kv, 1)
			want, _ := first.run(t, stay)
			blocks, held, ok := first.core.Held(stay.ID)
			if !ok || held < tokens {
				t.Fatalf("%d tokens are held, %t", held, ok)
			}
			b, err := first.exec.Export(blocks, tokens).MarshalBinary()
			if err != nil {
				t.Fatal(err)
			}
			got := new(KV)
			if err := got.UnmarshalBinary(b); err != nil {
				t.Fatal(err)
			}
			second := handoverEngine(t, "mistral", kv, 2)
			if err := second.exec.Accepts(got); err != nil {
				t.Fatal(err)
			}
			// Its beginning is in the cache there, or not.
			for _, warm := range []bool{false, true} {
				if warm {
					second.run(t, &core.Sequence{Prompt: prompt[:33], Max: 1})
				}
				goes := seq()
				goes.Import, goes.Imported = got, got.Tokens()
				answer, _ := second.run(t, goes)
				if !reflect.DeepEqual(answer, want) {
					t.Errorf("%s, %d tokens, warm %t: the answer is another", kv, tokens, warm)
				}
				second = handoverEngine(t, "mistral", kv, 2)
			}
		}
	}
}

func TestAcceptsOneModelOnly(t *testing.T) {
	export := func(name, kv string) *KV { return handoverEngine(t, name, kv, 1).exec.Export([]int32{0, 1}, 20) }
	e := handoverEngine(t, "mistral", KVBF16, 1)
	if err := e.exec.Accepts(export("mistral", KVBF16)); err != nil {
		t.Error(err)
	}
	for name, kv := range map[string]*KV{"float32": export("mistral", KVFloat32), "llama": export("llama", KVBF16)} {
		if err := e.exec.Accepts(kv); err == nil || !strings.Contains(err.Error(), "this engine has 2 layers of 2 heads of 8 bf16 elements") {
			t.Errorf("of %s: %v", name, err)
		}
	}
	for name, seq := range map[string]*core.Sequence{
		"int":     {Import: 4, Imported: 20},
		"float32": {Import: export("mistral", KVFloat32), Imported: 20},
		"20":      {Import: export("mistral", KVBF16), Imported: 24},
	} {
		seq.Prompt, seq.Max = make([]int, 30), 1
		c, _ := core.New(core.Limits{Sequences: 1, Tokens: 25, Blocks: 8})
		if err := c.Add(0, seq); err != nil {
			t.Fatal(err)
		}
		var b core.Batch
		c.Next(0, &b)
		if _, err := e.exec.Step(t.Context(), &b, make([]core.Token, 1)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("importing %s: %v", name, err)
		}
	}
}

func FuzzUnmarshalKV(f *testing.F) {
	good, err := handoverEngine(f, "mistral", KVFP8, 1).exec.Export([]int32{0}, 3).MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, at := range []int{0, 7, 8, 12, 16, 20, 24, 40, 90, len(good) - 1} {
		bad := slices.Clone(good)
		bad[at] ^= 0x81
		if new(KV).UnmarshalBinary(bad) == nil {
			f.Errorf("byte %d may be anything", at)
		}
		f.Add(bad)
		f.Add(good[:at])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		kv := new(KV)
		if kv.UnmarshalBinary(b) != nil {
			return
		}
		again, err := kv.MarshalBinary()
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%d bytes come back as %d, %v", len(b), len(again), err)
		}
	})
}
