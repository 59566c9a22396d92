package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"text/tabwriter"

	"llmops/fleet/terraform"
)

func TestFleetErrorsHaveTheirExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{terraform.ErrMissing, exitUsage},
		{terraform.ErrVersion, exitUsage},
		{terraform.ErrNotInitialised, exitUsage},
		{terraform.ErrStale, exitUsage},
		{terraform.ErrDeclined, exitUsage},
		{terraform.ErrNoNode, exitUsage},
		{terraform.ErrStopped, exitGoesOn},
	} {
		var ee *exitError
		if err := fleetError(fmt.Errorf("planning infra: %w", c.err)); !errors.As(err, &ee) || ee.code != c.want {
			t.Errorf("%v: %v, want exit %d", c.err, err, c.want)
		}
	}
	var ee *exitError
	if err := fleetError(&terraform.LockedError{}); errors.As(err, &ee) || err == nil {
		t.Errorf("a locked state: %v, want a plain failure", err)
	}
	if err := fleetError(nil); err != nil {
		t.Errorf("nothing wrong: %v", err)
	}
}

func TestFleetStatusTable(t *testing.T) {
	cost := 36.0
	s := fleetStatus{Dir: "infra", Asked: true, Comparison: &terraform.Comparison{
		Pools: []terraform.PoolBeside{
			{Name: "chat", Pool: terraform.Pool{Needed: 1, Spare: 1, Nodes: 2, GPUs: 16, Hourly: &cost}, Ready: 1, Enough: true},
			{Name: "bulk", Pool: terraform.Pool{Needed: 1, Nodes: 1, GPUs: 4}},
		},
		Nodes: []terraform.Beside{
			{Node: terraform.Node{Name: "n1", Pool: "chat", Zone: "az1", Rack: "r1", GPU: "h100-sxm", GPUs: 8}, State: terraform.Ready, Replicas: 2},
			{Node: terraform.Node{Name: "n2", Pool: "chat", Zone: "az2", GPU: "h100-sxm", GPUs: 8}, State: terraform.Short, Found: "has 7 of 8 GPUs"},
		},
		Totals: terraform.Sum{Nodes: 3, GPUs: 20},
	}}
	var out bytes.Buffer
	e := &env{out: &out, err: io.Discard, output: "table"}
	if err := e.answer(s, func(w *tabwriter.Writer) { fleetTable(w, s) }); err != nil {
		t.Fatal(err)
	}
	want := `
POOL    NEEDED  SPARE  NODES  READY        GPUS  AN HOUR
chat    1       1      2      1            16    $36.00
bulk    1       0      1      0 (too few)  4     unknown
in all                 3                   20    unknown

NODE  POOL  ZONE  RACK  GPUS        STATE  REPLICAS
n1    chat  az1   r1    8 h100-sxm  ready  2
n2    chat  az2   -     8 h100-sxm  short  0         has 7 of 8 GPUs
`
	got := "\n"
	for line := range strings.Lines(out.String()) {
		got += strings.TrimRight(line, " \n") + "\n"
	}
	if got != want {
		t.Errorf("%s", got)
	}
}

func TestOutputsAreNotProgress(t *testing.T) {
	var out bytes.Buffer
	b := &beforeOutputs{to: &out}
	for _, line := range []string{"Creating...\n", "\n", "Outputs:\n", "nodes = {\n", "}\n"} {
		if n, err := io.WriteString(b, line); n != len(line) || err != nil {
			t.Fatalf("writing %q: %d, %v", line, n, err)
		}
	}
	if out.String() != "Creating...\n\n" {
		t.Errorf("passed on: %q", out.String())
	}
}
