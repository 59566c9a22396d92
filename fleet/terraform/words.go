package terraform

import (
	"fmt"
	"strings"
)

const hoursPerMonth = 730

// Words says the summary for people, a line each.
func (s *Summary) Words() []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range s.Pools {
		var lines []string
		for _, c := range s.Nodes {
			if c.Node.Pool == p.Pool {
				lines = append(lines, c.words()...)
			}
		}
		if len(lines) == 0 && p.Before.Nodes == p.After.Nodes {
			continue
		}
		say("pool %s: %s", p.Pool, move(p.Before, p.After))
		out = append(out, lines...)
	}
	if len(s.Other) > 0 {
		say("beside the nodes:")
		for _, c := range s.Other {
			server := ""
			if c.Server != "" {
				server = " (server " + c.Server + ")"
			}
			say("  %s %s%s", c.Action, c.Address, server)
		}
	}
	if len(s.Drift) > 0 {
		say("changed outside of Terraform since the last apply:")
		for _, c := range s.Drift {
			say("  %s was %sd", c.Address, strings.TrimSuffix(c.Action, "e")+"e")
		}
	}
	if s.Empty() {
		say("nothing to do: %s", total(s.After))
		return out
	}
	say("in all: %s", move(s.Before, s.After))
	if s.Before.Hourly != nil && s.After.Hourly != nil && *s.Before.Hourly != *s.After.Hourly {
		d := (*s.After.Hourly - *s.Before.Hourly) * hoursPerMonth
		more := "more"
		if d < 0 {
			d, more = -d, "less"
		}
		say("  $%.0f %s a month of %d hours", d, more, hoursPerMonth)
	}
	return out
}

func (c *NodeChange) words() []string {
	verb := map[string]string{Added: "adds", Changed: "changes", Replaced: "replaces", Removed: "removes"}[c.Action]
	n := c.Node
	where := n.Zone
	if n.Rack != "" && n.Rack != n.Zone {
		where += ", rack " + n.Rack
	}
	spot := ""
	if n.Spot {
		spot = ", spot"
	}
	out := []string{fmt.Sprintf("  %s %s in %s: %s, %s%s", verb, n.Name, where, gpus(n), price(n.Hourly), spot)}
	if c.Was != nil {
		if d := differences(*c.Was, n); d != "" {
			out = append(out, "    "+d)
		}
	}
	for _, a := range c.Through {
		if c.Action == Replaced && !strings.Contains(a, "terraform_data.node[") {
			out = append(out, "    through "+a)
		}
	}
	return out
}

func differences(was, is Node) string {
	var d []string
	for _, f := range []struct{ name, was, is string }{
		{"pool", was.Pool, is.Pool}, {"zone", was.Zone, is.Zone}, {"rack", was.Rack, is.Rack}, {"class", was.Class, is.Class},
		{"GPUs", gpus(was), gpus(is)}, {"node class", was.NodeClass, is.NodeClass}, {"residency", was.Residency, is.Residency},
		{"compliance", was.Compliance, is.Compliance}, {"price", price(was.Hourly), price(is.Hourly)}, {"spot", fmt.Sprint(was.Spot), fmt.Sprint(is.Spot)},
	} {
		if f.was != f.is {
			d = append(d, fmt.Sprintf("%s %s → %s", f.name, none(f.was), none(f.is)))
		}
	}
	return strings.Join(d, "; ")
}

func none(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func gpus(n Node) string {
	if n.GPUs == 0 {
		return "no GPU"
	}
	return fmt.Sprintf("%d %s", n.GPUs, n.GPU)
}

func price(p *float64) string {
	if p == nil {
		return "price unknown"
	}
	return fmt.Sprintf("$%.2f an hour", *p)
}

func total(s Sum) string {
	return fmt.Sprintf("%d nodes, %d GPUs, %s", s.Nodes, s.GPUs, price(s.Hourly))
}

func move(a, b Sum) string {
	cost := price(b.Hourly)
	switch {
	case a.Hourly != nil && b.Hourly != nil && *a.Hourly != *b.Hourly:
		cost = fmt.Sprintf("$%.2f → $%.2f an hour", *a.Hourly, *b.Hourly)
	case (a.Hourly == nil) != (b.Hourly == nil) && a.Nodes > 0:
		cost = price(a.Hourly) + " → " + price(b.Hourly)
	}
	return fmt.Sprintf("%s nodes, %s GPUs, %s", arrow(a.Nodes, b.Nodes), arrow(a.GPUs, b.GPUs), cost)
}

func arrow(a, b int) string {
	if a == b {
		return fmt.Sprint(a)
	}
	return fmt.Sprintf("%d → %d", a, b)
}
