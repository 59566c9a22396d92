package nomad

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"llmops/fleet"
	"llmops/fleet/fleettest"
	"llmops/fleet/nomad/nomadtest"
	"llmops/jobs"
)

// least is all that this package needs: each word is missed by some call when it is
// taken away, which the test does. Whoever may submit jobs may parse and scale them;
// whoever may read variables may list them. Agent read would let the version be seen.
const least = `
namespace "default" {
  capabilities = ["list-jobs", "read-job", "submit-job", "read-logs"]
  variables {
    path "llmops/*" {
      capabilities = ["read", "write", "destroy"]
    }
  }
}
node {
  policy = "write"
}
`

// with is a client whose token has a policy of these rules.
func with(t *testing.T, c *api.Client, name, rules string) *api.Client {
	t.Helper()
	if _, err := c.ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
		t.Fatal(err)
	}
	token, _, err := c.ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := Dial(Config{Address: c.Address(), Token: token.SecretID})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestACLs(t *testing.T) {
	c, end, err := nomadtest.Secured(nomadtest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	contract, err := os.ReadFile("../../terraform/contract/llmops.policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	for name, rules := range map[string]string{"contract": string(contract), "least": least} {
		t.Run(name, func(t *testing.T) {
			c := with(t, c, name, rules)
			t.Run("store", func(t *testing.T) {
				empty(t, NewStore(c, ""))
				fleettest.Store(t, func(t *testing.T) fleet.Store { return NewStore(c, "") })
			})
			t.Run("scheduler", func(t *testing.T) { fleettest.Scheduler(t, scheduler(t, c), group(""), group("ends")) })
			t.Run("drain", func(t *testing.T) { testDrain(t, c) })
		})
	}
	t.Run("each is needed", func(t *testing.T) { testEachIsNeeded(t, c) })
	t.Run("workload identity", func(t *testing.T) { testWorkloadIdentity(t, c, string(contract)) })

	for what, token := range map[string]string{"an unknown token": "00000000-1111-2222-3333-444444444444", "no token": ""} {
		bare, err := Dial(Config{Address: c.Address(), Token: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewStore(bare, "").Get(t.Context(), "x")
		says(t, what, err, "namespace default", "NOMAD_TOKEN", "llmops.policy.hcl")
	}
}

// A token without one of the capabilities is refused by a message that names it.
func testEachIsNeeded(t *testing.T, c *api.Client) {
	whole := scheduler(t, c)
	rev, err := whole.Apply(t.Context(), one("needs", group("")("main")), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, whole, "needs")
	st := fleettest.Await(t, whole, "needs", func(st fleet.Status) bool {
		return len(st.Replicas) == 1 && st.Replicas[0].State == fleet.Healthy
	})
	store := NewStore(c, "")
	doc, err := store.Put(t.Context(), "needs", []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		without, lacks string
		call           func(s *Scheduler, d *Store) error
	}{
		{`"list-jobs", `, "list-jobs", func(s *Scheduler, _ *Store) error { return second(s.Jobs(t.Context())) }},
		{`"read-job", `, "read-job", func(s *Scheduler, _ *Store) error { return second(s.Status(t.Context(), "needs")) }},
		{`"submit-job", `, "parse-job", func(s *Scheduler, _ *Store) error {
			return second(s.Apply(t.Context(), one("needs", group("")("main")), rev))
		}},
		{`"submit-job"`, "submit-job", func(s *Scheduler, _ *Store) error {
			return second(s.Apply(t.Context(), one("needs", group("")("main")), rev))
		}},
		{`"submit-job"`, "submit-job", func(s *Scheduler, _ *Store) error { return s.Stop(t.Context(), "needs") }},
		{`, "read-logs"`, "read-logs", func(s *Scheduler, _ *Store) error {
			logs, err := s.Logs(t.Context(), st.Replicas[0].ID, false)
			if err != nil {
				return err
			}
			_, err = logs.Read(make([]byte, 1))
			return errors.Join(err, logs.Close())
		}},
		{`"read", `, "read on variables", func(_ *Scheduler, d *Store) error { return second(d.Get(t.Context(), "needs")) }},
		{`"read", `, "read on variables", func(_ *Scheduler, d *Store) error { return second(d.List(t.Context(), "")) }},
		{`"write", `, "write on variables", func(_ *Scheduler, d *Store) error { return second(d.Put(t.Context(), "needs", nil, doc)) }},
		{`, "destroy"`, "destroy on variables", func(_ *Scheduler, d *Store) error { return d.Delete(t.Context(), "needs", doc) }},
		{"node {\n  policy = \"write\"\n}", "node read", func(s *Scheduler, _ *Store) error { return second(s.Nodes(t.Context())) }},
		{"node {\n  policy = \"write\"\n}", "node read", func(s *Scheduler, _ *Store) error { return s.Drain(t.Context(), "test", "x", time.Minute) }},
	} {
		instead := ""
		if tt.without == `"submit-job"` { // which implies the other, that is asked for first
			instead = `"parse-job"`
		}
		rules := strings.Replace(least, tt.without, instead, 1)
		if rules == least {
			t.Fatalf("the policy has no %s", tt.without)
		}
		c := with(t, c, fmt.Sprint("without-", i), rules)
		err := tt.call(scheduler(t, c), NewStore(c, ""))
		says(t, "without "+tt.without, err, "lacks "+tt.lacks)
	}
	if err := store.Delete(t.Context(), "needs", doc); err != nil {
		t.Error(err)
	}
}

const controller = `
job "controller" {
  group "main" {
    task "main" {
      driver = "raw_exec"
      identity {
        env = true
      }
      config {
        command = "%s"
      }
      env {
        LLMOPS_TEST_IDENTITY = "%s"
      }
    }
  }
}
`

// The token that Nomad gives a task with an identity block is enough: a policy is
// attached to the job, and no secret is handed to anybody.
func testWorkloadIdentity(t *testing.T, c *api.Client, rules string) {
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	policy := &api.ACLPolicy{Name: "llmops-controller", Rules: rules, JobACL: &api.JobACL{Namespace: "default", JobID: "controller"}}
	if _, err := c.ACLPolicies().Upsert(policy, nil); err != nil {
		t.Fatal(err)
	}
	job, err := c.Jobs().ParseHCL(fmt.Sprintf(controller, bin, c.Address()), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Jobs().Register(job, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _, _ = c.Jobs().Deregister("controller", true, nil) }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := errors.New("done")
	store := NewStore(c, "")
	if err := store.Watch(ctx, "identity/", func(d fleet.Doc) error {
		if string(d.Body) != "written with the task's own token" {
			return fmt.Errorf("the task says: %s", d.Body)
		}
		return done
	}); !errors.Is(err, done) {
		allocs, _, _ := c.Jobs().Allocations("controller", true, nil)
		for _, a := range allocs {
			t.Logf("%s: %v", a.ClientStatus, why(a.TaskStates["main"]))
		}
		t.Fatal(err)
	}
}

// asController is what the task of the workload identity does.
func asController(address, token string) int {
	ctx := context.Background()
	c, err := Dial(Config{Address: address, Token: token})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	text := "written with the task's own token"
	if _, err := NewScheduler(c, Options{Files: jobs.Files}).Nodes(ctx); err != nil {
		text = err.Error()
	}
	if _, err := NewScheduler(c, Options{Files: jobs.Files}).All(ctx, ""); err != nil {
		text = err.Error()
	}
	if _, err := NewStore(c, "").Put(ctx, "identity/x", []byte(text), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
