package guide

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
)

var _ core.Guide = (*Guide)(nil)

// bytesAndPieces is a vocabulary of all bytes, of pieces that span parts of JSON and
// cut characters, and of tokens that must never come.
func bytesAndPieces(t testing.TB) *Vocabulary {
	t.Helper()
	var tokens [][]byte
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for _, s := range []string{
		`{"`, `":"`, `","`, `":`, `"}`, `"]`, `}}`, `]}`, `},{`, `, `, `: `, `":{"`, `":["`, `[{"`, `true`, `false`, `null`, `tr`, `ue`, `name`, `kind`, `a","`, `0,`, `10`, `-1`, `.5`, `\n`, `\"`,
		`\u00`, `\ud83d\ude00`, `\ud8`, "é", "\xc3", "\xa9\"", "🚢", "\xf0\x9f", "\x9a\xa2\"}", `abcdefghijklmnop`, `  `, `		`, `"a":1,"b":`, `1]`, `1}`, `,1`, `true}`, `null,"`, `/*`, `'`,
	} {
		tokens = append(tokens, []byte(s))
	}
	tokens = append(tokens, nil, []byte{}, []byte("</s>"))
	v, err := NewVocabulary(tokens, []int{len(tokens) - 1})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *Vocabulary) allowed(g *Guide) []int {
	logits := make([]float32, len(v.tokens)+3)
	g.Mask(logits)
	var ids []int
	for id, l := range logits {
		if !math.IsInf(float64(l), -1) {
			ids = append(ids, id)
		}
	}
	return ids
}

// takes reports whether the guide allows text, cut into tokens at random, and an
// end after it.
func (v *Vocabulary) takes(g *Grammar, text string, rng *rand.Rand) error {
	guide := g.New()
	rest := []byte(text)
	for len(rest) > 0 {
		var fits []int
		for id, b := range v.tokens {
			if len(b) > 0 && bytes.HasPrefix(rest, b) {
				fits = append(fits, id)
			}
		}
		id := fits[rng.IntN(len(fits))]
		if ok := v.allowed(guide); !slices.Contains(ok, id) {
			return fmt.Errorf("token %q is not allowed before %q", v.tokens[id], rest)
		}
		guide.Accept(id)
		rest = rest[len(v.tokens[id]):]
	}
	if !guide.Complete() || !slices.Contains(v.allowed(guide), v.eos[0]) {
		return fmt.Errorf("the text may not end")
	}
	return nil
}

func compile(t testing.TB, v *Vocabulary, schema string) *Grammar {
	t.Helper()
	g, err := Compile([]byte(schema), v)
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return g
}

