package chat

import (
	"errors"
	"slices"
	"strings"
	"unicode"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/exec"
)

// methods are the library's, but for those of strings and mappings that differ from
// Python's: their defaults, their results as lists that count from the end, and the
// order of keys.
var methods = exec.Methods{
	Bool: builtins.Methods.Bool, Int: builtins.Methods.Int, Float: builtins.Methods.Float, List: builtins.Methods.List,
	Str: replaced(builtins.Methods.Str, strMethods, "capitalize", "casefold", "center", "endswith", "find", "format", "isalnum", "isalpha", "isascii",
		"isdecimal", "isdigit", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "partition",
		"removeprefix", "removesuffix", "rfind", "rjust", "rpartition", "splitlines", "startswith", "swapcase", "title", "upper", "zfill"),
	Dict: replaced(builtins.Methods.Dict, dictMethods, "pop", "setdefault", "update", "copy", "clear"),
}

// replaced adds to ours the named ones of theirs.
func replaced[T any](theirs *exec.MethodSet[T], ours map[string]exec.Method[T], names ...string) *exec.MethodSet[T] {
	for _, name := range names {
		if m, ok := theirs.Get(name); ok {
			ours[name] = m
		}
	}
	return exec.NewMethodSet(ours)
}

var strMethods = map[string]exec.Method[string]{
	"strip":  strip(strings.TrimFunc),
	"lstrip": strip(strings.TrimLeftFunc),
	"rstrip": strip(strings.TrimRightFunc),
	"split": func(self string, _ *exec.Value, a *exec.VarArgs) (any, error) {
		sep, most, err := splitArguments(a)
		if err != nil {
			return nil, err
		}
		if sep != "" && most < 0 {
			return texts(strings.Split(self, sep)), nil
		} else if sep != "" {
			return texts(strings.SplitN(self, sep, most+1)), nil
		}
		var out []string
		for self = strings.TrimLeftFunc(self, space); self != ""; self = strings.TrimLeftFunc(self, space) {
			end := strings.IndexFunc(self, space)
			if end < 0 || most >= 0 && len(out) == most {
				return texts(append(out, strings.TrimRightFunc(self, space))), nil
			}
			out = append(out, self[:end])
			self = self[end:]
		}
		return texts(out), nil
	},
	"rsplit": func(self string, _ *exec.Value, a *exec.VarArgs) (any, error) {
		sep, most, err := splitArguments(a)
		switch {
		case err != nil:
			return nil, err
		case sep == "":
			return nil, exec.ErrInvalidCall(errors.New("rsplit without a separator is not supported"))
		}
		parts := strings.Split(self, sep)
		if n := len(parts) - most; most >= 0 && n > 1 {
			parts = append([]string{strings.Join(parts[:n], sep)}, parts[n:]...)
		}
		return texts(parts), nil
	},
	"count": func(self string, _ *exec.Value, a *exec.VarArgs) (any, error) {
		of := argument(a, 0, "")
		if of == nil {
			return nil, exec.ErrInvalidCall(errors.New("count wants a string"))
		}
		return strings.Count(self, of.String()), nil
	},
	"replace": func(self string, _ *exec.Value, a *exec.VarArgs) (any, error) {
		n := argument(a, 2, "count")
		from, to := argument(a, 0, ""), argument(a, 1, "")
		if from == nil || to == nil || n != nil && !n.IsInteger() {
			return nil, exec.ErrInvalidCall(errors.New("replace wants two strings and a count"))
		}
		most := -1
		if n != nil {
			most = n.Integer()
		}
		return strings.Replace(self, from.String(), to.String(), most), nil
	},
}

// argument is a positional argument, or one by name; nil when there is none.
func argument(a *exec.VarArgs, i int, name string) *exec.Value {
	if i < len(a.Args) {
		return a.Args[i]
	}
	if v, ok := a.KwArgs[name]; ok {
		return v
	}
	return nil
}

func splitArguments(a *exec.VarArgs) (sep string, most int, err error) {
	most = -1
	if v := argument(a, 0, "sep"); v != nil && !v.IsNil() {
		if sep = v.String(); sep == "" {
			return "", 0, exec.ErrInvalidCall(errors.New("the separator is empty"))
		}
	}
	if v := argument(a, 1, "maxsplit"); v != nil {
		if !v.IsInteger() {
			return "", 0, exec.ErrInvalidCall(errors.New("maxsplit is not a whole number"))
		}
		most = max(v.Integer(), -1)
	}
	return sep, most, nil
}

