package fleet

import (
	"fmt"
	"strings"
)

const maxName = 128

// CheckName tells whether name may name a document: 1 to 128 of the letters,
// digits and _ ~ / -, which is Nomad's rule for the path of a variable.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("document name %q has %d bytes, want 1 to %d", name, len(name), maxName)
	}
	for i := 0; i < len(name); i++ {
		if !plain(name[i]) && name[i] != '/' && name[i] != '~' {
			return fmt.Errorf("document name %q: byte %q is not one of A-Z a-z 0-9 _ ~ / -", name, name[i])
		}
	}
	return nil
}

// Escape turns any text into one segment of a document name: a byte other
// than a letter, a digit, _ or - becomes ~ and two hexadecimal digits.
func Escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if plain(s[i]) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "~%02x", s[i])
		}
	}
	return b.String()
}

// Unescape undoes Escape.
func Unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '~' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("escaped name %q ends within an escape", s)
		}
		hi, lo := hexDigit(s[i+1]), hexDigit(s[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("escaped name %q: %q is not an escape", s, s[i:i+3])
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
