package llama

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"llmops/model"
	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
)

// engine is a Core and its executor without the server.
type engine struct {
	core *core.Core
	exec *Executor
	next uint64
}

func newEngine(t testing.TB, dir string, l core.Limits, threads int) *engine {
	t.Helper()
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Load(dir, shape, Options{Tokens: l.Tokens, Length: shape.MaxPositions, Blocks: l.Blocks, Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	c, err := core.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return &engine{core: c, exec: e}
}

// run adds the sequences and steps until all have ended. It returns the generated
// tokens and the prompt's scores of each.
func (e *engine) run(t testing.TB, seqs ...*core.Sequence) (generated, scores [][]core.Token) {
	t.Helper()
	at := make(map[*core.Sequence]int)
	for i, s := range seqs {
		e.next++
		s.ID = e.next
		at[s] = i
		if err := e.core.Add(0, s); err != nil {
			t.Fatal(err)
		}
	}
	generated, scores = make([][]core.Token, len(seqs)), make([][]core.Token, len(seqs))
	var b core.Batch
	out := make([]core.Token, e.core.Limits().Sequences)
	for e.core.Next(0, &b) {
		if _, err := e.exec.Step(t.Context(), &b, out); err != nil {
			t.Fatal(err)
		}
		e.core.Commit(0, &b, out, func(ev core.Event) {
			i := at[ev.Seq]
			scores[i] = append(scores[i], ev.Prompt...)
			if ev.Token != nil {
				generated[i] = append(generated[i], *ev.Token)
			}
		})
	}
	return generated, scores
}

// golden is what bench/golden writes for one prompt.
type golden struct {
	Messages json.RawMessage
	Text     string
	IDs      []int
	Logits   map[int]string
	Logprobs []float64
	Greedy   []struct {
		ID  int
		Gap float64
	}
}

const tolerance = 1e-3

// check gives the largest difference of a logit.
func (g golden) check(t *testing.T, name string, e *engine) (worst float64) {
	t.Helper()
	// In rising order each finds the ones before it in the cache.
	for _, at := range slices.Sorted(maps.Keys(g.Logits)) {
		raw, err := base64.StdEncoding.DecodeString(g.Logits[at])
		if err != nil {
			t.Fatal(err)
		}
		got := e.logits(t, g.IDs[:at+1])
		if len(raw) != 4*len(got) {
			t.Fatalf("%s: %d logits, want %d", name, len(got), len(raw)/4)
		}
		for i := range got {
			want := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			d := math.Abs(float64(got[i] - want))
			worst = max(worst, d)
			if !(d <= tolerance) {
				t.Errorf("%s: logit %d at position %d is %g, want %g", name, i, at, got[i], want)
				break
			}
		}
	}
	generated, _ := e.run(t, &core.Sequence{Prompt: g.IDs, Max: len(g.Greedy)})
	for i, want := range g.Greedy {
		if got := generated[0][i].ID; got != want.ID {
			if want.Gap > tolerance {
				t.Errorf("%s: greedy token %d is %d, want %d with a gap of %g", name, i, got, want.ID, want.Gap)
			}
			break // what follows continues another text
		}
	}
	_, scores := e.run(t, &core.Sequence{Prompt: g.IDs, Score: true, Max: 1})
	if len(scores[0]) != len(g.Logprobs) {
		t.Fatalf("%s: %d scores, want %d", name, len(scores[0]), len(g.Logprobs))
	}
	for i, want := range g.Logprobs {
		if got := float64(scores[0][i].Logprob); !(math.Abs(got-want) <= tolerance) || scores[0][i].ID != g.IDs[i+1] {
			t.Errorf("%s: log probability of token %d is %g (id %d), want %g", name, i+1, got, scores[0][i].ID, want)
			break
		}
	}
	return worst
}

// logits computes those after the last of ids.
func (e *engine) logits(t testing.TB, ids []int) []float32 {
	t.Helper()
	e.run(t, &core.Sequence{Prompt: ids, Max: 1, Sampling: core.Sampling{Top: -1}})
	return slices.Clone(e.exec.logits[:e.exec.shape.Vocab])
}

func readGolden(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func TestTinyModelsEqualTransformers(t *testing.T) {
	for _, name := range []string{"llama", "llama-bias", "llama-dynamic", "mistral", "qwen2", "qwen2-window", "qwen3", "qwen3-yarn"} {
		var rows []golden
		readGolden(t, filepath.Join("testdata", name, "golden.json"), &rows)
		e := newEngine(t, filepath.Join("testdata", name), core.Limits{Sequences: 4, Tokens: 20, Blocks: 64}, 1)
		for _, g := range rows {
			g.check(t, name, e)
		}
	}
}

// UnmarshalJSON takes logits as bench/golden/golden.py writes them, a list with positions.
func (g *golden) UnmarshalJSON(b []byte) error {
	type plain golden
	var p struct {
		plain
		Logits json.RawMessage
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*g = golden(p.plain)
	var list []struct {
		Position int
		Float32  string
	}
	if json.Unmarshal(p.Logits, &list) != nil {
		return json.Unmarshal(p.Logits, &g.Logits)
	}
	g.Logits = make(map[int]string)
	for _, l := range list {
		g.Logits[l.Position] = l.Float32
	}
	return nil
}

// freight is the shipped model.
var freight = filepath.Join("..", "..", "..", "examples", "freight", "weights")

// checkpointDir is one that is too large to be kept here, with the golden.json that
// bench/golden/golden.py makes of it.
var checkpointDir = flag.String("checkpoint", "", "a checkpoint's folder with golden.json, to compare with transformers")

func TestCheckpoint(t *testing.T) {
	if *checkpointDir == "" {
		t.Skip("no -checkpoint")
	}
	againstConversations(t, *checkpointDir, filepath.Join(*checkpointDir, "golden.json"))
}

func TestFreightEqualsTransformers(t *testing.T) {
	conversations := againstConversations(t, freight, filepath.Join("testdata", "golden-freight.json"))
	tok, err := tokenizer.Load(freight)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := chat.Load(freight)
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range conversations {
		text, err := tmpl.Render(chat.Request{Messages: g.Messages, Prompt: true})
		if err != nil || text != g.Text {
			t.Errorf("%s: rendered %q, %v, want %q", name, text, err, g.Text)
		}
		if ids := tok.Encode(text, true); !slices.Equal(ids, g.IDs) {
			t.Errorf("%s: ids %v, want %v", name, ids, g.IDs)
		}
	}
}

// againstConversations compares with what bench/golden/golden.py has written.
func againstConversations(t *testing.T, dir, goldenFile string) map[string]golden {
	var file struct {
		Weights       string `json:"weights_sha256"`
		Conversations map[string]golden
	}
	readGolden(t, goldenFile, &file)
	b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if got := model.DigestOf(b).Hex(); got != file.Weights {
		t.Fatalf("weights have the digest %s, the golden file is of %s: run bench/golden/golden.py", got, file.Weights)
	}
	e := newEngine(t, dir, core.Limits{Sequences: 4, Tokens: 128, Blocks: 512}, 1)
	for name, g := range file.Conversations {
		worst := g.check(t, name, e)
		t.Logf("%s: %d tokens, logits differ by %.2g at most", name, len(g.IDs), worst)
	}
	return file.Conversations
}
