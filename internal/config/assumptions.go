package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"llmops/model"
	"llmops/roofline/size"
)

type assumptionsFile struct {
	APIVersion scalar    `yaml:"apiVersion"`
	Kind       scalar    `yaml:"kind"`
	Name       scalar    `yaml:"name"`
	Register   []rowFile `yaml:"register"`
	Cases      []struct {
		Name scalar   `yaml:"name"`
		Is   scalar   `yaml:"is"`
		Set  settings `yaml:"set"`
	} `yaml:"cases"`
	Claims []struct {
		Text    scalar `yaml:"text"`
		Where   scalar `yaml:"where"`
		Key     scalar `yaml:"key"`
		Says    scalar `yaml:"says"`
		Case    scalar `yaml:"case"`
		Against scalar `yaml:"against"`
		Why     scalar `yaml:"why"`
	} `yaml:"claims"`
}

type rowFile struct {
	ID      scalar   `yaml:"id"`
	Is      scalar   `yaml:"is"`
	Source  scalar   `yaml:"source"`
	IfWrong scalar   `yaml:"if_wrong"`
	Set     settings `yaml:"set"`
	Range   settings `yaml:"range"`
}

// settings are keys with values in the order of the file, each with its line.
type settings []setting

type setting struct {
	key   string
	value scalar
	line  int
}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *settings) UnmarshalYAML(n ast.Node) error {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		return &lineError{n.GetToken().Position.Line, fmt.Sprintf("%s stands where keys with values are expected", strings.ToLower(n.Type().String()))}
	}
	for _, e := range entries {
		at := setting{key: e.Key.GetToken().Value, line: e.Key.GetToken().Position.Line}
		if err := at.value.UnmarshalYAML(e.Value); err != nil {
			return err
		}
		*s = append(*s, at)
	}
	return nil
}

// Assumptions reads a register of assumptions, with the config.json files that it
// names; paths in it are relative to its folder. What the whole of it cannot be made
// into numbers for is an error too, and so is a claim that is about none of them.
func Assumptions(path string) (*size.Register, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	var f assumptionsFile
	src, err := decode(path, &f)
	if err != nil {
		return nil, err
	}
	r := &reader{path: path, src: src}
	out := f.register(r)
	if err := r.err(); err != nil {
		return nil, err
	}
	return out, checkAssumptions(r, &f, out)
}

func (f *assumptionsFile) register(r *reader) *size.Register {
	r.oneOf("apiVersion", f.APIVersion, "", "llmops/v1")
	r.oneOf("kind", f.Kind, "", "Assumptions")
	out := &size.Register{Name: r.text(f.Name, filepath.Base(r.path)), Shapes: map[string]model.Shape{}}
	set, ids := map[string]int{}, map[string]bool{}
	for _, in := range f.Register {
		row := size.Row{ID: r.text(in.ID, ""), Is: r.text(in.Is, ""), Source: r.text(in.Source, ""), IfWrong: r.text(in.IfWrong, ""), Line: in.ID.line}
		at := scalar{line: rowLine(in)}
		switch {
		case !in.ID.set() || !in.Source.set() || !in.IfWrong.set() || len(in.Set) == 0:
			r.complain(at, "a row of the register needs id, source, if_wrong and set: an assumption that does not say where it comes from and what breaks if it is wrong is a guess")
		case ids[row.ID] || strings.ContainsAny(row.ID, " ,"):
			r.complain(at, "id is %q, want one of its own without spaces", row.ID)
		}
		ids[row.ID] = true
		row.Set = r.settings(in.Set, out.Shapes)
		for _, s := range in.Set {
			if before, ok := set[s.key]; ok {
				r.complain(scalar{line: s.line}, "%s is set in line %d already", s.key, before)
			}
			set[s.key] = s.line
		}
		if len(row.Set) == len(in.Set) {
			r.ranges(in.Range, row.Set)
		}
		out.Rows = append(out.Rows, row)
	}
	if len(f.Register) == 0 {
		r.missing("register", "its rows are the assumptions")
	}
	f.cases(r, out)
	for _, in := range f.Claims {
		c := size.Claim{
			Text: r.text(in.Text, ""), Where: r.text(in.Where, ""), Key: r.text(in.Key, ""), Says: r.text(in.Says, ""),
			Case: r.text(in.Case, ""), Against: r.text(in.Against, ""), Why: r.text(in.Why, ""), Line: max(in.Key.line, in.Text.line, in.Says.line),
		}
		if c.Text == "" || c.Key == "" || c.Says == "" {
			r.complain(scalar{line: max(c.Line, 1)}, "a claim needs text, key and says")
		}
		out.Claims = append(out.Claims, c)
	}
	return out
}

