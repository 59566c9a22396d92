package openai

import (
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestPrompt(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Prompt
		out  string // "": as in
	}{
		{`"hi"`, Prompt{Texts: []string{"hi"}}, ""},
		{`["a","b"]`, Prompt{Texts: []string{"a", "b"}}, ""},
		{`["a"]`, Prompt{Texts: []string{"a"}}, `"a"`},
		{`[1,2]`, Prompt{Tokens: [][]int{{1, 2}}}, ""},
		{`[[1],[2,3]]`, Prompt{Tokens: [][]int{{1}, {2, 3}}}, ""},
	} {
		var p Prompt
		if err := json.Unmarshal([]byte(tt.in), &p); err != nil {
			t.Fatalf("%s: %v", tt.in, err)
		}
		if !reflect.DeepEqual(p, tt.want) {
			t.Errorf("%s: got %+v", tt.in, p)
		}
		b, err := json.Marshal(p)
		if err != nil || string(b) != cmp.Or(tt.out, tt.in) {
			t.Errorf("%s: marshalled %s, %v", tt.in, b, err)
		}
	}
	for _, in := range []string{`{}`, `5`, `[]`, `[1,"a"]`, `["a",1]`, `[[1],2]`, `[1.5]`, `[true]`, `null`} {
		var p Prompt
		if err := p.UnmarshalJSON([]byte(in)); err == nil {
			t.Errorf("%s was accepted as %+v", in, p)
		}
	}
	if _, err := json.Marshal(Prompt{Texts: []string{"a"}, Tokens: [][]int{{1}}}); err == nil {
		t.Error("a prompt of texts and tokens was marshalled")
	}
}

func TestContentAndStop(t *testing.T) {
	var m Message
	if err := json.Unmarshal([]byte(`{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},{"type":"text","text":"b"}]}`), &m); err != nil {
		t.Fatal(err)
	}
	if m.Content.String() != "ab" || len(m.Content.Parts) != 3 || m.Content.Parts[1].Type != "image_url" {
		t.Errorf("got %+v", m.Content)
	}
	for _, in := range []string{`"x"`, `null`, `[{"type":"text","text":"x"}]`} {
		var c Content
		if err := json.Unmarshal([]byte(in), &c); err != nil {
			t.Fatal(err)
		}
		if b, err := json.Marshal(c); err != nil || string(b) != in {
			t.Errorf("%s came back as %s, %v", in, b, err)
		}
	}
	for in, want := range map[string]Stop{`"a"`: {"a"}, `["a","b"]`: {"a", "b"}, `null`: nil} {
		var s Stop
		if err := json.Unmarshal([]byte(in), &s); err != nil || !reflect.DeepEqual(s, want) {
			t.Errorf("stop %s: %v, %v", in, s, err)
		}
	}
	var s Stop
	if err := json.Unmarshal([]byte(`7`), &s); err == nil {
		t.Error("a number was accepted as stop")
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct{ name, in, param, code, msg string }{
		{"unknown field", `{"model":"m","messages":[],"temprature":0}`, "temprature", "unknown_field", "unknown field temprature"},
		{"wrong case", `{"model":"m","Temperature":0}`, "Temperature", "unknown_field", ""},
		{"duplicate", `{"model":"a","model":"b"}`, "model", "duplicate_field", ""},
		{"nested unknown", `{"stream_options":{"usage":true}}`, "usage", "unknown_field", ""},
		{"wrong type", `{"max_tokens":"5"}`, "max_tokens", "", "cannot be string"},
		{"trailing", `{"model":"m"} {}`, "", "", "after the JSON object"},
		{"empty", ``, "", "", "is empty"},
		{"cut", `{"model":"m`, "", "", "not valid JSON"},
		{"not an object", `[]`, "", "", ""},
		{"null", `null`, "", "", "not a JSON object"},
	} {
		var r ChatRequest
		err := Decode(strings.NewReader(tt.in), &r)
		var api *Error
		if !errors.As(err, &api) {
			t.Errorf("%s: error %v", tt.name, err)
			continue
		}
		if api.Param != tt.param || string(api.Code) != tt.code || !strings.Contains(api.Message, tt.msg) || api.Type != TypeInvalid {
			t.Errorf("%s: got %+v", tt.name, api)
		}
	}
	var r ChatRequest
	if err := Decode(strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}],"top_k":3,"ignore_eos":true,"max_tokens":4,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`), &r); err != nil {
		t.Fatal(err)
	}
	if n, ok := r.Limit(); r.Model != "m" || *r.TopK != 3 || !r.IgnoreEOS || n != 4 || !ok || !r.StreamOptions.ContinuousUsageStats {
		t.Errorf("got %+v", r)
	}
}

func TestErrorBody(t *testing.T) {
	b, err := json.Marshal(&Error{Message: "no", Type: TypeInvalid, Param: "n"})
	if want := `{"code":null,"message":"no","param":"n","type":"invalid_request_error"}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v", b, err)
	}
	var e Error
	if err := json.Unmarshal([]byte(`{"message":"m","code":404,"param":null}`), &e); err != nil || e.Code != "404" {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestDeltaToken(t *testing.T) {
	for in, want := range map[string]bool{
		`{"role":"assistant"}`: false, `{"role":"assistant","content":""}`: false, `{}`: false,
		`{"content":"a"}`: true, `{"reasoning":"a"}`: true, `{"reasoning_content":"a"}`: true, `{"refusal":"no"}`: true,
		`{"tool_calls":null}`: false, `{"tool_calls":[]}`: false, `{"tool_calls":[{"index":0}]}`: true,
	} {
		var d Delta
		if err := json.Unmarshal([]byte(in), &d); err != nil {
			t.Fatal(err)
		}
		if d.Token() != want {
			t.Errorf("%s: %v", in, d.Token())
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":"x"}],"stop":["a"]}`)
	f.Add(`{"model":"m","prompt":[[1,2],[3]]}`)
	f.Fuzz(func(t *testing.T, in string) {
		var r CompletionRequest
		if Decode(strings.NewReader(in), &r) != nil {
			return
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%q decoded and does not encode: %v", in, err)
		}
		var again CompletionRequest
		if err := Decode(strings.NewReader(string(b)), &again); err != nil && r.Prompt.Len() > 0 {
			t.Fatalf("%q became %s, refused: %v", in, b, err)
		}
	})
}
