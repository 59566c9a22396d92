package quantise

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
)

// The methods that choose codes by what they do to the output, which takes data and,
// but for small models, a GPU. llm-compressor does the work.
const (
	GPTQ = "gptq"
	AWQ  = "awq"
)

// presets are llm-compressor's names for the schemes that a method applies to.
var presets = map[string]map[string]string{
	GPTQ: {Int4: "W4A16", Int8: "W8A8", Int8Weight: "W8A16", FP8Dynamic: "FP8_DYNAMIC"},
	AWQ:  {Int4: "W4A16", Int8Weight: "W8A16"},
}

//go:embed calibrate.py
var script string

// Calibration is the data that a model is run over, and by what.
type Calibration struct {
	Method string
	Python string // an interpreter that has llmcompressor; empty, for scales: the embedded engine
	// Data is a file of JSON lines, each with "text", or with "messages" that the
	// chat template is applied to.
	Data    string
	Samples int       // lines used; default 512, as in its examples
	Length  int       // tokens of each; default 2048
	Log     io.Writer // what it says while it works; nil: nowhere
}

func (c Calibration) withDefaults() Calibration {
	if c.Samples == 0 {
		c.Samples = 512
	}
	if c.Length == 0 {
		c.Length = 2048
	}
	return c
}

// order is what the script reads.
type order struct {
	Source  string   `json:"source"`
	Data    string   `json:"data"`
	Samples int      `json:"samples"`
	Length  int      `json:"length"`
	Preset  string   `json:"preset"`
	Ignore  []string `json:"ignore"`
	Method  string   `json:"method"`
	KV      bool     `json:"kv"`
	Out     string   `json:"out"`
}

// Calibrate is Run with data: the same layout, ignored modules and files, codes by
// c.Method. What comes back is held against the source before it appears at dst: a
// weight that is missing, has another shape or is not finite is an error.
func Calibrate(ctx context.Context, src, dst string, o Options, c Calibration) (rep Report, err error) {
	preset, ok := presets[c.Method][o.Scheme]
	switch {
	case presets[c.Method] == nil:
		return rep, fmt.Errorf("method %q is not one of %s, %s", c.Method, AWQ, GPTQ)
	case !ok:
		return rep, fmt.Errorf("%s does not make %s", c.Method, o.Scheme)
	}
	if err := apart(src, dst); err != nil {
		return rep, err
	}
	steps, err := planDir(src, o)
	if err != nil {
		return rep, err
	}
	part, err := claim(dst)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	rep = Report{Dir: dst, Scheme: o.Scheme}
	rep.Before, rep.After = Sizes(steps, o.Scheme)
	err = room(part.Name(), rep.After)
	if err == nil {
		err = c.into(ctx, src, part.Name(), preset, steps, &rep)
	}
	if err != nil {
		return rep, errors.Join(err, os.RemoveAll(part.Name()))
	}
	if err := os.RemoveAll(dst); err != nil {
		return rep, err
	}
	if err := os.Rename(part.Name(), dst); err != nil {
		return rep, fmt.Errorf("finishing the quantised model: %w", err)
	}
	return rep, syncDir(filepath.Dir(dst))
}

func planDir(src string, o Options) ([]Step, error) {
	shape, err := model.LoadShape(src)
	if err != nil {
		return nil, err
	}
	c, err := safetensors.OpenDir(src)
	if err != nil {
		return nil, err
	}
	steps, err := Plan(c, shape, o)
	return steps, errors.Join(err, c.Close())
}

// into makes the result in dir.
func (c Calibration) into(ctx context.Context, src, dir, preset string, steps []Step, rep *Report) error {
	made := filepath.Join(dir, ".made")
	if err := c.run(ctx, order{Source: src, Preset: preset, Ignore: ignored(steps), Method: c.Method, Out: made}); err != nil {
		return err
	}
	entries, err := os.ReadDir(made)
	if err != nil {
		return fmt.Errorf("llm-compressor has left no model: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".safetensors") || e.Name() == safetensors.IndexName {
			err = errors.Join(err, os.Rename(filepath.Join(made, e.Name()), filepath.Join(dir, e.Name())))
		}
	}
	quant, configErr := quantisationOf(made, ignored(steps))
	if err := errors.Join(err, configErr); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(made), side(src, dir), writeConfig(src, dir, quant)); err != nil {
		return err
	}
	diff, err := Diff(ctx, src, dir, func(int64, int64) {})
	if err != nil {
		return fmt.Errorf("opening what llm-compressor has made: %w", err)
	}
	if err := rep.compare(diff, steps); err != nil {
		return err
	}
	m, err := model.Scan(ctx, os.DirFS(dir))
	if err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := syncFile(filepath.Join(dir, f.Path)); err != nil {
			return err
		}
	}
	list, err := writeSums(dir, m.Files)
	if err != nil {
		return err
	}
	m.Files = append(m.Files, list)
	slices.SortFunc(m.Files, func(a, b model.File) int { return strings.Compare(a.Path, b.Path) })
	rep.Files, rep.Digest = m.Files, m.Digest()
	return nil
}

