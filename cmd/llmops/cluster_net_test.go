//go:build faults

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Everything that the harness makes on this machine has a name that begins with
// lanPrefix, and is taken for a leftover when a test begins.
const (
	lanPrefix = "lmoclus-"
	bridge    = lanPrefix + "br"
	subnet    = "10.77.31."
	// outside is where clients are: on the bridge, in no host's network.
	outside = subnet + "1"
)

// lan is a bridge with hosts, each a network namespace.
type lan struct {
	t *testing.T
}

// host is a machine of the lan.
type host struct {
	name string // as Nomad has it
	ip   string
}

func (h host) space() string { return lanPrefix + h.name }

// newLAN makes the bridge. Without root, ip or nomad there is no cluster to test
// on, and with another test's there is only one at a time.
func newLAN(t *testing.T) *lan {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: not root, so that nothing was tested on a cluster in network namespaces")
	}
	for _, tool := range []string{"ip", "nomad"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: no %s on PATH, so that nothing was tested on a cluster in network namespaces", tool)
		}
	}
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), lanPrefix+"lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	l := &lan{t}
	l.clear()
	t.Cleanup(l.clear)
	l.ip("link", "add", bridge, "type", "bridge")
	l.ip("addr", "add", outside+"/24", "dev", bridge)
	l.ip("link", "set", bridge, "up")
	return l
}

// ip runs the ip command, which must work.
func (l *lan) ip(args ...string) {
	l.t.Helper()
	if b, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		l.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, b)
	}
}

// clear takes away every process and every network that has our name.
func (l *lan) clear() {
	b, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		l.t.Errorf("listing network namespaces: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, lanPrefix) {
			continue
		}
		l.kill(name)
		if b, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			l.t.Errorf("removing network namespace %s: %v: %s", name, err, b)
		}
	}
	// The cables go with their namespaces, when the kernel gets round to it.
	links, err := net.Interfaces()
	if err != nil {
		l.t.Errorf("listing links: %v", err)
	}
	for _, link := range links {
		if strings.HasPrefix(link.Name, lanPrefix) {
			_ = exec.Command("ip", "link", "del", link.Name).Run()
			if _, err := net.InterfaceByName(link.Name); err == nil {
				l.t.Errorf("link %s cannot be removed", link.Name)
			}
		}
	}
}

// inside are the processes of a namespace.
func (l *lan) inside(space string) (pids []int) {
	b, err := exec.Command("ip", "netns", "pids", space).Output()
	if err != nil {
		l.t.Errorf("listing the processes of %s: %v", space, err)
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill ends every process of a namespace, those that come meanwhile too.
func (l *lan) kill(space string) {
	for range 100 {
		pids := l.inside(space)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		runtime.Gosched()
	}
	l.t.Errorf("processes of %s do not die: %v", space, l.inside(space))
}

// add joins a host to the lan.
func (l *lan) add(name string, last int) host {
	l.t.Helper()
	h := host{name, subnet + strconv.Itoa(last)}
	l.ip("netns", "add", h.space())
	l.ip("link", "add", h.space(), "type", "veth", "peer", "name", "eth0", "netns", h.space())
	l.ip("link", "set", h.space(), "master", bridge, "up")
	l.ip("-n", h.space(), "addr", "add", h.ip+"/24", "dev", "eth0")
	l.ip("-n", h.space(), "link", "set", "lo", "up")
	l.ip("-n", h.space(), "link", "set", "eth0", "up")
	return h
}

// cut takes a host's cable out: it reaches itself and nobody else. What is under
// way is not told.
func (l *lan) cut(h host) { l.t.Helper(); l.ip("link", "set", h.space(), "down") }

// join puts the cable in again.
func (l *lan) join(h host) { l.t.Helper(); l.ip("link", "set", h.space(), "up") }

// deafen drops whatever a host sends to others, and reverts that.
func (l *lan) deafen(h host, to ...host) {
	l.t.Helper()
	for _, o := range to {
		l.ip("-n", h.space(), "route", "add", "blackhole", o.ip+"/32")
	}
}

func (l *lan) hear(h host, from ...host) {
	l.t.Helper()
	for _, o := range from {
		l.ip("-n", h.space(), "route", "del", "blackhole", o.ip+"/32")
	}
}

// dialer makes connections that begin in the network of a host, or on the bridge.
func dialer(space string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 2 * time.Second}
	if space == "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(outside)}
		return d.DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		// A socket belongs to the network of the thread that makes it.
		runtime.LockOSThread()
		own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			runtime.UnlockOSThread()
			return nil, err
		}
		other, err := os.Open(filepath.Join("/run/netns", space))
		if err != nil {
			runtime.UnlockOSThread()
			return nil, errors.Join(err, own.Close())
		}
		var conn net.Conn
		if err = unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err == nil {
			conn, err = d.DialContext(ctx, network, addr)
		}
		// A thread that does not get home dies with its goroutine.
		if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		_, _ = own.Close(), other.Close()
		return conn, err
	}
}