func TestTexts(t *testing.T) {
	v := bytesAndPieces(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		schema   string
		yes, not []string
	}{
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]}`,
			[]string{`{"a":0}`, `{"a": -12, "b": "x"}`, `{"a":1,"b":"\ud83d\ude00 🚢 é \\ \u00e9"}`},
			[]string{`{}`, `{"b":"x"}`, `{"a":01}`, `{"a":-0}`, `{"a":1.0}`, `{"a":1,}`, `{"a":1,"b":"\ud83d"}`, `{"b":"x","a":1}`, `{ "a":1}`, `{"a":  1}`, `{"a":1,"b":"\x"}`, "{\"a\":1,\"b\":\"\n\"}", `{"a":1}}`, `{"a":123456789012345678901}`, `{"a":1,"c":2}`}},
		{`{"type":"object","properties":{"a":{},"ab":{}},"additionalProperties":{"type":"null"}}`,
			[]string{`{}`, `{"b":null}`, `{"abc":null}`, `{"a":[1,{"x":"y"}],"é":null,"x":null}`, `{"ac":null,"":null}`},
			[]string{`{"b":1}`, `{"x":null,"a":1}`, `{"ab":null,"a":null}`, `{"\u0061":null}`}},
		{`{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":3}`, []string{`[true,false]`, `[true, false,true]`}, []string{`[]`, `[true]`, `[true,true,true,true]`, `[true,]`}},
		{`{"type":"array","prefixItems":[{"const":1},{"const":"x"}],"items":{"type":"null"},"minItems":1,"maxItems":4}`, []string{`[1]`, `[1,"x"]`, `[1,"x",null,null]`}, []string{`[]`, `[null]`, `[1,"x",null,null,null]`, `[1,null]`}},
		{`{"type":"array","prefixItems":[{"const":1}],"items":false}`, []string{`[]`, `[1]`}, []string{`[1,1]`}},
		{`{"type":["string","null"],"minLength":2,"maxLength":3}`, []string{`null`, `"ab"`, `"é🚢\n"`, `"\ud83d\ude00x"`}, []string{`"a"`, `"abcd"`, `"\ud83d\ude00"`, `1`}},
		{`{"enum":["a","ab",1,null,{"x":[1,"é\""]}]}`, []string{`"a"`, `"ab"`, `1`, `null`, `{"x":[1,"é\""]}`}, []string{`"abc"`, `11`, `{"x": [1]}`}},
		{`{"type":"string","enum":["a",1]}`, []string{`"a"`}, []string{`1`}},
		{`{"type":"string","pattern":"^[A-Z]{2}\\d+$"}`, []string{`"AB1"`, `"ZZ000"`}, []string{`"AB"`, `"aB1"`, `"AB1 "`}},
		{`{"type":"string","pattern":"b.d|x$","maxLength":5}`, []string{`"b\"d"`, `"abéd"`, `"ax"`, `"b\nd x"`, `"🚢🚢🚢🚢x"`}, []string{`"bd"`, `"b\nd"`, `"xa"`, `"aaaaax"`}},
		{`{"type":"string","pattern":"(?i)^k[^a-c\"]$"}`, []string{`"kd"`, `"Kd"`, `"k\\"`, `"Kd"`, `"k\u0001"`}, []string{`"ka"`, `"kA"`, `"k\""`}},
		{`{"type":"integer","minimum":-3,"exclusiveMaximum":120}`, []string{`-3`, `-1`, `0`, `9`, `99`, `100`, `119`}, []string{`-4`, `120`, `-0`, `1000`, `00`, `1.5`}},
		{`{"type":"integer","minimum":98.5}`, []string{`99`, `12345678901234567890`}, []string{`98`, `-99`, `9`}},
		{`{"type":"number","minimum":0.05,"maximum":2.5}`, []string{`0.05`, `0.051`, `1`, `2.5`, `2.50`, `2.4999`, `1.0`}, []string{`0`, `0.04`, `0.0`, `2.51`, `2.501`, `3`, `1e0`, `-1`, `2.`}},
		{`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1}`, []string{`0.1`, `0.00000001`, `0.999`}, []string{`0`, `0.0`, `1`, `1.0`, `-0`}},
		{`{"type":"number","maximum":-1.5}`, []string{`-1.5`, `-2`, `-1.50`, `-100.25`}, []string{`-1.4`, `-1`, `1`, `0`, `-1.49`}},
		{`{"type":"number"}`, []string{`0`, `-0`, `-1.5e-10`, `1E+9`, `10`}, []string{`01`, `.5`, `1.`, `1e`, `+1`, `NaN`, `1e1234`}},
		{`{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/pair"}],"$defs":{"pair":{"type":"array","items":{"$ref":"#"},"maxItems":2}}}`, []string{`1`, `[]`, `[[1,[2]],3]`}, []string{`[1,2,3]`, `"x"`}},
		{`{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"n":{"type":"integer"}},"required":["kind","n"]},{"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]}]}`, []string{`{"kind":"a","n":1}`, `{"kind":"b"}`}, []string{`{"kind":"a"}`, `{"kind":"b","n":1}`}},
		{`{"properties":{"next":{"$ref":"#"}}}`, []string{`{}`, `{"next":{"next":{}}}`}, []string{`{"next":1}`, `1`}},
		{`true`, []string{`1`, `[{"a\n":[]},null]`, `""`}, []string{``, `[1`, `tru`}},
		{`{"type":"object"}`, []string{`{}`, `{"a":{"b":[1.5,"x",true,null,{}]}}`}, []string{`[]`}},
	} {
		g := compile(t, v, tt.schema)
		for _, text := range tt.yes {
			for range 3 {
				if err := v.takes(g, text, rng); err != nil {
					t.Errorf("%s: %s: %v", tt.schema, text, err)
				}
			}
		}
		for _, text := range tt.not {
			if v.takes(g, text, rng) == nil {
				t.Errorf("%s: %s is taken", tt.schema, text)
			}
		}
	}
}

