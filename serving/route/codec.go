package route

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"llmops/fleet"
)

// Prefix is where the documents of all aliases lie in the store.
const Prefix = "route/"

// Name is the name of an alias's document.
func Name(alias string) string { return Prefix + fleet.Escape(alias) }

// Alias is the alias of a document name.
func Alias(name string) (string, error) {
	seg, ok := strings.CutPrefix(name, Prefix)
	if !ok || seg == "" {
		return "", fmt.Errorf("%q does not name a route", name)
	}
	alias, err := fleet.Unescape(seg)
	if err == nil && Name(alias) != name {
		err = fmt.Errorf("%q is not how %q is written", seg, alias)
	}
	if err != nil {
		return "", fmt.Errorf("reading the route name %q: %w", name, err)
	}
	return alias, nil
}

// Encode is the document's body for the store.
func Encode(d Doc) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(d)
	if err == nil && len(b) > fleet.MaxBody {
		err = fmt.Errorf("route of %q takes %d bytes, more than %d", d.Alias, len(b), fleet.MaxBody)
	}
	return b, err
}

// Decode reads a body. A field that this program does not know is an error: a
// router that skipped it would serve something else than was meant.
func Decode(body []byte) (Doc, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	var d Doc
	if err := dec.Decode(&d); err != nil {
		return Doc{}, fmt.Errorf("reading a route: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Doc{}, fmt.Errorf("reading a route: data after the document")
	}
	return d, d.Validate()
}

// leaseJSON writes the time to live as people do.
type leaseJSON struct {
	Intent
	TTL  string `json:"ttl"`
	Seq  uint64 `json:"seq"`
	Seen string `json:"seen"`
}

func (l Lease) MarshalJSON() ([]byte, error) {
	return json.Marshal(leaseJSON{l.Intent, l.TTL.String(), l.Seq, l.Seen})
}

func (l *Lease) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var j leaseJSON
	if err := dec.Decode(&j); err != nil {
		return err
	}
	ttl, err := time.ParseDuration(j.TTL)
	if err != nil {
		return fmt.Errorf("lease ttl %q: %w", j.TTL, err)
	}
	*l = Lease{j.Intent, ttl, j.Seq, j.Seen}
	return nil
}
