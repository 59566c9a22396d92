package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// scalar is one value as it stands in the file, kept with its line until it is
// known what unit it should have.
type scalar struct {
	text string
	line int
}

func (s scalar) set() bool { return s.line > 0 }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *scalar) UnmarshalYAML(n ast.Node) error {
	tok := n.GetToken()
	switch n := n.(type) {
	case *ast.StringNode:
		s.text = n.Value
	case *ast.LiteralNode:
		s.text = strings.TrimSuffix(n.Value.Value, "\n")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		s.text = tok.Value
	default:
		return &lineError{tok.Position.Line, fmt.Sprintf("%s stands where one value is expected", strings.ToLower(n.Type().String()))}
	}
	s.line = tok.Position.Line
	return nil
}

// lineError is a complaint about one line of the file.
type lineError struct {
	line int
	msg  string
}

func (e *lineError) Error() string { return e.msg }

// decode reads the file at path into v, refusing unknown and duplicate keys.
func decode(path string, v any) (src []byte, err error) {
	src, err = os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	d := yaml.NewDecoder(bytes.NewReader(src), yaml.Strict())
	if err := d.Decode(v); err != nil {
		var le *lineError
		var ye yaml.Error
		switch {
		case errors.As(err, &le):
		case errors.Is(err, io.EOF):
			return src, fmt.Errorf("%s is empty; llmops init writes a file to begin with", path)
		case errors.As(err, &ye) && ye.GetToken() != nil:
			le = &lineError{ye.GetToken().Position.Line, ye.GetMessage()}
		default:
			return src, fmt.Errorf("%s: %w", path, err)
		}
		return src, show(path, src, le)
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		lines := strings.Split(string(src), "\n")
		at := len(lines)
		for at > 1 && !strings.HasPrefix(lines[at-1], "---") {
			at--
		}
		return src, show(path, src, &lineError{at, "the file is to be one document, and a second begins here"})
	}
	return src, nil
}

// show renders a complaint with the line it is about.
func show(path string, src []byte, e *lineError) error {
	lines := strings.Split(string(src), "\n")
	if e.line < 1 || e.line > len(lines) {
		return fmt.Errorf("%s: %s", path, e.msg)
	}
	return fmt.Errorf("%s:%d: %s\n  %4d | %s", path, e.line, e.msg, e.line, lines[e.line-1])
}

// reader turns scalars into values and collects what is wrong with them.
type reader struct {
	path string
	src  []byte
	errs []error
}

func (r *reader) complain(s scalar, format string, args ...any) {
	r.errs = append(r.errs, show(r.path, r.src, &lineError{s.line, fmt.Sprintf(format, args...)}))
}

func (r *reader) missing(key, hint string) {
	r.errs = append(r.errs, fmt.Errorf("%s: key %s is missing; %s", r.path, key, hint))
}

func (r *reader) err() error { return errors.Join(r.errs...) }

func (r *reader) text(s scalar, def string) string {
	if !s.set() {
		return def
	}
	return s.text
}

func (r *reader) oneOf(key string, s scalar, def string, allowed ...string) string {
	v := r.text(s, def)
	for _, a := range allowed {
		if v == a {
			return v
		}
	}
	r.complain(s, "%s is %q, want one of: %s", key, v, strings.Join(allowed, ", "))
	return def
}

func (r *reader) integer(key string, s scalar, def int) int {
	if !s.set() {
		return def
	}
	n, err := strconv.Atoi(s.text)
	if err != nil || n <= 0 {
		r.complain(s, "%s is %q, want a whole number above 0", key, s.text)
		return def
	}
	return n
}

func (r *reader) number(key string, s scalar, def float64) float64 {
	if !s.set() {
		return def
	}
	f, err := strconv.ParseFloat(s.text, 64)
	if err != nil || !(f > 0 && f < 1e12) {
		r.complain(s, "%s is %q, want a number above 0", key, s.text)
		return def
	}
	return f
}

// suffixed reads a number with a unit that stands for a divisor: by division,
// 95% is the number that 0.95 is.
func (r *reader) suffixed(key string, s scalar, def float64, example string, units map[string]float64) float64 {
	if !s.set() {
		return def
	}
	i := strings.LastIndexAny(s.text, "0123456789.") + 1
	f, err := strconv.ParseFloat(s.text[:i], 64)
	divisor, known := units[s.text[i:]]
	if err != nil || !known || f < 0 || f > 1e12 {
		r.complain(s, "%s is %q, want a value such as %s", key, s.text, example)
		return def
	}
	return f / divisor
}

// share reads "5%" as 0.05.
func (r *reader) share(key string, s scalar, def float64) float64 {
	f := r.suffixed(key, s, def, "5%", map[string]float64{"%": 100})
	if f > 1 {
		r.complain(s, "%s is %q, more than 100%%", key, s.text)
		return def
	}
	return f
}

// part reads a share that is neither nothing nor all.
func (r *reader) part(key string, s scalar, def float64) float64 {
	f := r.share(key, s, def)
	if s.set() && (f <= 0 || f >= 1) {
		r.complain(s, "%s is %q, want more than 0%% and less than 100%%", key, s.text)
		return def
	}
	return f
}

// points reads "0.5pt" as 0.005.
func (r *reader) points(key string, s scalar, def float64) float64 {
	return r.suffixed(key, s, def, "0.5pt", map[string]float64{"pt": 100})
}

// times reads "4x" as 4.
func (r *reader) times(key string, s scalar, def float64) float64 {
	f := r.suffixed(key, s, def, "4x", map[string]float64{"x": 1})
	if f < 1 {
		r.complain(s, "%s is %q, want at least 1x", key, s.text)
		return def
	}
	return f
}

// rate reads "20/s" as 20 and "30/m" as 0.5.
func (r *reader) rate(key string, s scalar, def float64) float64 {
	return r.suffixed(key, s, def, "20/s", map[string]float64{"/s": 1, "/m": 60, "/h": 3600})
}

// span reads a duration that is not 0.
func (r *reader) span(key string, s scalar, def time.Duration) time.Duration {
	d := r.duration(key, s, def)
	if s.set() && d == 0 {
		r.complain(s, "%s is %q, want more than nothing", key, s.text)
		return def
	}
	return d
}

// duration reads "400ms", "24h" and "7d".
func (r *reader) duration(key string, s scalar, def time.Duration) time.Duration {
	if !s.set() {
		return def
	}
	if days, ok := strings.CutSuffix(s.text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n >= 0 && n < 36500 {
			return time.Duration(n * 24 * float64(time.Hour))
		}
	}
	d, err := time.ParseDuration(s.text)
	if err != nil || d < 0 {
		r.complain(s, "%s is %q, want a duration such as 400ms, 24h or 7d", key, s.text)
		return def
	}
	return d
}
