package recorded

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet/nomad/nomadtest"
	"llmops/jobs"
)

// Whatever is answered here, a real agent answers with the same keys and types. What a
// real agent says beside is not asked for.
func TestShapesAreThoseOfAnAgent(t *testing.T) {
	c, stop, err := nomadtest.Start(nomadtest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s := Start(Options{})
	defer s.Close()
	real, ours := drive(t, c.Address()), drive(t, s.Address())
	for what, reply := range ours {
		want, ok := real[what]
		if !ok {
			t.Errorf("%s: a real agent gave no such reply", what)
			continue
		}
		if reply.code != want.code {
			t.Errorf("%s: status %d, an agent's is %d: %v", what, reply.code, want.code, want.body)
		}
		if index, real := reply.header.Get("X-Nomad-Index"), want.header.Get("X-Nomad-Index"); (index == "") != (real == "") {
			t.Errorf("%s: the index is %q, an agent's is %q", what, index, real)
		}
		if text, ok := reply.body.(string); ok && !strings.HasPrefix(what, "parse") && what != "bad filter" {
			if words, _ := want.body.(string); number.ReplaceAllString(text, "N") != number.ReplaceAllString(words, "N") {
				t.Errorf("%s: says %q, an agent %q", what, text, words)
			}
		}
		for _, d := range shape("", reply.body, want.body) {
			t.Errorf("%s%s", what, d)
		}
	}
	if len(ours) != len(real) || len(ours) < 25 {
		t.Errorf("%d replies, an agent's are %d", len(ours), len(real))
	}
}

// shape lists where got has a key that want has not, or another type. Null and the
// empty string, list and object say nothing.
func shape(path string, got, want any) []string {
	if nothing(got) || nothing(want) {
		return nil
	}
	switch g := got.(type) {
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok {
			break
		}
		var out []string
		for _, k := range sortedKeys(g) {
			if _, ok := w[k]; !ok {
				if !nothing(g[k]) && !free(path) {
					out = append(out, path+"."+k+": an agent has no such key")
				}
				continue
			}
			out = append(out, shape(path+"."+k, g[k], w[k])...)
		}
		return out
	case []any:
		w, ok := want.([]any)
		if !ok {
			break
		}
		return shape(path+"[]", g[0], w[0])
	default:
		if fmt.Sprintf("%T", got) == fmt.Sprintf("%T", want) {
			return nil
		}
		if text, ok := want.(string); ok && g == "" || text == "" {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s: is a %T, an agent's a %T", path, got, want)}
}

// free are objects whose keys are names.
func free(path string) bool {
	return slices.ContainsFunc([]string{".Meta", ".Env", ".Attributes", ".Details", ".Drivers", ".ConstraintFiltered", ".DimensionExhausted", ".NodesAvailable"}, func(s string) bool { return strings.HasSuffix(path, s) })
}

func nothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == "" || strings.HasPrefix(v, "0001-01-01T")
	case float64:
		return v == 0
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !nothing(inner) {
				return false
			}
		}
		return true
	}
	return false
}

var number = regexp.MustCompile("[0-9]+")

type answered struct {
	code   int
	header http.Header
	body   any
}

