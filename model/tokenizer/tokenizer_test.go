package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// goldens are written by bench/golden/tokenizer.py with the tokenizers package.
type goldens map[string]struct {
	Encode []struct {
		Text         string
		IDs, Special []int
	}
	Decode []struct {
		IDs         []int
		Text, Plain string
	}
	Pairs []struct {
		First, Second      string
		Limit              int
		IDs, Types, Single []int
	}
}

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(b)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tok
}

func TestGolden(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g goldens
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if len(g) < 10 {
		t.Fatalf("only %d tokenizers", len(g))
	}
	for name, want := range g {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			for round := range 2 { // the second from the cache
				for _, c := range want.Encode {
					if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
						t.Errorf("round %d: Encode(%q) = %v, want %v", round, c.Text, got, c.IDs)
					}
					if got := tok.Encode(c.Text, true); !slices.Equal(got, c.Special) {
						t.Errorf("round %d: Encode(%q) with special = %v, want %v", round, c.Text, got, c.Special)
					}
				}
			}
			for _, c := range want.Decode {
				if got := tok.Decode(c.IDs, false); got != c.Text {
					t.Errorf("Decode(%v) = %q, want %q", c.IDs, got, c.Text)
				}
				if got := tok.Decode(c.IDs, true); got != c.Plain {
					t.Errorf("Decode(%v) without special = %q, want %q", c.IDs, got, c.Plain)
				}
			}
			for _, c := range want.Pairs {
				got, err := tok.Pair(c.First, c.Second, c.Limit)
				if err != nil || !slices.Equal(got.IDs, c.IDs) || !slices.Equal(got.Types, c.Types) {
					t.Errorf("Pair(%q, %q, %d) = %v, %v, want %v %v", c.First, c.Second, c.Limit, got, err, c.IDs, c.Types)
				}
				if got := tok.Single(c.First, c.Limit); !slices.Equal(got.IDs, c.Single) || len(got.Types) != len(got.IDs) {
					t.Errorf("Single(%q, %d) = %v, want %v", c.First, c.Limit, got, c.Single)
				}
			}
		})
	}
}

func TestStreamHoldsBackIncompleteCharacters(t *testing.T) {
	tok := load(t, "qwen2")
	s := tok.Stream(true)
	var steps []string
	for _, b := range []byte("é🚢") {
		steps = append(steps, s.Push(tok.byteID[b]))
	}
	if want := []string{"", "é", "", "", "", "🚢"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if got := s.Push(tok.byteID[0xe6]) + s.Flush() + s.Flush(); got != "\ufffd" {
		t.Errorf("an unfinished character gives %q, want one U+FFFD", got)
	}
}

func FuzzEncodeDecode(f *testing.F) {
	tok := load(f, "llama3")
	f.Add("The bill of lading, 18420 kg <|eot_id|>\n\n x")
	f.Add("\xff\xe2\x82 é")
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(text, false)
		want, _ := lossy([]byte(text), true)
		if got := tok.Decode(ids, false); got != want {
			t.Errorf("%q came back as %q", want, got)
		}
	})
}

func FuzzParse(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "deepseek.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	if b, err = os.ReadFile(filepath.Join("testdata", "bert.json")); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]},"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		tok, err := Parse(b)
		if err != nil {
			return
		}
		ids := tok.Encode("any text 12", true)
		if pair, err := tok.Pair("any text", "12", 7); err == nil {
			ids = append(ids, pair.IDs...)
		}
		for _, id := range ids {
			if id < 0 || id >= tok.Size() {
				t.Errorf("encoded to %d of %d", id, tok.Size())
			}
		}
	})
}

