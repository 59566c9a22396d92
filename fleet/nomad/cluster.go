package nomad

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Least is the oldest Nomad that will do. Before 1.8.2 a request to scale a job takes
// no notice of the revision it names, so that two controllers would undo each other's
// counts without a word. (Variables of 64 KiB came with 1.5, node pools with 1.6.)
const Least = "1.8.2"

// cluster is one namespace of a cluster, as whoever holds the client's token sees it.
type cluster struct {
	client    *api.Client
	namespace string

	mu    sync.Mutex // guards sound
	sound bool       // that check found no fault
}

func newCluster(c *api.Client, namespace string) *cluster {
	return &cluster{client: c, namespace: cmp.Or(namespace, api.DefaultNamespace)}
}

func (c *cluster) read(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: c.namespace}).WithContext(ctx)
}

func (c *cluster) write(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: c.namespace}).WithContext(ctx)
}

func (c *cluster) needs(what string) string { return what + " in namespace " + c.namespace }

// explain adds to an error of the API what the reader of it can do.
func (c *cluster) explain(err error, needs string) error {
	return explain(err, c.client.Address(), c.namespace, needs)
}

// check asks once whether this is a cluster to work with. Nomad itself would not say:
// in a namespace that does not exist it lists nothing, and even stores variables.
func (c *cluster) check(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sound {
		return nil
	}
	if err := Check(ctx, c.client, c.namespace); err != nil {
		return err
	}
	c.sound = true
	return nil
}

// Check tells whether the client reaches a cluster that is new enough and has the
// namespace (empty: Nomad's default), and otherwise what is to be done about it. Store
// and Scheduler do so before their first call.
func Check(ctx context.Context, client *api.Client, namespace string) error {
	c := newCluster(client, namespace)
	var self struct {
		Config struct{ Version struct{ Version string } } `json:"config"`
	}
	_, err := client.Raw().Query("/v1/agent/self", &self, c.read(ctx))
	// A policy without agent read hides the version, and takes nothing else away.
	if err != nil && status(err) != http.StatusForbidden {
		return fmt.Errorf("asking Nomad for its version: %w", c.explain(err, "agent read"))
	}
	if v := self.Config.Version.Version; err == nil && older(v, Least) {
		return fmt.Errorf("%w: the agent at %s is Nomad %s; llmops needs %s or later, since before it scaling a job ignored the revision it was meant for: upgrade the servers", errUnfit, client.Address(), v, Least)
	}
	_, _, err = client.Namespaces().Info(c.namespace, c.read(ctx))
	if status(err) == http.StatusNotFound {
		return c.noNamespace()
	}
	if status(err) == http.StatusForbidden {
		return fmt.Errorf("looking up namespace %s: %w: the token may do nothing there, or the cluster does not know it: set NOMAD_TOKEN to one with a policy such as llmops.policy.hcl", c.namespace, err)
	}
	if err != nil {
		return fmt.Errorf("looking up namespace %s: %w", c.namespace, c.explain(err, ""))
	}
	return nil
}

func (c *cluster) noNamespace() error { return noNamespace(c.client.Address(), c.namespace) }

// older compares versions as 1.8.2 or 2.0.6-dev. One that cannot be read is not older.
func older(v, least string) bool {
	number := func(v string) (n [3]int, ok bool) {
		v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
		v, _, _ = strings.Cut(v, "+")
		for i, part := range strings.SplitN(v, ".", 3) {
			var err error
			if n[i], err = strconv.Atoi(part); err != nil {
				return n, false
			}
		}
		return n, true
	}
	is, ok := number(v)
	want, _ := number(least)
	for i := range is {
		if is[i] != want[i] {
			return ok && is[i] < want[i]
		}
	}
	return false
}