func TestOnlyTheEndAfterTheEnd(t *testing.T) {
	v := bytesAndPieces(t)
	g := compile(t, v, `{"type":"object","properties":{"a":{"const":true}},"required":["a"]}`).New()
	for _, b := range []byte(`{"a":true}`) {
		if g.Complete() {
			t.Fatal("complete too early")
		}
		g.Accept(int(b))
	}
	if ids := v.allowed(g); !slices.Equal(ids, v.eos) || !g.Complete() {
		t.Errorf("after the value %v may come, want %v", ids, v.eos)
	}
	g.Accept(v.eos[0])
	if ids := v.allowed(g); !slices.Equal(ids, v.eos) {
		t.Errorf("after the end %v may come, want %v", ids, v.eos)
	}
	wrong := compile(t, v, `true`).New()
	wrong.Accept('}')
	if ids := v.allowed(wrong); !slices.Equal(ids, v.eos) {
		t.Errorf("after a token against the mask %v may come, want %v", ids, v.eos)
	}
}

func TestChoiceAndRegex(t *testing.T) {
	v := bytesAndPieces(t)
	rng := rand.New(rand.NewPCG(3, 4))
	choice, err := Choice([]string{"yes", "yes, but", "no\n"}, v)
	if err != nil {
		t.Fatal(err)
	}
	re, err := Regex(`[A-Z]{4}-\d{6}(/\d)?|é+`, v)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		g    *Grammar
		text string
		ok   bool
	}{
		{choice, "yes", true}, {choice, "yes, but", true}, {choice, "no\n", true}, {choice, "no", false}, {choice, "yes,", false}, {choice, "maybe", false},
		{re, "MSKU-702114", true}, {re, "MSKU-702114/3", true}, {re, "éé", true}, {re, "MSKU-70211", false}, {re, "xMSKU-702114", false}, {re, "", false},
	} {
		if err := v.takes(tt.g, tt.text, rng); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.text, err)
		}
	}
	for _, bad := range []func() (*Grammar, error){
		func() (*Grammar, error) { return Choice(nil, v) },
		func() (*Grammar, error) { return Choice([]string{"a", ""}, v) },
		func() (*Grammar, error) { return Regex(`a(?=b)`, v) },
		func() (*Grammar, error) { return Regex(`\bx`, v) },
	} {
		if _, err := bad(); err == nil {
			t.Error("no error")
		}
	}
}

func TestRefusals(t *testing.T) {
	v := bytesAndPieces(t)
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"a/b":{"type":"string","format":"date"}}}`: `"/properties/a~1b": keyword "format"`,
		`{"type":"array","items":{"not":{}}}`:                                      `"/items": keyword "not"`,
		`{"type":"array","uniqueItems":true}`:                                      `keyword "uniqueItems"`,
		`{"type":"strin"}`:                                                         `keyword "type": "strin"`,
		`{"type":"string","minimum":1}`:                                            `keyword "minimum": does not apply`,
		`{"type":"string","minLength":3,"maxLength":2}`:                            `keyword "minLength"`,
		`{"type":"string","minLength":-1}`:                                         `keyword "minLength"`,
		`{"type":"string","pattern":"^a{5}$","maxLength":3}`:                       `keyword "pattern": no text`,
		`{"type":"string","pattern":"(?=a)"}`:                                      `keyword "pattern"`,
		`{"type":"integer","minimum":3,"maximum":2}`:                               `keywords "minimum"`,
		`{"type":"number","minimum":1e999999}`:                                     `keyword "minimum"`,
		`{"type":"integer","multipleOf":2}`:                                        `keyword "multipleOf"`,
		`{"enum":[]}`:                                                              `keyword "enum"`,
		`{"type":"string","enum":[1]}`:                                             `keyword "enum"`,
		`{"const":1,"minimum":0}`:                                                  `keyword "minimum": not supported beside "const"`,
		`{"anyOf":[]}`:                                                             `keyword "anyOf"`,
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:                         `keyword "oneOf": alternatives 0 and 1`,
		`{"anyOf":[` + strings.Repeat(`{},`, maxAlternatives) + `{}]}`:             `keyword "anyOf": has 129 schemas`,
		`{"allOf":[{},{}]}`:                                                        `keyword "allOf"`,
		`{"$ref":"https://example.com/x"}`:                                         `keyword "$ref"`,
		`{"$ref":"#/$defs/missing"}`:                                               `keyword "$ref"`,
		`{"$ref":"#"}`:                                                             `no finite value`,
		`{"anyOf":[{"type":"null"},{"$ref":"#"}]}`:                                 `leads back to itself`,
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`:       `no finite value`,
		`{"type":"object","required":["b"]}`:                                       `keyword "required": "b"`,
		`{"type":"object","patternProperties":{}}`:                                 `keyword "patternProperties"`,
		`false`:                     `false allows no value`,
		`[]`:                        `want an object`,
		`{"type":"object"`:          `reading the schema`,
		`{} {}`:                     `follows its end`,
		`{"title":"a","title":"b"}`: `comes twice`,
		strings.Repeat(`{"items":`, 200) + `{}` + strings.Repeat(`}`, 200):       `nested`,
		`{"type":"string","pattern":"^(a{1000}){1000}$"}`:                        `keyword "pattern"`,
		`{"type":"string","pattern":"^.{900}$|^[^a]{800}$","maxLength":1000000}`: `more than`,
	} {
		if _, err := Compile([]byte(schema), v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: error %v, want one with %s", schema, err, want)
		}
	}
	if _, err := NewVocabulary(nil, nil); err == nil {
		t.Error("a vocabulary without an end is taken")
	}
}

