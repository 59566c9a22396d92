package recorded

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// coded is an error with its HTTP status.
type coded struct {
	code int
	text string
}

func (c coded) Error() string { return c.text }

func refusef(code int, format string, args ...any) error {
	return coded{code, fmt.Sprintf(format, args...)}
}

// reply is what a request is answered with, and the table that it came from. A plain
// one has no index.
type reply struct {
	body  any
	table string
	code  int
	plain bool
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	// handle answers under the lock; a read waits until the index it names has passed.
	handle := func(pattern string, fn func(r *http.Request) (reply, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.answer(w, r, fn)
		})
	}
	handle("GET /v1/agent/self", s.self)
	handle("GET /v1/namespace/{name}", s.namespaceOf)
	handle("GET /v1/vars", s.varList)
	handle("GET /v1/var/{path...}", s.varRead)
	handle("PUT /v1/var/{path...}", s.varWrite)
	handle("DELETE /v1/var/{path...}", s.varDelete)
	handle("PUT /v1/jobs/parse", parseRequest)
	handle("GET /v1/jobs", s.jobList)
	handle("PUT /v1/jobs", s.register)
	handle("GET /v1/job/{id}", s.jobInfo)
	handle("DELETE /v1/job/{id}", s.deregister)
	handle("PUT /v1/job/{id}/plan", s.plan)
	handle("PUT /v1/job/{id}/scale", s.scale)
	handle("GET /v1/allocations", s.allocList)
	handle("GET /v1/allocation/{id}", s.allocInfo)
	handle("GET /v1/client/allocation/{id}/checks", s.checks)
	handle("GET /v1/evaluations", s.evalList)
	handle("GET /v1/deployments", s.deploymentList)
	handle("GET /v1/nodes", s.nodeList)
	handle("GET /v1/node/{id}", s.nodeInfo)
	handle("PUT /v1/node/{id}/eligibility", s.eligibility)
	handle("PUT /v1/node/{id}/drain", s.drain)
	mux.HandleFunc("GET /v1/client/fs/logs/{id}", s.logs)
	mux.HandleFunc("GET /v1/event/stream", s.stream)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.note(r); err != nil {
			fail(w, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

var named = regexp.MustCompile(`^(/v1/(?:client/)?(?:job|var|node|allocation|namespace|fs/logs))/[^?]*?(/plan|/scale|/drain|/eligibility|/checks)?$`)

// note counts the request, and refuses it when it shall be.
func (s *Server) note(r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := r.Method + " " + r.URL.Path + " "
	s.asked[r.Method+" "+named.ReplaceAllString(r.URL.Path, "$1/…$2")]++
	for _, f := range s.refused {
		if strings.HasPrefix(what, f.prefix) {
			return coded{f.code, f.text}
		}
	}
	return nil
}

func fail(w http.ResponseWriter, err error) {
	var c coded
	if !errors.As(err, &c) {
		c = coded{http.StatusInternalServerError, err.Error()}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(c.code)
	_, _ = w.Write([]byte(c.text))
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, fn func(r *http.Request) (reply, error)) {
	wait, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	limit, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	deadline := time.NewTimer(cmp.Or(limit, 5*time.Minute))
	defer deadline.Stop()
	for {
		out, body, index, changed, err := s.look(r, fn, wait)
		switch {
		case err != nil:
			if out.table != "" {
				w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
			}
			fail(w, err)
			return
		case body != nil:
			if !out.plain {
				w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
				w.Header().Set("X-Nomad-Knownleader", "true")
				w.Header().Set("X-Nomad-Lastcontact", "0")
			}
			w.Header().Set("Content-Type", "application/json")
			send(w, r, cmp.Or(out.code, http.StatusOK), body)
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			wait = 0
		case <-r.Context().Done():
			return
		}
	}
}

// look answers once; without a body it is to be asked again when something changed.
func (s *Server) look(r *http.Request, fn func(r *http.Request) (reply, error), wait uint64) (out reply, body []byte, index uint64, changed chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err = fn(r)
	index = s.index
	if at, ok := s.tables[out.table]; ok {
		index = at
	} else if out.table != "" {
		index = 1
	}
	if err == nil && (r.Method != http.MethodGet || index > wait || s.closed) {
		body, err = json.Marshal(out.body)
	}
	return out, body, index, s.changed, err
}

// send compresses what is worth it, as agents do.
func send(w http.ResponseWriter, r *http.Request, code int, body []byte) {
	if code == http.StatusNoContent {
		w.WriteHeader(code)
		return
	}
	if len(body) < 1400 || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.WriteHeader(code)
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(code)
	z := gzip.NewWriter(w)
	_, _ = z.Write(body)
	_ = z.Close()
}

func decode(r *http.Request, to any) error {
	if err := json.NewDecoder(r.Body).Decode(to); err != nil {
		return refusef(http.StatusBadRequest, "%v", err)
	}
	return nil
}

func (s *Server) self(*http.Request) (reply, error) {
	return reply{body: map[string]any{
		"config": map[string]any{"Version": map[string]any{"Version": s.o.Version, "VersionPrerelease": ""}},
		"member": map[string]any{"Name": "test.global", "Status": "alive"},
	}, plain: true}, nil
}

func (s *Server) namespaceOf(r *http.Request) (reply, error) {
	name := r.PathValue("name")
	if name != "default" && !slices.Contains(s.o.Namespaces, name) {
		return reply{table: "namespaces"}, refusef(http.StatusNotFound, "Namespace not found")
	}
	return reply{body: &api.Namespace{Name: name, CreateIndex: 1, ModifyIndex: 1}}, nil
}

func varName(r *http.Request) string {
	return cmp.Or(r.URL.Query().Get("namespace"), "default") + "\x00" + r.PathValue("path")
}

func (s *Server) varList(r *http.Request) (reply, error) {
	prefix := cmp.Or(r.URL.Query().Get("namespace"), "default") + "\x00" + r.URL.Query().Get("prefix")
	out := []*api.VariableMetadata{}
	for _, name := range sortedKeys(s.vars) {
		if strings.HasPrefix(name, prefix) {
			out = append(out, s.vars[name].Metadata())
		}
	}
	return reply{body: out, table: "variables"}, nil
}

func (s *Server) varRead(r *http.Request) (reply, error) {
	v := s.vars[varName(r)]
	if v == nil {
		return reply{table: "variables"}, refusef(http.StatusNotFound, "variable not found")
	}
	return reply{body: v, table: "variables"}, nil
}

// varConflict is the variable that is in the way, nil when none is.
func (s *Server) varConflict(r *http.Request) any {
	want, err := strconv.ParseUint(r.URL.Query().Get("cas"), 10, 64)
	if err != nil {
		return nil
	}
	now := s.vars[varName(r)]
	if now == nil && want != 0 {
		return &api.Variable{Namespace: "default", Path: r.PathValue("path")}
	}
	if now != nil && now.ModifyIndex != want {
		return now
	}
	return nil
}

const maxVariable = 64 << 10

func (s *Server) varWrite(r *http.Request) (reply, error) {
	v := &api.Variable{}
	if err := decode(r, v); err != nil {
		return reply{}, err
	}
	size := 0
	for k, item := range v.Items {
		size += len(k) + len(item)
	}
	if size > maxVariable {
		return reply{table: "variables"}, refusef(http.StatusBadRequest, "RPC Error:: 400,variables are limited to 64KiB in total size")
	}
	if c := s.varConflict(r); c != nil {
		return reply{body: c, code: http.StatusConflict}, nil
	}
	v.Path, v.Namespace = r.PathValue("path"), cmp.Or(r.URL.Query().Get("namespace"), "default")
	v.ModifyIndex, v.ModifyTime = s.touch("variables"), time.Now().UnixNano()
	v.CreateIndex, v.CreateTime = v.ModifyIndex, v.ModifyTime
	if was := s.vars[varName(r)]; was != nil {
		v.CreateIndex, v.CreateTime = was.CreateIndex, was.CreateTime
	}
	s.vars[varName(r)] = v
	return reply{body: v}, nil
}

func (s *Server) varDelete(r *http.Request) (reply, error) {
	if c := s.varConflict(r); c != nil {
		return reply{body: c, code: http.StatusConflict}, nil
	}
	delete(s.vars, varName(r))
	s.touch("variables")
	return reply{code: http.StatusNoContent}, nil
}

// chosen tells whether a filter expression keeps something, given its fields. It knows
// comparisons joined by and.
func chosen(expression string, fields map[string]string) (bool, error) {
	if expression == "" {
		return true, nil
	}
	for part := range strings.SplitSeq(expression, " and ") {
		var field, op, quoted string
		if f := strings.SplitN(part, " ", 3); len(f) == 3 {
			field, op, quoted = f[0], f[1], f[2]
		}
		want, err := strconv.Unquote(quoted)
		is, ok := fields[field]
		if err != nil || !ok {
			return false, refusef(http.StatusBadRequest, "failed to read filter expression %q", part)
		}
		switch op {
		case "==":
			if is != want {
				return false, nil
			}
		case "matches":
			if ok, err := regexp.MatchString(want, is); err != nil || !ok {
				return false, err
			}
		default:
			return false, refusef(http.StatusBadRequest, "failed to read filter expression: no operator %q", op)
		}
	}
	return true, nil
}
