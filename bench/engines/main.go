// Engines starts a real engine with the command line of its adapter in
// serving/engine and checks what the adapter says of it: that it becomes ready, makes
// a token under the alias, exposes the metrics, loads an adapter, sleeps and wakes, and
// does on SIGTERM what is said. run.sh installs the engines that PyPI has.
//
//	go run ./bench/engines -engine vllm -model DIR [-lora DIR] [-sleep] -- BIN
//
// What follows is put in place of the command line's first words: the program's path.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"llmops/serving/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var s engine.Serve
	var lora string
	flag.StringVar(&s.Kind, "engine", "", "which: "+strings.Join(engine.Kinds(), ", "))
	flag.StringVar(&s.Release, "release", "", "its version")
	flag.StringVar(&s.Dir, "model", "", "the model")
	flag.StringVar(&lora, "lora", "", "an adapter's folder: is loaded and unloaded while it serves")
	flag.BoolVar(&s.Sleep, "sleep", false, "is put to sleep and woken")
	flag.IntVar(&s.MaxModelLen, "max-model-len", 512, "tokens")
	flag.IntVar(&s.MaxNumSeqs, "max-num-seqs", 4, "sequences")
	flag.IntVar(&s.MaxNumBatchedTokens, "max-num-batched-tokens", 512, "tokens of a step")
	flag.DurationVar(&s.Drain, "drain", 0, "how long it may go on after SIGTERM")
	flag.StringVar(&s.Speculative.Method, "speculative", "", "guess ahead by this method")
	flag.IntVar(&s.Speculative.MaxBatch, "speculative-max-batch", 0, "but not while more sequences than this are computed")
	flag.Func("env", "NAME=VALUE, more than once", func(text string) error {
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("%q has no =", text)
		}
		s.Env[name] = value
		return nil
	})
	flag.Parse()
	s.Alias = "bench"
	if s.Speculative.Method != "" {
		s.Speculative.Tokens = 3
	}
	if lora != "" {
		s.LoRA = engine.LoRA{Max: 1, MaxRank: 8, Runtime: true}
	}
	c := &check{serve: s, lora: lora, bin: flag.Args()}
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		os.Exit(1)
	}
	if c.failed > 0 {
		os.Exit(1)
	}
}

type check struct {
	serve  engine.Serve
	facts  engine.Facts
	lora   string
	bin    []string
	url    string
	failed int
}

func (c *check) say(ok bool, format string, args ...any) {
	word := "ok  "
	if !ok {
		word = "FAIL"
		c.failed++
	}
	fmt.Printf("%s %s: %s\n", word, c.serve.Kind, fmt.Sprintf(format, args...))
}

func (c *check) run(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	c.serve.Listen, c.url = addr, "http://"+addr
	g, err := engine.Group(c.serve)
	if err != nil {
		return err
	}
	if c.facts, err = engine.About(c.serve); err != nil {
		return err
	}
	argv := replace(g.Argv, c.bin)
	fmt.Println("    ", strings.Join(argv, " "))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = os.Environ()
	for _, k := range slices.Sorted(maps.Keys(g.Env)) {
		cmd.Env = append(cmd.Env, k+"="+g.Env[k])
	}
	log, err := os.CreateTemp("", "llmops-engine-*.log")
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Println("     log:", log.Name())
	cmd.Stdout, cmd.Stderr = log, log
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if err := c.ready(ctx, ended, g.Check.Path); err != nil {
		return fmt.Errorf("%w; see %s", err, log.Name())
	}
	c.say(true, "%s answers after %v", g.Check.Path, time.Since(start).Round(100*time.Millisecond))
	c.token(ctx, "a token under the alias")
	status, _ := c.send(ctx, engine.Call{Method: "GET", Path: c.facts.Ready})
	c.say(status == 200, "%s is %d", c.facts.Ready, status)
	c.metrics(ctx)
	c.adapter(ctx)
	c.sleep(ctx)
	return c.stop(ctx, cmd.Process, ended)
}

// replace puts the program in place of the words that name it.
func replace(argv, bin []string) []string {
	if len(bin) == 0 {
		return argv
	}
	words := 1
	if argv[0] == "python3" { // -m module
		words = 3
	}
	return append(slices.Clone(bin), argv[words:]...)
}