// The rest is a differential test: schemas, values and walks are made at random,
// and a slow validator that knows nothing of automata judges them.

type object = map[string]any

func randomSchema(rng *rand.Rand, depth int) object {
	kinds := 12
	if depth == 0 {
		kinds = 7
	}
	switch rng.IntN(kinds) {
	case 0:
		return object{"type": "null"}
	case 1:
		return object{"type": []any{"boolean", "integer"}}
	case 2:
		s := object{"type": "integer"}
		lo := rng.IntN(2000) - 1000
		if rng.IntN(2) == 0 {
			s["minimum"] = lo
		}
		if rng.IntN(2) == 0 {
			s["exclusiveMaximum"] = lo + 1 + rng.IntN(300)
		}
		return s
	case 3:
		s := object{"type": "number"}
		lo := float64(rng.IntN(400)-200) / 8
		if rng.IntN(2) == 0 {
			s["exclusiveMinimum"] = lo
		}
		if rng.IntN(2) == 0 {
			s["maximum"] = lo + float64(1+rng.IntN(40))/16
		}
		return s
	case 4:
		s := object{"type": "string"}
		lo := rng.IntN(4)
		if rng.IntN(2) == 0 {
			s["minLength"] = lo
		}
		if rng.IntN(2) == 0 {
			s["maxLength"] = lo + rng.IntN(12)
		}
		return s
	case 5:
		return object{"enum": []any{"a", "ab\n", "é🚢", 12, nil, true}[rng.IntN(4):]}
	case 6:
		return object{"type": "string", "pattern": []string{`^[a-z]{1,3}$`, `\d`, `^(yes|no)`, `é.?$`, `^[^x]*$`}[rng.IntN(5)], "maxLength": 2 + rng.IntN(8)}
	case 7:
		lo := rng.IntN(3)
		return object{"type": "array", "items": randomSchema(rng, depth-1), "minItems": lo, "maxItems": lo + rng.IntN(4)}
	case 8:
		return object{"anyOf": []any{randomSchema(rng, depth-1), randomSchema(rng, depth-1)}}
	case 9:
		return object{"type": "array", "prefixItems": []any{randomSchema(rng, depth-1), randomSchema(rng, 0)}, "items": randomSchema(rng, 0)}
	}
	props, required := object{}, []any{}
	for _, name := range []string{"a", "ab", "name", "é\""}[rng.IntN(3):] {
		props[name] = randomSchema(rng, depth-1)
		if rng.IntN(2) == 0 {
			required = append(required, name)
		}
	}
	s := object{"type": "object", "properties": props, "required": required}
	if rng.IntN(3) == 0 {
		s["additionalProperties"] = randomSchema(rng, 0)
	}
	return s
}

