package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"llmops/fleet"
	"llmops/fleet/local"
	"llmops/serving/route"
)

// routers are the running ones by the names that scripts gave them.
var routers sync.Map

// router writes documents that send all of ALIAS to the engine at URL, serves them by the
// program itself, and sets NAME to the router's address: "router NAME URL ALIAS ARG...".
func router(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: router NAME URL ALIAS ARG...")
	}
	name, url, alias := args[0], args[1], args[2]
	ts.Check(send(ts.Getenv("LLMOPS_HOME"), alias, strings.TrimPrefix(url, "http://")))
	argv := append([]string{"router", "serve", "--listen", "127.0.0.1:0", "--state", ts.Getenv("LLMOPS_HOME")}, args[3:]...)
	c := exec.Command(filepath.Join(bin, "llmops"), argv...)
	c.Dir = ts.MkAbs(".")
	log, err := c.StderrPipe()
	ts.Check(err)
	ts.Check(c.Start())
	routers.Store(ts.Getenv("WORK")+name, c)
	ts.Defer(func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
	})
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "serving on "); ok {
			at, admin, _ := strings.Cut(at, ", admin on ")
			ts.Setenv(name, at)
			go func() { _, _ = io.Copy(io.Discard, log) }()
			ts.Check(served(at, admin, alias))
			return
		}
		ts.Logf("%s", lines.Text())
	}
	ts.Fatalf("the router ended before it served")
}

// send writes the documents of a route to one replica.
func send(home, alias, addr string) error {
	s, err := local.OpenStore(home)
	if err != nil {
		return err
	}
	job := fleet.Job{Name: alias + "-v1", Version: "v1", Kind: fleet.Engine, Meta: map[string]string{"alias": alias, "version": "v1"}}
	replica := fleet.Replica{ID: alias + "-v1/main-0", Addr: addr, Nonce: addr, State: fleet.Healthy}
	for name, v := range map[string]any{route.Name(alias): route.New(alias, "run", "v1"), "job/" + job.Name: job, "replica/" + replica.ID: replica} {
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if _, err := s.Put(context.Background(), name, body, 0); err != nil && !errors.Is(err, fleet.ErrConflict) {
			return err
		}
	}
	return nil
}

// served waits until the router at url has seen a replica of alias, and has it answer
// one request: none is refused, which would be on record.
func served(url, admin, alias string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := (&route.Admin{Base: admin}).State(ctx, alias)
		if err == nil && slices.ContainsFunc(st.Loads, func(l route.Load) bool { return l.Health == "up" }) {
			status, err := complete(ctx, url, alias, "warm-up", "hello", "", 1)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d", status)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the router serves no %s: %+v, %w", alias, st, err)
		case <-tick.C:
		}
	}
}

// complete asks for n tokens and reads the answer to its end.
func complete(ctx context.Context, url, alias, tenant, text, more string, n int) (int, error) {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":%q}]%s}`, alias, n, text, more)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Tenant", tenant)
	req.Header.Set("X-Workload", "of "+tenant)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// ask sends N chats of a tenant that stream their answers and begin alike, one after the
// other: "ask URL ALIAS TENANT N".
func ask(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: ask URL ALIAS TENANT N")
	}
	n, err := strconv.Atoi(args[3])
	ts.Check(err)
	document := strings.Repeat("the consignee of the bill of lading ", 30)
	for i := range n {
		status, err := complete(context.Background(), args[0], args[1], args[2], fmt.Sprintf("%s question %d", document, i), `,"stream":true,"min_tokens":40,"ignore_eos":true`, 40)
		ts.Check(err)
		if status != http.StatusOK {
			ts.Fatalf("status %d", status)
		}
	}
}

// stopRouter ends a router as Ctrl-C does, and waits: "stop-router NAME".
func stopRouter(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: stop-router NAME")
	}
	c, ok := routers.Load(ts.Getenv("WORK") + args[0])
	if !ok {
		ts.Fatalf("no router %s", args[0])
	}
	ts.Check(c.(*exec.Cmd).Process.Signal(syscall.SIGINT))
	_ = c.(*exec.Cmd).Wait() // interrupted, as its status says
}