// drive makes the calls of fleet/nomad and returns what was answered.
func drive(t *testing.T, base string) map[string]answered {
	t.Helper()
	out := map[string]answered{}
	call := func(name, method, path string, body any) answered {
		t.Helper()
		var r io.Reader
		if body != nil {
			b, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			r = strings.NewReader(string(b))
		}
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, r)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		a := answered{code: res.StatusCode, header: res.Header}
		if json.Unmarshal(text, &a.body) != nil {
			a.body = strings.TrimSpace(string(text))
		}
		if name != "" {
			out[name] = a
		}
		return a
	}
	until := func(name, path string, ok func(body any) bool) any {
		t.Helper()
		for {
			if a := call("", http.MethodGet, path, nil); ok(a.body) {
				return call(name, http.MethodGet, path, nil).body
			}
			select {
			case <-t.Context().Done():
				t.Fatal(t.Context().Err())
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	field := func(v any, path ...string) any {
		for _, k := range path {
			switch x := v.(type) {
			case []any:
				if len(x) == 0 {
					return nil
				}
				v = x[0]
			}
			m, _ := v.(map[string]any)
			v = m[k]
		}
		return v
	}

	call("version", "GET", "/v1/agent/self", nil)
	call("namespace", "GET", "/v1/namespace/default", nil)
	call("no namespace", "GET", "/v1/namespace/nope", nil)

	v := call("create variable", "PUT", "/v1/var/shape/x?cas=0", api.Variable{Path: "shape/x", Items: api.VariableItems{"a": "b"}})
	call("create it again", "PUT", "/v1/var/shape/x?cas=0", api.Variable{Path: "shape/x", Items: api.VariableItems{"a": "b"}})
	call("variable that is not there, at a revision", "PUT", "/v1/var/shape/y?cas=7", api.Variable{Path: "shape/y", Items: api.VariableItems{"a": "b"}})
	call("variable too large", "PUT", "/v1/var/shape/z?cas=0", api.Variable{Path: "shape/z", Items: api.VariableItems{"a": strings.Repeat("x", maxVariable)}})
	call("read variable", "GET", "/v1/var/shape/x", nil)
	call("read no variable", "GET", "/v1/var/shape/none", nil)
	call("list variables", "GET", "/v1/vars?prefix=shape", nil)
	call("delete variable at another revision", "DELETE", "/v1/var/shape/x?cas=1", nil)
	call("delete variable", "DELETE", fmt.Sprintf("/v1/var/shape/x?cas=%v", field(v.body, "ModifyIndex")), nil)

	hcl, err := fs.ReadFile(jobs.Files, "process.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	sleeper := strings.ReplaceAll(strings.ReplaceAll(bareGroup, `"/bin/true"`, `"/bin/sleep","60"`), `"bare"`, `"main"`)
	parse := func(name, group string) any {
		t.Helper()
		return call("parse "+name, "PUT", "/v1/jobs/parse", api.JobsParseRequest{JobHCL: string(hcl), Variables: file(name, "default", "", group), Canonicalize: true}).body
	}
	call("parse nonsense", "PUT", "/v1/jobs/parse", api.JobsParseRequest{JobHCL: "job {"})
	job := parse("shape", sleeper)
	call("no job", "GET", "/v1/job/shape", nil)
	call("plan new job", "PUT", "/v1/job/shape/plan", map[string]any{"Job": job, "Diff": true})
	reg := call("register", "PUT", "/v1/jobs", map[string]any{"Job": job, "EnforceIndex": true, "JobModifyIndex": 0})
	call("register again", "PUT", "/v1/jobs", map[string]any{"Job": job, "EnforceIndex": true, "JobModifyIndex": 0})
	call("register at another revision", "PUT", "/v1/jobs", map[string]any{"Job": job, "EnforceIndex": true, "JobModifyIndex": 99999})
	call("register elsewhere", "PUT", "/v1/jobs?namespace=nope", map[string]any{"Job": inNamespace(job, "nope")})
	call("plan same job", "PUT", "/v1/job/shape/plan", map[string]any{"Job": job, "Diff": true})
	wide := parse("shape", strings.ReplaceAll(sleeper, `"env":{}`, `"env":{"NEW":"1"}`))
	call("plan change", "PUT", "/v1/job/shape/plan", map[string]any{"Job": wide, "Diff": true})
	until("", "/v1/deployments?filter="+escape(`JobID == "shape"`), func(b any) bool { return field(b, "Status") == "successful" })
	until("allocations", "/v1/allocations?resources=true&filter="+escape(`JobID == "shape"`), func(b any) bool { return field(b, "ClientStatus") == "running" })
	alloc := field(call("", "GET", "/v1/allocations?filter="+escape(`JobID == "shape"`), nil).body, "ID").(string)
	call("allocation", "GET", "/v1/allocation/"+alloc, nil)
	call("no allocation", "GET", "/v1/allocation/00000000-0000-0000-0000-000000000000", nil)
	call("checks", "GET", "/v1/client/allocation/"+alloc+"/checks", nil)
	call("job", "GET", "/v1/job/shape", nil)
	call("jobs", "GET", "/v1/jobs?meta=true&prefix=shape", nil)
	call("scale at another revision", "PUT", "/v1/job/shape/scale", map[string]any{"Count": 2, "Target": map[string]string{"Group": "main"}, "JobModifyIndex": 99999})
	call("scale no group", "PUT", "/v1/job/shape/scale", map[string]any{"Count": 2, "Target": map[string]string{"Group": "none"}})
	call("scale", "PUT", "/v1/job/shape/scale", map[string]any{"Count": 2, "Target": map[string]string{"Group": "main"}, "JobModifyIndex": field(reg.body, "JobModifyIndex")})
	call("bad filter", "GET", "/v1/allocations?filter="+escape(`Nothing == "x"`), nil)

	gpu := parse("hungry", strings.ReplaceAll(strings.ReplaceAll(bareGroup, `"gpu":""`, `"gpu":"H100"`), `"gpus":0`, `"gpus":8`))
	call("plan without room", "PUT", "/v1/job/hungry/plan", map[string]any{"Job": gpu, "Diff": true})
	call("register without room", "PUT", "/v1/jobs", map[string]any{"Job": gpu})
	until("blocked evaluations", "/v1/evaluations?filter="+escape(`Status == "blocked"`), func(b any) bool { return field(b, "JobID") == "hungry" })
	// Of all deployments this is the one that cannot end before the call.
	call("scale while deploying", "PUT", "/v1/job/hungry/scale", map[string]any{"Count": 2, "Target": map[string]string{"Group": "bare"}})

	failing := parse("failing", strings.ReplaceAll(bareGroup, "/bin/true", "/no/such/binary"))
	call("register what fails", "PUT", "/v1/jobs", map[string]any{"Job": failing})
	until("failing allocations", "/v1/allocations?filter="+escape(`JobID == "failing"`), func(b any) bool {
		return strings.Contains(fmt.Sprint(field(b, "TaskStates")), "Driver Failure")
	})

	nodes := call("nodes", "GET", "/v1/nodes", nil)
	call("nodes with resources", "GET", "/v1/nodes?resources=true", nil)
	node := field(nodes.body, "ID").(string)
	call("node", "GET", "/v1/node/"+node, nil)
	call("no node", "GET", "/v1/node/00000000-0000-0000-0000-000000000000", nil)
	call("cordon", "PUT", "/v1/node/"+node+"/eligibility", map[string]any{"NodeID": node, "Eligibility": "ineligible"})
	call("drain", "PUT", "/v1/node/"+node+"/drain", map[string]any{"NodeID": node, "DrainSpec": map[string]any{"Deadline": 60e9}, "Meta": map[string]string{"why": "x"}})
	until("drained nodes", "/v1/nodes", func(b any) bool { return field(b, "LastDrain") != nil })
	call("end drain", "PUT", "/v1/node/"+node+"/drain", map[string]any{"NodeID": node, "MarkEligible": true})
	for _, id := range []string{"shape", "hungry", "failing"} {
		call("deregister "+id, "DELETE", "/v1/job/"+id+"?purge=false", nil)
	}
	call("stopped job", "GET", "/v1/job/shape", nil)
	call("deregister and purge", "DELETE", "/v1/job/shape?purge=true", nil)
	for topic, e := range events(t, base) {
		out["event of "+topic] = answered{body: e, header: http.Header{}}
	}
	return out
}

func inNamespace(job any, namespace string) any {
	m := map[string]any{}
	for k, v := range job.(map[string]any) {
		m[k] = v
	}
	m["Namespace"] = namespace
	return m
}

// events are one of each topic; of which type differs.
func events(t *testing.T, base string) map[string]any {
	t.Helper()
	out := map[string]any{}
	res, err := http.Get(base + "/v1/event/stream?index=1&topic=Job:*&topic=Allocation:*&topic=Evaluation:*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	dec := json.NewDecoder(res.Body)
	for len(out) < 3 {
		var batch struct {
			Index  uint64
			Events []map[string]any
		}
		if err := dec.Decode(&batch); err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Events {
			topic := e["Topic"].(string)
			// The first of an allocation are of one that no client has seen.
			if out[topic] == nil && (topic != "Allocation" || strings.Contains(fmt.Sprint(e), "Started")) {
				out[topic] = e
			}
		}
	}
	return out
}

func escape(s string) string {
	return strings.NewReplacer(" ", "%20", `"`, "%22", "=", "%3D").Replace(s)
}
