// Package deploy turns a version of a model into warm replicas that have each
// produced a real token.
//
// [Up] registers a job, waits for its replicas and asks each for a token; only
// that makes a replica ready, since a process that answers a health check may
// still be unable to serve. [Down] takes a version off the fleet. Both look at
// what is there first and can be repeated after any interruption. [Start] is for
// jobs that produce no tokens.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/fleet"
	"llmops/serving/openai"
)

const (
	// maxStarts is how often a replica may fail before its job counts as broken.
	maxStarts = 3
	tokenWait = 60 * time.Second
)

// versionHeader is where an engine of ours says which version answered.
const versionHeader = "Llmops-Version"

// Ready is a replica that has produced a token, and how long that took after
// its process answered the health check.
type Ready struct {
	fleet.Replica
	FirstToken time.Duration `json:"first_token"`
}

// Prompts are what a fresh replica is warmed with after its first token.
type Prompts [][]openai.Message

// Up registers the job and returns when count replicas of it are ready.
// A replica that fails repeatedly ends the wait with its reason.
func Up(ctx context.Context, s fleet.Scheduler, j fleet.Job, warm Prompts, progress func(string)) ([]Ready, error) {
	replicas, err := start(ctx, s, j, progress)
	if err != nil {
		return nil, err
	}
	return ready(ctx, j, replicas, warm)
}

// register applies the job over whatever revision is there.
func register(ctx context.Context, s fleet.Scheduler, j fleet.Job) error {
	st, err := s.Status(ctx, j.Name)
	if err != nil {
		return err
	}
	_, err = s.Apply(ctx, j, st.Rev)
	return err
}

// Start registers a job that produces no tokens and returns when its replicas
// answer their check.
func Start(ctx context.Context, s fleet.Scheduler, j fleet.Job, progress func(string)) error {
	_, err := start(ctx, s, j, progress)
	return err
}

func start(ctx context.Context, s fleet.Scheduler, j fleet.Job, progress func(string)) ([]fleet.Replica, error) {
	plan, err := s.Plan(ctx, j)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", j.Name, err)
	}
	if !plan.Fits {
		return nil, fmt.Errorf("job %s does not fit: %s", j.Name, strings.Join(plan.Reasons, "; "))
	}
	if len(plan.Changes) > 0 {
		if err := register(ctx, s, j); err != nil {
			return nil, fmt.Errorf("registering %s: %w", j.Name, err)
		}
	}
	return answering(ctx, s, j, progress)
}

// answering returns the job's replicas when all of them answer their check.
func answering(ctx context.Context, s fleet.Scheduler, j fleet.Job, progress func(string)) ([]fleet.Replica, error) {
	var replicas []fleet.Replica
	all := errors.New("all healthy")
	err := s.Watch(ctx, j.Name, func(st fleet.Status) error {
		if st.Job.Name != j.Name || st.Rev == 0 {
			return nil
		}
		want, healthy := 0, 0
		for _, g := range st.Job.Groups {
			want += g.Count
		}
		for _, r := range st.Replicas {
			switch {
			case r.State == fleet.Healthy:
				healthy++
			case r.State == fleet.Failed && r.Starts >= maxStarts:
				return fmt.Errorf("replica %s failed %d times: %s", r.ID, r.Starts, r.Reason)
			}
		}
		progress(fmt.Sprintf("%s: %d of %d replicas answer", j.Name, healthy, want))
		if healthy == want && len(st.Replicas) == want {
			replicas = slices.Clone(st.Replicas)
			return all
		}
		return nil
	})
	if !errors.Is(err, all) {
		return nil, fmt.Errorf("waiting for %s: %w", j.Name, err)
	}
	return replicas, nil
}

