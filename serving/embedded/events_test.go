package embedded

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"llmops/serving/embedded/core"
)

// unpack reads one MessagePack value, as far as the publisher writes them.
func unpack(t *testing.T, b []byte) (v any, rest []byte) {
	t.Helper()
	kind, b := b[0], b[1:]
	length := func() int { n := binary.BigEndian.Uint32(b); b = b[4:]; return int(n) }
	switch {
	case kind < 0x80:
		return uint64(kind), b
	case kind == 0xc0:
		return nil, b
	case kind == 0xcb:
		return math.Float64frombits(binary.BigEndian.Uint64(b)), b[8:]
	case kind == 0xce:
		return uint64(binary.BigEndian.Uint32(b)), b[4:]
	case kind == 0xcf:
		return binary.BigEndian.Uint64(b), b[8:]
	case kind == 0xdb:
		n := length()
		return string(b[:n]), b[n:]
	case kind == 0xdd:
		list := []any{}
		for range length() {
			v, b = unpack(t, b)
			list = append(list, v)
		}
		return list, b
	case kind == 0xdf:
		dict := map[string]any{}
		for range length() {
			var key any
			key, b = unpack(t, b)
			dict[key.(string)], b = unpack(t, b)
		}
		return dict, b
	}
	t.Fatalf("byte %#x", kind)
	return nil, nil
}

func freeEndpoint(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "tcp://" + l.Addr().String()
}

// A subscriber follows the cache, and one that came late asks for what it missed.
func TestKVEvents(t *testing.T) {
	o := Options{KVEvents: KVEvents{Endpoint: freeEndpoint(t), Replay: freeEndpoint(t), Topic: "kv-events"}}
	s, url := serve(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	prompt := func(first int) string {
		ids := ""
		for i := range 40 {
			ids += fmt.Sprintf("%d,", first+i)
		}
		return fmt.Sprintf(`{"prompt":[%s7],"max_tokens":1,"cache_salt":"tenant"}`, ids)
	}
	post(t, url+"/v1/completions", prompt(5))

	req := zmq4.NewReq(ctx)
	defer req.Close()
	if err := req.Dial(o.KVEvents.Replay); err != nil {
		t.Fatal(err)
	}
	// An answer may be out before its blocks are told of: ask until they are.
	var m zmq4.Msg
	for {
		if err := req.Send(zmq4.NewMsg(make([]byte, 8))); err != nil {
			t.Fatal(err)
		}
		var err error
		if m, err = req.Recv(); err != nil {
			t.Fatal(err)
		}
		n := binary.BigEndian.Uint64(m.Frames[0])
		if n == 0 {
			break
		}
		if n != math.MaxUint64 {
			t.Fatalf("the first message is %d", n)
		}
	}
	v, rest := unpack(t, m.Frames[1])
	batch := v.([]any)
	if len(rest) > 0 || len(batch) != 3 || batch[2] != uint64(0) {
		t.Fatalf("batch %v and %d bytes more", v, len(rest))
	}
	e := batch[1].([]any)[0].(map[string]any)
	if e["type"] != "BlockStored" || len(e["block_hashes"].([]any)) != 2 || len(e["token_ids"].([]any)) != 32 || e["block_size"] != uint64(core.BlockSize) ||
		e["parent_block_hash"] != nil || e["lora_name"] != nil || !reflect.DeepEqual(e["extra_keys"], []any{[]any{"tenant"}, nil}) {
		t.Errorf("event %v", e)
	}

	sub := zmq4.NewSub(ctx)
	defer sub.Close()
	if err := sub.Dial(o.KVEvents.Endpoint); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv-events"); err != nil {
		t.Fatal(err)
	}
	// A subscription takes effect at some later time: ask until one is heard.
	heard := make(chan zmq4.Msg, 1)
	go func() {
		if m, err := sub.Recv(); err == nil {
			heard <- m
		}
	}()
	for i := 0; ; i++ {
		post(t, url+"/v1/completions", prompt(100+i%100))
		select {
		case m := <-heard:
			if len(m.Frames) != 3 || string(m.Frames[0]) != "kv-events" || len(m.Frames[1]) != 8 {
				t.Fatalf("message %q", m.Frames)
			}
			if v, _ := unpack(t, m.Frames[2]); len(v.([]any)) != 3 {
				t.Errorf("batch %v", v)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			return
		case <-ctx.Done():
			t.Fatal("the subscriber hears nothing")
		default:
		}
	}
}

func TestPackRemovals(t *testing.T) {
	key := func(n byte) core.Key { return core.Key{15: n} }
	b := pack([]core.BlockEvent{
		{Kind: core.BlockRemoved, Key: key(1)}, {Kind: core.BlockRemoved, Key: key(2)}, {Kind: core.AllBlocksCleared},
		{Kind: core.BlockStored, Key: key(3), Tokens: []int{1}}, {Kind: core.BlockStored, Key: key(4), Parent: key(3), Tokens: []int{2}, Adapter: "a"},
	}, time.Unix(1, 500_000_000))
	v, _ := unpack(t, b)
	want := []any{1.5, []any{
		map[string]any{"type": "BlockRemoved", "block_hashes": []any{uint64(1), uint64(2)}, "medium": nil},
		map[string]any{"type": "AllBlocksCleared"},
		map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(3)}, "parent_block_hash": nil, "token_ids": []any{uint64(1)}, "block_size": uint64(1),
			"lora_id": nil, "medium": nil, "lora_name": nil, "extra_keys": []any{nil}},
		map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(4)}, "parent_block_hash": uint64(3), "token_ids": []any{uint64(2)}, "block_size": uint64(1),
			"lora_id": nil, "medium": nil, "lora_name": "a", "extra_keys": []any{[]any{"a"}}},
	}, uint64(0)}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("packed %v, want %v", v, want)
	}
}

func TestKVEventsOnABusyAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := New(Options{ModelDir: modelDir, KVEvents: KVEvents{Endpoint: "tcp://" + l.Addr().String()}}); err == nil {
		t.Error("the engine started without its events")
	}
}
