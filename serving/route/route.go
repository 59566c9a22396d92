// Package route is the intent document of one alias: which version gets what
// share of its traffic, under which lease, and what holds when the lease ends.
//
// A [Doc] lives in the store as route/<alias>. It changes only by the pure
// transitions here: [Claim], [Grant], [Renew], [Cap] and [Promote] need the epoch
// of the controller that owns it; [Fallback] and [Rollback] are open to anybody,
// bump the epoch and so fence that controller. Whoever writes a transition
// does it under the store's compare-and-set. [Follower] is what one router
// knows of a document: it decides when leased weights are live. [Report] is
// what a router has counted, and [Admin] talks to a router.
//
// Everything but Admin is plain data without clock or goroutine; values are
// not safe for concurrent use. The package knows no replicas: which of them
// live is membership, and never part of the intent.
package route

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"llmops/fleet"
)

// Million is the whole of a share, which is in parts per million.
const Million = 1_000_000

// MaxTTL bounds a lease, and with it the time after which any router, however
// cut off, has left a leased weight.
const MaxTTL = 60 * time.Second

var (
	// ErrFenced reports a controller whose epoch is no longer the document's.
	ErrFenced = errors.New("another controller or a rollback has taken over the route")
	// ErrNoLease reports a renewal of what was not granted or has been ended.
	ErrNoLease = errors.New("the route has no lease")
	// ErrStale reports a lease or renewal that brings nothing new.
	ErrStale = errors.New("the renewal brings nothing newer than the lease has")
	// ErrNoTarget reports a rollback to a version the route does not know.
	ErrNoTarget = errors.New("no version to roll back to")
)

// Split gives shares to versions in one zone and pool; an empty Zone or Pool
// matches every one.
type Split struct {
	Zone   string            `json:"zone,omitempty"`
	Pool   string            `json:"pool,omitempty"`
	Shares map[string]uint32 `json:"shares"` // parts per million, together one million
}

// Intent is what routers shall do: the first split that matches is used, and
// Mirror copies a share of the requests to a version without serving its
// answers. Floor and Ceiling bound the router's ladder; a Ceiling of 0 is none.
type Intent struct {
	Splits  []Split           `json:"splits,omitempty"`
	Mirror  map[string]uint32 `json:"mirror,omitempty"`
	Floor   uint8             `json:"floor,omitempty"`
	Ceiling uint8             `json:"ceiling,omitempty"`
}

// Lease is an intent that holds only while it is renewed by fresh evidence.
// Without splits of its own it keeps those of Otherwise, as shadow does. Seq
// grows with every grant and renewal; Seen names the newest observation that
// the renewal rests on.
type Lease struct {
	Intent
	TTL  time.Duration
	Seq  uint64
	Seen string
}

// Caps bound what routers together send to each replica of a version; 0 is no bound.
// KVTokens are of prompts and of the output so far. From says where the figures come
// from, for whoever looks at them.
type Caps struct {
	Streams  int    `json:"streams,omitempty"`
	KVTokens int    `json:"kv_tokens,omitempty"`
	From     string `json:"from,omitempty"`
}

// Part is what one of so many routers may send, none of which knows what the others
// do; at least one stream.
func (c Caps) Part(routers int) Caps {
	routers = max(routers, 1)
	c.Streams, c.KVTokens = (c.Streams+routers-1)/routers, (c.KVTokens+routers-1)/routers
	return c
}

// Doc is the document of an alias. Seq is the highest sequence any lease of
// it has had. Standby is kept warm to roll back to. Pins are names under which
// a client may ask for one version, as model alias@name. Caps are by version.
type Doc struct {
	Alias     string            `json:"alias"`
	Run       string            `json:"run"`
	Epoch     uint64            `json:"epoch"`
	Seq       uint64            `json:"seq"`
	Otherwise Intent            `json:"otherwise"`
	Lease     *Lease            `json:"lease,omitempty"`
	Standby   string            `json:"standby,omitempty"`
	Pins      map[string]string `json:"pins,omitempty"`
	Caps      map[string]Caps   `json:"caps,omitempty"`
}

// All is one split that sends everything to version.
func All(version string) []Split {
	return []Split{{Shares: map[string]uint32{version: Million}}}
}

// New is the first document of an alias: all traffic to version, no lease.
func New(alias, run, version string) Doc {
	return Doc{Alias: alias, Run: run, Epoch: 1, Otherwise: Intent{Splits: All(version)}}
}

// Claim gives the document to the controller of run under a new epoch. A lease
// stays as it is, neither ended nor renewed.
func Claim(d Doc, run string) Doc {
	d = d.clone()
	d.Run = run
	d.Epoch++
	return d
}

