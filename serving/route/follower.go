package route

import (
	"fmt"
	"time"
)

// Follower is what one router knows of one alias since it started. Times are
// on the router's monotonic clock. The zero value knows nothing.
//
// A lease is live only after the router has seen its sequence move between two
// reads that the router itself began: what was there at the start may be a
// dead controller's. The lease is then counted from the beginning of the last
// read that did not yet show the new sequence, because the renewal can be as
// old as that. A read that was under way while the process stood still, or the
// first one after a long silence of the store, therefore revives nothing.
type Follower struct {
	doc Doc
	rev uint64
	has bool

	pushed  bool // doc came by Push, at pushedAt, and no later read confirmed it
	pushAt  time.Duration
	read    bool          // a read has been answered
	readAt  time.Duration // when the newest answered read began
	readSeq uint64        // the sequence it showed
	moved   bool
	from    time.Duration // where a moved lease is counted from
	ttl     time.Duration
	epoch   uint64 // the epoch it was moved under
}

// Read takes the answer to a read that this router began at the time began;
// d is nil when there was no document. It reports whether what is in force
// changed. Answers that overtook each other are ignored.
func (f *Follower) Read(began time.Duration, rev uint64, d *Doc) bool {
	if f.read && began < f.readAt {
		return false
	}
	var seq uint64
	if d != nil {
		seq = d.Seq
	}
	switch {
	case d == nil || d.Lease == nil:
		f.moved = false
	case f.read && seq > f.readSeq:
		f.moved, f.from, f.ttl, f.epoch = true, f.readAt, d.Lease.TTL, d.Epoch
	case f.read && seq == f.readSeq:
		if f.moved && d.Epoch != f.epoch {
			f.epoch = d.Epoch // claimed: same lease, other owner
		}
	default: // the first read, or a document that was made anew
		f.moved = false
	}
	f.read, f.readAt, f.readSeq = true, began, seq

	// A read that began after a push was taken cannot be older than it, so its
	// answer stands even with a lower revision: the push was then a mistake.
	if f.has && rev < f.rev && f.pushed && began < f.pushAt {
		return false
	}
	changed := f.has != (d != nil) || f.rev != rev
	f.pushed = false
	f.has, f.rev = d != nil, rev
	if d != nil {
		f.doc = *d
	} else {
		f.doc = Doc{}
	}
	return changed
}

// Push takes a revision that somebody else sent. A newer one holds at once,
// but renews nothing: its leased weights are live for as long as the lease is
// that the router's own reads have seen. ErrFenced is a lower epoch.
func (f *Follower) Push(now time.Duration, rev uint64, d Doc) (changed bool, err error) {
	if f.has && rev <= f.rev {
		return false, nil
	}
	if f.has && d.Epoch < f.doc.Epoch {
		return false, fmt.Errorf("pushed epoch %d, in force is %d: %w", d.Epoch, f.doc.Epoch, ErrFenced)
	}
	f.doc, f.rev, f.has = d, rev, true
	f.pushed, f.pushAt = true, now
	return true, nil
}

// Doc is the document in force and its revision.
func (f *Follower) Doc() (d Doc, rev uint64, ok bool) { return f.doc, f.rev, f.has }

// ReadAt is when the newest answered read began; ok is false before the first.
func (f *Follower) ReadAt() (t time.Duration, ok bool) { return f.readAt, f.read }

// Until is the time at which leased weights end; ok is false when they are
// not live for want of a lease that was seen to move.
func (f *Follower) Until() (t time.Duration, ok bool) {
	// A pushed document of another epoch follows a rollback or another owner:
	// what the old epoch's evidence bought is not its to spend.
	if !f.has || f.doc.Lease == nil || !f.moved || f.doc.Epoch != f.epoch {
		return 0, false
	}
	return f.from + min(f.ttl, f.doc.Lease.TTL), true
}

// At is the intent in force at now, and whether it is the lease's.
func (f *Follower) At(now time.Duration) (in Intent, leased bool) {
	until, ok := f.Until()
	leased = ok && now < until
	return f.doc.At(now-f.from, leased), leased
}
