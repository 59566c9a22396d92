package quantise

import (
	"fmt"
	"slices"
	"strings"
)

// Where engines split a matrix: the rows of the first, the columns of the second.
var (
	splitRows = []string{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "q_b_proj", "kv_b_proj"}
	splitCols = []string{"o_proj", "down_proj", "w2", "out_proj"}
)

// divide refuses matrices that groups, words or blocks do not divide, on one GPU
// or on as many as are planned.
func (p *planner) divide() {
	tp := int64(max(p.o.TensorParallel, 1))
	for i := range p.steps {
		s := &p.steps[i]
		if !s.Quantise {
			continue
		}
		for _, m := range s.parts {
			if why := p.indivisible(m, tp); why != "" {
				s.refuse("%s; keep it", why)
				break
			}
		}
	}
}

func (p *planner) indivisible(m part, tp int64) string {
	last := m.module[strings.LastIndexByte(m.module, '.')+1:]
	rows, cols := m.rows, m.cols
	if slices.Contains(splitRows, last) {
		// A KV head that there are too few of is copied to several GPUs.
		least := int64(1)
		if last == "k_proj" || last == "v_proj" {
			least = min(rows, int64(p.shape.HeadDim))
		}
		if rows%tp != 0 && rows/tp >= least {
			return fmt.Sprintf("%d GPUs do not divide its %d rows", tp, rows)
		}
		rows = max(rows/tp, least)
	}
	if slices.Contains(splitCols, last) {
		if cols%tp != 0 {
			return fmt.Sprintf("%d GPUs do not divide its %d columns", tp, cols)
		}
		cols /= tp
	}
	on := ""
	if tp > 1 {
		on = fmt.Sprintf(" on each of %d GPUs", tp)
	}
	switch {
	case p.to.group > 0 && cols%p.to.group != 0:
		return fmt.Sprintf("groups of %d do not divide its %d columns%s", p.to.group, cols, on)
	case p.to.packed() && cols*p.to.bits%32 != 0:
		return fmt.Sprintf("words of 32 bits do not divide its %d columns of %d bits%s", cols, p.to.bits, on)
	case p.to.block == 0:
	case tp > 1 && cols != m.cols && cols%p.to.block != 0:
		return fmt.Sprintf("blocks of %d do not divide its %d columns%s", p.to.block, cols, on)
	// Of matrices that are stacked to one product only the last may be ragged.
	case rows%p.to.block != 0 && (tp > 1 && rows != m.rows || slices.Contains([]string{"q_proj", "k_proj", "gate_proj", "w1"}, last)):
		return fmt.Sprintf("blocks of %d do not divide its %d rows%s, and it is one product with others", p.to.block, rows, on)
	}
	return ""
}