// Grant puts l into force, in place of an earlier lease. A Seq of 0 is the
// next one; otherwise it must be higher than every earlier one.
func Grant(d Doc, epoch uint64, l Lease) (Doc, error) {
	if err := d.fence(epoch); err != nil {
		return Doc{}, err
	}
	if l.Seq == 0 {
		l.Seq = d.Seq + 1
	}
	if l.Seq <= d.Seq {
		return Doc{}, fmt.Errorf("granting a lease with sequence %d after %d: %w", l.Seq, d.Seq, ErrStale)
	}
	d = d.clone()
	l.Intent = l.Intent.clone()
	d.Lease = &l
	d.Seq = l.Seq
	if err := d.Validate(); err != nil {
		return Doc{}, fmt.Errorf("granting a lease: %w", err)
	}
	return d, nil
}

// Renew extends the lease by its time to live. It needs a higher sequence and
// an observation that differs from the last: evidence keeps a lease, being
// alive does not.
func Renew(d Doc, epoch, seq uint64, seen string) (Doc, error) {
	if err := d.fence(epoch); err != nil {
		return Doc{}, err
	}
	switch {
	case d.Lease == nil:
		return Doc{}, ErrNoLease
	case seq <= d.Seq:
		return Doc{}, fmt.Errorf("renewing with sequence %d after %d: %w", seq, d.Seq, ErrStale)
	case seen == "" || seen == d.Lease.Seen:
		return Doc{}, fmt.Errorf("renewing on observation %q: %w", seen, ErrStale)
	}
	d = d.clone()
	d.Lease.Seq, d.Lease.Seen, d.Seq = seq, seen, seq
	return d, nil
}

// Promote sends everything to version, without a lease. What had most of the
// traffic before becomes the standby.
func Promote(d Doc, epoch uint64, version string) (Doc, error) {
	if err := d.fence(epoch); err != nil {
		return Doc{}, err
	}
	if version == "" {
		return Doc{}, errors.New("promoting: no version given")
	}
	d = d.clone()
	if old := d.Live(); old != version {
		d.Standby = old
	}
	d.Otherwise.Splits, d.Otherwise.Mirror, d.Lease = All(version), nil, nil
	d.prune()
	return d, nil
}

// Cap bounds what each replica of version gets; zero Caps take the bounds away. The
// version may be one that is only about to get a share.
func Cap(d Doc, epoch uint64, version string, c Caps) (Doc, error) {
	if err := d.fence(epoch); err != nil {
		return Doc{}, err
	}
	d = d.clone()
	if c.Streams == 0 && c.KVTokens == 0 {
		delete(d.Caps, version)
	} else {
		if d.Caps == nil {
			d.Caps = map[string]Caps{}
		}
		d.Caps[version] = c
	}
	if err := d.Validate(); err != nil {
		return Doc{}, fmt.Errorf("capping version %q: %w", version, err)
	}
	return d, nil
}

// Fallback ends the lease: what holds otherwise holds now. Anybody may do it,
// and the controller is fenced.
func Fallback(d Doc) Doc {
	d = d.clone()
	d.Lease = nil
	d.Epoch++
	d.prune()
	return d
}

// Rollback sends everything to version to, or to the standby when to is
// empty, and ends the lease. Anybody may do it, and the controller is fenced.
// The version that is left is no standby for what follows.
func Rollback(d Doc, to string) (Doc, error) {
	if to == "" {
		to = d.Standby
	}
	if to == "" || !d.Knows(to) {
		return Doc{}, fmt.Errorf("rolling back %s to %q: %w", d.Alias, to, ErrNoTarget)
	}
	d = Fallback(d)
	d.Otherwise.Splits, d.Otherwise.Mirror = All(to), nil
	if d.Standby == to {
		d.Standby = ""
	}
	d.prune()
	return d, nil
}

// At is the intent in force: the lease's while it is live, else Otherwise. A
// lease is live when a router has seen it move and age, counted since the
// router's read began, is below its time to live.
func (d Doc) At(age time.Duration, moved bool) Intent {
	l := d.Lease
	if l == nil || !moved || age < 0 || age >= l.TTL {
		return d.Otherwise
	}
	in := l.Intent
	if len(in.Splits) == 0 {
		in.Splits = d.Otherwise.Splits
	}
	return in
}

// Live is the version with the largest share of Otherwise's last split, the
// one that matches everywhere.
func (d Doc) Live() string {
	if len(d.Otherwise.Splits) == 0 {
		return ""
	}
	shares := d.Otherwise.Splits[len(d.Otherwise.Splits)-1].Shares
	best := ""
	for _, v := range slices.Sorted(maps.Keys(shares)) {
		if best == "" || shares[v] > shares[best] {
			best = v
		}
	}
	return best
}

