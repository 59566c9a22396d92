package recorded

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// stream sends events after an index until it is cut off. An empty object comes first,
// and again when nothing else does.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	s.mu.Lock()
	if after == 0 {
		after = s.index
	}
	cut := s.cut
	s.mu.Unlock()
	topics := map[string]bool{}
	for _, t := range r.URL.Query()["topic"] {
		topics[t] = true
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	beat := time.NewTicker(10 * time.Second)
	defer beat.Stop()
	if out.Encode(struct{}{}) != nil {
		return
	}
	sent := map[int]bool{} // of those with the newest index
	for {
		_ = http.NewResponseController(w).Flush()
		s.mu.Lock()
		changed, events := s.changed, s.events
		s.mu.Unlock()
		for i, e := range events {
			if e.index < after || e.index == after && sent[i] || !topics[e.topic+":*"] {
				continue
			}
			if e.index > after {
				after, sent = e.index, map[int]bool{}
			}
			sent[i] = true
			if out.Encode(json.RawMessage(e.text)) != nil {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-beat.C:
			if out.Encode(struct{}{}) != nil {
				return
			}
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}