// valid judges a decoded value.
func valid(s object, v any) bool {
	if list, ok := s["anyOf"].([]any); ok {
		return slices.ContainsFunc(list, func(one any) bool { return valid(one.(object), v) })
	}
	if list, ok := s["enum"].([]any); ok {
		return slices.ContainsFunc(list, func(one any) bool { return text(one) == text(v) })
	}
	names, ok := s["type"].([]any)
	if !ok {
		names = []any{s["type"]}
	}
	if !slices.ContainsFunc(names, func(n any) bool { return typeFits(n.(string), v) }) {
		return false
	}
	number := func(key string, judge func(cmp int) bool, x *big.Rat) bool {
		bound, ok := s[key]
		if !ok {
			return true
		}
		b, _ := new(big.Rat).SetString(fmt.Sprint(bound))
		return judge(x.Cmp(b))
	}
	switch v := v.(type) {
	case json.Number:
		x, _ := new(big.Rat).SetString(v.String())
		return number("minimum", func(c int) bool { return c >= 0 }, x) && number("maximum", func(c int) bool { return c <= 0 }, x) &&
			number("exclusiveMinimum", func(c int) bool { return c > 0 }, x) && number("exclusiveMaximum", func(c int) bool { return c < 0 }, x)
	case string:
		n := big.NewRat(int64(utf8.RuneCountInString(v)), 1)
		if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			return false
		}
		return number("minLength", func(c int) bool { return c >= 0 }, n) && number("maxLength", func(c int) bool { return c <= 0 }, n)
	case []any:
		n := big.NewRat(int64(len(v)), 1)
		prefix, _ := s["prefixItems"].([]any)
		for i, item := range v {
			one, _ := s["items"].(object)
			if i < len(prefix) {
				one = prefix[i].(object)
			}
			if !valid(one, item) {
				return false
			}
		}
		return number("minItems", func(c int) bool { return c >= 0 }, n) && number("maxItems", func(c int) bool { return c <= 0 }, n)
	case object:
		for _, name := range s["required"].([]any) {
			if _, ok := v[name.(string)]; !ok {
				return false
			}
		}
		for name, inner := range v {
			one, ok := s["properties"].(object)[name].(object)
			if !ok {
				if one, ok = s["additionalProperties"].(object); !ok {
					return false
				}
			}
			if !valid(one, inner) {
				return false
			}
		}
	}
	return true
}

func typeFits(name string, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case json.Number:
		return name == "number" || name == "integer" && !strings.ContainsAny(v.String(), ".eE")
	case string:
		return name == "string"
	case []any:
		return name == "array"
	}
	return name == "object"
}

// text is JSON with members by name, which is also the order that the schemas of
// this test have their properties in.
func text(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

// randomValue makes a valid value, or not when it finds none.
func randomValue(rng *rand.Rand, s object) (any, bool) {
	if list, ok := s["anyOf"].([]any); ok {
		return randomValue(rng, list[rng.IntN(len(list))].(object))
	}
	if list, ok := s["enum"].([]any); ok {
		return list[rng.IntN(len(list))], true
	}
	name, ok := s["type"].(string)
	if !ok {
		return []any{true, false, json.Number("7")}[rng.IntN(3)], true
	}
	n := 0
	if lo, ok := s["minItems"].(int); ok {
		n = lo
	}
	for range 200 {
		var v any
		switch name {
		case "null":
		case "integer":
			v = json.Number(fmt.Sprint(rng.IntN(3000) - 1500))
		case "number":
			v = json.Number(strings.TrimPrefix(fmt.Sprintf("%.*f", rng.IntN(5), rng.Float64()*60-30), ""))
			if x, _ := v.(json.Number).Float64(); x == 0 && strings.HasPrefix(v.(json.Number).String(), "-") {
				continue // -0 is not written where there are bounds
			}
		case "string":
			var b strings.Builder
			for range rng.IntN(12) {
				b.WriteString([]string{"a", "z", "é", "🚢", "1", "\"", "\\", "\n", "\x01", "yes", " "}[rng.IntN(11)])
			}
			v = b.String()
		case "array":
			list := []any{}
			prefix, _ := s["prefixItems"].([]any)
			for i := range n + rng.IntN(4) {
				one, _ := s["items"].(object)
				if i < len(prefix) {
					one = prefix[i].(object)
				}
				item, ok := randomValue(rng, one)
				if !ok {
					return nil, false
				}
				list = append(list, item)
			}
			v = list
		case "object":
			o := object{}
			for name, one := range s["properties"].(object) {
				if rng.IntN(2) == 0 || slices.Contains(s["required"].([]any), any(name)) {
					item, ok := randomValue(rng, one.(object))
					if !ok {
						return nil, false
					}
					o[name] = item
				}
			}
			if one, ok := s["additionalProperties"].(object); ok {
				if item, ok := randomValue(rng, one); ok {
					o["ô"] = item // after all properties in order
				}
			}
			v = o
		}
		if valid(s, v) {
			return v, true
		}
	}
	return nil, false
}

func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil && d.More() {
		err = fmt.Errorf("more follows")
	}
	return v, err
}

