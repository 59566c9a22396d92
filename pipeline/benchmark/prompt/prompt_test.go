package prompt

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
)

const freight, encoder = "../../../examples/freight/weights", "../../../examples/freight/encoder"

func maker(t *testing.T, o Options) *Maker {
	t.Helper()
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func exact(t *testing.T) Options {
	t.Helper()
	tok, err := tokenizer.Load(freight)
	if err != nil {
		t.Fatal(err)
	}
	template, err := chat.Load(freight)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Endpoint: Chat, Model: "m", Tokenizer: tok, Template: template}
}

func decode(t *testing.T, r *load.Request) openai.ChatRequest {
	t.Helper()
	var c openai.ChatRequest
	if err := openai.Decode(bytes.NewReader(r.Body), &c); err != nil {
		t.Fatalf("%s: %v", r.Body, err)
	}
	return c
}

// tokens counts a chat as the server does, template and all.
func tokens(t *testing.T, o Options, c openai.ChatRequest) int {
	t.Helper()
	b, err := json.Marshal(c.Messages)
	if err != nil {
		t.Fatal(err)
	}
	text, err := o.Template.Render(chat.Request{Messages: b, Prompt: true})
	if err != nil {
		t.Fatal(err)
	}
	return len(o.Tokenizer.Encode(text, false))
}

func TestLengthsAreExact(t *testing.T) {
	o := exact(t)
	o.Input, o.Output, o.Prefix, o.Prefixes = Mix{{64, 300, 1}}, Mix{{7, 7, 1}}, 40, 3
	m := maker(t, o)
	lengths, prefixes, texts := map[int]bool{}, map[string]bool{}, map[string]bool{}
	for i := range 200 {
		r, err := m.Next(i)
		if err != nil {
			t.Fatal(err)
		}
		c := decode(t, r)
		n := tokens(t, o, c)
		if n < 64 || n > 300 || r.Want != 7 || *c.MaxTokens != 7 || *c.MinTokens != 7 || !c.IgnoreEOS || !c.Stream {
			t.Fatalf("request %d: %d tokens, %+v", i, n, c)
		}
		text := c.Messages[0].Content.Text
		lengths[n], texts[text] = true, true
		prefixes[strings.Join(strings.Fields(text)[:40], " ")] = true
	}
	if len(lengths) < 80 || len(prefixes) != 3 || len(texts) != 200 {
		t.Errorf("%d lengths, %d prefixes, %d texts of 200", len(lengths), len(prefixes), len(texts))
	}
	// Lengths that were trusted and not counted are right as well.
	o.Input, o.Prefix = Mix{{500, 500, 1}}, 0
	m = maker(t, o)
	for i := range 20 {
		r, err := m.Next(i)
		if err != nil {
			t.Fatal(err)
		}
		if n := tokens(t, o, decode(t, r)); n != 500 {
			t.Errorf("prompt %d has %d tokens", i, n)
		}
	}
	o.Input = Mix{{3, 3, 1}}
	if _, err := maker(t, o).Next(0); err == nil || !strings.Contains(err.Error(), "template alone takes") {
		t.Errorf("three tokens: %v", err)
	}
}

// A length that cannot be met is said, and not met nearly.
func TestNoExactLength(t *testing.T) {
	o := exact(t)
	o.Input = Mix{{65, 65, 1}}
	m := maker(t, o)
	m.words = []string{"xylophone"} // of several tokens here
	r, err := m.Next(0)
	if err == nil && tokens(t, o, decode(t, r)) != 65 || err != nil && !strings.Contains(err.Error(), "no prompt of exactly 65 tokens") && !strings.Contains(err.Error(), "cannot be") {
		t.Errorf("%v", err)
	}
}

func TestSeedDecides(t *testing.T) {
	o := exact(t)
	o.Input = Mix{{64, 64, 1}}
	body := func(seed uint64) string {
		o.Seed = seed
		r, err := maker(t, o).Next(0)
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Body)
	}
	first, again, other := body(1), body(1), body(2)
	if first != again || first == other {
		t.Error("the seed does not decide")
	}
}

// Blocks of a trace with the same number have the same text, so that a prefix
// cache sees what the trace's saw.
func TestBlocks(t *testing.T) {
	o := exact(t)
	m := maker(t, o)
	text := func(in int, blocks ...uint64) []string {
		r, err := m.Sized(in, 5, "", blocks, 16)
		if err != nil {
			t.Fatal(err)
		}
		if n := tokens(t, o, decode(t, r)); n != in {
			t.Errorf("%d tokens, want %d", n, in)
		}
		return strings.Fields(decode(t, r).Messages[0].Content.Text)
	}
	a, b := text(80, 1, 2, 3, 4, 5), text(75, 1, 2, 9, 10, 11)
	for i := range 32 {
		if a[i] != b[i] {
			t.Fatalf("word %d of two shared blocks differs", i)
		}
	}
	if strings.Join(a[32:48], " ") == strings.Join(b[32:48], " ") {
		t.Error("blocks 3 and 9 have the same text")
	}
}