// Knows tells whether the document names version anywhere.
func (d Doc) Knows(version string) bool { return slices.Contains(d.Versions(), version) }

// Versions are all versions that the document names, sorted.
func (d Doc) Versions() []string {
	set := map[string]bool{}
	add := func(in Intent) {
		for _, s := range in.Splits {
			for v := range s.Shares {
				set[v] = true
			}
		}
		for v := range in.Mirror {
			set[v] = true
		}
	}
	add(d.Otherwise)
	if d.Lease != nil {
		add(d.Lease.Intent)
	}
	if d.Standby != "" {
		set[d.Standby] = true
	}
	for _, v := range d.Pins {
		set[v] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// prune forgets the caps of versions that the document names no more.
func (d *Doc) prune() {
	maps.DeleteFunc(d.Caps, func(v string, _ Caps) bool { return !d.Knows(v) })
	if len(d.Caps) == 0 {
		d.Caps = nil
	}
}

func (d Doc) fence(epoch uint64) error {
	if epoch != d.Epoch {
		return fmt.Errorf("epoch %d, the route of %s is at %d: %w", epoch, d.Alias, d.Epoch, ErrFenced)
	}
	return nil
}

func (d Doc) clone() Doc {
	d.Otherwise = d.Otherwise.clone()
	d.Pins, d.Caps = maps.Clone(d.Pins), maps.Clone(d.Caps)
	if d.Lease != nil {
		l := *d.Lease
		l.Intent = l.Intent.clone()
		d.Lease = &l
	}
	return d
}

func (in Intent) clone() Intent {
	in.Splits = slices.Clone(in.Splits)
	for i := range in.Splits {
		in.Splits[i].Shares = maps.Clone(in.Splits[i].Shares)
	}
	in.Mirror = maps.Clone(in.Mirror)
	return in
}

// For is the split for a router's zone and pool.
func (in Intent) For(zone, pool string) (Split, bool) {
	for _, s := range in.Splits {
		if (s.Zone == "" || s.Zone == zone) && (s.Pool == "" || s.Pool == pool) {
			return s, true
		}
	}
	return Split{}, false
}

// Validate reports everything that is wrong with the document.
func (d Doc) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := fleet.CheckName(Name(d.Alias)); d.Alias == "" {
		bad("alias is empty")
	} else if err != nil {
		errs = append(errs, fmt.Errorf("alias: %w", err))
	}
	if d.Epoch == 0 {
		bad("epoch is 0, want 1 or more")
	}
	if len(d.Otherwise.Splits) == 0 {
		bad("otherwise has no splits")
	}
	d.Otherwise.validate("otherwise", bad)
	for name, v := range d.Pins {
		if name == "" || v == "" {
			bad("pin %q names version %q", name, v)
		}
	}
	for v, c := range d.Caps {
		if v == "" || c.Streams < 0 || c.KVTokens < 0 || c.Streams == 0 && c.KVTokens == 0 {
			bad("version %q is capped at %d streams and %d tokens; want one of both, and none below 0", v, c.Streams, c.KVTokens)
		}
	}
	if l := d.Lease; l != nil {
		l.Intent.validate("lease", bad)
		if l.TTL <= 0 || l.TTL > MaxTTL {
			bad("lease lasts %v, want more than 0 and at most %v", l.TTL, MaxTTL)
		}
		if l.Seq == 0 || l.Seq > d.Seq {
			bad("lease has sequence %d, the document %d", l.Seq, d.Seq)
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("route of %q: %w", d.Alias, errors.Join(errs...))
}

func (in Intent) validate(what string, bad func(string, ...any)) {
	for i, s := range in.Splits {
		sum := uint64(0)
		for v, share := range s.Shares {
			if v == "" {
				bad("%s split %d gives a share to a version without a name", what, i)
			}
			sum += uint64(share)
		}
		if sum != Million {
			bad("%s split %d: shares add up to %d, want %d", what, i, sum, Million)
		}
		if last := i == len(in.Splits)-1; last != (s.Zone == "" && s.Pool == "") {
			bad("%s split %d: the last split and no other must match every zone and pool", what, i)
		}
	}
	for v, share := range in.Mirror {
		if v == "" || share > Million {
			bad("%s mirrors %d parts per million to version %q", what, share, v)
		}
	}
	if in.Ceiling != 0 && in.Floor > in.Ceiling {
		bad("%s has floor %d above ceiling %d", what, in.Floor, in.Ceiling)
	}
}
