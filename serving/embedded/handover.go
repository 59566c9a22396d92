package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"llmops/serving/embedded/core"
	"llmops/serving/openai"
)

// KVTransfer says what a Server does with other engines' keys and values, under
// vLLM's names for the roles. The zero value hands nothing over.
type KVTransfer struct {
	Role    string // kv_producer (prefill), kv_consumer (decode) or kv_both
	Address string // host:port of this server, as consumers reach it
}

func (k KVTransfer) check() error {
	switch k.Role {
	case "", "kv_consumer":
		return nil
	case "kv_producer", "kv_both":
	default:
		return fmt.Errorf("kv role is %q: want kv_producer, kv_consumer or kv_both", k.Role)
	}
	if _, port, err := net.SplitHostPort(k.Address); err != nil {
		return fmt.Errorf("kv address %q: %w", k.Address, err)
	} else if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("kv address %q: want a port from 1 to 65535", k.Address)
	}
	return nil
}

func (k KVTransfer) produces() bool { return k.Role == "kv_producer" || k.Role == "kv_both" }
func (k KVTransfer) consumes() bool { return k.Role == "kv_consumer" || k.Role == "kv_both" }

// holdFor is how long keys and values wait to be fetched, which is vLLM's.
const holdFor = 480 * time.Second

// transfer is an executor whose keys and values others can take over.
type transfer interface {
	// Export gives those of the first tokens that lie in blocks. It is called
	// between steps.
	Export(blocks []int32, tokens int) ([]byte, error)
	// Import reads them for core.Sequence.Import, and says of how many tokens they
	// are. It is safe for concurrent use.
	Import(b []byte) (kv any, tokens int, err error)
}

// handover keeps track of what other engines may fetch. It is safe for concurrent
// use.
type handover struct {
	exec   transfer
	engine string
	client *http.Client

	mu   sync.Mutex
	held map[string]*held // by what clients call it; guarded by mu
}

type held struct {
	seq   *core.Sequence
	timer *time.Timer
}

func newHandover(exec transfer) *handover {
	return &handover{exec: exec, engine: newID("engine-"), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}, held: make(map[string]*held)}
}

// checkTransfer refuses what cannot be handed over.
func (s *Server) checkTransfer(q *openai.Sampling, n int) *openai.Error {
	k := q.KVTransferParams
	refuse := func(format string, args ...any) *openai.Error {
		return openai.Invalid("kv_transfer_params", "kv_transfer_params: "+format, args...)
	}
	switch {
	case k == nil:
		return nil
	case k.DoRemoteDecode && k.DoRemotePrefill:
		return refuse("do_remote_decode and do_remote_prefill exclude each other")
	case k.DoRemoteDecode && !s.o.KVTransfer.produces():
		return refuse("this engine's kv role is %q: it keeps nothing for others", s.o.KVTransfer.Role)
	case k.DoRemotePrefill && !s.o.KVTransfer.consumes():
		return refuse("this engine's kv role is %q: it takes nothing from others", s.o.KVTransfer.Role)
	case k.DoRemoteDecode && (n != 1 || q.Stream):
		return refuse("do_remote_decode wants one answer that is not streamed")
	case k.DoRemotePrefill && (k.RemoteHost == nil || k.RemotePort == nil || k.RemoteRequestID == nil):
		return refuse("do_remote_prefill wants remote_host, remote_port and remote_request_id")
	}
	return nil
}

// fetch gets the keys and values of a job's prompt from the engine that computed
// it. Without them the prompt is computed here, which the metrics tell.
func (s *Server) fetch(ctx context.Context, j *job, k *openai.KVTransfer) {
	kv, adapter, ids, err := s.handover.fetch(ctx, k)
	if err != nil || adapter != nameOf(j.requests[0].seq.Adapter) {
		s.metrics.transferFailed()
		return
	}
	for _, r := range j.requests {
		n := 0
		for n < min(len(ids), len(r.seq.Prompt)) && ids[n] == r.seq.Prompt[n] {
			n++
		}
		if n > 0 && !r.seq.Score {
			r.seq.Import, r.seq.Imported = kv, n
		}
	}
}

