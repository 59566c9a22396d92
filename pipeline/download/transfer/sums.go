package transfer

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// SumsName is the file that lists the digests of a folder's files.
const SumsName = "SHA256SUMS"

// Sum is one line of such a file.
type Sum struct {
	Path, SHA256 string
	Line         int
}

// ReadSums reads the output of sha256sum. name is what errors call it.
func ReadSums(r io.Reader, name string) ([]Sum, error) {
	var out []Sum
	seen := map[string]int{}
	sc := bufio.NewScanner(r)
	for line := 1; sc.Scan(); line++ {
		text := strings.TrimRight(sc.Text(), "\r")
		if text == "" {
			continue
		}
		hex, path, _ := strings.Cut(text, " ")
		path = strings.TrimPrefix(strings.TrimPrefix(strings.TrimLeft(path, " "), "*"), "./")
		hex = strings.ToLower(hex)
		switch {
		case !isHex(hex) || path == "":
			return nil, fmt.Errorf("%s:%d: want a sha256 in hexadecimal, two spaces and a path", name, line)
		case !SafePath(path):
			return nil, fmt.Errorf("%s:%d: %q is no path within the folder", name, line, path)
		case seen[path] > 0:
			return nil, fmt.Errorf("%s:%d: %s is on line %d already", name, line, path, seen[path])
		}
		seen[path] = line
		out = append(out, Sum{path, hex, line})
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

func isHex(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