func TestDifferential(t *testing.T) {
	v := bytesAndPieces(t)
	rng := rand.New(rand.NewPCG(5, 6))
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	walks, finished, reached := 0, 0, 0
	for range rounds {
		s := randomSchema(rng, 2)
		schema := text(s)
		g, err := Compile([]byte(schema), v)
		if err != nil {
			t.Fatalf("%s: %v", schema, err)
		}
		for range 4 {
			walks++
			out, ok := walk(t, v, g, rng)
			if !ok {
				continue
			}
			finished++
			value, err := decode(out)
			if err != nil || !utf8.Valid(out) {
				t.Fatalf("%s: wrote %q: %v", schema, out, err)
			}
			if !valid(s, value) {
				t.Fatalf("%s: wrote %s, which is not valid", schema, out)
			}
			// What is taken after a change must still be valid.
			changed := slices.Clone(out)
			changed[rng.IntN(len(changed))] = []byte(`{}[]",:0123 ae\n`)[rng.IntN(16)]
			if v.takes(g, string(changed), rng) == nil {
				if value, err := decode(changed); err != nil || !valid(s, value) {
					t.Fatalf("%s: takes %s", schema, changed)
				}
			}
		}
		for range 4 {
			if value, ok := randomValue(rng, s); ok {
				reached++
				if err := v.takes(g, text(value), rng); err != nil {
					t.Fatalf("%s: %s: %v", schema, text(value), err)
				}
			}
		}
	}
	if finished < walks/2 || reached < rounds {
		t.Errorf("%d of %d walks finished, %d values tried: the test says little", finished, walks, reached)
	}
}

// walk takes allowed tokens at random, in the end those that close.
func walk(t *testing.T, v *Vocabulary, g *Grammar, rng *rand.Rand) ([]byte, bool) {
	guide := g.New()
	var out []byte
	for step := range 300 {
		ids := v.allowed(guide)
		if len(ids) == 0 {
			t.Fatalf("after %q nothing is allowed", out)
		}
		id := ids[rng.IntN(len(ids))]
		if step > 30 {
			for _, c := range []int{v.eos[0], '}', ']', '"'} {
				if slices.Contains(ids, c) {
					id = c
					break
				}
			}
		}
		if id == v.eos[0] {
			return out, true
		}
		guide.Accept(id)
		out = append(out, v.tokens[id]...)
	}
	return nil, false
}

func TestForgettingKeepsGuides(t *testing.T) {
	v := bytesAndPieces(t)
	g, err := JSONObject(v)
	if err != nil {
		t.Fatal(err)
	}
	guide := g.New()
	for i, b := range []byte(`{"a":[[[1,{"b":2}]],"x"]}`) {
		if !slices.Contains(v.allowed(guide), int(b)) {
			t.Fatalf("byte %d is not allowed", i)
		}
		g.lazy.mu.Lock()
		g.lazy.forget()
		g.lazy.mu.Unlock()
		guide.Accept(int(b))
	}
	if !guide.Complete() {
		t.Error("not complete")
	}
}

func TestGrammarsAreKept(t *testing.T) {
	v := bytesAndPieces(t)
	first := compile(t, v, `{"const":0}`)
	for i := range keepGrammars + 5 {
		compile(t, v, fmt.Sprintf(`{"const":%d}`, i))
		if compile(t, v, `{"const":0}`) != first {
			t.Fatal("a schema in use was compiled again")
		}
	}
	if len(v.grammars) != keepGrammars || len(v.order) != keepGrammars {
		t.Errorf("%d grammars are kept, want %d", len(v.grammars), keepGrammars)
	}
}