// compare takes the report from what the result is.
func (r *Report) compare(diff []Difference, steps []Step) error {
	errorOf := map[string]Difference{}
	for _, d := range diff {
		if d.Fault != "" {
			return fmt.Errorf("what llm-compressor has made is not the model: %s: %s", d.Name, d.Fault)
		}
		errorOf[d.Name] = d
	}
	for i := range steps {
		s := &steps[i]
		if !s.Quantise {
			r.Kept = append(r.Kept, *s)
			continue
		}
		t := TensorReport{Name: s.Name, Shape: s.Shape, Reason: s.Reason}
		for _, p := range s.parts {
			d := errorOf[p.module+".weight"]
			if d.A == d.B {
				return fmt.Errorf("what llm-compressor has made has %s as it was: %s", p.module, d.B)
			}
			t.Error = math.Max(t.Error, d.Error)
		}
		r.Tensors = append(r.Tensors, t)
	}
	return nil
}

// quantisationOf is the quantization_config that was written, with our list of
// ignored modules, which has the names of engines as well.
func quantisationOf(dir string, ignore []string) (map[string]any, error) {
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	var c struct {
		Quant map[string]any `json:"quantization_config"`
	}
	if err := json.Unmarshal(b, &c); err != nil || c.Quant["quant_method"] != "compressed-tensors" || c.Quant["quantization_status"] != "compressed" {
		return nil, errors.Join(errors.New("llm-compressor has not written a compressed checkpoint"), err)
	}
	c.Quant["ignore"] = ignore
	return c.Quant, nil
}

// MeasureScales runs the model over the data and returns the scales of its
// activations, and of its cache if kv, for FP8Static. Modules are those that o
// changes. The embedded engine does it, or llm-compressor where c names a Python.
func MeasureScales(ctx context.Context, src string, o Options, kv bool, c Calibration) (*Scales, error) {
	o.Scheme = FP8Dynamic // of which the modules are the same, and which needs no scales
	steps, err := planDir(src, o)
	if err != nil {
		return nil, err
	}
	c = c.withDefaults()
	if c.Python == "" {
		var modules []string
		for _, s := range steps {
			if s.Quantise {
				modules = append(modules, s.module())
			}
		}
		return engineScales(ctx, src, modules, kv, c)
	}
	dir, err := os.MkdirTemp("", "llmops-scales-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "scales.json")
	if err := c.run(ctx, order{Source: src, Preset: "FP8", Ignore: ignored(steps), Method: "scales", KV: kv, Out: out}); err != nil {
		return nil, err
	}
	s, err := ReadScales(out)
	if err != nil {
		return nil, fmt.Errorf("llm-compressor: %w", err)
	}
	if len(s.Activations) == 0 || kv && len(s.KV) == 0 {
		return nil, fmt.Errorf("llm-compressor has measured %d activations and %d caches of %s", len(s.Activations), len(s.KV), src)
	}
	return s, nil
}

// run has the script do it. Its error is the last line that Python wrote.
func (c Calibration) run(ctx context.Context, o order) error {
	c = c.withDefaults()
	o.Samples, o.Length = c.Samples, c.Length
	var err error
	for _, p := range []struct{ to, from *string }{{&o.Source, &o.Source}, {&o.Data, &c.Data}, {&o.Out, &o.Out}} {
		if *p.to, err = filepath.Abs(*p.from); err != nil {
			return err
		}
	}
	if _, err := os.Stat(o.Data); err != nil {
		return fmt.Errorf("reading calibration data: %w", err)
	}
	in, err := json.Marshal(o)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, c.Python, "-c", script)
	last := &lastLine{to: c.Log}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), last, last
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return fmt.Errorf("llm-compressor: %s: %s", exit, last.text)
	case err != nil:
		return fmt.Errorf("running llm-compressor: %w; name a Python that has it: pip install llmcompressor", err)
	}
	return nil
}

// lastLine hands on what is written and keeps the last line that is not blank.
type lastLine struct {
	to   io.Writer
	open []byte
	text string
}

func (l *lastLine) Write(p []byte) (int, error) {
	l.open = append(l.open, p...)
	for {
		i := bytes.IndexAny(l.open, "\r\n")
		if i < 0 {
			break
		}
		if line := strings.TrimSpace(string(l.open[:i])); line != "" {
			l.text = line
		}
		l.open = l.open[i+1:]
	}
	if l.to == nil {
		return len(p), nil
	}
	return l.to.Write(p)
}
