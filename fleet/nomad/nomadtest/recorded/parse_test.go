package recorded

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"testing"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet/nomad/nomadtest"
	"llmops/jobs"
)

var update = flag.Bool("update", false, "write testdata from a real agent")

const (
	fullGroup = `{"name":"full","near":"r1","count":2,"argv":["/bin/llmops","serve","$${NOMAD_ADDR_http}"],"env":{"A":"$${NOMAD_ALLOC_ID}"},"port":8400,"admin":8401,"path":"/health","interval":"7s","timeout":"2s","grace":"9s","gpu":"H100","gpus":4,"fetch":[]}`
	bareGroup = `{"name":"bare","near":"","count":1,"argv":["/bin/true"],"env":{},"port":0,"admin":-1,"path":"","interval":"10s","timeout":"3s","grace":"5s","gpu":"","gpus":0,"fetch":[]}`
)

func file(name, pool, zone string, groups ...string) string {
	text := fmt.Sprintf("name = %q\npool = %q\nzone = %q\ngroups = [", name, pool, zone)
	for i, g := range groups {
		if i > 0 {
			text += ","
		}
		text += g
	}
	return text + "]\n"
}

// What is made of the record is what a real parser makes of the file itself.
func TestParseIsTheParsersWork(t *testing.T) {
	c, stop, err := nomadtest.Start(nomadtest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	hcl, err := fs.ReadFile(jobs.Files, "process.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(vars string) *api.Job {
		t.Helper()
		job, err := c.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: string(hcl), Variables: vars, Canonicalize: true})
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	if *update {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetIndent("", " ")
		if err := enc.Encode(parse(file("recorded", "pool", "az", fullGroup, bareGroup))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/process.json", text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		recordedJob = text.Bytes()
	}
	group := func(key, value string) string {
		var g map[string]any
		if err := json.Unmarshal([]byte(fullGroup), &g); err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal([]byte(value), &v); err != nil {
			t.Fatal(err)
		}
		g[key] = v
		b, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, vars := range []string{
		file("a/b", "default", "", bareGroup), file("x", "gpu-h100", "az1", fullGroup), file("x", "default", "", fullGroup, bareGroup),
		file("x", "default", "", group("port", "0")), file("x", "default", "", group("admin", "0")), file("x", "default", "", group("admin", "-1")), file("x", "default", "", group("near", `""`)),
		file("x", "default", "", group("path", `""`)), file("x", "default", "", group("gpus", "0")), file("x", "default", "", group("gpu", `""`)),
		file("x", "default", "", group("argv", `["/bin/true"]`)), file("x", "default", "", group("env", `{}`)),
	} {
		want := parse(vars)
		v, err := readValues(vars)
		if err != nil {
			t.Fatal(err)
		}
		got, err := v.job()
		if err != nil {
			t.Fatal(err)
		}
		a, b := generic(t, want), generic(t, got)
		if !reflect.DeepEqual(a, b) {
			differ(t, "", a, b)
			t.Errorf("of %s (if the job file was changed: go test -update)", vars)
		}
	}
}

func generic(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func differ(t *testing.T, path string, a, b any) {
	t.Helper()
	am, ok := a.(map[string]any)
	bm, ok2 := b.(map[string]any)
	if ok && ok2 {
		for k := range am {
			differ(t, path+"."+k, am[k], bm[k])
		}
		return
	}
	al, ok := a.([]any)
	bl, ok2 := b.([]any)
	if ok && ok2 && len(al) == len(bl) {
		for i := range al {
			differ(t, fmt.Sprintf("%s[%d]", path, i), al[i], bl[i])
		}
		return
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%s: the parser says %v, the record %v", path, a, b)
	}
}
