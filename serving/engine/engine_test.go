package engine

import (
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"llmops/fleet"
)

var argvs = flag.String("argvs", "", "write what TestFlags tests to this folder, for bench/engines/parse.py")

func base(kind string) Serve {
	s := Serve{Kind: kind, Alias: "freight", Version: "v1", Dir: "/m", Replicas: 2}
	if kind == "llamacpp" {
		s.Dir = "/m/freight.gguf"
	}
	return s
}

// options one at a time, each with what it cannot do without.
var each = map[string]func(*Serve){
	"fault":                  func(s *Serve) { s.Fault = "slow:by=2" },
	"role":                   func(s *Serve) { s.Role = Prefill },
	"tensor_parallel":        func(s *Serve) { s.TensorParallel = 4 },
	"pipeline_parallel":      func(s *Serve) { s.PipelineParallel = 2 },
	"max_model_len":          func(s *Serve) { s.MaxModelLen = 8192; s.MaxNumSeqs = 64 },
	"max_num_seqs":           func(s *Serve) { s.MaxNumSeqs = 64 },
	"max_num_batched_tokens": func(s *Serve) { s.MaxNumBatchedTokens = 2048 },
	"kv_cache bf16":          func(s *Serve) { s.KVDtype = BF16 },
	"kv_cache f16":           func(s *Serve) { s.KVDtype = F16 },
	"kv_cache fp8":           func(s *Serve) { s.KVDtype = FP8 },
	"kv_cache int8":          func(s *Serve) { s.KVDtype = INT8 },
	"kv_cache nvfp4":         func(s *Serve) { s.KVDtype = NVFP4 },
	"kv_offload":             func(s *Serve) { s.KVOffload = 64 << 30 },
	"quantise":               func(s *Serve) { s.Quantise = "fp8" },
	"lora.modules":           func(s *Serve) { s.LoRA.Modules = map[string]string{"b": "/l/b", "a": "/l/a"} },
	"lora.max":               func(s *Serve) { s.LoRA.Max = 4 },
	"lora.max_rank":          func(s *Serve) { s.LoRA.MaxRank = 32 },
	"lora.runtime":           func(s *Serve) { s.LoRA.Runtime = true; s.LoRA.Modules = map[string]string{"a": "/l/a"} },
	"sleep":                  func(s *Serve) { s.Sleep = true },
	"speculative ngram":      func(s *Serve) { s.Speculative = Speculative{Method: "ngram", Tokens: 4} },
	"speculative draft":      func(s *Serve) { s.Speculative = Speculative{Method: "draft", Model: "/d", Tokens: 4} },
	"speculative eagle3":     func(s *Serve) { s.Speculative = Speculative{Method: "eagle3", Model: "/d", Tokens: 4} },
	"speculative mtp":        func(s *Serve) { s.Speculative = Speculative{Method: "mtp", Tokens: 1} },
	"speculative.max_batch": func(s *Serve) {
		s.MaxNumSeqs = 64
		s.Speculative = Speculative{Method: "ngram", Tokens: 4, MaxBatch: 8}
	},
	"drain": func(s *Serve) { s.Drain = 9 * time.Second },
}

// refused are the options that an engine does not have, in its newest release.
var refused = map[string][]string{
	"embedded": {"kv_cache f16", "kv_cache int8", "kv_cache nvfp4", "kv_offload", "pipeline_parallel", "quantise",
		"speculative draft", "speculative eagle3", "speculative mtp", "speculative ngram", "speculative.max_batch", "tensor_parallel"},
	"vllm":   {"fault", "kv_cache int8"},
	"sglang": {"fault", "kv_cache f16", "kv_cache int8", "kv_cache nvfp4", "speculative.max_batch"},
	"trtllm": {"fault", "kv_cache bf16", "kv_cache f16", "kv_cache int8", "quantise", "role", "sleep"},
	"llamacpp": {"drain", "fault", "kv_cache fp8", "kv_cache nvfp4", "lora.max", "lora.max_rank", "lora.runtime", "quantise", "role", "sleep",
		"speculative.max_batch"},
	"tgi": {"fault", "kv_cache bf16", "kv_cache f16", "kv_cache int8", "kv_cache nvfp4", "kv_offload", "lora.max", "lora.max_rank",
		"lora.runtime", "pipeline_parallel", "role", "sleep", "speculative draft", "speculative eagle3", "speculative mtp", "speculative.max_batch"},
	"ollama": {"drain", "fault", "kv_cache bf16", "kv_cache fp8", "kv_cache nvfp4", "kv_offload", "lora.max", "lora.max_rank", "lora.modules",
		"lora.runtime", "max_num_batched_tokens", "quantise", "role", "speculative draft", "speculative eagle3", "speculative mtp", "speculative ngram",
		"speculative.max_batch", "tensor_parallel"},
}