// rowLine is a line of the row, whatever it has.
func rowLine(in rowFile) int {
	for _, s := range []scalar{in.ID, in.Is, in.Source, in.IfWrong} {
		if s.set() {
			return s.line
		}
	}
	if len(in.Set) > 0 {
		return in.Set[0].line
	}
	return 1
}

func (f *assumptionsFile) cases(r *reader, out *size.Register) {
	for _, in := range f.Cases {
		c := size.Case{Name: r.text(in.Name, ""), Is: r.text(in.Is, "")}
		if _, taken := out.FindCase(c.Name); taken || c.Name == "base" || len(in.Set) == 0 {
			r.complain(in.Name, "a case needs a name of its own and a set; base is the register itself")
		}
		c.Set = r.settings(in.Set, out.Shapes)
		out.Cases = append(out.Cases, c)
	}
}

// settings reads keys with their values.
func (r *reader) settings(in settings, shapes map[string]model.Shape) []size.Setting {
	var out []size.Setting
	for _, s := range in {
		got, err := readSetting(filepath.Dir(r.path), s.key, s.value.text, shapes)
		if err != nil {
			r.complain(scalar{line: s.line}, "%v", err)
			continue
		}
		out = append(out, got)
	}
	return out
}

// readSetting reads one, and the config.json that it may name.
func readSetting(dir, key, text string, shapes map[string]model.Shape) (size.Setting, error) {
	k, err := size.FindKey(key)
	if err != nil {
		return size.Setting{}, err
	}
	v, err := k.Parse(text)
	if err != nil {
		return size.Setting{}, err
	}
	if key == "model.config" {
		shape, err := readShape(abs(dir, text))
		if err == nil {
			err = size.CheckShape(shape)
		}
		if err != nil {
			return size.Setting{}, fmt.Errorf("model.config: %w", err)
		}
		shapes[text] = shape
	}
	return size.Setting{Key: key, Value: v}, nil
}

// ranges gives settings the low and high that "60%..80%" says.
func (r *reader) ranges(in settings, to []size.Setting) {
	for _, s := range in {
		low, high, ok := strings.Cut(s.value.text, "..")
		k, err := size.FindKey(s.key)
		at := -1
		for i := range to {
			if to[i].Key == s.key {
				at = i
			}
		}
		if !ok || err != nil || at < 0 || k.Unit == size.Text {
			r.complain(scalar{line: s.line}, "range of %s is %q, want low..high of a number that the row sets", s.key, s.value.text)
			continue
		}
		lo, err1 := k.Parse(strings.TrimSpace(low))
		hi, err2 := k.Parse(strings.TrimSpace(high))
		if err := errors.Join(err1, err2); err != nil {
			r.complain(scalar{line: s.line}, "range of %v", err)
			continue
		}
		if v := to[at].Value.Number; lo.Number > v || v > hi.Number {
			r.complain(scalar{line: s.line}, "range of %s is %q and its value is not in it", s.key, s.value.text)
			continue
		}
		to[at].Low, to[at].High = &lo, &hi
	}
}

// checkAssumptions makes the numbers once, for the errors that only all of it can show.
func checkAssumptions(r *reader, f *assumptionsFile, reg *size.Register) error {
	if _, err := reg.Sheet(""); err != nil {
		if at := f.about(err.Error()); at > 0 {
			r.complain(scalar{line: at}, "%v", err)
			return r.err()
		}
		return fmt.Errorf("%s: %w", r.path, err)
	}
	for i, c := range reg.Cases {
		if _, err := reg.Sheet(c.Name); err != nil {
			r.complain(f.Cases[i].Name, "%v", err)
		}
	}
	if err := r.err(); err != nil {
		return err
	}
	_, err := size.Check(reg)
	var ce *size.ClaimError
	if errors.As(err, &ce) {
		r.complain(scalar{line: ce.Claim.Line}, "%v", err)
		return r.err()
	}
	return err
}

// about is the line of the first key of the register that a message begins with or
// names; 0 of none.
func (f *assumptionsFile) about(msg string) int {
	for _, begins := range []bool{true, false} {
		for _, row := range f.Register {
			for _, s := range row.Set {
				if strings.HasPrefix(msg, s.key+" ") || !begins && strings.Contains(msg, s.key) {
					return s.line
				}
			}
		}
	}
	return 0
}

// WhatIf reads KEY=VALUE, and adds the config.json that it may name to the register.
// Paths are relative to the working folder.
func WhatIf(reg *size.Register, text string) (size.Setting, error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return size.Setting{}, fmt.Errorf("%q, want KEY=VALUE, such as traffic.prefix_hits=80%%", text)
	}
	dir, err := os.Getwd()
	if err != nil {
		return size.Setting{}, err
	}
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if _, taken := reg.Shapes[value]; taken && key == "model.config" {
		value = abs(dir, value) // the file's is relative to its own folder
	}
	return readSetting(dir, key, value, reg.Shapes)
}