func (h *handover) fetch(ctx context.Context, k *openai.KVTransfer) (kv any, adapter string, ids []int, err error) {
	url := "http://" + net.JoinHostPort(*k.RemoteHost, strconv.Itoa(*k.RemotePort)) + "/kv/" + *k.RemoteRequestID
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", nil, err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return nil, "", nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, "", nil, fmt.Errorf("fetching keys and values from %s: %s", url, res.Status)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, "", nil, fmt.Errorf("fetching keys and values from %s: %w", url, err)
	}
	adapter, ids, b, err = cutPrompt(b)
	if err != nil {
		return nil, "", nil, fmt.Errorf("fetching keys and values from %s: %w", url, err)
	}
	kv, tokens, err := h.exec.Import(b)
	if err != nil {
		return nil, "", nil, err
	}
	return kv, adapter, ids[:min(tokens, len(ids))], nil
}

// The tokens that keys and values belong to, and the adapter that they were computed
// with, travel with them, so that a mistaken id costs a computation and not a wrong
// answer.
func addPrompt(adapter string, ids []int, b []byte) []byte {
	head := append(binary.LittleEndian.AppendUint32(nil, uint32(len(adapter))), adapter...)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(ids)))
	for _, id := range ids {
		head = binary.LittleEndian.AppendUint32(head, uint32(id))
	}
	return append(head, b...)
}

func cutPrompt(b []byte) (adapter string, ids []int, rest []byte, err error) {
	short := errors.New("the prompt is cut off")
	length := func() int {
		if len(b) < 4 {
			return -1
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return int(n)
	}
	n := length()
	if n < 0 || len(b) < n {
		return "", nil, nil, short
	}
	adapter, b = string(b[:n]), b[n:]
	if n = length(); n < 0 || len(b)/4 < n {
		return "", nil, nil, short
	}
	ids = make([]int, n)
	for i := range ids {
		ids[i] = int(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return adapter, ids, b[4*n:], nil
}

// settle says where what was computed for another engine can be fetched. It is nil
// when nothing was asked to be kept.
func (s *Server) settle(j *job) (*openai.KVTransfer, error) {
	if !j.holds() {
		return nil, nil
	}
	r := j.requests[0]
	var blocks []int32
	if err := s.onLoop(func(time.Duration) error {
		b, _, ok := s.loop.core.Held(r.seq.ID)
		if !ok {
			return errors.New("keys and values were not kept: the answer ended at a stop string")
		}
		blocks = append(blocks, b...)
		return nil
	}); err != nil {
		return nil, err
	}
	id := newID("kv-")
	h := &held{seq: r.seq}
	s.handover.mu.Lock()
	s.handover.held[id] = h
	h.timer = time.AfterFunc(holdFor, func() { s.unhold(id) })
	s.handover.mu.Unlock()
	host, port, err := net.SplitHostPort(s.o.KVTransfer.Address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	one := 1
	return &openai.KVTransfer{
		DoRemotePrefill: true, RemoteEngineID: &s.handover.engine, RemoteBlockIDs: blocks, RemoteRequestID: &id,
		RemoteHost: &host, RemotePort: &number, TPSize: &one,
	}, nil
}

// unhold gives back what nobody will fetch any more.
func (s *Server) unhold(id string) {
	s.handover.mu.Lock()
	h := s.handover.held[id]
	delete(s.handover.held, id)
	s.handover.mu.Unlock()
	if h == nil {
		return
	}
	h.timer.Stop()
	s.release(h.seq)
}

// release gives back the blocks of a sequence that has ended. A closed server has
// none.
func (s *Server) release(seq *core.Sequence) {
	_ = s.loop.post(func(time.Duration) { s.loop.core.Release(seq.ID) })
}

// giveKV answers another engine, once.
func (s *Server) giveKV(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.handover.mu.Lock()
	h := s.handover.held[id]
	s.handover.mu.Unlock()
	if h == nil {
		openai.WriteError(w, http.StatusNotFound, &openai.Error{Message: "no keys and values are kept under " + id, Type: openai.TypeNotFound})
		return
	}
	var b []byte
	err := s.onLoop(func(time.Duration) error {
		blocks, tokens, ok := s.loop.core.Held(h.seq.ID)
		if !ok {
			return errors.New("the keys and values are gone")
		}
		var err error
		b, err = s.handover.exec.Export(blocks, tokens)
		return err
	})
	if err != nil {
		s.fail(w, r.Context(), err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := w.Write(addPrompt(nameOf(h.seq.Adapter), h.seq.Prompt, b)); err == nil {
		s.unhold(id)
	}
}
