//go:build faults

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// The driver is killed before and after every intent of quick.yaml in turn; a
// plain run again ends as an undisturbed one does: everything passed, nothing
// made twice, nothing left over, and clients never noticed.
func TestFaultsKillAtEveryIntent(t *testing.T) {
	file := filepath.Join(example(t), "quick.yaml")
	killed := variant(t, "killed")
	var intents []entry
	t.Run("undisturbed", func(t *testing.T) {
		m := newMachine(t)
		c := m.clients(quickAlias)
		r := m.llmops(m.onboard(file)...)
		if r.code != 0 {
			t.Fatalf("exits %d: %s", r.code, r.err)
		}
		t.Logf("took %v", r.took)
		m.live(1)
		c.undisturbed("v0", "v1")
		for _, e := range m.journal(m.finished().Run) {
			if e.Kind == "intent" {
				intents = append(intents, e)
			}
		}
		if r := m.llmops(m.onboard(file)...); r.code != 0 || !strings.Contains(r.err, "live already") {
			t.Errorf("once more it exits %d: %s", r.code, r.err)
		}
	})
	if len(intents) < 10 {
		t.Fatalf("the run had the intents %v", intents)
	}
	t.Logf("%d intents, %d kills", len(intents), 2*len(intents))
	for i, e := range intents {
		for _, when := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%s %d %s %s", when, i+1, e.Stage, e.What), func(t *testing.T) {
				t.Parallel()
				killedAt(t, killed, fmt.Sprintf("%s:%d", when, i+1), i, quickAlias)
			})
		}
	}
}

// killedAt kills a run at its intent number nth, counted from 0, and runs it
// again.
func killedAt(t *testing.T, file, at string, nth int, alias string) {
	m := newMachine(t)
	c := m.clients(alias)
	if r := m.start([]string{"LLMOPS_KILL_AT=" + at}, m.onboard(file)...).wait(); r.code != -1 {
		t.Fatalf("it was not killed but exits %d: %s", r.code, r.err)
	}
	before := m.artefacts()
	r := m.llmops(m.onboard(file)...)
	if r.code != 0 {
		t.Fatalf("the run after the kill exits %d: %s", r.code, r.err)
	}
	run := m.finished()
	after := m.artefacts()
	for _, path := range sorted(before) {
		if before[path] != after[path] {
			t.Errorf("%s was written again", path)
		}
	}
	j := m.journal(run.Run)
	if n := count(j, "claim", ""); n != 2 {
		t.Errorf("the run was claimed %d times", n)
	}
	for i, stage := range []string{"download", "quantise"} {
		if n := count(j, "intent", stage); nth > i && n != 1 {
			t.Errorf("%s was begun %d times", stage, n)
		}
		if n := count(j, "stage", stage); n != 1 {
			t.Errorf("%s was finished %d times", stage, n)
		}
	}
	m.live(1)
	c.undisturbed("v0", "v1")
}

// A run that is refused is killed while it takes its candidate away: the next
// one finishes that, and gives the candidate no second chance.
func TestFaultsKillOfARefusedRun(t *testing.T) {
	file := variant(t, "refused", "scheme: fp8-dynamic", "scheme: int4-tensor", "margin: 15pt", "margin: 0.5pt")
	for _, at := range []string{"before:eval:1", "after:eval:1"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			c := m.clients(quickAlias)
			if r := m.start([]string{"LLMOPS_KILL_AT=" + at}, m.onboard(file)...).wait(); r.code != -1 {
				t.Fatalf("it was not killed but exits %d: %s", r.code, r.err)
			}
			r := m.llmops(m.onboard(file)...)
			if h := m.last(); r.code != 3 && r.code != 5 || h.State != "refused" {
				t.Errorf("the run after the kill exits %d, its run is %+v: %s", r.code, h, r.err)
			}
			if n := count(m.journal(m.last().Run), "stage", "eval"); n != 1 {
				t.Errorf("eval was judged %d times", n)
			}
			s := m.status()
			if len(s.Jobs) != 2 || s.Aliases[0].Live != "v0" {
				t.Errorf("status is %+v", s)
			}
			c.undisturbed("v0")
		})
	}
}

// The full example survives a kill where it costs most.
func TestFaultsKillOfTheFullExample(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	file := filepath.Join(example(t), "model.yaml")
	for _, at := range []string{"after:deploy:4", "after:canary:3", "after:promote:1"} {
		t.Run(at, func(t *testing.T) {
			m := newMachine(t)
			c := m.clients("freight")
			first := m.start([]string{"LLMOPS_KILL_AT=" + at}, m.onboard(file)...).wait()
			if first.code != -1 {
				t.Fatalf("it was not killed but exits %d: %s", first.code, first.err)
			}
			r := m.llmops(m.onboard(file)...)
			if r.code != 0 {
				t.Fatalf("the run after the kill exits %d: %s", r.code, r.err)
			}
			t.Logf("killed after %v, then done after %v", first.took, r.took)
			m.finished()
			c.undisturbed("v0", "v1")
		})
	}
}
