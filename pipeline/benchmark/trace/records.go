package trace

import (
	"bufio"
	"fmt"
	"math"
	"time"

	router "llmops/serving/trace"
)

// records is what llmops router serve --records writes: what went through a router,
// without a word of anybody's. Prompts are told as chained hashes of blocks of bytes, so
// that beginnings which were the same are the same again.
var records = Format{
	Name: "records", Unit: "RFC 3339", Columns: []string{"time", "arrived", "status", "input_tokens", "output_tokens"},
	claims: func(h []byte) bool {
		return keys(h, "time", "arrived", "status", "input_tokens", "output_tokens")
	},
	read: func(in *bufio.Reader, t *Trace) error {
		cut, err := router.Read(in, func(n int, r router.Record) error {
			switch {
			case r.Status >= 400:
				t.drop(n, fmt.Sprintf("status %d: it was not served", r.Status))
			case r.Input == router.Unknown || r.Output == router.Unknown:
				t.drop(n, "nobody told how many tokens it had")
			case r.Output == 0:
				t.drop(n, "no output tokens")
			default:
				t.add(n, Row{At: time.Duration(r.Arrived.UnixNano()), Input: r.Input, Output: r.Output, Class: r.Workload, Session: r.Session, Blocks: r.Blocks, bytes: r.PromptBytes})
			}
			return nil
		})
		if cut {
			t.Cut++
		}
		return err
	},
	unordered: true,
	// A block is as many tokens in all rows, by what the rows have of both: a
	// beginning that two share has to have one length. A row whose text is denser than
	// the mean has some of its last blocks cut off.
	finish: func(t *Trace) {
		bytes, tokens := 0.0, 0.0
		for _, r := range t.Rows {
			if len(r.Blocks) > 0 {
				bytes, tokens = bytes+float64(r.bytes), tokens+float64(r.Input)
			}
		}
		size := max(1, int(math.Round(router.BlockBytes*tokens/max(bytes, 1))))
		for i := range t.Rows {
			r := &t.Rows[i]
			r.bytes = 0
			if r.Blocks = r.Blocks[:min(len(r.Blocks), r.Input/size)]; len(r.Blocks) == 0 {
				r.Blocks = nil
				continue
			}
			r.Size = size
		}
	},
}