// An option is either passed on or refused by name: never dropped.
func TestOptions(t *testing.T) {
	for _, kind := range Kinds() {
		plain, err := Group(base(kind))
		if err != nil {
			t.Fatal(err)
		}
		var not []string
		for _, option := range slices.Sorted(maps.Keys(each)) {
			s := base(kind)
			each[option](&s)
			g, err := Group(s)
			name, _, _ := strings.Cut(option, " ")
			switch {
			case err != nil:
				not = append(not, option)
				if !strings.Contains(err.Error(), kind) || !strings.Contains(err.Error(), strings.Split(name, ".")[0]) {
					t.Errorf("%s, %s: the error names not both: %v", kind, option, err)
				}
			case reflect.DeepEqual(g, plain) && name != "sleep" && !(kind == "embedded" && name == "drain"):
				t.Errorf("%s, %s: accepted and without effect: %v", kind, option, g.Argv)
			}
		}
		if !slices.Equal(not, refused[kind]) {
			t.Errorf("%s refuses\n%q, want\n%q", kind, not, refused[kind])
		}
	}
}

// A field of Serve that is added must be known as an option.
func TestOptionsAreAllFields(t *testing.T) {
	settled := []string{"Kind", "Alias", "Version", "Release", "Image", "Dir", "Listen", "Replicas", "Need", "CPU", "Env"}
	typ := reflect.TypeFor[Serve]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if slices.Contains(settled, f.Name) {
			continue
		}
		var s Serve
		fill(reflect.ValueOf(&s).Elem().Field(i))
		if len(options(s)) == 0 {
			t.Errorf("%s is set and is no option", f.Name)
		}
	}
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(5)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"a": "b"}))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}

