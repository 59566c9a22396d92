package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"llmops/fleet/local"
	"llmops/pipeline"
	"llmops/pipeline/benchmark/load"
)

// quicken is "quicken ALIAS FACTOR": the benchmark of the alias's last run is put on record
// as if its version had been so many times as fast, so that how busy the machine is decides
// nothing of what it is compared with.
func quicken(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: quicken ALIAS FACTOR")
	}
	factor, err := strconv.Atoi(args[1])
	ts.Check(err)
	ctx, home := context.Background(), ts.Getenv("LLMOPS_HOME")
	store, err := local.OpenStore(home)
	ts.Check(err)
	blobs, err := local.OpenBlobs(filepath.Join(home, "blobs"))
	ts.Check(err)
	put := func(b []byte) string {
		digest, _, err := blobs.Put(ctx, bytes.NewReader(b))
		ts.Check(err)
		return digest
	}
	head, err := pipeline.Last(ctx, store, args[0])
	ts.Check(err)
	records, err := pipeline.Records(ctx, blobs, head)
	ts.Check(err)
	for i, r := range records {
		if r.Stage != pipeline.StageBenchmark {
			continue
		}
		var out pipeline.BenchmarkOutput
		ts.Check(json.Unmarshal(r.Output, &out))
		for k, p := range out.Points {
			results, err := pipeline.ReadResults(ctx, blobs, p.File)
			ts.Check(err)
			var lines bytes.Buffer
			for _, res := range results {
				for _, at := range []*time.Duration{&res.Sent, &res.FirstByte, &res.FirstToken, &res.LastToken, &res.End} {
					*at = res.Scheduled + max(1, (*at-res.Scheduled)/time.Duration(factor))
				}
				res.Gaps, res.Steps = nil, nil
				ts.Check(load.Write(&lines, res))
			}
			out.Points[k].File = put(lines.Bytes())
		}
		r.Output, err = json.Marshal(out)
		ts.Check(err)
		b, err := json.Marshal(r)
		ts.Check(err)
		head.Stages[i].Record = put(b)
	}
	doc, err := store.Get(ctx, "run/"+head.Run)
	ts.Check(err)
	body, err := json.Marshal(head)
	ts.Check(err)
	_, err = store.Put(ctx, doc.Name, body, doc.Rev)
	ts.Check(err)
}
