package llama

import (
	"reflect"
	"strings"
	"testing"

	"llmops/model"
	"llmops/serving/embedded/core"
)

func TestSleep(t *testing.T) {
	dir := copyModel(t, "llama")
	shape, err := model.LoadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := Load(dir, shape, Options{Tokens: 25, Length: 128, Blocks: 32, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	answer := func() []core.Token {
		c, err := core.New(core.Limits{Sequences: 1, Tokens: 25, Blocks: 32})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := (&engine{core: c, exec: exec}).run(t, &core.Sequence{Prompt: []int{5, 6, 7, 8}, Max: 6, Sampling: core.Sampling{Top: 320}})
		return got[0]
	}
	want, kv := answer(), exec.Export([]int32{0}, 4)
	for level := 1; level <= 2; level++ {
		exec.Sleep(level)
		if exec.cache != nil || level == 2 && exec.weights != nil {
			t.Errorf("level %d keeps memory", level)
		}
		if err := exec.Accepts(kv); err != nil {
			t.Errorf("asleep: %v", err)
		}
		if err := exec.Wake(); err != nil {
			t.Fatal(err)
		}
		if got := answer(); !reflect.DeepEqual(got, want) {
			t.Errorf("after a sleep of level %d the answer is another", level)
		}
	}
	exec.Sleep(2)
	c := readCheckpoint(t, dir)
	c["model.norm.weight"].data[0]++
	c.write(t, dir, "")
	if err := exec.Wake(); err == nil || !strings.Contains(err.Error(), "another model") {
		t.Errorf("waking up with other weights: %v", err)
	}
}