func TestSessions(t *testing.T) {
	o := exact(t)
	o.Input, o.Output, o.Turns, o.Pause = Mix{{64, 64, 1}}, Mix{{6, 6, 1}}, 3, time.Second
	r, err := maker(t, o).Next(0)
	if err != nil {
		t.Fatal(err)
	}
	var talk string
	for turn := range 3 {
		c := decode(t, r)
		if len(c.Messages) != 1+2*turn || r.Conversation == "" || talk != "" && r.Conversation != talk || r.Want != 6 {
			t.Fatalf("turn %d: %d messages, conversation %q", turn, len(c.Messages), r.Conversation)
		}
		talk = r.Conversation
		if turn == 2 {
			if r.Next != nil {
				t.Error("a fourth turn")
			}
			break
		}
		var pause time.Duration
		if r, pause = r.Next(); pause != time.Second {
			t.Errorf("pause %v", pause)
		}
	}
}

func TestMixesAndAdapters(t *testing.T) {
	o := Options{Endpoint: Chat, Model: "base", Input: Mix{{10, 10, 9}, {200, 220, 1}}, Adapters: []Adapter{{"a", 0.25}}}
	m := maker(t, o)
	long, adapted := 0, 0
	for i := range 4000 {
		r, err := m.Next(i)
		if err != nil {
			t.Fatal(err)
		}
		c := decode(t, r)
		n := len(strings.Fields(c.Messages[0].Content.Text))
		if n >= 200 {
			long++
		}
		if c.Model == "a" {
			adapted++
		}
		part := "10"
		if n > 10 {
			part = "200-220"
		}
		if r.Class != part+" "+c.Model {
			t.Fatalf("%d tokens for %s in class %q", n, c.Model, r.Class)
		}
	}
	// Four standard errors of shares of 4000.
	if math.Abs(float64(long)/4000-0.1) > 0.019 || math.Abs(float64(adapted)/4000-0.25) > 0.028 {
		t.Errorf("%d long, %d adapted of 4000", long, adapted)
	}
	for _, o := range []Options{
		{Adapters: []Adapter{{"a", 0.7}, {"b", 0.6}}}, {Adapters: []Adapter{{"", 0.7}}}, {Adapters: []Adapter{{"a", 0}}},
		{Endpoint: Embed, Turns: 2}, {Endpoint: Rerank, Prefix: 3},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestEndpoints(t *testing.T) {
	tok, err := tokenizer.Load(encoder)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Endpoint: Embed, Model: "e", Input: Mix{{20, 20, 1}}, Tokenizer: tok}
	r, err := maker(t, o).Next(0)
	if err != nil {
		t.Fatal(err)
	}
	var e openai.EmbeddingRequest
	if err := json.Unmarshal(r.Body, &e); err != nil || !r.Encode || r.Stream || len(tok.Encode(e.Input.Texts[0], true)) != 20 {
		t.Errorf("%s, %v", r.Body, err)
	}
	o.Endpoint = Rerank
	if r, err = maker(t, o).Next(0); err != nil || r.Path != load.PathRerank || !r.Encode || strings.Count(string(r.Body), `{"text"`) != 10 {
		t.Errorf("%s, %v", r.Body, err)
	}
	x := exact(t)
	x.Endpoint, x.Input, x.Output, x.Natural = Complete, Mix{{33, 33, 1}}, Mix{{5, 5, 1}}, true
	if r, err = maker(t, x).Next(0); err != nil {
		t.Fatal(err)
	}
	var c openai.CompletionRequest
	if err := json.Unmarshal(r.Body, &c); err != nil || len(c.Prompt.Tokens) != 1 || len(c.Prompt.Tokens[0]) != 33 || c.IgnoreEOS || *c.MaxTokens != 5 || r.Want != 0 {
		t.Errorf("%s, %v", r.Body, err)
	}
}

func TestAhead(t *testing.T) {
	done := make(chan struct{})
	s := Ahead(func(i int) (*load.Request, error) { return &load.Request{Want: i}, nil }, 3, done)
	for i := range 10 {
		if r, err := s(i); err != nil || r.Want != i {
			t.Fatalf("request %d: %+v, %v", i, r, err)
		}
	}
	close(done)
	for {
		if _, err := s(0); err != nil {
			break
		}
	}
}

func FuzzParseMix(f *testing.F) {
	for _, s := range []string{"512", "1-5:2,7", "512:0.9,30000-32000:0.1", "5-1", "-1", "0", "9:0", "9:NaN", "9:Inf"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMix(s)
		if err != nil {
			return
		}
		sum, all := 0.0, 0.0
		for _, p := range m {
			sum += p.Weight * float64(p.Lo+p.Hi) / 2
			all += p.Weight
		}
		if mean := sum / all; !(mean >= 1 && mean <= MaxTokens) {
			t.Errorf("%q has a mean of %v", s, mean)
		}
	})
}
