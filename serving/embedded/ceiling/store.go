package ceiling

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/renameio/v2"
)

// Parse reads what Write wrote, and nothing else: unknown and missing figures are
// errors.
func Parse(b []byte) (*Ceilings, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var c Ceilings
	if err := d.Decode(&c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something behind the object")
	}
	if c.Measured.IsZero() || c.Machine.Threads < 1 || c.BufferBytes < 1 || c.One.Threads != 1 || c.All.Threads != c.Machine.Threads {
		return nil, errors.New("it does not say when, where, and on how many threads it was measured")
	}
	for _, r := range []Rates{c.One, c.All} {
		for _, x := range []Reading{r.Read, r.Row, r.F32, r.BF16} {
			if !(x.N >= fewest && x.Best > 0 && x.Median > 0 && x.Median <= x.Best && x.Spread >= 0 && x.Spread < 1 && x.Disturbed >= 0) {
				return nil, fmt.Errorf("a reading on %d threads is %+v", r.Threads, x)
			}
		}
	}
	return &c, nil
}

// Read reads a file that Write wrote.
func Read(path string) (*Ceilings, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w; measure again", path, err)
	}
	return c, nil
}

// Write keeps c in a file, whole or not at all.
func Write(path string, c *Ceilings) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o600)
}
