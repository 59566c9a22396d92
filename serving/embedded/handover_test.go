package embedded

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// peer serves an engine whose own address is known before it starts.
func peer(t *testing.T, role string, o Options) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.ModelDir, o.Name, o.KVTransfer = modelDir, "tiny", KVTransfer{Role: role, Address: l.Addr().String()}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h := &httptest.Server{Listener: l, Config: &http.Server{Handler: s}}
	h.Start()
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, h.URL
}

func heldBlocks(t *testing.T, s *Server) int {
	t.Helper()
	var n int
	if err := s.onLoop(func(time.Duration) error { n = s.loop.core.Stats().HeldBlocks; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// A router's two legs: the decode engine computes one token of the prompt, and the
// answer is that of one engine alone.
func TestHandOver(t *testing.T) {
	prefill, from := peer(t, "kv_producer", Options{})
	decode, to := peer(t, "kv_consumer", Options{})
	_, alone := serve(t, Options{})
	var ids []string
	for i := range 70 {
		ids = append(ids, fmt.Sprint(3+i*3))
	}
	body := func(max int, extra string) string {
		return fmt.Sprintf(`{"prompt":[%s],"max_tokens":%d,"temperature":0,"ignore_eos":true%s}`, strings.Join(ids, ","), max, extra)
	}
	want := ask[openai.CompletionResponse](t, alone+"/v1/completions", body(20, ""))

	leg := ask[openai.CompletionResponse](t, from+"/v1/completions", body(1, `,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}`))
	kv := leg.KVTransferParams
	if kv == nil || !kv.DoRemotePrefill || kv.DoRemoteDecode || kv.RemoteRequestID == nil || len(kv.RemoteBlockIDs) != 5 || *kv.RemoteHost != "127.0.0.1" || *kv.TPSize != 1 {
		t.Fatalf("params %+v", kv)
	}
	if n := heldBlocks(t, prefill); n != 5 {
		t.Errorf("%d blocks are held", n)
	}
	params, err := json.Marshal(kv)
	if err != nil {
		t.Fatal(err)
	}
	got := ask[openai.CompletionResponse](t, to+"/v1/completions", body(20, `,"kv_transfer_params":`+string(params)))
	if got.Choices[0].Text != want.Choices[0].Text || got.Usage.PromptTokensDetails.CachedTokens != 69 {
		t.Errorf("answered %q with %+v, want %q", got.Choices[0].Text, got.Usage, want.Choices[0].Text)
	}
	if n := heldBlocks(t, prefill); n != 0 {
		t.Errorf("%d blocks are still held", n)
	}
	// They are gone now, and another prompt's would not fit: both are computed here.
	again := ask[openai.CompletionResponse](t, to+"/v1/completions", body(20, `,"cache_salt":"other","kv_transfer_params":`+string(params)))
	if again.Choices[0].Text != want.Choices[0].Text || again.Usage.PromptTokensDetails.CachedTokens != 0 {
		t.Errorf("without the keys and values: %q, %+v", again.Choices[0].Text, again.Usage)
	}
	if _, metrics := get(t, to+"/metrics"); !strings.Contains(metrics, `vllm:nixl_num_failed_transfers_total{engine="0",model_name="tiny"} 1`) ||
		!strings.Contains(metrics, `vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 69`) {
		t.Error("the metrics tell nothing of it")
	}
	_ = decode
}

// Keys and values of another prompt are used as far as the prompts are the same.
func TestHandOverOfAnotherPrompt(t *testing.T) {
	_, both := peer(t, "kv_both", Options{})
	leg := ask[openai.CompletionResponse](t, both+"/v1/completions", `{"prompt":[5,6,7,8,9,10],"max_tokens":1,"cache_salt":"a","kv_transfer_params":{"do_remote_decode":true}}`)
	params, err := json.Marshal(leg.KVTransferParams)
	if err != nil {
		t.Fatal(err)
	}
	_, alone := serve(t, Options{})
	const body = `{"prompt":[5,6,7,100,101,102],"max_tokens":8,"temperature":0,"ignore_eos":true`
	want := ask[openai.CompletionResponse](t, alone+"/v1/completions", body+`}`)
	got := ask[openai.CompletionResponse](t, both+"/v1/completions", body+`,"kv_transfer_params":`+string(params)+`}`)
	if got.Choices[0].Text != want.Choices[0].Text || got.Usage.PromptTokensDetails.CachedTokens != 3 {
		t.Errorf("answered %q with %+v, want %q", got.Choices[0].Text, got.Usage.PromptTokensDetails, want.Choices[0].Text)
	}
}

// Keys and values computed with an adapter are no use without it.
func TestHandOverOfAnotherAdapter(t *testing.T) {
	dir := writeAdapter(t, 4, 0.5)
	o := Options{LoRA: LoRA{Max: 1, Modules: map[string]string{"a": dir}}}
	_, both := peer(t, "kv_both", o)
	const body = `{"prompt":[5,6,7,8,9,10],"max_tokens":8,"temperature":0,"ignore_eos":true,"cache_salt":"other"`
	leg := ask[openai.CompletionResponse](t, both+"/v1/completions", `{"model":"a","prompt":[5,6,7,8,9,10],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`)
	params, err := json.Marshal(leg.KVTransferParams)
	if err != nil {
		t.Fatal(err)
	}
	_, alone := serve(t, Options{})
	want := ask[openai.CompletionResponse](t, alone+"/v1/completions", body+`}`)
	got := ask[openai.CompletionResponse](t, both+"/v1/completions", body+`,"kv_transfer_params":`+string(params)+`}`)
	if got.Choices[0].Text != want.Choices[0].Text || got.Usage.PromptTokensDetails.CachedTokens != 0 {
		t.Errorf("answered %q with %+v, want %q", got.Choices[0].Text, got.Usage.PromptTokensDetails, want.Choices[0].Text)
	}
}

func TestHandOverRefusals(t *testing.T) {
	_, producer := peer(t, "kv_producer", Options{})
	for body, want := range map[string]string{
		`{"do_remote_decode":true,"do_remote_prefill":true}`: "exclude each other",
		`{"do_remote_prefill":true}`:                         "takes nothing",
		`{"do_remote_decode":true,"unheard":1}`:              "unheard",
	} {
		if status, _, b := post(t, producer+"/v1/completions", `{"prompt":"a","max_tokens":1,"kv_transfer_params":`+body+`}`); status != 400 || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
	if status, _, b := post(t, producer+"/v1/completions", `{"prompt":"a","max_tokens":1,"n":2,"temperature":1,"kv_transfer_params":{"do_remote_decode":true}}`); status != 400 || !strings.Contains(string(b), "one answer") {
		t.Errorf("two answers: %d %s", status, b)
	}
	if status, _ := get(t, producer+"/kv/nothing"); status != 404 {
		t.Errorf("what is not kept: %d", status)
	}
	for _, k := range []KVTransfer{{Role: "prefill"}, {Role: "kv_both", Address: "here"}, {Role: "kv_producer", Address: "h:0"}} {
		if _, err := New(Options{ModelDir: modelDir, KVTransfer: k}); err == nil {
			t.Errorf("accepted %+v", k)
		}
	}
}

// Whoever does not come to fetch loses what was kept when the engine sleeps or the
// client leaves; here nobody holds it to ransom.
func TestHeldBlocksAreReleased(t *testing.T) {
	s, url := peer(t, "kv_producer", Options{})
	leg := ask[openai.CompletionResponse](t, url+"/v1/completions", `{"prompt":[5,6,7,8,9,10],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`)
	if n := heldBlocks(t, s); n != 1 {
		t.Fatalf("%d blocks are held", n)
	}
	s.unhold(*leg.KVTransferParams.RemoteRequestID)
	if n := heldBlocks(t, s); n != 0 {
		t.Errorf("%d blocks are still held", n)
	}
}

func FuzzCutPrompt(f *testing.F) {
	f.Add(addPrompt("a", []int{1, 2, 3}, []byte("rest")))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		adapter, ids, rest, err := cutPrompt(b)
		if err == nil && !slices.Equal(addPrompt(adapter, ids, rest), b) {
			t.Errorf("%x becomes %x", b, addPrompt(adapter, ids, rest))
		}
	})
}

var _ core.Executor = computed{}
