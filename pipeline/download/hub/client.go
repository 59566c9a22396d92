package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"llmops/pipeline/download/transfer"
)

// maxJSON bounds one answer of the API.
const maxJSON = 64 << 20

// client speaks to one endpoint.
type client struct {
	*transfer.Client
	endpoint string
}

func newClient(o *Options) *client {
	c := &client{transfer.NewClient(o.HTTP, o.Say), strings.TrimSuffix(o.Endpoint, "/")}
	c.Refusal = refusal
	// The token goes only to the endpoint's own host.
	if own, err := url.Parse(c.endpoint); err == nil && o.Token != "" {
		c.Sign = func(r *http.Request) {
			if r.URL.Host == own.Host && r.URL.Scheme == own.Scheme {
				r.Header.Set("Authorization", "Bearer "+o.Token)
			}
		}
	}
	return c
}

// remote is one file of a commit.
func (c *client) remote(r Repo, commit string, f transfer.File) *transfer.Remote {
	var escaped []string
	for p := range strings.SplitSeq(f.Path, "/") {
		escaped = append(escaped, url.PathEscape(p))
	}
	at := c.endpoint + "/" + r.ID + "/resolve/" + commit + "/" + strings.Join(escaped, "/")
	return &transfer.Remote{Client: c.Client, File: f, Address: func(context.Context) (string, error) { return at, nil }}
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
	}
	return transfer.ByStatus(res, err)
}

// getJSON reads one answer of the API and returns the address of the next page, "" when
// there is none.
func (c *client) getJSON(ctx context.Context, at string, into any) (next string, err error) {
	err = c.Retry(ctx, "asking "+at, func() (bool, error) {
		to := at
		for range 5 { // repositories are renamed
			res, err := c.Ask(ctx, to, "", "")
			if err != nil {
				return false, err
			}
			if res.StatusCode/100 == 3 {
				if to, err = transfer.Follow(res); err != nil {
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

func decode(res *http.Response, into any) (next string, err error) {
	defer func() { _ = res.Body.Close() }()
	if t := res.Header.Get("Content-Type"); !strings.Contains(t, "json") {
		return "", fmt.Errorf("%s answers with %q instead of JSON; is HF_ENDPOINT right, or a proxy in between?", res.Request.URL, t)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxJSON+1))
	if err != nil {
		return "", &transfer.Transient{Err: err}
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
