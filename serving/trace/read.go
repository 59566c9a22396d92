package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLine bounds what a damaged file makes us hold; a record has at most some 10 KB.
const maxLine = 1 << 20

// Read calls fn for each record of a file, in the order in which requests ended, with
// the number of its line. A router that is killed leaves at most one line that is cut,
// the last: it is passed over, and cut says so. Any other line that is no record is an
// error that names it. fn's first error ends the reading.
func Read(r io.Reader, fn func(n int, rec Record) error) (cut bool, err error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), maxLine)
	ended := true // the line at hand has its line feed
	in.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		if !atEOF || len(data) == 0 {
			return 0, nil, nil
		}
		ended = false
		return len(data), data, nil
	})
	n := 0
	for in.Scan() {
		n++
		line := bytes.TrimSpace(in.Bytes())
		if len(line) == 0 {
			continue
		}
		if !ended && !json.Valid(line) {
			return true, nil
		}
		rec, err := Parse(line)
		if err == nil {
			err = fn(n, rec)
		}
		if err != nil {
			return false, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return false, fmt.Errorf("line %d is longer than %d bytes", n+1, maxLine)
	}
	return false, in.Err()
}

// suffix ends the names of files of records.
const suffix = ".jsonl"

// Files are the files of path: itself, or those of records in the folder that it is, by
// name, which is by router and then by time.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range all {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), suffix) {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		return nil, fmt.Errorf("no file in %s ends in %s; want those that llmops router serve --records writes", path, suffix)
	}
	return out, nil
}
