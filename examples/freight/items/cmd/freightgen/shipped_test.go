package main

import (
	"bytes"
	"os"
	"testing"
)

// The shipped files are what the generator writes: a change of one without the
// other would judge the model by items that nobody can make again.
func TestShippedFilesAreGenerated(t *testing.T) {
	for kind, path := range map[string]string{
		"freight": "evals/freight.jsonl", "json": "evals/json.jsonl", "long-context": "evals/long-context.jsonl",
		"perplexity": "evals/perplexity.jsonl", "canaries": "evals/canaries.jsonl", "traffic": "traffic.jsonl",
		"retrieval": "evals/retrieval.jsonl", "searches": "searches.jsonl",
	} {
		want, err := os.ReadFile("../../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := run([]string{kind}, &got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("examples/freight/%s is not what freightgen %s writes; run make generate", path, kind)
		}
	}
}
