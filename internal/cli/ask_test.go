package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

func TestAsk(t *testing.T) {
	for in, want := range map[string]bool{"y\n": true, " Y \r\n": true, "y": true, "yes\n": false, "n\n": false, "\n": false, "": false} {
		var out bytes.Buffer
		e := &env{in: strings.NewReader(in), err: &out}
		if got, err := e.ask(t.Context(), "Go to %s?", "v1"); got != want || err != nil {
			t.Errorf("%q: %v, %v", in, got, err)
		}
		if out.String() != "Go to v1? [y/N] " {
			t.Errorf("asked %q", out.String())
		}
	}
}

func TestAskIsInterrupted(t *testing.T) {
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := &env{in: r, err: io.Discard}
	if _, err := e.ask(ctx, "Go on?"); !errors.Is(err, context.Canceled) {
		t.Errorf("ask = %v", err)
	}
}

func TestIsTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if isTerminal(null) || isTerminal(strings.NewReader("")) {
		t.Error("what is no terminal counts as one")
	}
}
