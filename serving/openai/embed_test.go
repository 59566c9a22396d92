package openai

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestEmbeddingRequest(t *testing.T) {
	for body, want := range map[string]Prompt{
		`{"model":"m","input":"a"}`:       {Texts: []string{"a"}},
		`{"model":"m","input":["a","b"]}`: {Texts: []string{"a", "b"}},
		`{"model":"m","input":[1,2]}`:     {Tokens: [][]int{{1, 2}}},
		`{"model":"m","input":[[1],[2]]}`: {Tokens: [][]int{{1}, {2}}},
	} {
		var r EmbeddingRequest
		if err := Decode(strings.NewReader(body), &r); err != nil || !reflect.DeepEqual(r.Input.Prompt, want) {
			t.Errorf("%s: %+v, %v", body, r.Input, err)
		}
		b, err := json.Marshal(&r)
		if err != nil || string(b) != body {
			t.Errorf("%s: written as %s, %v", body, b, err)
		}
	}
	for body, want := range map[string]string{
		`{"input":{}}`:          "input must be a string",
		`{"input":[]}`:          "input is an empty list",
		`{"input":"a","top":1}`: "top",
	} {
		var r EmbeddingRequest
		if err := Decode(strings.NewReader(body), &r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", body, err, want)
		}
	}
}

func TestVector(t *testing.T) {
	values := []float32{0, -1.5, 3.4028235e38, 1e-45}
	for _, v := range []Vector{{Values: values}, {values, true}} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back Vector
		if err := json.Unmarshal(b, &back); err != nil || back.Base64 != v.Base64 || !slices.Equal(back.Values, values) {
			t.Errorf("%s came back as %+v, %v", b, back, err)
		}
	}
	if b, _ := json.Marshal(Vector{[]float32{1}, true}); string(b) != `"AACAPw=="` {
		t.Errorf("base64 of 1 is %s", b)
	}
	for _, bad := range []string{`"AAA="`, `"?"`, `{}`, `["a"]`, `3`} {
		if err := json.Unmarshal([]byte(bad), new(Vector)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestDocumentsAndTexts(t *testing.T) {
	var r RerankRequest
	if err := Decode(strings.NewReader(`{"query":"q","documents":["a",{"text":"b"},""]}`), &r); err != nil || !slices.Equal(r.Documents, []Document{{"a"}, {"b"}, {""}}) {
		t.Errorf("documents %v, %v", r.Documents, err)
	}
	for _, bad := range []string{`[1]`, `[null]`, `[{"image":"x"}]`, `[{"text":1}]`} {
		if err := Decode(strings.NewReader(`{"query":"q","documents":`+bad+`}`), &r); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	var s ScoreRequest
	if err := Decode(strings.NewReader(`{"text_1":"a","text_2":["b","c"]}`), &s); err != nil || len(s.Text1) != 1 || len(s.Text2) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := Decode(strings.NewReader(`{"text_1":1}`), &s); err == nil {
		t.Error("a number is taken for a text")
	}
}

func TestEmbeddingsAndRerank(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/embeddings":
			var q EmbeddingRequest
			if err := Decode(r.Body, &q); err != nil || q.EncodingFormat != FormatBase64 {
				t.Errorf("%+v, %v", q, err)
			}
			_, _ = w.Write([]byte(`{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":"AACAPw=="}],"usage":{"prompt_tokens":3,"total_tokens":3}}`))
		case "/v1/rerank":
			_, _ = w.Write([]byte(`{"id":"rerank-1","model":"m","results":[{"index":1,"relevance_score":0.5,"document":{"text":"b"}}]}`))
		}
	})
	e, _, err := c.Embeddings(t.Context(), &EmbeddingRequest{Model: "m", Input: Input{Prompt{Texts: []string{"a"}}}, EncodingFormat: FormatBase64})
	if err != nil || len(e.Data) != 1 || !slices.Equal(e.Data[0].Embedding.Values, []float32{1}) || e.Usage.PromptTokens != 3 {
		t.Errorf("%+v, %v", e, err)
	}
	r, _, err := c.Rerank(t.Context(), &RerankRequest{Query: "q", Documents: []Document{{"a"}, {"b"}}})
	if err != nil || len(r.Results) != 1 || r.Results[0].Index != 1 || r.Results[0].Document.Text != "b" {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzVector(f *testing.F) {
	f.Add([]byte(`[1,2.5]`))
	f.Add([]byte(`"AACAPw=="`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v Vector
		if json.Unmarshal(b, &v) != nil {
			return
		}
		v.Base64 = true
		out, err := json.Marshal(v)
		var back Vector
		if err != nil || json.Unmarshal(out, &back) != nil || len(back.Values) != len(v.Values) {
			t.Errorf("%s: %s, %v", b, out, err)
		}
	})
}
