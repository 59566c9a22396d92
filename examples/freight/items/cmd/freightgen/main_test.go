package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"testing"
)

func TestEveryKindWritesJSONLines(t *testing.T) {
	for _, c := range []struct {
		args  []string
		lines int
	}{
		{[]string{"freight"}, 400},
		{[]string{"json"}, 400},
		{[]string{"-haystack", "300", "long-context"}, 240},
		{[]string{"-n", "5", "perplexity"}, 5},
		{[]string{"-n", "50", "traffic"}, 50},
		{[]string{"canaries"}, 16},
		{[]string{"-stage", "4", "-tokens", "352", "-n", "7", "train"}, 7},
	} {
		var out bytes.Buffer
		if err := run(c.args, &out); err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
		if len(lines) != c.lines {
			t.Errorf("%v: %d lines, want %d", c.args, len(lines), c.lines)
		}
		for _, l := range lines {
			if !json.Valid(l) {
				t.Errorf("%v: not JSON: %s", c.args, l)
			}
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"poetry"}, {"-stage", "9", "train"}, {"freight", "json"}, {"-seed", "x", "json"}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestAClosedPipeEndsTheTrainingText(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"train"}, w); err != nil {
		t.Errorf("writing to a closed pipe: %v", err)
	}
}
