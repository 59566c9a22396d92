package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"llmops/fleet"
	"llmops/model"
)

// fenceRetry is the pause before a broken watch of the head is begun again.
const fenceRetry = time.Second

// Entry is one line of a run's journal. Prev is the digest of the entry before
// it, so that the chain from the head back cannot be changed unseen.
type Entry struct {
	Prev   string          `json:"prev,omitempty"`
	Seq    uint64          `json:"seq"`
	Epoch  uint64          `json:"epoch"`
	Owner  string          `json:"owner"`
	At     time.Time       `json:"at"`
	Kind   string          `json:"kind"` // claim, intent, stage or end
	Stage  string          `json:"stage,omitempty"`
	What   string          `json:"what,omitempty"`
	Detail json.RawMessage `json:"detail,omitempty"`
}

// Journal is a claimed run: the right to move its head until somebody else
// claims it. It belongs to one goroutine.
type Journal struct {
	d    Deps
	head Head
	rev  uint64
}

// Head returns the head as this journal last wrote it.
func (j *Journal) Head() Head { return j.head }

// Claim takes the run for owner and raises its epoch; from then on a journal
// claimed earlier is fenced. It refuses with ErrBusy while d.Alive says that
// another owner still runs, unless that owner let go of the run.
func Claim(ctx context.Context, d Deps, run, owner string) (*Journal, error) {
	h, err := Read(ctx, d.Store, run)
	if err != nil {
		return nil, err
	}
	if err := Here(ctx, d.Blobs, h); err != nil {
		return nil, err
	}
	return claim(ctx, d, run, owner)
}

// Here is nil for a run whose records are among the blobs, and ErrElsewhere otherwise.
func Here(ctx context.Context, b fleet.Blobs, h Head) error {
	ok, err := b.Has(ctx, h.Spec)
	if err == nil && !ok {
		err = fmt.Errorf("run %s: %w", h.Run, ErrElsewhere)
	}
	return err
}

func claim(ctx context.Context, d Deps, run, owner string) (*Journal, error) {
	h, rev, err := read(ctx, d.Store, run)
	if err != nil {
		return nil, err
	}
	if h.Over() {
		return nil, fmt.Errorf("run %s is %s", run, h.State)
	}
	if h.State == Running && h.Owner != owner && d.Alive != nil && d.Alive(h.Owner) {
		return nil, fmt.Errorf("run %s: %w (%s)", run, ErrBusy, h.Owner)
	}
	j := &Journal{d: d, head: h, rev: rev}
	j.head.Epoch++
	j.head.Owner = owner
	j.head.State = Running
	if err := j.append(ctx, Entry{Kind: "claim"}); err != nil {
		return nil, fmt.Errorf("claiming run %s: %w", run, err)
	}
	return j, nil
}

// fence ends the context with ErrFenced as its cause as soon as somebody else
// has claimed the run, since a stage may wait or work for long without a write
// that would tell. The caller calls stop when it is done.
func (j *Journal) fence(ctx context.Context) (fenced context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	name, epoch := headName(j.head.Run), j.head.Epoch
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for ctx.Err() == nil {
			// A store that fails is looked at again: the next write decides anyway.
			_ = j.d.Store.Watch(ctx, name, func(d fleet.Doc) error {
				var h Head
				if d.Name == name && (d.Body == nil || json.Unmarshal(d.Body, &h) == nil && h.Epoch > epoch) {
					cancel(ErrFenced)
				}
				return ctx.Err()
			})
			select {
			case <-ctx.Done():
			case <-time.After(fenceRetry):
			}
		}
	}()
	return ctx, func() { cancel(nil); <-gone }
}

// append puts the entry's blob, then moves the head to it.
func (j *Journal) append(ctx context.Context, e Entry) error {
	e.Prev, e.Seq, e.Epoch, e.At = j.head.Last, j.head.Seq+1, j.head.Epoch, j.d.Now().UTC()
	e.Owner = cmp.Or(e.Owner, j.head.Owner)
	digest, err := putJSON(ctx, j.d.Blobs, e)
	if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	last, seq := j.head.Last, j.head.Seq
	j.head.Last, j.head.Seq = digest, e.Seq
	if err := j.move(ctx); err != nil {
		j.head.Last, j.head.Seq = last, seq
		return err
	}
	return nil
}

// move writes the head if nobody else has since.
func (j *Journal) move(ctx context.Context) error {
	j.head.Updated = j.d.Now().UTC()
	body, err := json.Marshal(j.head)
	if err != nil {
		return fmt.Errorf("writing run %s: %w", j.head.Run, err)
	}
	rev, err := j.d.Store.Put(ctx, headName(j.head.Run), body, j.rev)
	if errors.Is(err, fleet.ErrConflict) {
		return fmt.Errorf("run %s: %w", j.head.Run, ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("writing run %s: %w", j.head.Run, err)
	}
	j.rev = rev
	return nil
}

// release lets go of the run, so that the next claim need not wait for this
// process to end.
func (j *Journal) release(ctx context.Context, state RunState, reason string) error {
	e := Entry{Kind: "end", Owner: j.head.Owner, What: string(state), Detail: mustJSON(reason)}
	j.head.State, j.head.Reason, j.head.Owner = state, brief(reason), ""
	return j.append(ctx, e)
}

// brief is what of a reason goes into the head.
func brief(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	// The end of a chain of errors is its cause.
	const half = maxReason / 2
	return strings.ToValidUTF8(reason[:half], "") + " … " + strings.ToValidUTF8(reason[len(reason)-half:], "")
}

// Entries returns the journal of a run, oldest first.
func Entries(ctx context.Context, b fleet.Blobs, h Head) ([]Entry, error) {
	out := make([]Entry, h.Seq)
	digest := h.Last
	for i := len(out) - 1; i >= 0; i-- {
		if err := getJSON(ctx, b, digest, &out[i]); err != nil {
			return nil, fmt.Errorf("reading entry %d of run %s: %w", i+1, h.Run, err)
		}
		digest = out[i].Prev
	}
	return out, nil
}

func putJSON(ctx context.Context, b fleet.Blobs, v any) (string, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	digest, _, err := b.Put(ctx, bytes.NewReader(body))
	return digest, err
}

func getJSON(ctx context.Context, b fleet.Blobs, digest string, v any) error {
	body, err := getBlob(ctx, b, digest)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// getBlob is a blob whole, held to its digest.
func getBlob(ctx context.Context, b fleet.Blobs, digest string) ([]byte, error) {
	r, err := b.Open(ctx, digest)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if now := model.DigestOf(body); string(now) != digest {
		return nil, fmt.Errorf("blob %s was changed and holds %s now; restore it", digest, now)
	}
	return body, nil
}

// mustJSON encodes what cannot fail to encode.
func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("pipeline: encoding a plain value: " + err.Error())
	}
	return b
}