// ready gets a token of each replica, all at once, then warms them.
func ready(ctx context.Context, j fleet.Job, replicas []fleet.Replica, warm Prompts) ([]Ready, error) {
	out := make([]Ready, len(replicas))
	errs := make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, r := range replicas {
		wg.Go(func() {
			out[i].Replica = r
			out[i].FirstToken, errs[i] = token(ctx, j, r, warm)
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// token asks the replica for one token and holds it to its version.
func token(ctx context.Context, j fleet.Job, r fleet.Replica, warm Prompts) (time.Duration, error) {
	began := time.Now()
	if err := Probe(ctx, r.Addr, j.Meta["alias"], j.Meta["version"], Task(j.Meta["task"])); err != nil {
		return 0, fmt.Errorf("replica %s: %w", r.ID, err)
	}
	took := time.Since(began)
	c := &openai.Client{BaseURL: "http://" + r.Addr}
	for _, m := range warm {
		req := request(j.Meta["alias"], m)
		if _, _, err := c.Chat(ctx, req, nil); err != nil {
			return 0, fmt.Errorf("warming replica %s: %w", r.ID, err)
		}
	}
	return took, nil
}

// Task is what a model is for; the zero Task generates text.
type Task string

// The tasks of encoders.
const (
	Embedding Task = "embedding"
	Rerank    Task = "rerank"
)

// Path is where requests of the task go.
func (t Task) Path() string {
	switch t {
	case Embedding:
		return "/v1/embeddings"
	case Rerank:
		return "/v1/rerank"
	}
	return "/v1/chat/completions"
}

// Probe asks the server at addr for one token of alias, of an encoder for one
// vector or score, and refuses an answer that names another version. An empty
// version accepts any, and not every engine names one.
func Probe(ctx context.Context, addr, alias, version string, task Task) error {
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	c := &openai.Client{BaseURL: "http://" + addr}
	what, header, err := probe(ctx, c, alias, task)
	if err != nil {
		return fmt.Errorf("asking for a %s: %w", what, err)
	}
	if got := header.Get(versionHeader); version != "" && got != "" && got != version {
		return fmt.Errorf("asking for a %s: version %s answered instead of %s", what, got, version)
	}
	return nil
}

var errNone = errors.New("the answer has none")

func probe(ctx context.Context, c *openai.Client, alias string, task Task) (what string, header http.Header, err error) {
	switch task {
	case Embedding:
		res, header, err := c.Embeddings(ctx, &openai.EmbeddingRequest{Model: alias, Input: openai.Input{Prompt: openai.Prompt{Texts: []string{"1"}}}})
		if err == nil && (len(res.Data) != 1 || len(res.Data[0].Embedding.Values) == 0) {
			err = errNone
		}
		return "vector", header, err
	case Rerank:
		res, header, err := c.Rerank(ctx, &openai.RerankRequest{Model: alias, Query: "1", Documents: []openai.Document{{Text: "1"}}})
		if err == nil && len(res.Results) != 1 {
			err = errNone
		}
		return "score", header, err
	}
	res, header, err := c.Chat(ctx, request(alias, []openai.Message{{Role: "user", Content: openai.Text("1")}}), nil)
	if err == nil && (res.Usage == nil || res.Usage.CompletionTokens < 1) {
		err = errNone
	}
	return "token", header, err
}

func request(alias string, messages []openai.Message) *openai.ChatRequest {
	one, zero := 1, 0.0
	r := &openai.ChatRequest{Messages: messages}
	r.Model, r.MaxTokens, r.Temperature = alias, &one, &zero
	return r
}

// Down stops the job and returns when its last replica is gone.
func Down(ctx context.Context, s fleet.Scheduler, job string) error {
	if err := s.Stop(ctx, job); err != nil {
		return fmt.Errorf("stopping %s: %w", job, err)
	}
	st, err := s.Status(ctx, job)
	if err != nil || len(st.Replicas) == 0 {
		return err
	}
	gone := errors.New("gone")
	err = s.Watch(ctx, job, func(st fleet.Status) error {
		if st.Job.Name == job && len(st.Replicas) == 0 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) {
		return fmt.Errorf("waiting for %s to stop: %w", job, err)
	}
	return nil
}
