// Command freightgen writes the freight model's training text, its evaluation items and its traffic, as JSON lines.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"

	"llmops/examples/freight/items"
)

const usage = `usage: freightgen [flags] train | freight | json | long-context | perplexity | traffic | canaries |
                          retrieval | searches | pairs

Writes JSON lines to standard output. The same flags always give the same bytes.
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "freightgen:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("freightgen", flag.ContinueOnError)
	seed := flags.Uint64("seed", 0, "random `seed`; another one gives another sample of items")
	noise := flags.Float64("noise", items.DefaultNoise, "`share` of label letters that are damaged (items, traffic)")
	haystack := flags.Int("haystack", items.DefaultHaystack, "length of a long-context document in `tokens`, about")
	stage := flags.Int("stage", items.FirstStage, "`stage` of training")
	tokens := flags.Int("tokens", 96, "room of a training sample in `tokens`")
	n := flags.Int("n", 0, "`number` of lines for train and pairs (0: endless), perplexity (0: 64) and traffic (0: 3600)")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return fmt.Errorf("want one kind of output, got %d arguments", flags.NArg())
	}
	o := items.Options{Seed: *seed, Noise: noise, Haystack: *haystack}
	w := bufio.NewWriterSize(stdout, 1<<16)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	err := write(out, flags.Arg(0), o, *stage, *tokens, *n)
	// A trainer closes the pipe when it moves on to the next stage.
	if err = errors.Join(err, w.Flush()); errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

func write(out *json.Encoder, kind string, o items.Options, stage, tokens, n int) error {
	switch kind {
	case "train":
		t, err := items.NewTrainer(stage, o.Seed)
		if err != nil {
			return err
		}
		for i := 0; n == 0 || i < n; i++ {
			if err := out.Encode(t.Next(tokens)); err != nil {
				return err
			}
		}
		return nil
	case "perplexity":
		if n == 0 {
			n = 64
		}
		return encode(out, items.Passages(o, n))
	case "traffic":
		if n == 0 {
			n = items.DefaultArrivals
		}
		return encode(out, items.Traffic(o, n))
	case "retrieval":
		return encode(out, items.Retrieval(o))
	case "searches":
		return encode(out, items.Searches(o))
	case "pairs":
		p := items.NewPairs(o.Seed)
		for i := 0; n == 0 || i < n; i++ {
			if err := out.Encode(p.Next()); err != nil {
				return err
			}
		}
		return nil
	case "canaries":
		return encode(out, items.Canaries(o))
	}
	suite, err := items.Suite(kind, o)
	if err != nil {
		return err
	}
	return encode(out, suite)
}

func encode[T any](out *json.Encoder, all []T) error {
	for _, v := range all {
		if err := out.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