// Every flag that an adapter gives is in the help of that release.
func TestFlags(t *testing.T) {
	files, err := filepath.Glob("testdata/*-*.txt")
	if err != nil || len(files) < 12 {
		t.Fatalf("%v, %v", files, err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		kind, release, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".txt"), "-")
		seen[kind] = true
		known, lines := help(t, file), map[string][]string{}
		for _, option := range slices.Sorted(maps.Keys(each)) {
			s := base(kind)
			s.Release = release
			each[option](&s)
			g, err := Group(s)
			if err != nil {
				continue // TestOptions tells whether it may
			}
			lines[option] = g.Argv
			for _, flag := range given(t, g) {
				if !known[flag] {
					t.Errorf("%s %s, %s: gives %s, which its help does not have", kind, release, option, flag)
				}
			}
		}
		if *argvs != "" {
			if err := os.WriteFile(filepath.Join(*argvs, kind+"-"+release+".json"), []byte(inJSON(lines)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kind := range Kinds() {
		if kind != "embedded" && !seen[kind] {
			t.Errorf("%s has no help in testdata", kind)
		}
	}
}

func help(t *testing.T, file string) map[string]bool {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if !strings.HasPrefix(lines[0], "# ") {
		t.Errorf("%s does not say where it is from", file)
	}
	known := map[string]bool{}
	for _, l := range lines[1:] {
		known[l] = true
	}
	return known
}

// given are the flags, variables and keys of a configuration that a group is started with.
func given(t *testing.T, g fleet.Group) []string {
	var out []string
	for _, a := range g.Argv {
		if strings.HasPrefix(a, "--") {
			out = append(out, a)
		}
	}
	for k, v := range g.Env {
		switch {
		case strings.HasPrefix(k, "OLLAMA_"):
			out = append(out, k)
		case k == "LLMOPS_TRTLLM_CONFIG":
			var c map[string]any
			if err := json.Unmarshal([]byte(v), &c); err != nil {
				t.Fatal(err)
			}
			out = append(out, keys("", c)...)
		}
	}
	return out
}

func keys(prefix string, m map[string]any) []string {
	var out []string
	for k, v := range m {
		out = append(out, prefix+"."+k)
		if inner, ok := v.(map[string]any); ok {
			out = append(out, keys(prefix+"."+k, inner)...)
		}
	}
	return out
}

func TestGroup(t *testing.T) {
	for _, c := range []struct {
		name  string
		s     Serve
		argv  string
		env   map[string]string
		grace time.Duration
		gpus  int
	}{
		{"embedded", Serve{Kind: "embedded", Alias: "freight", Version: "v1", Dir: "/m", MaxModelLen: 2048, MaxNumSeqs: 16, Fault: "x"},
			"${LLMOPS_BIN} engine serve --listen ${LLMOPS_ADDR} --model /m --name freight --version-name v1 --max-model-len 2048 --max-num-seqs 16 --fault x",
			nil, 15 * time.Second, 0},
		{"embedded adapters", Serve{Kind: "embedded", Alias: "f", Dir: "/m", LoRA: LoRA{Modules: map[string]string{"b": "/b", "a": "/a"}, Runtime: true}, Role: Decode, KVDtype: FP8},
			"${LLMOPS_BIN} engine serve --listen ${LLMOPS_ADDR} --model /m --name f --kv-cache-dtype fp8 --max-loras 2 --lora-modules a=/a,b=/b --kv-role kv_consumer",
			nil, 15 * time.Second, 0},
		{"vllm", Serve{Kind: "vllm", Alias: "q", Dir: "/models/q", TensorParallel: 4, MaxModelLen: 32768, MaxNumSeqs: 128, MaxNumBatchedTokens: 8192, KVDtype: FP8,
			KVOffload: 96 << 30, Drain: time.Minute, Speculative: Speculative{Method: "eagle3", Model: "/models/h", Tokens: 3, MaxBatch: 16}},
			`vllm serve /models/q --host 0.0.0.0 --port 8000 --served-model-name q --tensor-parallel-size 4 --max-model-len 32768 --max-num-seqs 128 --max-num-batched-tokens 8192` +
				` --kv-cache-dtype fp8_e4m3 --kv-offloading-size 96 --speculative-config {"method":"eagle3","model":"/models/h","num_speculative_tokens":3,"num_speculative_tokens_per_batch_size":[[1,16,3],[17,128,0]]}` +
				` --shutdown-timeout 60`, nil, 90 * time.Second, 4},
		{"vllm before it drained", Serve{Kind: "vllm", Release: "v0.12.0", Alias: "q", Dir: "/q", Listen: "${NOMAD_IP_http}:${NOMAD_PORT_http}", LoRA: LoRA{Max: 2, Runtime: true}, Sleep: true},
			"vllm serve /q --host ${NOMAD_IP_http} --port ${NOMAD_PORT_http} --served-model-name q --enable-lora --max-loras 2 --enable-sleep-mode",
			map[string]string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}, 30 * time.Second, 0},
		{"sglang", Serve{Kind: "sglang", Alias: "q", Dir: "/q", TensorParallel: 2, KVOffload: 64e9, Role: Decode, Env: map[string]string{"SGLANG_X": "1"}},
			"python3 -m sglang.launch_server --model-path /q --host 0.0.0.0 --port 30000 --served-model-name q --enable-metrics --tp-size 2 --enable-hierarchical-cache --hicache-size 32 --disaggregation-mode decode",
			map[string]string{"SGLANG_X": "1"}, 150 * time.Second, 2},
		{"trtllm", Serve{Kind: "trtllm", Alias: "q", Dir: "/q", PipelineParallel: 2, KVDtype: FP8, KVOffload: 1 << 30, LoRA: LoRA{MaxRank: 16}, Speculative: Speculative{Method: "draft", Model: "/d", Tokens: 5, MaxBatch: 4}},
			`/bin/sh -c printf %s "$LLMOPS_TRTLLM_CONFIG" >/tmp/llmops-trtllm.yaml && exec "$@" sh trtllm-serve /q --host 0.0.0.0 --port 8000 --backend pytorch --pp_size 2 --extra_llm_api_options /tmp/llmops-trtllm.yaml`,
			map[string]string{"LLMOPS_TRTLLM_CONFIG": `{"enable_iter_perf_stats":true,"kv_cache_config":{"dtype":"fp8","host_cache_size":1073741824},"lora_config":{"max_lora_rank":16},"return_perf_metrics":true,"speculative_config":{"decoding_type":"DraftTarget","max_concurrency":4,"max_draft_len":5,"speculative_model":"/d"}}`},
			150 * time.Second, 2},
		{"llamacpp", Serve{Kind: "llamacpp", Alias: "q", Dir: "/q.gguf", MaxModelLen: 4096, MaxNumSeqs: 4, KVDtype: INT8},
			"llama-server --model /q.gguf --alias q --host 0.0.0.0 --port 8080 --metrics --parallel 4 --ctx-size 16384 --cache-type-k q8_0 --cache-type-v q8_0", nil, 30 * time.Second, 0},
		{"tgi", Serve{Kind: "tgi", Alias: "q", Dir: "/q", TensorParallel: 2, MaxModelLen: 4096, Speculative: Speculative{Method: "ngram", Tokens: 3}},
			"text-generation-launcher --model-id /q --hostname 0.0.0.0 --port 3000 --num-shard 2 --max-total-tokens 4096 --speculate 3 --graceful-termination-timeout 120", nil, 150 * time.Second, 2},
		{"ollama", Serve{Kind: "ollama", Alias: "q", Dir: "/models", MaxModelLen: 4096, MaxNumSeqs: 4, KVDtype: INT8}, "ollama serve",
			map[string]string{"OLLAMA_HOST": "0.0.0.0:11434", "OLLAMA_MODELS": "/models", "OLLAMA_KEEP_ALIVE": "-1", "OLLAMA_MAX_LOADED_MODELS": "1", "OLLAMA_NO_CLOUD": "1",
				"OLLAMA_CONTEXT_LENGTH": "4096", "OLLAMA_NUM_PARALLEL": "4", "OLLAMA_KV_CACHE_TYPE": "q8_0", "OLLAMA_FLASH_ATTENTION": "1"}, 30 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.s.Replicas = 2
			g, err := Group(c.s)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(g.Argv, " "); got != c.argv {
				t.Errorf("argv\n%s, want\n%s", got, c.argv)
			}
			if !maps.Equal(g.Env, c.env) {
				t.Errorf("env %v, want %v", g.Env, c.env)
			}
			if g.Grace != c.grace || g.GPU.Count != c.gpus || g.Count != 2 || g.Check.Path == "" || g.Check.Interval == 0 {
				t.Errorf("%+v", g)
			}
		})
	}
}

func TestGroupRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Serve
		want string
	}{
		{"unknown", Serve{Kind: "abacus"}, "not one of: embedded, vllm"},
		{"nothing", Serve{Kind: "vllm", Alias: "q"}, "nothing to serve"},
		{"too old", Serve{Kind: "vllm", Alias: "q", Dir: "/q", Release: "0.6.3"}, "release: 0.6.3 is older than 0.10.0"},
		{"no release", Serve{Kind: "vllm", Alias: "q", Dir: "/q", Release: "latest"}, `release: "latest" is not a version`},
		{"listen", Serve{Kind: "vllm", Alias: "q", Dir: "/q", Listen: "8000"}, "not host:port"},
		{"role", Serve{Kind: "vllm", Alias: "q", Dir: "/q", Role: "both"}, "not prefill or decode"},
		{"GPUs", Serve{Kind: "vllm", Alias: "q", Dir: "/q", TensorParallel: 4, Need: fleet.Need{Count: 8}}, "4 × 1 GPUs are to be used and 8 are asked for"},
		{"chunk", Serve{Kind: "vllm", Alias: "q", Dir: "/q", MaxNumSeqs: 256, MaxNumBatchedTokens: 128}, "below max_num_seqs"},
		{"bound alone", Serve{Kind: "vllm", Alias: "q", Dir: "/q", Speculative: Speculative{MaxBatch: 4}}, "needs a method"},
		{"bound without a top", Serve{Kind: "vllm", Alias: "q", Dir: "/q", Speculative: Speculative{Method: "ngram", Tokens: 2, MaxBatch: 4}}, "needs max_num_seqs"},
		{"bound in an old one", Serve{Kind: "vllm", Release: "0.18.1", Alias: "q", Dir: "/q", MaxNumSeqs: 8, Speculative: Speculative{Method: "ngram", Tokens: 2, MaxBatch: 4}}, "came with 0.24"},
		{"drain in an old one", Serve{Kind: "vllm", Release: "0.12.0", Alias: "q", Dir: "/q", Drain: time.Second}, "came with 0.18"},
		{"offload in an old one", Serve{Kind: "vllm", Release: "0.11.0", Alias: "q", Dir: "/q", KVOffload: 1 << 30}, "came with 0.11.1"},
		{"draft without a model", Serve{Kind: "sglang", Alias: "q", Dir: "/q", Speculative: Speculative{Method: "draft", Tokens: 2}}, "needs a model"},
		{"rank unknown", Serve{Kind: "sglang", Alias: "q", Dir: "/q", LoRA: LoRA{Runtime: true}}, "lora.max_rank is needed"},
		{"no GGUF", Serve{Kind: "llamacpp", Alias: "q", Dir: "/q"}, "not a GGUF file"},
		{"length without slots", Serve{Kind: "llamacpp", Alias: "q", Dir: "/q.gguf", MaxModelLen: 10}, "needs max_num_seqs"},
		{"two splits", Serve{Kind: "llamacpp", Alias: "q", Dir: "/q.gguf", TensorParallel: 2, PipelineParallel: 2}, "not by both"},
		{"all of them", Serve{Kind: "ollama", Alias: "q", Dir: "/q", Fault: "x", TensorParallel: 2}, "engine ollama has no fault\nengine ollama has no tensor_parallel"},
		{"split processor", Serve{Kind: "vllm", Alias: "q", Dir: "/q", CPU: true, TensorParallel: 2}, "tensor_parallel: a replica on the processor"},
		{"sleep in no memory", Serve{Kind: "vllm", Alias: "q", Dir: "/q", CPU: true, Sleep: true, KVOffload: 1}, "sleep: on the processor"},
		{"a build of its own", Serve{Kind: "sglang", Alias: "q", Dir: "/q", CPU: true}, "gpu: it computes on GPUs, unless"},
		{"offload from no memory", Serve{Kind: "vllm", Alias: "q", Dir: "/q", CPU: true, KVOffload: 1}, "kv_offload: on the processor"},
		{"four bits of a GPU", Serve{Kind: "vllm", Alias: "q", Dir: "/q", CPU: true, KVDtype: NVFP4}, "kv_cache: \"nvfp4\" is not one of: fp8, fp8_e5m2"},
		{"no processor", Serve{Kind: "trtllm", Alias: "q", Dir: "/q", CPU: true}, "gpu: it computes on GPUs alone"},
		{"no GPU", Serve{Kind: "embedded", Alias: "q", Dir: "/q", Need: fleet.Need{Count: 1}}, "gpu: it computes on the processor"},
		{"own drain", Serve{Kind: "embedded", Alias: "q", Dir: "/q", Drain: time.Minute}, "more than the 10s"},
	} {
		if _, err := Group(c.s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Every refusal names its option, so that whoever asked can be shown where.
func TestRefusals(t *testing.T) {
	_, err := Group(Serve{Kind: "ollama", Alias: "q", Dir: "/q", Fault: "x", KVDtype: FP8, TensorParallel: 2})
	all, others := Refusals(err)
	var options []string
	for _, r := range all {
		options = append(options, r.Option)
	}
	if want := []string{"kv_cache", "fault", "tensor_parallel"}; !slices.Equal(options, want) || len(others) > 0 {
		t.Errorf("%q and %v, want %q", options, others, want)
	}
	_, err = About(Serve{Kind: "sglang", Release: "0.4.0"})
	if all, _ = Refusals(err); len(all) != 1 || all[0].Option != "release" || all[0].Engine != "sglang" {
		t.Errorf("%+v of %v", all, err)
	}
	if all, others = Refusals(errors.New("else")); len(all) != 0 || len(others) != 1 {
		t.Errorf("%v, %v", all, others)
	}
}

// The kill comes after the engine has drained.
func TestGrace(t *testing.T) {
	for _, kind := range Kinds() {
		s := base(kind)
		g, err := Group(s)
		if err != nil {
			t.Fatal(err)
		}
		f, err := About(s)
		if err != nil {
			t.Fatal(err)
		}
		drains := g.Grace > DefaultDrain || kind == "embedded" && g.Grace > ownDrain
		if f.Drain.Finishes != drains || f.Drain.Note == "" {
			t.Errorf("%s: %+v with a grace of %v", kind, f.Drain, g.Grace)
		}
		for i, a := range g.Argv {
			if a == "--shutdown-timeout" || a == "--graceful-termination-timeout" {
				if n, err := strconv.Atoi(g.Argv[i+1]); err != nil || time.Duration(n)*time.Second >= g.Grace {
					t.Errorf("%s drains for %s s and is killed after %v", kind, g.Argv[i+1], g.Grace)
				}
			}
		}
	}
}

func TestAbout(t *testing.T) {
	for _, kind := range Kinds() {
		f, err := About(base(kind))
		if err != nil || f.Ready == "" || f.Token.Path != "/v1/completions" || f.Token.Body.(map[string]any)["model"] != "freight" {
			t.Errorf("%s: %+v, %v", kind, f, err)
		}
		if f.Kind != kind || f.Port == 0 || f.Metrics.Path == "" != (kind == "ollama") {
			t.Errorf("%s: %+v", kind, f)
		}
		for s, names := range f.Metrics.Names {
			if len(names) == 0 {
				t.Errorf("%s: %s has no names", kind, s)
			}
		}
		// What an engine can be asked for and what can then be called agree.
		s := base(kind)
		each["lora.runtime"](&s)
		if _, err := Group(s); err == nil != (f.Adapters.Load != nil) && kind != "trtllm" {
			t.Errorf("%s: loading an adapter: %v, but the call is %v", kind, err, f.Adapters.Load != nil)
		}
		s = base(kind)
		s.Sleep = true
		if _, err := Group(s); err == nil != (f.Sleep.Sleep.Path != "") {
			t.Errorf("%s: sleep: %v, but the call is %q", kind, err, f.Sleep.Sleep.Path)
		}
	}
	f, err := About(Serve{Kind: "vllm", Release: "0.12.0"})
	if err != nil || f.Drain.Finishes || f.Release != "0.12.0" {
		t.Errorf("%+v, %v", f, err)
	}
	if c := vllmAdapters.Load("a", "/l/a"); c.Path != "/v1/load_lora_adapter" || c.Body.(map[string]any)["lora_path"] != "/l/a" {
		t.Errorf("%+v", c)
	}
	if _, err := About(Serve{Kind: "abacus"}); err == nil {
		t.Error("an unknown engine was accepted")
	}
}

func TestMetrics(t *testing.T) {
	m := Metrics{Names: vllmNames}
	page := map[string]float64{"vllm:gpu_cache_usage_perc": 0.5, "vllm:num_requests_waiting": 0}
	value := func(name string) (float64, bool) { v, ok := page[name]; return v, ok }
	if v, ok := m.Read(KVUse, value); !ok || v != 0.5 {
		t.Errorf("the old name gives %v, %v", v, ok)
	}
	page["vllm:kv_cache_usage_perc"] = 0.25
	if v, ok := m.Read(KVUse, value); !ok || v != 0.25 {
		t.Errorf("beside the new name it gives %v, %v", v, ok)
	}
	if v, ok := m.Read(Waiting, value); !ok || v != 0 {
		t.Errorf("0 is read as %v, %v", v, ok)
	}
	if _, ok := m.Read(Running, value); ok {
		t.Error("what is absent has a value")
	}
	if _, ok := m.Read(PrefixHitRate, value); ok {
		t.Error("what has no name has a value")
	}
}

func TestRelease(t *testing.T) {
	for text, want := range map[string]release{
		"0.32.0": {0, 32, 0}, "v0.18.1": {0, 18, 1}, "b11434": {11434}, "0.5.4.post3": {0, 5, 4}, "1.2.0rc1": {1, 2, 0}, "0.19": {0, 19}, "0.32.0+cpu": {0, 32, 0},
	} {
		if r, err := parseRelease(text); err != nil || r != want {
			t.Errorf("%s is %v, %v", text, r, err)
		}
	}
	for _, text := range []string{"", "latest", "x.1", "1..2"} {
		if r, err := parseRelease(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
	if r := (release{0, 18, 1}); !r.atLeast(0, 18) || !r.atLeast(0, 18, 1) || r.atLeast(0, 18, 2) || r.atLeast(1) || !r.atLeast(0, 9) {
		t.Error("the order of releases")
	}
}

func FuzzRelease(f *testing.F) {
	for _, s := range []string{"0.32.0", "b11434", "0.5.4.post3", "v1", "..", "9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRelease(s)
		if err != nil {
			return
		}
		if back, err := parseRelease(r.String()); err != nil || back != r {
			t.Errorf("%q is %v, and that %v, %v", s, r, back, err)
		}
	})
}
