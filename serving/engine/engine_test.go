package engine

import (
	"slices"
	"testing"
)

func TestGroup(t *testing.T) {
	g, err := Group(Serve{Kind: "embedded", Alias: "freight", Version: "v1", Dir: "/m", MaxModelLen: 2048, MaxNumSeqs: 16, Fault: "x", Replicas: 2})
	if err != nil || g.Count != 2 {
		t.Fatalf("%+v, %v", g, err)
	}
	for _, pair := range [][2]string{{"--model", "/m"}, {"--name", "freight"}, {"--version-name", "v1"}, {"--max-model-len", "2048"}, {"--fault", "x"}, {"--listen", "${LLMOPS_ADDR}"}} {
		i := slices.Index(g.Argv, pair[0])
		if i < 0 || g.Argv[i+1] != pair[1] {
			t.Errorf("argv %v lacks %v", g.Argv, pair)
		}
	}
	if _, err := Group(Serve{Kind: "abacus"}); err == nil {
		t.Error("an unknown engine was accepted")
	}
}
