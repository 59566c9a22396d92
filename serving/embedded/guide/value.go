package guide

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// value is a JSON value that keeps the order of members.
type value struct {
	kind    byte // one of {["0tn: object, array, string, number, bool, null
	members []member
	items   []*value
	text    string // of a string, or the digits of a number
	yes     bool
}

type member struct {
	key   string
	value *value
}

// maxDepth bounds schemas, not answers.
const maxDepth = 128

func parseValue(b []byte) (*value, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("the schema is not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("reading the schema: something follows its end")
	}
	return v, nil
}

func readValue(d *json.Decoder, depth int) (*value, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		v := &value{kind: byte(t)}
		for d.More() {
			var key string
			if t == '{' {
				k, err := d.Token()
				if err != nil {
					return nil, err
				}
				key = k.(string)
				if v.get(key) != nil {
					return nil, fmt.Errorf("key %q comes twice", key)
				}
			}
			inner, err := readValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			if t == '{' {
				v.members = append(v.members, member{key, inner})
			} else {
				v.items = append(v.items, inner)
			}
		}
		_, err := d.Token()
		return v, err
	case string:
		return &value{kind: '"', text: t}, nil
	case json.Number:
		return &value{kind: '0', text: t.String()}, nil
	case bool:
		return &value{kind: 't', yes: t}, nil
	}
	return &value{kind: 'n'}, nil
}

func (v *value) get(key string) *value {
	i := slices.IndexFunc(v.members, func(m member) bool { return m.key == key })
	if i < 0 {
		return nil
	}
	return v.members[i].value
}

// compact is the value as JSON without blanks.
func (v *value) compact() string {
	var b strings.Builder
	v.write(&b)
	return b.String()
}

func (v *value) write(b *strings.Builder) {
	switch v.kind {
	case '{':
		b.WriteByte('{')
		for i, m := range v.members {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, m.key)
			b.WriteByte(':')
			m.value.write(b)
		}
		b.WriteByte('}')
	case '[':
		b.WriteByte('[')
		for i, item := range v.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.write(b)
		}
		b.WriteByte(']')
	case '"':
		writeString(b, v.text)
	case '0':
		b.WriteString(v.text)
	case 't':
		b.WriteString(strconv.FormatBool(v.yes))
	default:
		b.WriteString("null")
	}
}

func quote(s string) string {
	var b strings.Builder
	writeString(&b, s)
	return b.String()
}

// writeString escapes only what JSON requires; encoding/json escapes more.
func writeString(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		writeRune(b, r)
	}
	b.WriteByte('"')
}

func writeRune(b *strings.Builder, r rune) {
	switch r {
	case '"', '\\':
		b.WriteByte('\\')
		b.WriteRune(r)
	case '\b':
		b.WriteString(`\b`)
	case '\f':
		b.WriteString(`\f`)
	case '\n':
		b.WriteString(`\n`)
	case '\r':
		b.WriteString(`\r`)
	case '\t':
		b.WriteString(`\t`)
	default:
		if r < 0x20 {
			fmt.Fprintf(b, `\u%04x`, r)
			return
		}
		b.WriteRune(r)
	}
}

// is reports whether the value is of a type that a schema names.
func (v *value) is(name string) bool {
	switch name {
	case "integer":
		return v.kind == '0' && !strings.ContainsAny(v.text, ".eE")
	case "number":
		return v.kind == '0'
	case "boolean":
		return v.kind == 't'
	case "null":
		return v.kind == 'n'
	case "string":
		return v.kind == '"'
	case "array":
		return v.kind == '['
	case "object":
		return v.kind == '{'
	}
	return false
}
