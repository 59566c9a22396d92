package nomad

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"llmops/fleet"
)

// Servers that are choosing a leader are asked again; a write that was made although
// its answer was lost is not taken for somebody else's.
func TestElection(t *testing.T) {
	var asked int
	var wrote string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/agent/self":
			fmt.Fprint(w, `{"config": {"Version": {"Version": "2.0.5"}}}`)
		case r.URL.Path == "/v1/vars":
			fmt.Fprint(w, `[]`)
		case strings.HasPrefix(r.URL.Path, "/v1/namespace/"):
			fmt.Fprint(w, `{"Name": "default"}`)
		case r.Method == http.MethodPut:
			asked++
			b, _ := io.ReadAll(r.Body)
			switch {
			case wrote == "":
				wrote = string(b)
				http.Error(w, "rpc error: rpc error: EOF", http.StatusInternalServerError)
			case asked == 2:
				w.Header().Set("Content-Encoding", "gzip") // as agents do
				w.WriteHeader(http.StatusInternalServerError)
				z := gzip.NewWriter(w)
				fmt.Fprint(z, "No cluster leader")
				_ = z.Close()
			default:
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, strings.Replace(wrote, `"ModifyIndex":3`, `"ModifyIndex":7`, 1))
			}
		case r.URL.Path == "/v1/var/llmops/route/denied":
			http.Error(w, "rpc error: Permission denied", http.StatusInternalServerError)
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	client, err := Dial(Config{Address: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	s := NewStore(client, "")
	if rev, err := s.Put(t.Context(), "route/a", []byte("mine"), 3); rev != 7 || err != nil || asked != 3 {
		t.Errorf("revision %d, %v, asked %d times", rev, err, asked)
	}
	// Sent once, the same answer is a conflict, and so is that of another.
	if _, err := s.Put(t.Context(), "route/a", []byte("mine"), 3); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("sent once: %v", err)
	}
	wrote, asked = strings.Replace(wrote, "mine", "theirs", 1), 1
	if _, err := s.Put(t.Context(), "route/a", []byte("mine"), 3); !errors.Is(err, fleet.ErrConflict) || asked != 3 {
		t.Errorf("of another: %v, asked %d times", err, asked-1)
	}
	if _, err := s.Get(t.Context(), "route/denied"); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("what no election is: %v", err)
	}
}
