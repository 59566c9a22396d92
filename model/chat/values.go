package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// list is a list whose index may count from the end, its whole length included,
// which the library forgets.
type list []any

// GetItem implements exec.ItemGetter.
func (l list) GetItem(key any) (*exec.Value, bool) {
	i, ok := key.(int)
	if i < 0 {
		i += len(l)
	}
	if !ok || i < 0 || i >= len(l) {
		return exec.AsValue(nil), false
	}
	return exec.ToValue(l[i]), true
}

func (l list) String() string { return "[" + reprs(l) + "]" }

// tuple is one of the items of a mapping.
type tuple [2]any

func (t tuple) String() string { return "(" + reprs(t[:]) + ")" }

func reprs(all []any) string {
	parts := make([]string, len(all))
	for i, v := range all {
		parts[i] = repr(exec.ToValue(v))
	}
	return strings.Join(parts, ", ")
}

// repr is how Python writes a value within another.
func repr(v *exec.Value) string {
	switch {
	case v.IsNil():
		return "None"
	case v.IsFloat():
		return pythonFloat(v.Float())
	case v.IsString():
		return quote(v.String())
	case v.IsDict():
		var parts []string
		for _, p := range pairs(v) {
			parts = append(parts, repr(exec.ToValue(p[0]))+": "+repr(exec.ToValue(p[1])))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case v.IsList():
		if s, ok := v.Interface().(fmt.Stringer); ok {
			return s.String()
		}
		l := make(list, v.Len())
		for i := range l {
			l[i] = v.Index(i).Interface()
		}
		return l.String()
	}
	return v.String()
}

func quote(s string) string {
	mark := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = '"'
	}
	var b strings.Builder
	b.WriteByte(mark)
	for _, r := range s {
		switch {
		case r == '\\' || r == rune(mark):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(mark)
	return b.String()
}

// decode reads JSON. Objects keep the order of their keys, which the model sees when
// tools are written out.
func decode(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	v, err := decodeValue(dec)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the value")
	}
	return v, nil
}

func decodeValue(dec *json.Decoder) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case json.Number:
		if n, err := strconv.Atoi(string(t)); err == nil {
			return n, nil
		}
		return t.Float64()
	case json.Delim:
		if t == '{' {
			return decodeObject(dec)
		}
		l := list{}
		for dec.More() {
			v, err := decodeValue(dec)
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		_, err := dec.Token()
		return l, err
	}
	return tok, nil
}

func decodeObject(dec *json.Decoder) (any, error) {
	d := exec.NewDict()
	at := make(map[string]*exec.Pair)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		v, err := decodeValue(dec)
		if err != nil {
			return nil, err
		}
		name := key.(string)
		if p := at[name]; p != nil { // sent twice: the last one counts, in the place of the first
			p.Value = exec.AsValue(v)
			continue
		}
		at[name] = &exec.Pair{Key: exec.AsValue(name), Value: exec.AsValue(v)}
		d.Pairs = append(d.Pairs, at[name])
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if len(d.Pairs) == 0 {
		return map[string]any{}, nil // the library takes an empty dict of its own for true
	}
	return d, nil
}

// items are the pairs of a mapping as a list.
func items(v *exec.Value) list {
	out := list{}
	for _, p := range pairs(v) {
		out = append(out, p)
	}
	return out
}

// pairs are the items of a mapping in order; the library's own are in none.
func pairs(v *exec.Value) []tuple {
	var out []tuple
	for _, k := range v.Keys() {
		item, ok := v.GetItem(k.Interface())
		if !ok {
			item = exec.AsValue(nil)
		}
		out = append(out, tuple{k.Interface(), item.Interface()})
	}
	return out
}
