package terraform

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
)

// recorded is a plan that Terraform 1.11 made of the contract module, without what
// nothing here reads.
func recorded(t testing.TB, name string) *tfjson.Plan {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	p := &tfjson.Plan{}
	if err := json.Unmarshal(b, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func summary(t testing.TB, name string) *Summary {
	t.Helper()
	s, err := Summarise(recorded(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWords(t *testing.T) {
	for name, want := range map[string]string{
		"first": `
pool chat: 0 → 4 nodes, 0 → 32 GPUs, $0.00 → $200.00 an hour
  adds prod-chat-az1-01 in az1, rack r1: 8 h100-sxm, $50.00 an hour
  adds prod-chat-az1-02 in az1, rack r2: 8 h100-sxm, $50.00 an hour
  adds prod-chat-az2-01 in az2: 8 h100-sxm, $50.00 an hour
  adds prod-chat-az2-02 in az2: 8 h100-sxm, $50.00 an hour
beside the nodes:
  create terraform_data.network["az1"]
  create terraform_data.network["az2"]
in all: 0 → 4 nodes, 0 → 32 GPUs, $0.00 → $200.00 an hour
  $146000 more a month of 730 hours
`,
		"none": `
nothing to do: 4 nodes, 32 GPUs, $200.00 an hour
`,
		"grow": `
pool bulk: 0 → 2 nodes, 0 → 2 GPUs, price unknown
  adds prod-bulk-az2-01 in az2: 1 l4, price unknown, spot
  adds prod-bulk-az2-02 in az2: 1 l4, price unknown, spot
pool chat: 4 → 5 nodes, 32 → 40 GPUs, $200.00 → $250.00 an hour
  adds prod-chat-az1-03 in az1, rack r1: 8 h100-sxm, $50.00 an hour
in all: 4 → 7 nodes, 32 → 42 GPUs, $200.00 an hour → price unknown
`,
		"shrink": `
pool chat: 4 → 3 nodes, 32 → 24 GPUs, $200.00 an hour → price unknown
  replaces prod-chat-az1-01 in az1, rack r1: 8 h200-sxm, price unknown
    GPUs 8 h100-sxm → 8 h200-sxm; node class 8xh100-sxm → 8xh200-sxm; price $50.00 an hour → price unknown
    through terraform_data.instance["prod-chat-az1-01"]
  replaces prod-chat-az1-02 in az1, rack r2: 8 h200-sxm, price unknown
    GPUs 8 h100-sxm → 8 h200-sxm; node class 8xh100-sxm → 8xh200-sxm; price $50.00 an hour → price unknown
    through terraform_data.instance["prod-chat-az1-02"]
  replaces prod-chat-az2-01 in az2: 8 h200-sxm, price unknown
    GPUs 8 h100-sxm → 8 h200-sxm; node class 8xh100-sxm → 8xh200-sxm; price $50.00 an hour → price unknown
    through terraform_data.instance["prod-chat-az2-01"]
  removes prod-chat-az2-02 in az2: 8 h100-sxm, $50.00 an hour
in all: 4 → 3 nodes, 32 → 24 GPUs, $200.00 an hour → price unknown
`,
		"destroy": `
pool bulk: 0 → 2 nodes, 0 → 2 GPUs, price unknown
  adds prod-bulk-az2-01 in az2: 1 l4, price unknown
  adds prod-bulk-az2-02 in az2: 1 l4, price unknown
pool chat: 4 → 0 nodes, 32 → 0 GPUs, $200.00 → $0.00 an hour
  removes prod-chat-az1-01 in az1, rack r1: 8 h100-sxm, $50.00 an hour
  removes prod-chat-az1-02 in az1, rack r2: 8 h100-sxm, $50.00 an hour
  removes prod-chat-az2-01 in az2: 8 h100-sxm, $50.00 an hour
  removes prod-chat-az2-02 in az2: 8 h100-sxm, $50.00 an hour
beside the nodes:
  delete terraform_data.network["az1"]
in all: 4 → 2 nodes, 32 → 2 GPUs, $200.00 an hour → price unknown
`,
	} {
		if got := "\n" + strings.Join(summary(t, name).Words(), "\n") + "\n"; got != want {
			t.Errorf("%s:%s", name, got)
		}
	}
	if w := summary(t, "grow").Warnings; !slices.Equal(w, []string{"No price for spot/1xl4: the cost of those nodes is unknown."}) {
		t.Errorf("warnings: %q", w)
	}
}

func TestSumsOfARecordedPlan(t *testing.T) {
	s := summary(t, "grow") // 5 nodes of 8 GPUs and 2 of 1, of which the 2 have no price
	if s.Before != (Sum{4, 32, s.Before.Hourly}) || *s.Before.Hourly != 200 || s.After.Nodes != 7 || s.After.GPUs != 42 || s.After.Hourly != nil {
		t.Errorf("before %+v, after %+v", s.Before, s.After)
	}
	if s.Servers != 3 || s.Partial {
		t.Errorf("servers %d, partial %v", s.Servers, s.Partial)
	}
	if s := summary(t, "first"); s.Servers != 0 || len(s.Other) != 2 {
		t.Errorf("first: servers %d, other %v", s.Servers, s.Other)
	}
}

func TestDriftIsTold(t *testing.T) {
	// No resource without a provider can drift: this is composed of a recorded change.
	p := recorded(t, "destroy")
	for _, rc := range p.ResourceChanges {
		if rc.Address == `terraform_data.network["az1"]` {
			p.ResourceDrift = append(p.ResourceDrift, rc)
		}
	}
	s, err := Summarise(p)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Drift, []Change{{Address: `terraform_data.network["az1"]`, Action: "delete"}}) {
		t.Fatalf("drift: %v", s.Drift)
	}
	if w := strings.Join(s.Words(), "\n"); !strings.Contains(w, "changed outside of Terraform since the last apply:\n  terraform_data.network[\"az1\"] was deleted\n") {
		t.Errorf("words: %s", w)
	}
}

func TestARecordThatIsNotUnderstood(t *testing.T) {
	for name, input := range map[string]any{
		"no object":     "prod-chat-az1-01",
		"another name":  map[string]any{"name": "x", "pool": "chat", "gpus": 8},
		"no pool":       map[string]any{"name": "prod-chat-az1-01", "gpus": 8},
		"text for GPUs": map[string]any{"name": "prod-chat-az1-01", "pool": "chat", "gpus": "eight"},
		"negative":      map[string]any{"name": "prod-chat-az1-01", "pool": "chat", "gpus": -8},
	} {
		p := recorded(t, "first")
		for _, rc := range p.ResourceChanges {
			if rc.Index == "prod-chat-az1-01" && rc.Name == "node" {
				rc.Change.After.(map[string]any)["input"] = input
			}
		}
		if _, err := Summarise(p); err == nil || !strings.Contains(err.Error(), "terraform_data.node") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzSummarise(f *testing.F) {
	for _, n := range []string{"first", "grow", "shrink", "destroy"} {
		b, err := os.ReadFile(filepath.Join("testdata", n+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &tfjson.Plan{}
		if json.Unmarshal(b, p) != nil {
			return
		}
		s, err := Summarise(p)
		if err != nil {
			return
		}
		s.Words()
		// Without a fleet to ask, nothing goes.
		for _, c := range s.Nodes {
			if (c.Action == Removed || c.Action == Replaced) && len(Guard(s, nil, Permit{LetGo: []string{c.Node.Name}})) == 0 {
				t.Fatalf("%s goes unasked", c.Node.Name)
			}
		}
	})
}

func FuzzInventory(f *testing.F) {
	f.Add([]byte(`{"nodes":{"a":{"name":"a","pool":"p","zone":"z","gpu":"l4","gpus":1,"hourly":null}},"pools":{"p":{"needed":1}},"totals":{"nodes":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var values map[string]json.RawMessage
		if json.Unmarshal(b, &values) != nil {
			return
		}
		inv, err := decodeInventory(values)
		if err != nil {
			return
		}
		if c := Compare(inv, nil); len(c.Nodes) != len(inv.Nodes) {
			t.Fatalf("%d of %d nodes compared", len(c.Nodes), len(inv.Nodes))
		}
	})
}

func FuzzLocked(f *testing.F) {
	f.Add("Error acquiring the state lock\n│   ID:        3080f302\n│   Operation: OperationTypeApply\n│   Who:       root@vm\n")
	f.Fuzz(func(t *testing.T, text string) {
		if explain("planning", errors.New(text)) == nil {
			t.Fatal("an error got lost")
		}
	})
}
