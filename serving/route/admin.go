package route

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"llmops/serving/trace"
)

// State is what a router has in force for an alias, read back after a push.
type State struct {
	Router string            `json:"router"`
	Boot   string            `json:"boot"`
	Rev    uint64            `json:"rev"`
	Epoch  uint64            `json:"epoch"`
	Leased bool              `json:"leased"`           // the lease's intent is in force
	Left   time.Duration     `json:"left"`             // until it ends, in ns
	Shares map[string]uint32 `json:"shares"`           // effective in the router's zone and pool
	Mirror map[string]uint32 `json:"mirror,omitempty"` // effective
	Read   time.Duration     `json:"read"`             // age of the newest read of the store, in ns; -1: none yet
	Reason string            `json:"reason,omitempty"` // why the newest read or document was not taken

	Caps  map[string]Caps `json:"caps,omitempty"`  // of each replica, this router's part
	Loads []Load          `json:"loads,omitempty"` // what this router has under way

	Records *trace.Stats `json:"records,omitempty"` // of all aliases; nil: the router writes none
}

// Load is what a router has under way on one replica.
type Load struct {
	Replica  string `json:"replica"`
	Version  string `json:"version"`
	Health   string `json:"health"`
	Streams  int    `json:"streams"`
	KVTokens int    `json:"kv_tokens"` // prompts, as far as they are known, and output so far
}

// Push is the body of PUT /route/<alias>.
type Push struct {
	Rev uint64          `json:"rev"`
	Doc json.RawMessage `json:"doc"`
}

// Admin talks to one router's admin address. It is safe for concurrent use.
type Admin struct {
	Base string       // http://host:port
	Key  Key          // for Push
	HTTP *http.Client // nil: http.DefaultClient
}

// Push hands a router a revision and returns what it then has in force. A
// router that already has a newer one keeps it, which is no error.
func (a *Admin) Push(ctx context.Context, rev uint64, d Doc) (State, error) {
	doc, err := Encode(d)
	if err != nil {
		return State{}, err
	}
	body, err := json.Marshal(Push{rev, doc})
	if err != nil {
		return State{}, err
	}
	var s State
	return s, a.call(ctx, http.MethodPut, "/route/", d.Alias, body, &s)
}

// State reads back what the router has in force.
func (a *Admin) State(ctx context.Context, alias string) (State, error) {
	var s State
	return s, a.call(ctx, http.MethodGet, "/route/", alias, nil, &s)
}

// Report reads what the router has counted.
func (a *Admin) Report(ctx context.Context, alias string) (Report, error) {
	var r Report
	return r, a.call(ctx, http.MethodGet, "/report/", alias, nil, &r)
}

func (a *Admin) call(ctx context.Context, method, path, alias string, body []byte, out any) error {
	u := strings.TrimSuffix(a.Base, "/") + path + url.PathEscape(alias)
	req, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if method == http.MethodPut {
		req.Header.Set(HeaderSignature, a.Key.Sign(body))
	}
	client := a.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("reading the router's answer to %s %s: %w", method, u, err)
	}
	if res.StatusCode != http.StatusOK {
		e := &AdminError{Status: res.StatusCode, Message: strings.TrimSpace(string(b[:min(len(b), 512)]))}
		return fmt.Errorf("asking the router: %s %s: %w", method, u, e)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("reading the router's answer to %s %s: %w", method, u, err)
	}
	return nil
}

// AdminError is a router's refusal.
type AdminError struct {
	Status  int
	Message string
}

func (e *AdminError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Message) }

// Unwrap makes a refused epoch ErrFenced on this side too.
func (e *AdminError) Unwrap() error {
	if e.Status == http.StatusConflict {
		return ErrFenced
	}
	return nil
}