func (c *check) ready(ctx context.Context, ended <-chan error, path string) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(10 * time.Minute)
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("it ended: %w", cmp.Or(err, io.EOF))
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("%s did not answer 200 in time", path)
		case <-tick.C:
			if status, _ := c.send(ctx, engine.Call{Method: "GET", Path: path}); status == 200 {
				return nil
			}
		}
	}
}

// send returns the status, 0 when there was no answer.
func (c *check) send(ctx context.Context, call engine.Call) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	res, err := c.open(ctx, call)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

func (c *check) open(ctx context.Context, call engine.Call) (*http.Response, error) {
	var body io.Reader
	if call.Body != nil {
		text, err := json.Marshal(call.Body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, call.Method, c.url+call.Path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

func (c *check) token(ctx context.Context, what string) {
	status, body := c.send(ctx, c.facts.Token)
	var r struct {
		Usage struct {
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	err := json.Unmarshal([]byte(body), &r)
	c.say(status == 200 && err == nil && r.Usage.CompletionTokens == 1, "%s: status %d, %d tokens", what, status, r.Usage.CompletionTokens)
}

func (c *check) metrics(ctx context.Context) {
	if c.facts.Metrics.Path == "" {
		return
	}
	status, page := c.send(ctx, engine.Call{Method: "GET", Path: c.facts.Metrics.Path})
	c.say(status == 200, "%s is %d", c.facts.Metrics.Path, status)
	for _, signal := range slices.Sorted(maps.Keys(c.facts.Metrics.Names)) {
		var under string
		_, ok := c.facts.Metrics.Read(signal, func(name string) (float64, bool) {
			for line := range strings.Lines(page) {
				rest, ok := strings.CutPrefix(line, name)
				if ok && (strings.HasPrefix(rest, "{") || strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "_count")) {
					under = name
					return 0, true
				}
			}
			return 0, false
		})
		names := c.facts.Metrics.Names[signal]
		c.say(ok && under == names[0], "%s is %s", signal, cmp.Or(under, "absent: "+strings.Join(names, ", ")))
	}
}

func (c *check) adapter(ctx context.Context) {
	if c.lora == "" {
		return
	}
	dir, err := filepath.Abs(c.lora)
	if err != nil {
		c.say(false, "%v", err)
		return
	}
	status, body := c.send(ctx, c.facts.Adapters.Load("extra", dir))
	c.say(status == 200, "loading an adapter: %d %.200s", status, body)
	call := c.facts.Token
	call.Body = map[string]any{"model": "extra", "prompt": "1", "max_tokens": 1}
	status, _ = c.send(ctx, call)
	c.say(status == 200, "a token under the adapter's name: %d", status)
	status, body = c.send(ctx, c.facts.Adapters.Unload("extra"))
	c.say(status == 200, "unloading it: %d %.200s", status, body)
}

func (c *check) sleep(ctx context.Context) {
	if !c.serve.Sleep {
		return
	}
	status, body := c.send(ctx, c.facts.Sleep.Sleep)
	c.say(status == 200, "putting it to sleep: %d %.200s", status, body)
	status, body = c.send(ctx, c.facts.Sleep.Wake)
	c.say(status == 200, "waking it: %d %.200s", status, body)
	c.token(ctx, "a token after it woke")
}

// stop asks for a long answer, and for the process's end in the middle of it.
func (c *check) stop(ctx context.Context, p *os.Process, ended <-chan error) error {
	call := c.facts.Token
	call.Body = map[string]any{"model": c.serve.Alias, "prompt": "1", "max_tokens": c.serve.MaxModelLen - 64, "stream": true, "ignore_eos": true}
	res, err := c.open(ctx, call)
	if err != nil {
		return fmt.Errorf("asking for a stream: %w", err)
	}
	defer res.Body.Close()
	var chunks, after int
	var done bool
	var told time.Time
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			done = true
		default:
			if chunks++; chunks == 3 {
				told = time.Now()
				if err := p.Signal(syscall.SIGTERM); err != nil {
					return fmt.Errorf("stopping it: %w", err)
				}
			} else if chunks > 3 {
				after++
			}
		}
	}
	c.say(done == c.facts.Drain.Finishes, "a stream is finished after SIGTERM: %v (%d chunks after it); said: %s", done, after, c.facts.Drain.Note)
	select {
	case <-ended:
		c.say(true, "it ended %v after SIGTERM", time.Since(told).Round(100*time.Millisecond))
	case <-time.After(c.serve.Drain + 2*time.Minute):
		c.say(false, "it has not ended")
	}
	return nil
}
