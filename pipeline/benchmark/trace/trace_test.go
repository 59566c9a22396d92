package trace

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// Lines as the publishers' own files and documents have them.
var good = map[string]string{
	"mooncake": `{"timestamp": 0, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 2353, 2354]}
{"timestamp": 10535, "input_length": 500, "output_length": 26, "hash_ids": [46]}
`,
	"replay": `{"timestamp": 0.5, "input_length": 12, "output_length": 3}
{"timestamp": 1.75, "input_length": 13, "output_length": 4}
`,
	"azure": `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
`,
	"burstgpt": `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,Conversation log
`,
	"vidur": `arrived_at,num_prefill_tokens,num_decode_tokens
1.5,10,2
3,11,3
`,
	"llmops": `{"at":1,"input":40,"output":5,"blocks":[7,8,9],"block":16,"class":"chat","session":"a"}

{"at":1.25,"input":41,"output":6}
`,
	// The second ended first; both begin with the same 512 bytes, of which a token has four.
	"records": `{"time":"2026-03-01T12:00:03.000000Z","arrived":"2026-03-01T12:00:02.250000Z","tenant":"docs","workload":"extract","session":"b","model":"m","version":"v1","endpoint":"/v1/chat/completions","stream":true,"status":200,"input_tokens":300,"cached_tokens":128,"output_tokens":4,"chunks":4,"queued_s":0,"ttft_s":0.1,"duration_s":0.75,"prompt_bytes":1200,"block_bytes":512,"blocks":[7,9]}
{"time":"2026-03-01T12:00:04.000000Z","arrived":"2026-03-01T12:00:01.000000Z","session":"a","model":"m","version":"v1","endpoint":"/v1/chat/completions","stream":false,"status":200,"input_tokens":200,"cached_tokens":null,"output_tokens":5,"queued_s":0,"duration_s":3,"prompt_bytes":800,"block_bytes":512,"blocks":[7]}
{"time":"2026-03-01T12:00:04.000000Z","arrived":"2026-03-01T12:00:03.000000Z","model":"m","endpoint":"/v1/chat/completions","stream":true,"status":429,"input_tokens":null,"cached_tokens":null,"output_tokens":null,"queued_s":0,"duration_s":0,"prompt_bytes":90}
{"time":"2026-03-01T12:00:05.000000Z","arrived":"2026-03-01T12:00:03.000000Z","model":"m","endpoint":"/v1/completions","stream":true,"status":200,"input_tokens":8,"cached_tokens":null,"output_tokens":2,"queued_s":0,"duration_s":2,"prompt_bytes":30}
{"time":"2026-03-01T12:00:05.0`,
	"sharegpt": `[{"id":"x","conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello"}]},{"conversations":[{"from":"human","value":"alone"}]}]`,
}

func TestFormats(t *testing.T) {
	want := map[string][]Row{
		"mooncake": {{Input: 6955, Output: 52, Size: 512, Blocks: []uint64{46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 2353, 2354}}, {At: 10535 * ms, Input: 500, Output: 26, Size: 512, Blocks: []uint64{46}}},
		"replay":   {{Input: 12, Output: 3}, {At: 1250 * ms, Input: 13, Output: 4}},
		"azure":    {{Input: 374, Output: 44}, {At: 4314579 * time.Microsecond, Input: 396, Output: 109}},
		"burstgpt": {{Input: 472, Output: 18, Class: "ChatGPT"}, {At: 40 * time.Second, Input: 1087, Output: 230, Class: "ChatGPT"}},
		"vidur":    {{Input: 10, Output: 2}, {At: 1500 * ms, Input: 11, Output: 3}},
		"llmops":   {{Input: 40, Output: 5, Blocks: []uint64{7, 8, 9}, Size: 16, Class: "chat", Session: "a"}, {At: 250 * ms, Input: 41, Output: 6}},
		"sharegpt": {{Text: "Hi", Reply: "Hello"}},
		"records": {{Input: 200, Output: 5, Size: 128, Blocks: []uint64{7}, Session: "a"}, {At: 1250 * ms, Input: 300, Output: 4, Size: 128, Blocks: []uint64{7, 9}, Class: "extract", Session: "b"},
			{At: 2 * time.Second, Input: 8, Output: 2}},
	}
	dropped := map[string]int{"burstgpt": 1, "sharegpt": 1, "records": 1}
	for _, f := range Formats() {
		for _, named := range []string{"", f.Name} {
			tr, err := Read(Options{Format: named}, strings.NewReader(good[f.Name]))
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
				continue
			}
			if tr.Format != f.Name || tr.Unit != f.Unit || tr.Dropped != dropped[f.Name] || !reflect.DeepEqual(tr.Rows, want[f.Name]) {
				t.Errorf("%s: %+v\n%+v", f.Name, *tr, tr.Rows)
			}
		}
	}
}

