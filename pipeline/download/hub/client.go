package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// tries is how often a request that brought nothing is made.
	tries     = 6
	firstWait = time.Second
	lastWait  = 30 * time.Second
	patience  = 20 * time.Second // with a connection that brings nothing
	// maxJSON bounds one answer of the API.
	maxJSON = 64 << 20
)

// client speaks to one endpoint.
type client struct {
	http     *http.Client
	endpoint string
	token    string
	stall    time.Duration // how long a connection may bring nothing
	say      func(format string, args ...any)
	pause    func(ctx context.Context, d time.Duration) error
}

func newClient(o *Options) *client {
	base := o.HTTP
	if base == nil {
		base = &http.Client{Transport: transport()}
	}
	h := *base
	// Redirects are followed by hand: the token goes to the Hub alone, and a signed
	// address is asked for ranges many times.
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client{http: &h, endpoint: strings.TrimSuffix(o.Endpoint, "/"), token: o.Token, stall: patience, say: o.Say, pause: sleep}
}

func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // a server that compresses forgets ranges
	t.MaxIdleConnsPerHost = 64
	t.ResponseHeaderTimeout = patience
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	return t
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// transient is an error after which the same is tried again, after wait if the server
// said so.
type transient struct {
	err  error
	wait time.Duration
}

func (t *transient) Error() string { return t.err.Error() }
func (t *transient) Unwrap() error { return t.err }

// retry does fn until it brings something, up to tries times in a row that it does not.
// fn returns how much progress it made.
func (c *client) retry(ctx context.Context, what string, fn func() (progress bool, err error)) error {
	wait := firstWait
	for n := 1; ; n++ {
		progress, err := fn()
		if err == nil {
			return nil
		}
		if progress {
			n, wait = 1, firstWait
		}
		var t *transient
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.As(err, &t) {
			return err
		}
		if n == tries {
			return fmt.Errorf("%s: tried %d times: %w", what, n, err)
		}
		pause := wait + rand.N(wait/4)
		if t.wait > 0 {
			pause = t.wait
			c.say("%s: the server asks to wait %v", what, pause.Round(time.Second))
		}
		if err := c.pause(ctx, pause); err != nil {
			return err
		}
		wait = min(2*wait, lastWait)
	}
}

// ask sends one GET. The token goes with it only to the endpoint's own host.
func (c *client) ask(ctx context.Context, at, ranges string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "llmops")
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	if own, err := url.Parse(c.endpoint); err == nil && c.token != "" && req.URL.Host == own.Host && req.URL.Scheme == own.Scheme {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &transient{err: err}
	}
	return res, nil
}

// refusal says what an answer that is none means.
func refusal(res *http.Response) error {
	defer func() { _ = res.Body.Close() }()
	h := res.Header
	id := ""
	for _, name := range []string{"X-Request-Id", "X-Amzn-Trace-Id", "X-Amz-Cf-Id"} {
		if v := h.Get(name); v != "" {
			id = ", request " + v
			break
		}
	}
	err := fmt.Errorf("%s answers %s%s", res.Request.URL.Redacted(), res.Status, id)
	code, message := h.Get("X-Error-Code"), h.Get("X-Error-Message")
	if message != "" {
		err = fmt.Errorf("%w: %s", err, message)
	}
	switch {
	case code == "GatedRepo":
		return fmt.Errorf("%w; accept its terms on its page with the account of the token, and set HF_TOKEN: %w", ErrGated, err)
	case strings.HasPrefix(message, "Access to this resource is disabled"):
		return fmt.Errorf("%w: %w", ErrDisabled, err)
	case res.StatusCode == http.StatusUnauthorized && strings.HasPrefix(message, "Invalid credentials"):
		return fmt.Errorf("%w; see HF_TOKEN: %w", ErrToken, err)
	case code == "RepoNotFound", res.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w; for a private one set HF_TOKEN: %w", ErrNotFound, err)
	case code == "RevisionNotFound":
		return fmt.Errorf("%w: %w", ErrRevision, err)
	case code == "EntryNotFound":
		return fmt.Errorf("%w: %w", ErrEntry, err)
	case res.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w; a fine-grained token needs read access to gated repositories: %w", ErrForbidden, err)
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout, res.StatusCode >= 500:
		return &transient{err, waitOf(h)}
	}
	return err
}

// maxPause bounds what a server may ask for: the Hub's windows are of five minutes.
const maxPause = 6 * time.Minute

// waitOf is how long the server wants to be left alone: Retry-After, or the t of
// RateLimit: "resolvers";r=0;t=55.
func waitOf(h http.Header) time.Duration {
	if v := h.Get("Retry-After"); v != "" {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 {
			return min(time.Duration(n)*time.Second, maxPause)
		}
		if at, err := http.ParseTime(v); err == nil {
			return min(max(time.Until(at), 0), maxPause)
		}
	}
	for part := range strings.SplitSeq(h.Get("RateLimit"), ";") {
		if v, ok := strings.CutPrefix(strings.TrimSpace(part), "t="); ok {
			if n, err := strconv.Atoi(v); err == nil && n >= 0 {
				return min(time.Duration(n+1)*time.Second, maxPause)
			}
		}
	}
	return 0
}

// getJSON reads one answer of the API and returns the address of the next page, "" when
// there is none.
func (c *client) getJSON(ctx context.Context, at string, into any) (next string, err error) {
	err = c.retry(ctx, "asking "+at, func() (bool, error) {
		to := at
		for range 5 { // repositories are renamed
			res, err := c.ask(ctx, to, "")
			if err != nil {
				return false, err
			}
			if res.StatusCode/100 == 3 {
				if to, err = c.follow(res); err != nil {
					return false, err
				}
				continue
			}
			if res.StatusCode != http.StatusOK {
				return false, refusal(res)
			}
			next, err = decode(res, into)
			return false, err
		}
		return false, fmt.Errorf("asking %s: redirected in a circle", at)
	})
	return next, err
}

// follow is where a redirect leads within the endpoint.
func (c *client) follow(res *http.Response) (string, error) {
	_ = res.Body.Close()
	to, err := res.Location()
	if err != nil {
		return "", fmt.Errorf("%s redirects to nowhere: %w", res.Request.URL, err)
	}
	return to.String(), nil
}

func decode(res *http.Response, into any) (next string, err error) {
	defer func() { _ = res.Body.Close() }()
	if t := res.Header.Get("Content-Type"); !strings.Contains(t, "json") {
		return "", fmt.Errorf("%s answers with %q instead of JSON; is HF_ENDPOINT right, or a proxy in between?", res.Request.URL, t)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxJSON+1))
	if err != nil {
		return "", &transient{err: err}
	}
	if len(b) > maxJSON {
		return "", fmt.Errorf("%s answers with more than %d bytes", res.Request.URL, maxJSON)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return "", fmt.Errorf("%s: %w", res.Request.URL, err)
	}
	for _, link := range res.Header.Values("Link") {
		for part := range strings.SplitSeq(link, ",") {
			target, params, ok := strings.Cut(part, ";")
			if ok && strings.Contains(params, `rel="next"`) {
				return strings.Trim(strings.TrimSpace(target), "<>"), nil
			}
		}
	}
	return "", nil
}
