package nomad

import (
	"errors"
	"fmt"
)

var errCutOff = errors.New("the JSON ends within a value")

// pick finds the values of some keys of a JSON object and gives them to fn as they
// stand. What lies between is stepped over unread: a node tells the speed of each of
// its cores, which made decoding all of it most of what a look at a large fleet took.
// Keys are compared as they are written; the object must be valid where it is not
// stepped over.
func pick(text []byte, fn func(key, value []byte) error) error {
	i := space(text, 0)
	if i == len(text) || text[i] != '{' {
		return errors.New("not a JSON object")
	}
	for i++; ; i++ {
		if i = space(text, i); i < len(text) && text[i] == '}' {
			return nil
		}
		if i == len(text) || text[i] != '"' {
			return fmt.Errorf("no key at byte %d", i)
		}
		behind := past(text, i)
		colon := space(text, behind)
		if colon == len(text) || text[colon] != ':' {
			return fmt.Errorf("no value at byte %d", colon)
		}
		from := space(text, colon+1)
		to := past(text, from)
		if to == from {
			return errCutOff
		}
		if err := fn(text[i+1:behind-1], text[from:to]); err != nil {
			return err
		}
		if i = space(text, to); i == len(text) {
			return errCutOff
		}
		if text[i] == '}' {
			return nil
		}
		if text[i] != ',' {
			return fmt.Errorf("no comma at byte %d", i)
		}
	}
}

func space(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r') {
		i++
	}
	return i
}

// past is behind the value that begins at from, or from when it does not end.
func past(text []byte, from int) int {
	depth := 0
	for i := from; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if i >= len(text) {
				return from
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 { // the end of what a number or a word stands in
				return i
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return from
}