func TestTokenizerVocabulary(t *testing.T) {
	b, err := os.ReadFile("../../../model/tokenizer/testdata/llama3.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	end, ok := tok.ID("<|eot_id|>")
	if !ok {
		t.Fatal("no end")
	}
	v, err := TokenizerVocabulary(tok, []int{end})
	if err != nil {
		t.Fatal(err)
	}
	g := compile(t, v, `{"type":"object","properties":{"port":{"type":"string"}},"required":["port"]}`)
	guide := g.New()
	for _, id := range tok.Encode(`{"port": "Rotterdam é"}`, false) {
		if !slices.Contains(v.allowed(guide), id) {
			t.Fatalf("token %q is not allowed", tok.Bytes(id))
		}
		guide.Accept(id)
	}
	if ids := v.allowed(guide); !slices.Equal(ids, []int{end}) {
		t.Errorf("%v may come at the end", ids)
	}
	for id := range tok.Size() {
		if tok.Special(id) && id != end && v.tokens[id] != nil {
			t.Errorf("special token %d is allowed", id)
		}
	}
}

func TestMaskAllocates(t *testing.T) {
	v := bytesAndPieces(t)
	guide := compile(t, v, `{"type":"object"}`).New()
	logits := make([]float32, len(v.tokens))
	guide.Mask(logits)
	if n := testing.AllocsPerRun(100, func() { guide.Mask(logits) }); n != 0 {
		t.Errorf("%v allocations for a mask that is known", n)
	}
}

func FuzzCompile(f *testing.F) {
	v := bytesAndPieces(f)
	for _, s := range []string{
		`{"type":"object","properties":{"a":{"type":"integer","minimum":-3.5}},"additionalProperties":{"$ref":"#"}}`,
		`{"anyOf":[{"type":"string","pattern":"^a|b$","maxLength":4},{"enum":[1,"x",{}]}]}`,
		`{"type":"array","prefixItems":[{}],"items":false,"minItems":1}`,
		`{"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, schema []byte, seed uint64) {
		g, err := Compile(schema, v)
		if err != nil {
			return
		}
		if out, ok := walk(t, v, g, rand.New(rand.NewPCG(seed, 0))); ok && !json.Valid(out) {
			t.Errorf("%s: wrote %q", schema, out)
		}
	})
}

// synthetic is a vocabulary of n tokens that look like those of large models.
func synthetic(b *testing.B, n int) *Vocabulary {
	b.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	seen := make(map[string]bool)
	var tokens [][]byte
	add := func(s string) {
		if !seen[s] {
			seen[s] = true
			tokens = append(tokens, []byte(s))
		}
	}
	for c := range 256 {
		add(string([]byte{byte(c)}))
	}
	for _, a := range []string{`{"`, `":`, `",`, `"}`, `: `, `, `, `":"`, `","`} {
		add(a)
	}
	for len(tokens) < n-1 {
		var s strings.Builder
		if rng.IntN(2) == 0 {
			s.WriteByte(' ')
		}
		for range 1 + rng.IntN(9) {
			if rng.IntN(40) == 0 {
				s.WriteString([]string{"é", "中", "\"", "1", "}", "."}[rng.IntN(6)])
			} else {
				s.WriteByte("etaoinshrdlucmfwypvbgkqjxz"[min(rng.IntN(26), rng.IntN(26))])
			}
		}
		add(s.String())
	}
	v, err := NewVocabulary(append(tokens, nil), []int{n - 1})
	if err != nil {
		b.Fatal(err)
	}
	return v
}

func BenchmarkMask(b *testing.B) {
	const schema = `{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string","maxLength":200},"tags":{"type":"array","items":{"type":"string"},"maxItems":8}},"required":["id","name","tags"]}`
	vocabularies := map[string]*Vocabulary{"32k": synthetic(b, 32_000), "150k": synthetic(b, 150_000)}
	tok, err := tokenizer.Load("../../../examples/freight/weights")
	if err != nil {
		b.Fatal(err)
	}
	if vocabularies["freight"], err = TokenizerVocabulary(tok, []int{0}); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"freight", "32k", "150k"} {
		v := vocabularies[name]
		g, err := Compile([]byte(schema), v)
		if err != nil {
			b.Fatal(err)
		}
		logits := make([]float32, len(v.tokens))
		inside := g.New()
		for _, c := range []byte(`{"id":12,"name":"Rotter`) {
			for id, t := range v.tokens {
				if len(t) == 1 && t[0] == c {
					inside.Accept(id)
					break
				}
			}
		}
		b.Run(name+"/known", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				inside.Mask(logits)
			}
		})
		b.Run(name+"/new", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g.lazy.walk(inside.at)
			}
		})
		b.Run(name+"/first", func(b *testing.B) { // of a grammar: states and mask
			b.ReportAllocs()
			for b.Loop() {
				clear(v.grammars)
				v.order = nil
				g, err := Compile([]byte(schema), v)
				if err != nil {
					b.Fatal(err)
				}
				g.New().Mask(logits)
			}
		})
	}
}
