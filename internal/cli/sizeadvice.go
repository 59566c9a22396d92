package cli

import (
	"fmt"
	"math"
	"strings"

	sizing "llmops/roofline/size"
)

func advice(pg page, p *sizePlan, a sizing.Advice) {
	pg.head("LAYOUTS within a TPOT of " + p.text("slo.tpot") + " at " + p.text("traffic.context") + " tokens, of a node")
	rows := [][]string{{"LAYOUT", "WEIGHTS", "CACHE", "STREAMS", "TPOT", "TOKENS/S"}}
	var not []string
	for _, o := range a.Options {
		if o.Why != "" {
			not = append(not, o.Name()+": "+o.Why)
		}
		r := []string{o.Name(), sizing.Bytes.Format(o.Weights), "-", "-", "-", "-"}
		if o.Pool > 0 {
			r[2] = sizing.Bytes.Format(o.Pool)
		}
		if o.Keeps() {
			r[3], r[4], r[5] = fmt.Sprintf("%d a copy", o.Batch), sizing.Seconds.Format(o.TPOT), sizing.Count.Format(math.Round(o.Rate))
		}
		rows = append(rows, r)
	}
	pg.table(rows)
	for _, n := range not {
		pg.line("%s", n)
	}
	if a.Best != nil {
		pg.line("recommended: %s: %s %s", a.Best.Name(), a.Reason, origin(p.sheet.RowsOf("layout.best_rate"), p.order()))
	} else {
		pg.line("%s", a.Reason)
	}
	switch {
	case a.Holds == nil:
		pg.line("smallest TP that holds the model and a prompt of %s: none", p.text("slo.long_prompt"))
	case a.Keeps == nil:
		pg.line("smallest TP that holds the model and a prompt of %s: %s; none keeps the TPOT", p.text("slo.long_prompt"), a.Holds.Name())
	default:
		pg.line("smallest TP, then replicas: %s holds the model and a prompt of %s; %s is the smallest that keeps the TPOT too, with %s",
			a.Holds.Name(), p.text("slo.long_prompt"), a.Keeps.Name(), sizing.TokenRate.Format(a.Keeps.Rate))
	}
	flips(pg, a.Flips)
	pg.head("POOLS")
	pg.line("recommended: %s: %s %s", a.Pools.Choice, a.Pools.Reason,
		origin(p.rowsOf("fleet.capacity", "fleet.together_tpot", "fleet.apart_saves", "transfer.ttft_p95"), p.order()))
	flips(pg, a.Pools.Flips)
	switch {
	case a.Decode > 0:
		pg.line("replicas: %d that decode and %d that prefill, on %s nodes", a.Decode, a.Prefill, p.text("fleet.nodes"))
	case a.Together > 0:
		pg.line("replicas: %d", a.Together)
	}
	routerCaps(pg, p)
}

// routerCaps prints the caps of a replica.
func routerCaps(pg page, p *sizePlan) {
	rows := origin(p.sheet.RowsOf("cap.kv_tokens"), p.order())
	switch v := p.sheet.Value; {
	case !(v("decode.limit_batch") > 0):
		pg.line("router: no number of streams keeps the TPOT; there is no cap to give")
	case v("layout.batch") > v("decode.limit_batch"):
		pg.line("router: %s streams and %s KV tokens a replica, the edge of the service level; layout.batch is %s, over it %s",
			p.text("decode.limit_batch"), p.text("decode.limit_kv_tokens"), p.text("layout.batch"), rows)
	default:
		pg.line("router: %s of %s streams and %s of %s KV tokens a replica; %s is held back from the edge for %s of the throughput %s",
			p.text("cap.streams"), p.text("decode.limit_batch"), p.text("cap.kv_tokens"), p.text("decode.limit_kv_tokens"), p.text("decode.headroom"), p.text("decode.headroom_cost"), rows)
	}
}

// flipsShown is how many of the nearest flips are printed.
const flipsShown = 4

func flips(pg page, all []sizing.Flip) {
	if len(all) == 0 {
		pg.line("no assumption within a factor of four flips it alone")
		return
	}
	var parts []string
	for _, f := range all[:min(len(all), flipsShown)] {
		word := "from"
		if f.At < f.From {
			word = "below"
		}
		parts = append(parts, fmt.Sprintf("to %s %s %s %s", f.To, word, f.Key, f.Text))
	}
	pg.line("it flips %s", strings.Join(parts, "; "))
}
