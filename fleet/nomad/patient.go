package nomad

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// election is for how long a request is sent again while the servers have no leader:
// they choose one within seconds, and Nomad's own agents wait about as long.
const (
	election   = 20 * time.Second
	electEvery = 250 * time.Millisecond
)

// newHTTP makes the client that an agent is asked with. The address of an agent's
// socket becomes one that means nothing.
func newHTTP(c *api.Config) (*http.Client, error) {
	d := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: d.DialContext, MaxIdleConns: 100, MaxIdleConnsPerHost: 2 * atOnce, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if path, ok := strings.CutPrefix(c.Address, "unix://"); ok {
		c.Address, t.Proxy = "http://127.0.0.1", nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) }
	}
	client := &http.Client{Transport: t}
	if err := api.ConfigureTLS(client, c.TLSConfig); err != nil {
		return nil, err
	}
	client.Transport = &patient{next: t}
	return client, nil
}

// patient sends a request again that was refused for want of a leader, or broke off
// with the one there was. It may have been carried out all the same, which changes
// nothing: those that write name the revision that they change.
type patient struct{ next http.RoundTripper }

// electing are the words of agents whose servers are choosing a leader.
var electing = []string{
	"No cluster leader", "leadership lost", "node is not the leader", "rpc error: EOF", "failed to get conn", "session shutdown", "stream closed",
	"connection reset by peer", "broken pipe", "use of closed network connection",
}

// elects tells whether an answer, whose body is text, is for want of a leader.
func elects(res *http.Response, text []byte) bool {
	if res.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(text))
		if err == nil {
			text, err = io.ReadAll(z)
		}
		if err != nil {
			return false
		}
	}
	return slices.ContainsFunc(electing, func(s string) bool { return bytes.Contains(text, []byte(s)) })
}

// againKey is that of a *bool in a request's context that tells whether it was sent
// more than once.
type againKey struct{}

func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for until := time.Now().Add(election); ; {
		res, err := p.next.RoundTrip(req)
		ofNode := strings.HasPrefix(req.URL.Path, "/v1/client/") // answers for itself, not for the servers
		if err != nil || ofNode || res.StatusCode != http.StatusInternalServerError || time.Now().After(until) || req.Body != nil && req.GetBody == nil {
			return res, err
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(text))
		if err != nil || !elects(res, text) {
			return res, err
		}
		if sleep(req.Context(), electEvery) != nil {
			return res, nil
		}
		if again, ok := req.Context().Value(againKey{}).(*bool); ok {
			*again = true
		}
		req = req.Clone(req.Context())
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}