func TestLossyMatchesRuneByRune(t *testing.T) {
	// From Unicode 3.9, table 3-8: one replacement for each maximal subpart.
	for in, want := range map[string]string{
		"\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd": "���b�c��d",
		"\xed\xa0\x80":     "���",
		"\xf4\x91\x92\x93": "����",
		"\xe0\x80\x80":     "���",
		"ok":               "ok",
	} {
		if got, _ := lossy([]byte(in), true); got != want || !utf8.ValidString(got) {
			t.Errorf("lossy(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseRefusals(t *testing.T) {
	read, err := os.ReadFile(filepath.Join("testdata", "gpt2.json"))
	if err != nil {
		t.Fatal(err)
	}
	good := string(read)
	for name, tt := range map[string]struct{ old, new, want string }{
		"unigram":       {`"type":"BPE"`, `"type":"Unigram"`, `model "Unigram"`},
		"byte fallback": {`"byte_fallback":false`, `"byte_fallback":true`, "byte_fallback"},
		"dropout":       {`"dropout":null`, `"dropout":0.1`, "dropout"},
		"suffix":        {`"end_of_word_suffix":null`, `"end_of_word_suffix":"</w>"`, "end_of_word_suffix"},
		"metaspace":     {`"pre_tokenizer":{"type":"ByteLevel"`, `"pre_tokenizer":{"type":"Metaspace"`, `"Metaspace" is not supported`},
		"no byte level": {`"pre_tokenizer":{"type":"ByteLevel"`, `"pre_tokenizer":{"type":"Digits"`, "no ByteLevel"},
		"bad pattern":   {`"pre_tokenizer":{"type":"ByteLevel"`, `"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"("}`, "pattern"},
		"decoder":       {`"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`, `decoder "WordPiece"`},
		"normalizer":    {`"normalizer":null`, `"normalizer":{"type":"Prepend","prepend":"▁"}`, `normalizer "Prepend"`},
		"post":          {`"post_processor":{"type":"ByteLevel"`, `"post_processor":{"type":"BertProcessing"`, `post_processor "BertProcessing"`},
		"same id":       {`"Ā":188`, `"Ā":187`, "two tokens"},
		"huge id":       {`"Ā":188`, `"Ā":99999999`, "99999999"},
		"bad merge":     {`"merges":[`, `"merges":[["q","zzz"],`, "lacks a part"},
		"long merge":    {`"merges":[`, `"merges":["a b c",`, "3 parts"},
	} {
		text := strings.Replace(good, tt.old, tt.new, 1)
		if text == good {
			t.Errorf("%s: nothing to replace", name)
			continue
		}
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
	read, err = os.ReadFile(filepath.Join("testdata", "bert.json"))
	if err != nil {
		t.Fatal(err)
	}
	good = string(read)
	for name, tt := range map[string]struct{ old, new, want string }{
		"unknown token": {`"unk_token":"[UNK]"`, `"unk_token":"<unk>"`, "unk_token"},
		"no words":      {`"pre_tokenizer":{"type":"BertPreTokenizer"}`, `"pre_tokenizer":null`, "pre_tokenizer"},
		"prefix":        {`"decoder":{"type":"WordPiece","prefix":"##"`, `"decoder":{"type":"WordPiece","prefix":"@@"`, "decoder"},
		"template":      {`{"Sequence":{"id":"A"`, `{"Sequence":{"id":"B"`, "has a second"},
		"no such token": {`"ids":[2]`, `"ids":[99999]`, "which is no token"},
	} {
		text := strings.Replace(good, tt.old, tt.new, 1)
		if text == good {
			t.Errorf("%s: nothing to replace", name)
			continue
		}
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
	if _, err := load(t, "gpt2").Pair("a", "b", 0); err == nil {
		t.Error("a pair without a template is taken")
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("loading nothing: %v", err)
	}
}

func BenchmarkEncode(b *testing.B) {
	tok := load(b, "qwen2")
	text := strings.Repeat("Gross weight: 18,420.5 kg; container MSKU-702114/3, port of loading Rotterdam.\n", 12)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		tok.Encode(text, false)
	}
}

// A byte that has no token is left out, which is what the reference does: public
// vocabularies lack those that never came in training.
func TestBytesWithoutToken(t *testing.T) {
	read, err := os.ReadFile(filepath.Join("testdata", "gpt2.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse([]byte(strings.Replace(string(read), `"Ā":188`, `"ĀĀĀĀ":188`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{"a\x00b": "ab", "\x00": "", "\x00a \x00": "a "} {
		if got := tok.Decode(tok.Encode(in, false), false); got != want {
			t.Errorf("%q comes back as %q, want %q", in, got, want)
		}
	}
}
