package quantise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"

	"llmops/model"
	"llmops/model/chat"
	"llmops/model/safetensors"
	"llmops/model/tokenizer"
	"llmops/serving/embedded/core"
	"llmops/serving/embedded/llama"
)

// maxDataLine bounds a line of calibration data.
const maxDataLine = 64 << 20

// engineScales runs the model in the embedded engine, on this machine's processor and
// with all weights in memory. A scale is the largest magnitude that came over the
// largest of E4M3, which is the reference's static_minmax.
func engineScales(ctx context.Context, src string, modules []string, kv bool, c Calibration) (*Scales, error) {
	shape, err := model.LoadShape(src)
	if err != nil {
		return nil, err
	}
	if err := llama.Check(shape); err != nil {
		return nil, fmt.Errorf("%s: %w; llm-compressor in a Python of yours measures other models", src, err)
	}
	length := min(c.Length, shape.MaxPositions)
	texts, err := c.texts(src, length)
	if err != nil {
		return nil, err
	}
	limits := core.Limits{Sequences: 1, Tokens: min(length, 512), Blocks: length/core.BlockSize + 2}
	exec, err := llama.Load(src, shape, llama.Options{Tokens: limits.Tokens, Length: length + 1, Blocks: limits.Blocks, Threads: runtime.GOMAXPROCS(0), KV: llama.KVFloat32})
	if err != nil {
		return nil, err
	}
	exec.Observe()
	for i, ids := range texts {
		if c.Log != nil && i%max(1, len(texts)/20) == 0 {
			_, _ = fmt.Fprintf(c.Log, "text %d of %d\n", i+1, len(texts))
		}
		if err := prefill(ctx, exec, limits, ids); err != nil {
			return nil, fmt.Errorf("%s: text %d: %w", c.Data, i+1, err)
		}
	}
	return scalesOf(exec.Ranges(), modules, kv)
}

// prefill computes one text.
func prefill(ctx context.Context, exec *llama.Executor, l core.Limits, ids []int) error {
	c, err := core.New(l)
	if err != nil {
		return err
	}
	if err := c.Add(0, &core.Sequence{ID: 1, Prompt: ids, Max: 1}); err != nil {
		return err
	}
	var b core.Batch
	out := make([]core.Token, l.Sequences)
	for c.Next(0, &b) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := exec.Step(ctx, &b, out); err != nil {
			return err
		}
		c.Commit(0, &b, out, func(core.Event) {})
	}
	return nil
}

// scalesOf are those of the modules that will be quantised.
func scalesOf(r llama.Ranges, modules []string, kv bool) (*Scales, error) {
	scale := func(what, module string, amax float32) (float64, error) {
		if !finite(amax) || amax == 0 {
			return 0, fmt.Errorf("the largest of the %s of %s is %g: no scale comes of it", what, module, amax)
		}
		return float64(amax / safetensors.MaxE4M3), nil
	}
	s := &Scales{Activations: map[string]float64{}}
	var err error
	for _, m := range modules {
		amax, ok := r.Inputs[m]
		if !ok {
			return nil, fmt.Errorf("the embedded engine does not compute %s; keep it", m)
		}
		if s.Activations[m], err = scale("inputs", m, amax); err != nil {
			return nil, err
		}
	}
	if !kv {
		return s, nil
	}
	s.KV = map[string]KVScale{}
	for _, m := range slices.Sorted(maps.Keys(r.Keys)) {
		k, errK := scale("keys", m, r.Keys[m])
		v, errV := scale("values", m, r.Values[m])
		if err := errors.Join(errK, errV); err != nil {
			return nil, err
		}
		s.KV[m] = KVScale{K: k, V: v}
	}
	return s, nil
}

// texts are the token ids of the data, as the reference makes them.
func (c Calibration) texts(dir string, length int) ([][]int, error) {
	f, err := os.Open(c.Data)
	if err != nil {
		return nil, fmt.Errorf("reading calibration data: %w", err)
	}
	defer func() { _ = f.Close() }()
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	var template *chat.Template
	var out [][]int
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxDataLine)
	for n := 1; len(out) < c.Samples && lines.Scan(); n++ {
		var row struct {
			Text     *string
			Messages json.RawMessage
		}
		err := json.Unmarshal(lines.Bytes(), &row)
		text := ""
		switch {
		case err != nil:
		case row.Messages != nil && row.Messages[0] != '[':
			err = errors.New(`"messages" is no list`)
		case row.Messages != nil:
			if template == nil {
				template, err = chat.Load(dir)
			}
			if err == nil {
				text, err = template.Render(chat.Request{Messages: row.Messages})
			}
		case row.Text != nil:
			text = *row.Text
		default:
			err = errors.New(`neither "text" nor "messages"`)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", c.Data, n, err)
		}
		// The template has written the special tokens that it wants.
		ids := tok.Encode(text, row.Messages == nil)
		if len(ids) > 0 {
			out = append(out, ids[:min(len(ids), length)])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.Data, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no text", c.Data)
	}
	return out, nil
}
