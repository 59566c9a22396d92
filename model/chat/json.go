package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// orderKey is a variable that no template can name.
const orderKey = "\x00order"

// decoder reads JSON into maps and slices, and remembers the order of each map's
// keys, which the model sees when tools are written out and Go's maps lose.
type decoder struct{ order order }

// order finds keys by the map itself or, because the library copies maps on some
// ways through a template, by the set of its keys.
type order struct {
	byMap map[uintptr][]string
	bySet map[string][]string
}

func newOrder() order {
	return order{make(map[uintptr][]string), make(map[string][]string)}
}

func (o order) put(object map[string]any, keys []string) {
	o.byMap[reflect.ValueOf(object).Pointer()] = keys
	o.bySet[setOf(keys)] = keys
}

func (o order) find(v *exec.Value) []string {
	val := v.Val
	for val.Kind() == reflect.Interface {
		val = val.Elem()
	}
	if val.Kind() != reflect.Map {
		return nil
	}
	if keys, ok := o.byMap[val.Pointer()]; ok {
		return keys
	}
	var keys []string
	for _, k := range v.Keys() {
		keys = append(keys, k.String())
	}
	return o.bySet[setOf(keys)]
}

func setOf(keys []string) string {
	return strings.Join(slices.Sorted(slices.Values(keys)), "\x00")
}

func (d *decoder) decode(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	v, err := d.value(dec)
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

func (d *decoder) value(dec *json.Decoder) (any, error) {
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
		if t == '[' {
			list := []any{}
			for dec.More() {
				v, err := d.value(dec)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := dec.Token()
			return list, err
		}
		object := make(map[string]any)
		var keys []string
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			v, err := d.value(dec)
			if err != nil {
				return nil, err
			}
			name := key.(string)
			if _, twice := object[name]; !twice {
				keys = append(keys, name)
			}
			object[name] = v
		}
		d.order.put(object, keys)
		_, err := dec.Token()
		return object, err
	}
	return tok, nil
}

// toJSON is transformers' tojson: json.dumps with ensure_ascii off.
func toJSON(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	w := writer{item: ", ", key: ": "}
	if o, ok := e.Environment.Context.Get(orderKey); ok {
		w.order, _ = o.(order)
	}
	for name, arg := range params.KwArgs {
		switch name {
		case "indent":
			switch {
			case arg.IsNil():
			case arg.IsInteger():
				w.indent = strings.Repeat(" ", max(0, min(arg.Integer(), 16)))
				w.lines, w.item = true, ","
			default:
				w.indent, w.lines, w.item = arg.String(), true, ","
			}
		case "sort_keys":
			w.sorted = arg.IsTrue()
		case "ensure_ascii":
			w.ascii = arg.IsTrue()
		case "separators":
			if arg.Len() != 2 {
				return exec.AsValue(errors.New("tojson: separators must be two"))
			}
			w.item, w.key = arg.Index(0).String(), arg.Index(1).String()
		default:
			return exec.AsValue(fmt.Errorf("tojson: unknown argument %q", name))
		}
	}
	if len(params.Args) > 0 {
		return exec.AsValue(errors.New("tojson: arguments must be named"))
	}
	if err := w.write(in, 0); err != nil {
		return exec.AsValue(fmt.Errorf("tojson: %w", err))
	}
	return exec.AsSafeValue(w.out.String())
}

type writer struct {
	out           bytes.Buffer
	order         order
	indent        string
	item, key     string
	lines, sorted bool
	ascii         bool
}

// maxDepth bounds nesting; deeper than any schema and far from the stack's end.
const maxDepth = 256

func (w *writer) write(v *exec.Value, depth int) error {
	if depth > maxDepth {
		return errors.New("nested too deeply")
	}
	switch {
	case v.IsNil():
		w.out.WriteString("null")
	case v.IsBool():
		w.out.WriteString(strconv.FormatBool(v.Bool()))
	case v.IsInteger():
		w.out.WriteString(strconv.Itoa(v.Integer()))
	case v.IsFloat():
		w.out.WriteString(pythonFloat(v.Float()))
	case v.IsString():
		return w.string(v.String())
	case v.IsDict():
		return w.dict(v, depth)
	case v.IsList():
		w.out.WriteByte('[')
		n := v.Len()
		for i := range n {
			w.newline(i, depth+1)
			if err := w.write(v.Index(i), depth+1); err != nil {
				return err
			}
		}
		w.end(n, depth, ']')
	default:
		return fmt.Errorf("%s cannot be written as JSON", v.String())
	}
	return nil
}

func (w *writer) dict(v *exec.Value, depth int) error {
	keys := w.order.find(v)
	// A template may have added to the map or made one, so that the order is partial.
	known := len(keys)
	if known != v.Len() {
		keys = slices.Clone(keys)
		for _, k := range v.Keys() {
			if !slices.Contains(keys[:known], k.String()) {
				keys = append(keys, k.String())
			}
		}
	}
	if w.sorted {
		keys = slices.Clone(keys)
		sort.Strings(keys)
	}
	w.out.WriteByte('{')
	for i, k := range keys {
		item, ok := v.GetItem(k)
		if !ok {
			item = exec.AsValue(nil)
		}
		w.newline(i, depth+1)
		if err := w.string(k); err != nil {
			return err
		}
		w.out.WriteString(w.key)
		if err := w.write(item, depth+1); err != nil {
			return err
		}
	}
	w.end(len(keys), depth, '}')
	return nil
}

func (w *writer) newline(i, depth int) {
	if i > 0 {
		w.out.WriteString(w.item)
	}
	if w.lines {
		w.out.WriteByte('\n')
		w.out.WriteString(strings.Repeat(w.indent, depth))
	}
}

func (w *writer) end(n, depth int, close byte) {
	if n > 0 && w.lines {
		w.out.WriteByte('\n')
		w.out.WriteString(strings.Repeat(w.indent, depth))
	}
	w.out.WriteByte(close)
}

// string writes s as Python does, which escapes less than encoding/json.
func (w *writer) string(s string) error {
	w.out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.out.WriteByte('\\')
			w.out.WriteRune(r)
		case r == '\n':
			w.out.WriteString(`\n`)
		case r == '\r':
			w.out.WriteString(`\r`)
		case r == '\t':
			w.out.WriteString(`\t`)
		case r == '\b':
			w.out.WriteString(`\b`)
		case r == '\f':
			w.out.WriteString(`\f`)
		case r < 0x20 || w.ascii && r > 0x7e && r < 0x10000:
			fmt.Fprintf(&w.out, `\u%04x`, r)
		case w.ascii && r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(&w.out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			w.out.WriteRune(r)
		}
	}
	w.out.WriteByte('"')
	return nil
}

// pythonFloat is repr: the shortest digits, with a point or an exponent.
func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 0):
		return strings.Replace(strconv.FormatFloat(f, 'g', -1, 64), "+", "", 1) + "inity"
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