func texts(parts []string) list {
	out := make(list, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return out
}

// space is Python's white space, which has four control characters more than
// Unicode's.
func space(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func strip(trim func(string, func(rune) bool) string) exec.Method[string] {
	return func(self string, _ *exec.Value, a *exec.VarArgs) (any, error) {
		of := space
		if v := argument(a, 0, ""); v != nil && !v.IsNil() {
			set := v.String()
			of = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
		return trim(self, of), nil
	}
}

var dictMethods = map[string]exec.Method[map[string]any]{
	"items": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) { return items(self), nil },
	"keys": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		out := list{}
		for _, k := range self.Keys() {
			out = append(out, k.Interface())
		}
		return out, nil
	},
	"values": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		out := list{}
		for _, p := range pairs(self) {
			out = append(out, p[1])
		}
		return out, nil
	},
	"get": func(_ map[string]any, self *exec.Value, a *exec.VarArgs) (any, error) {
		key := argument(a, 0, "key")
		if key == nil {
			return nil, exec.ErrInvalidCall(errors.New("get wants a key"))
		}
		if v, ok := self.GetItem(key.Interface()); ok {
			return v.Interface(), nil
		}
		if missing := argument(a, 1, "default"); missing != nil {
			return missing.Interface(), nil
		}
		return nil, nil
	},
}

// filters are the library's, but for those that differ from Jinja's.
var filters = func() *exec.FilterSet {
	ours := map[string]exec.FilterFunction{
		"tojson": toJSON,
		"trim": func(_ *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
			if in.IsError() {
				return in
			}
			of := space
			if v := argument(a, 0, "chars"); v != nil && !v.IsNil() {
				set := v.String()
				of = func(r rune) bool { return strings.ContainsRune(set, r) }
			}
			return exec.AsValue(strings.TrimFunc(in.String(), of))
		},
		"items": func(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
			switch {
			case in.IsError():
				return in
			case !in.IsNil() && !in.IsDict():
				return exec.AsValue(errors.New("items wants a mapping"))
			}
			return exec.AsValue(items(in))
		},
	}
	ours["reverse"] = reverse
	ours["dictsort"] = dictSort
	for _, name := range []string{"list", "map", "select", "selectattr", "reject", "rejectattr", "sort", "unique", "batch", "slice"} {
		if f, ok := builtins.Filters.Get(name); ok {
			ours[name] = listed(f)
		}
	}
	return exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters).Update(exec.NewFilterSet(ours))
}()

// listed makes a filter's list one that counts from the end.
func listed(f exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
		out := f(e, in, a)
		if out.IsError() || !out.IsList() {
			return out
		}
		l := make(list, out.Len())
		for i := range l {
			l[i] = out.Index(i).Interface()
		}
		return exec.AsValue(l)
	}
}

// reverse turns a list around; the library's sorts it.
func reverse(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	switch {
	case in.IsError():
		return in
	case in.IsString():
		runes := []rune(in.String())
		slices.Reverse(runes)
		return exec.AsValue(string(runes))
	case !in.IsList():
		return exec.AsValue(errors.New("reverse wants a list or a string"))
	}
	l := make(list, in.Len())
	for i := range l {
		l[len(l)-1-i] = in.Index(i).Interface()
	}
	return exec.AsValue(l)
}

func dictSort(_ *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
	switch {
	case in.IsError():
		return in
	case !in.IsDict() || len(a.Args)+len(a.KwArgs) > 0:
		return exec.AsValue(errors.New("dictsort wants a mapping, and no arguments here"))
	}
	of := pairs(in)
	slices.SortStableFunc(of, func(x, y tuple) int {
		return strings.Compare(strings.ToLower(exec.ToValue(x[0]).String()), strings.ToLower(exec.ToValue(y[0]).String()))
	})
	out := make(list, len(of))
	for i, p := range of {
		out[i] = p
	}
	return exec.AsValue(out)
}
