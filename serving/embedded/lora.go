package embedded

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// LoRA bounds the adapters that a Server computes with. The zero value runs none.
type LoRA struct {
	Max       int               // different ones running at once; 0: none
	MaxRank   int               // default DefaultMaxLoRARank
	MaxLoaded int               // in memory, the least recently used goes first; default: Max
	Modules   map[string]string // adapters to know from the start: name to folder
}

// DefaultMaxLoRARank is vLLM's.
const DefaultMaxLoRARank = 16

// adapterLoader is an executor that computes with adapters.
type adapterLoader interface {
	LoadAdapter(key, dir string) error
	UnloadAdapter(key string)
}

// adapter is one that clients may name. Its key is never used again, so that a
// name that is loaded anew shares no cached block with the old weights.
type adapter struct {
	name, key, dir string
	created        int64
}

// nameOf is the name behind a key.
func nameOf(key string) string {
	if i := strings.LastIndexByte(key, '#'); i >= 0 {
		return key[:i]
	}
	return key
}

// registry knows the adapters by name. It is safe for concurrent use.
type registry struct {
	mu     sync.Mutex
	byName map[string]adapter // guarded by mu
	number int                // guarded by mu
}

func (r *registry) find(name string) (adapter, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.byName[name]
	return a, ok
}

func (r *registry) list() []adapter {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []adapter
	for _, a := range r.byName {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b adapter) int { return cmp.Compare(a.name, b.name) })
	return all
}

func (r *registry) make(name, dir string) adapter {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	return adapter{name: name, key: fmt.Sprintf("%s#%d", name, r.number), dir: dir, created: time.Now().Unix()}
}

func (r *registry) add(a adapter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byName == nil {
		r.byName = make(map[string]adapter)
	}
	r.byName[a.name] = a
}

func (r *registry) remove(name string) (adapter, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.byName[name]
	delete(r.byName, name)
	return a, ok
}

// residents keeps adapters in memory, the most recently used ones. It belongs to
// the loop's goroutine.
type residents struct {
	loader adapterLoader
	max    int
	dirs   map[string]string // of every key that sequences may have
	order  []string          // keys in memory, the least recently used first
}

// ready loads what the rows need. failed are the rows whose adapter cannot be had.
func (r *residents) ready(rows []core.Row) (failed map[int]error) {
	var need []string
	for _, row := range rows {
		need = append(need, row.Seq.Adapter)
	}
	for i, key := range need {
		if key == "" {
			continue
		}
		if err := r.load(key, need); err != nil {
			if failed == nil {
				failed = make(map[int]error)
			}
			failed[i] = err
		}
	}
	return failed
}

func (r *residents) load(key string, need []string) error {
	if i := slices.Index(r.order, key); i >= 0 {
		r.order = append(slices.Delete(r.order, i, i+1), key)
		return nil
	}
	for i := 0; len(r.order) >= r.max && i < len(r.order); {
		if slices.Contains(need, r.order[i]) {
			i++
			continue
		}
		r.loader.UnloadAdapter(r.order[i])
		r.order = slices.Delete(r.order, i, i+1)
	}
	if err := r.loader.LoadAdapter(key, r.dirs[key]); err != nil {
		return err
	}
	r.order = append(r.order, key)
	return nil
}

// forget gives up an adapter that no sequence has any more.
func (r *residents) forget(key string) {
	if i := slices.Index(r.order, key); i >= 0 {
		r.loader.UnloadAdapter(key)
		r.order = slices.Delete(r.order, i, i+1)
	}
	delete(r.dirs, key)
}

// addAdapter loads an adapter and makes its name known.
func (s *Server) addAdapter(name, dir string) error {
	a := s.adapters.make(name, dir)
	err := s.onLoop(func(time.Duration) error {
		s.loop.residents.dirs[a.key] = dir
		err := s.loop.residents.load(a.key, nil)
		if err != nil {
			delete(s.loop.residents.dirs, a.key)
		}
		return err
	})
	if err != nil {
		return err
	}
	if old, ok := s.adapters.find(name); ok {
		s.retire(old)
	}
	s.adapters.add(a)
	return nil
}

// retire forgets an adapter's weights once the last sequence with it has ended.
func (s *Server) retire(a adapter) {
	// A server that is closing has forgotten everything.
	_ = s.loop.post(func(time.Duration) { s.loop.retired = append(s.loop.retired, a.key) })
}

type adapterRequest struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	ID      *int   `json:"lora_int_id,omitempty"`
	InPlace bool   `json:"load_inplace,omitempty"`
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) {
	var q adapterRequest
	if !s.read(w, r, &q) {
		return
	}
	_, known := s.adapters.find(q.Name)
	var err *openai.Error
	switch {
	case s.loop.residents == nil:
		err = openai.Invalid("", "this engine was started without adapters")
	case q.Name == "":
		err = openai.Invalid("lora_name", "lora_name is missing")
	case q.Path == "":
		err = openai.Invalid("lora_path", "lora_path is missing")
	case q.Name == s.o.Name:
		err = openai.Invalid("lora_name", "lora_name %q is the base model's", q.Name)
	case known && !q.InPlace:
		err = openai.Invalid("lora_name", "the adapter %q is loaded already: unload it first, or send load_inplace", q.Name)
	}
	if err == nil {
		if failed := s.addAdapter(q.Name, q.Path); failed != nil {
			err = openai.Invalid("lora_path", "%v", failed)
		}
	}
	if err != nil {
		openai.WriteError(w, http.StatusBadRequest, err)
		return
	}
	fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", q.Name)
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	var q adapterRequest
	if !s.read(w, r, &q) {
		return
	}
	a, ok := s.adapters.remove(q.Name)
	if !ok {
		openai.WriteError(w, http.StatusNotFound, s.unknownModel(q.Name))
		return
	}
	s.retire(a)
	fmt.Fprintf(w, "Success: LoRA adapter '%s' removed successfully.", q.Name)
}
