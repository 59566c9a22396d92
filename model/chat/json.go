package chat

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// toJSON is transformers' tojson: json.dumps with ensure_ascii off.
func toJSON(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	w := writer{item: ", ", key: ": "}
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
	items := pairs(v)
	if w.sorted {
		slices.SortStableFunc(items, byKey)
	}
	w.out.WriteByte('{')
	for i, item := range items {
		w.newline(i, depth+1)
		if err := w.string(exec.ToValue(item[0]).String()); err != nil {
			return err
		}
		w.out.WriteString(w.key)
		if err := w.write(exec.ToValue(item[1]), depth+1); err != nil {
			return err
		}
	}
	w.end(len(items), depth, '}')
	return nil
}

func byKey(a, b tuple) int {
	return strings.Compare(exec.ToValue(a[0]).String(), exec.ToValue(b[0]).String())
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
