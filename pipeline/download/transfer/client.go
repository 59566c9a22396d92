package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
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
)

// Client makes requests and makes them again when that may help.
type Client struct {
	HTTP  *http.Client
	Stall time.Duration // how long a connection may bring nothing
	Say   func(format string, args ...any)
	Pause func(ctx context.Context, d time.Duration) error
	// Sign adds to a request what shows who asks; nil: nothing. It sees each address of
	// a chain of redirects.
	Sign func(*http.Request)
	// Refusal says what an answer that is none means, as far as the protocol knows; nil:
	// by its status.
	Refusal func(*http.Response) error
}

// NewClient makes one that uses base, or a client of its own when that is nil. Redirects
// are followed by hand: a token goes to one host alone, and a signed address is asked
// for ranges many times.
func NewClient(base *http.Client, say func(format string, args ...any)) *Client {
	if base == nil {
		base = &http.Client{Transport: transport()}
	}
	h := *base
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{HTTP: &h, Stall: patience, Say: say, Pause: sleep}
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

// Transient is an error after which the same is tried again, after wait if the server
// said so.
type Transient struct {
	Err  error
	Wait time.Duration
}

func (t *Transient) Error() string { return t.Err.Error() }
func (t *Transient) Unwrap() error { return t.Err }

// Retry does fn until it brings something, up to tries times in a row that it does not.
// fn returns how much progress it made.
func (c *Client) Retry(ctx context.Context, what string, fn func() (progress bool, err error)) error {
	wait := firstWait
	for n := 1; ; n++ {
		progress, err := fn()
		if err == nil {
			return nil
		}
		if progress {
			n, wait = 1, firstWait
		}
		var t *Transient
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
		if t.Wait > 0 {
			pause = t.Wait
			c.Say("%s: the server asks to wait %v", what, pause.Round(time.Second))
		}
		if err := c.Pause(ctx, pause); err != nil {
			return err
		}
		wait = min(2*wait, lastWait)
	}
}

// Ask sends one GET, for a range if there is one and of the version etag if that is not
// empty. Redirects are answers.
func (c *Client) Ask(ctx context.Context, at, ranges, etag string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "llmops")
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	if etag != "" {
		req.Header.Set("If-Match", etag)
	}
	if c.Sign != nil {
		c.Sign(req)
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &Transient{Err: err}
	}
	return res, nil
}

// refuse says what an answer that is none means, and closes it.
func (c *Client) refuse(res *http.Response) error {
	if c.Refusal != nil {
		return c.Refusal(res)
	}
	_ = res.Body.Close()
	return ByStatus(res, fmt.Errorf("%s answers %s", where(res), res.Status))
}

// ByStatus makes err one after which to try again if the answer's status is of that kind.
func ByStatus(res *http.Response, err error) error {
	switch code := res.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= http.StatusInternalServerError:
		return &Transient{err, waitOf(res.Header)}
	}
	return err
}

// Follow closes an answer that redirects and is where a redirect leads.
func Follow(res *http.Response) (string, error) {
	_ = res.Body.Close()
	to, err := res.Location()
	if err != nil {
		return "", fmt.Errorf("%s redirects to nowhere: %w", res.Request.URL.Host, err)
	}
	return to.String(), nil
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