func TestVariants(t *testing.T) {
	for name, in := range map[string]string{
		"azure with zones":      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.0039280+00:00,10,2\n2024-05-12 02:00:01.0039280+02:00,10,2\n",
		"azure across midnight": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,10,2\r\n2023-11-17 00:00:00.5000000,10,2\r\n",
		"burstgpt, release 2":   "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n19440110,s1,2.5,GPT-4,10.0,2.0,12,API log\n19440111,,1,GPT-4,10,2,12,API log\n",
		"columns elsewhere":     "num_decode_tokens,extra,arrived_at,num_prefill_tokens\n2,x,7,10\n2,x,8,10\n",
		"byte order mark":       "\ufeffarrived_at,num_prefill_tokens,num_decode_tokens\n7,10,2\n8,10,2\n",
	} {
		tr, err := Read(Options{}, strings.NewReader(in))
		if err != nil || len(tr.Rows) != 2 || tr.Rows[0].At != 0 || tr.Rows[1].At != time.Second || tr.Rows[1].Input != 10 || tr.Rows[1].Output != 2 {
			t.Errorf("%s: %+v, %v", name, tr, err)
		}
	}
	out := "{\"at\":2,\"input\":1,\"output\":1}\n{\"at\":1,\"input\":2,\"output\":1}\n"
	tr, err := Read(Options{Sort: true}, strings.NewReader(out))
	if err != nil || tr.Rows[0].Input != 2 || tr.Rows[1].At != time.Second {
		t.Errorf("sorted: %+v, %v", tr, err)
	}
	if got := tr.Times(4); got[1] != 250*ms {
		t.Errorf("four times as fast: %v", got)
	}
	if tr.Rate() != 1 {
		t.Errorf("rate %v", tr.Rate())
	}
}

// The files of several routers are one trace, in the order of arrivals; a line that is cut
// is counted.
func TestReadsSeveralFiles(t *testing.T) {
	lines := strings.SplitAfter(good["records"], "\n")
	tr, err := Read(Options{}, strings.NewReader(lines[0]+lines[4]), strings.NewReader("\n"), strings.NewReader(lines[1]+lines[2]))
	if err != nil || len(tr.Rows) != 2 || tr.Rows[0].Session != "a" || tr.Rows[1].At != 1250*ms || tr.Cut != 1 || tr.Dropped != 1 || !strings.Contains(tr.Why, "line 2: status 429") {
		t.Errorf("%+v, %v", tr, err)
	}
	if tr, err := Read(Options{}, strings.NewReader(good["records"])); err != nil || tr.Cut != 1 {
		t.Errorf("%+v, %v", tr, err)
	}
	_, err = Read(Options{}, strings.NewReader(lines[0]), strings.NewReader(good["llmops"]))
	if err == nil || !strings.Contains(err.Error(), "file 2: line 1: time or arrived is missing") {
		t.Errorf("a file of another format: %v", err)
	}
	_, err = Read(Options{}, strings.NewReader(lines[2]))
	if err == nil || !strings.Contains(err.Error(), "none of 1 rows can be sent: line 1: status 429") {
		t.Errorf("only refused ones: %v", err)
	}
}

