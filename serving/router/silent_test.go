package router

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"llmops/fleet"
	"llmops/serving/route"
)

// That the scheduler does not hear of a replica's node is no reason to drop it: this
// router may reach it, and finds out by itself.
func TestSilentNode(t *testing.T) {
	s := newStore(t)
	a := newEngine(t, "v0", "a")
	putRoute(t, s, route.New("m", "run", "v0"))
	deploy(t, s, "m", "v0", a.addr())
	r, srv := start(t, Options{Store: s}, "m/v0")
	before := r.view.Load().routes["m"].replicas["v0"][0]
	put(t, s, "replica/m-v0/engine-0", fleet.Replica{ID: "m-v0", Addr: a.addr(), Nonce: a.addr(), State: fleet.Unknown})
	// What comes after it in the same watch has been seen after it.
	put(t, s, "replica/m-v0/engine-1", fleet.Replica{ID: "m-v0", Addr: a.addr(), Nonce: "other", State: fleet.Running})
	until(t, "the later replica is seen", func() bool { return len(r.view.Load().routes["m"].replicas["v0"]) == 2 })
	kept := false
	for _, m := range r.view.Load().routes["m"].replicas["v0"] {
		kept = kept || m == before
	}
	if !kept {
		t.Error("the replica whose node is silent is another or gone")
	}
	if code, body, _ := post(t, srv.URL+"/v1/chat/completions", chatBody("m", "hi", false)); code != 200 {
		t.Errorf("status %d: %s", code, body)
	}
	// A router that starts only now asks it likewise.
	start(t, Options{Store: s}, "m/v0")
}

// A machine that is gone is no engine that takes its time: another may be asked, and
// this one is not until it is heard of.
func TestGoneMachine(t *testing.T) {
	gave := &transportError{err: &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}}
	slow := &transportError{err: &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}}
	for _, c := range []struct {
		err          error
		waited, lost bool
	}{{gave, false, true}, {slow, true, false}, {&transportError{err: context.DeadlineExceeded}, true, false}, {errors.New("malformed"), false, false}} {
		m := NewReplica("m-v0/0", "127.0.0.1:1", "m", "v0")
		m.SetHealth(Up)
		m.lost(c.err)
		if waited(c.err) != c.waited || m.Health() == Suspect != c.lost {
			t.Errorf("%v: waited %v, then %v", c.err, waited(c.err), m.Health())
		}
	}
}

// Each connection to an engine is given up by the system when the machine is gone.
func TestPeerTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := pool{addr: l.Addr().String()}
	c, _, err := p.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := peerGivenUp(t, raw); ok && got != peerTimeout {
		t.Errorf("the system waits %v, want %v", got, peerTimeout)
	}
}
