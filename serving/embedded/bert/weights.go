package bert

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"llmops/model"
	"llmops/model/safetensors"
)

type layer struct {
	qkv, attention, up, down  linear
	attentionNorm, outputNorm layerNorm
}

type weights struct {
	word, position, kind []float32
	norm                 layerNorm
	layers               []layer
	pooler, classifier   linear // of a cross-encoder
}

type loader struct {
	c      *safetensors.Checkpoint
	prefix string // of what is not the classifier
	quant  *model.Quantisation
}

func loadWeights(dir string, c config) (w weights, err error) {
	checkpoint, err := safetensors.OpenDir(dir)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, checkpoint.Close()) }()
	l := &loader{c: checkpoint, quant: c.quant}
	if _, ok := checkpoint.Lookup("bert.embeddings.word_embeddings.weight"); ok {
		l.prefix = "bert."
	}
	if err := l.all(&w, c); err != nil {
		return w, fmt.Errorf("loading %s: %w", dir, err)
	}
	return w, nil
}

func (l *loader) all(w *weights, c config) (err error) {
	h := c.Hidden
	for _, t := range []struct {
		into *[]float32
		name string
		rows int
	}{{&w.word, "word_embeddings", c.Vocab}, {&w.position, "position_embeddings", c.Positions}, {&w.kind, "token_type_embeddings", c.Types}} {
		if *t.into, err = l.floats(l.prefix+"embeddings."+t.name+".weight", t.rows, h); err != nil {
			return err
		}
	}
	if w.norm, err = l.norm(l.prefix+"embeddings.LayerNorm", h); err != nil {
		return err
	}
	w.layers = make([]layer, c.Layers)
	for i := range w.layers {
		if err := l.layer(&w.layers[i], fmt.Sprintf("%sencoder.layer.%d.", l.prefix, i), c); err != nil {
			return err
		}
	}
	if !c.scores {
		return nil
	}
	if w.pooler, err = l.linear(h, h, l.prefix+"pooler.dense"); err != nil {
		return err
	}
	w.classifier, err = l.linear(h, 1, "classifier")
	return err
}

func (l *loader) layer(to *layer, prefix string, c config) (err error) {
	h := c.Hidden
	self := prefix + "attention.self."
	if to.qkv, err = l.linear(h, h, self+"query", self+"key", self+"value"); err != nil {
		return err
	}
	if to.attention, err = l.linear(h, h, prefix+"attention.output.dense"); err != nil {
		return err
	}
	if to.attentionNorm, err = l.norm(prefix+"attention.output.LayerNorm", h); err != nil {
		return err
	}
	if to.up, err = l.linear(h, c.Intermediate, prefix+"intermediate.dense"); err != nil {
		return err
	}
	if to.down, err = l.linear(c.Intermediate, h, prefix+"output.dense"); err != nil {
		return err
	}
	to.outputNorm, err = l.norm(prefix+"output.LayerNorm", h)
	return err
}

// linear reads matrices of the same size as one.
func (l *loader) linear(in, out int, names ...string) (linear, error) {
	to := linear{in: in, out: out * len(names)}
	for i, name := range names {
		quantised, err := l.codes(name + ".weight")
		if err != nil {
			return to, err
		}
		dynamic := quantised && l.quant.Groups[0].Activations != nil
		if i > 0 && dynamic != to.dynamic {
			return to, fmt.Errorf("module %s: %w", name, errMixed)
		}
		to.dynamic = dynamic
		read := func() ([]float32, error) { return l.floats(name+".weight", out, in) }
		if quantised {
			read = func() ([]float32, error) { return l.fp8(name, out, in) }
		}
		w, err := read()
		if err != nil {
			return to, err
		}
		b, err := l.floats(name+".bias", out)
		if err != nil {
			return to, err
		}
		to.w, to.bias = append(to.w, w...), append(to.bias, b...)
	}
	return to, nil
}

// norm reads a layer norm, which old checkpoints call gamma and beta.
func (l *loader) norm(name string, n int) (to layerNorm, err error) {
	weight, bias := name+".weight", name+".bias"
	if _, ok := l.c.Lookup(name + ".gamma"); ok {
		weight, bias = name+".gamma", name+".beta"
	}
	if to.weight, err = l.floats(weight, n); err != nil {
		return to, err
	}
	to.bias, err = l.floats(bias, n)
	return to, err
}

func (l *loader) floats(name string, shape ...int) ([]float32, error) {
	if t, ok := l.c.Lookup(name); ok && !slices.Contains([]safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16}, t.DType) {
		return nil, fmt.Errorf("tensor %q in %s is %s: want F32, BF16 or F16", name, filepath.Base(l.c.ShardOf(name)), t.DType)
	}
	return l.values(name, shape...)
}

// values reads a tensor of a type that the caller has looked at.
func (l *loader) values(name string, shape ...int) ([]float32, error) {
	t, ok := l.c.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing", name)
	}
	want := make([]int64, len(shape))
	n := 1
	for i, d := range shape {
		want[i] = int64(d)
		n *= d
	}
	where := fmt.Sprintf("tensor %q in %s", name, filepath.Base(l.c.ShardOf(name)))
	if !slices.Equal(t.Shape, want) {
		return nil, fmt.Errorf("%s has the shape %v: config.json makes it %v", where, t.Shape, want)
	}
	r, err := l.c.Reader(name)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, t.Size())
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, fmt.Errorf("reading %s: %w", where, err)
	}
	out := make([]float32, n)
	if _, err := safetensors.Floats(out, t.DType, raw); err != nil {
		return nil, fmt.Errorf("reading %s: %w", where, err)
	}
	for i, v := range out {
		if v-v != 0 {
			return nil, fmt.Errorf("%s: element %d is not finite", where, i)
		}
	}
	return out, nil
}