// A file that is not what it is taken for is refused and says where and why.
func TestRefused(t *testing.T) {
	seconds := &strings.Builder{} // Mooncake's columns with seconds in them: 1,000 times the rate
	for i := range 3000 {
		fmt.Fprintf(seconds, `{"timestamp": %g, "input_length": 5, "output_length": 5, "hash_ids": [1]}`+"\n", float64(i)/5)
	}
	for name, c := range map[string]struct{ format, in, want string }{
		"nothing":               {"", " \n", "the file is empty"},
		"unknown columns":       {"", "a,b\n1,2\n", `no trace format has the columns of line 1, "a,b"`},
		"unknown format":        {"csv", "a,b\n", `trace format "csv" is not known; there are mooncake, azure`},
		"a unit of 1,000 times": {"mooncake", seconds.String(), "its times in milliseconds make 5e+03 requests a second"},
		"mixed zones":           {"azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.1+00:00,1,1\n2024-05-12 00:00:01.1,1,1\n", "line 3: \"2024-05-12 00:00:01.1\" and earlier lines: some times name their zone"},
		"a missing column":      {"azure", "TIMESTAMP,ContextTokens\n2024-05-12 00:00:00,1\n", `column "GeneratedTokens" is missing; line 1 has TIMESTAMP, ContextTokens`},
		"a missing member":      {"mooncake", `{"timestamp": 0, "input_length": 5, "hash_ids": [1]}`, "line 1: output_length is missing"},
		"a cut line":            {"azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00,1,1\n2024-05-12 00:00", "wrong number of fields"},
		"a cut object":          {"llmops", "{\"at\":1,\"input\":5,\"output\":5}\n{\"at\":2,\"inp", "line 2: "},
		"a cut list":            {"", `[{"conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello"}]}`, "EOF"},
		"disorder":              {"", "{\"at\":2,\"input\":1,\"output\":1}\n{\"at\":1,\"input\":2,\"output\":1}\n", "request 2 comes before"},
		"only failures":         {"burstgpt", "Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,10,0\n", "none of 1 rows can be sent: line 2: no output tokens"},
		"blocks that do not fit": {"mooncake", `{"timestamp": 0, "input_length": 5000, "output_length": 5, "hash_ids": [1]}`,
			"line 1: 1 hash_ids for 5000 tokens, want 10 of 512 each"},
		"no size":          {"llmops", `{"at":1,"input":5,"output":5,"blocks":[1]}`, "line 1: blocks without block"},
		"no number":        {"vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n1,ten,2\n", `line 2: num_prefill_tokens is "ten"`},
		"no time":          {"burstgpt", "Timestamp,Model,Request tokens,Response tokens\nnoon,GPT-4,10,1\n", `line 2: "noon" is no time in seconds`},
		"no date":          {"azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n12:00,1,1\n", `line 2: "12:00" is no time such as`},
		"a time before 0":  {"replay", `{"timestamp": -1, "input_length": 5, "output_length": 5}`, "line 1: timestamp is -1"},
		"no rows":          {"vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n", "it has no rows"},
		"text of no talks": {"sharegpt", `{"conversations":[]}`, "want a list of conversations"},
	} {
		_, err := Read(Options{Format: c.format}, strings.NewReader(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for name, in := range good {
		f.Add(name, in)
		f.Add("", in)
	}
	f.Fuzz(func(t *testing.T, format, in string) {
		for _, sort := range []bool{false, true} {
			tr, err := Read(Options{Format: format, Sort: sort}, strings.NewReader(in))
			if err != nil {
				continue
			}
			last := time.Duration(0)
			for i, r := range tr.Rows {
				if r.At < last || r.Input < 0 || r.Output < 0 || r.Input == 0 && r.Text == "" {
					t.Fatalf("row %d: %+v after %v", i, r, last)
				}
				last = r.At
			}
		}
	})
}
