package bert

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
	"llmops/serving/embedded/llama/kernel"
)

// config is what config.json says.
type config struct {
	Architecture string
	Hidden       int
	Layers       int
	Heads        int
	Intermediate int
	Vocab        int
	Positions    int
	Types        int
	Eps          float64

	activation func([]float32)
	scores     bool // a cross-encoder
	sigmoid    bool // of its scores
	quant      *model.Quantisation
}

// Is reports whether s is of a kind that this package computes.
func Is(s model.Shape) bool {
	return s.Family == "bert" && len(s.Architectures) > 0 && known(s.Architectures[0])
}

func known(architecture string) bool {
	return slices.Contains([]string{"BertModel", "BertForMaskedLM", "BertForSequenceClassification"}, architecture)
}

// Scores reports whether the model of s scores pairs of texts, rather than embed.
func Scores(s model.Shape) bool {
	return Is(s) && s.Architectures[0] == "BertForSequenceClassification"
}

func loadConfig(dir string) (config, error) {
	name := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(name)
	if err != nil {
		return config{}, fmt.Errorf("reading model shape: %w", err)
	}
	c, err := parseConfig(b)
	if err != nil {
		return config{}, fmt.Errorf("loading %s: %w", name, err)
	}
	return c, nil
}

func parseConfig(b []byte) (config, error) {
	s, err := model.ParseShape(b)
	if err != nil {
		return config{}, err
	}
	var more struct {
		Types      int               `json:"type_vocab_size"`
		Position   string            `json:"position_embedding_type"`
		Decoder    bool              `json:"is_decoder"`
		Labels     map[string]string `json:"id2label"`
		NumLabels  *int              `json:"num_labels"`
		Activation string            `json:"sbert_ce_default_activation_function"`
		Sentence   struct {
			Activation string `json:"activation_fn"`
		} `json:"sentence_transformers"`
	}
	if err := json.Unmarshal(b, &more); err != nil {
		return config{}, err
	}
	if !Is(s) {
		return config{}, fmt.Errorf("model_type %q with the architectures %v: want bert with BertModel, BertForMaskedLM or BertForSequenceClassification", s.Family, s.Architectures)
	}
	c := config{
		Architecture: s.Architectures[0], Hidden: s.Hidden, Layers: s.Layers, Heads: s.Heads, Intermediate: s.Intermediate,
		Vocab: s.Vocab, Positions: s.MaxPositions, Types: more.Types, Eps: s.NormEps, activation: activations[s.Activation],
	}
	for _, f := range []struct {
		name  string
		n     int
		least int
	}{
		{"hidden_size", c.Hidden, 1}, {"num_hidden_layers", c.Layers, 1}, {"num_attention_heads", c.Heads, 1}, {"intermediate_size", c.Intermediate, 1},
		{"vocab_size", c.Vocab, 1}, {"max_position_embeddings", c.Positions, 1}, {"type_vocab_size", c.Types, 1},
	} {
		if f.n < f.least || f.n > 1<<24 {
			return c, fmt.Errorf("%s is %d: want 1 to %d", f.name, f.n, 1<<24)
		}
	}
	switch {
	case c.Hidden%c.Heads != 0 || c.Hidden/c.Heads%kernel.Lanes != 0 || c.Intermediate%kernel.Lanes != 0:
		return c, fmt.Errorf("hidden_size %d over %d heads and intermediate_size %d: want multiples of %d for a head and in between", c.Hidden, c.Heads, c.Intermediate, kernel.Lanes)
	case more.Position != "" && more.Position != "absolute":
		return c, fmt.Errorf("position_embedding_type %q is not supported: want absolute", more.Position)
	case more.Decoder:
		return c, errors.New("is_decoder is true: only encoders are supported")
	case c.activation == nil:
		return c, fmt.Errorf("hidden_act %q is not supported", s.Activation)
	}
	if err := checkQuantisation(s.Quant); err != nil {
		return c, err
	}
	c.quant = s.Quant
	if !Scores(s) {
		return c, nil
	}
	labels := 2 // transformers' default
	if len(more.Labels) > 0 {
		labels = len(more.Labels)
	} else if more.NumLabels != nil {
		labels = *more.NumLabels
	}
	if labels != 1 {
		return c, fmt.Errorf("the model has %d labels: only cross-encoders with one are supported", labels)
	}
	c.scores = true
	function := more.Sentence.Activation
	if function == "" {
		function = more.Activation
	}
	switch last := function[strings.LastIndexByte(function, '.')+1:]; last {
	case "", "Sigmoid":
		c.sigmoid = true
	case "Identity":
	default:
		return c, fmt.Errorf("activation function %q of the scores is not supported", function)
	}
	return c, nil
}

// pooling makes one vector of a text's rows.
type pooling struct {
	first     bool // the first token's row; else the mean of all
	normalise bool
	length    int // tokens of an input; 0: as many as the model has positions
}

// loadPooling reads what sentence-transformers wrote.
func loadPooling(dir string) (pooling, error) {
	var p pooling
	var sentence struct {
		Length int  `json:"max_seq_length"`
		Lower  bool `json:"do_lower_case"`
	}
	if _, err := readJSON(dir, "sentence_bert_config.json", &sentence); err != nil {
		return p, err
	}
	if sentence.Lower {
		return p, fmt.Errorf("loading %s: sentence_bert_config.json: do_lower_case is not supported, let the tokenizer do it", dir)
	}
	p.length = max(sentence.Length, 0)
	var modules []struct{ Path, Type string }
	if ok, err := readJSON(dir, "modules.json", &modules); err != nil || !ok {
		return p, err
	}
	for _, m := range modules {
		switch kind := m.Type[strings.LastIndexByte(m.Type, '.')+1:]; kind {
		case "Transformer":
		case "Normalize":
			p.normalise = true
		case "Pooling":
			if !filepath.IsLocal(m.Path) {
				return p, fmt.Errorf("loading %s: modules.json: path %q is not a folder in it", dir, m.Path)
			}
			if err := p.read(dir, path.Join(m.Path, "config.json")); err != nil {
				return p, err
			}
		default:
			return p, fmt.Errorf("loading %s: modules.json: module %q is not supported", dir, m.Type)
		}
	}
	return p, nil
}

func (p *pooling) within(positions int) int {
	if p.length > 0 {
		return min(positions, p.length)
	}
	return positions
}

func (p *pooling) read(dir, name string) error {
	var c map[string]any
	ok, err := readJSON(dir, name, &c)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("loading %s: %s is missing, modules.json names it", dir, name)
	}
	var modes []string
	for key, v := range c {
		if mode, ok := strings.CutPrefix(key, "pooling_mode_"); ok && v == true {
			modes = append(modes, mode)
		}
		if mode, ok := v.(string); ok && key == "pooling_mode" {
			modes = append(modes, mode)
		}
	}
	slices.Sort(modes)
	switch {
	case slices.Equal(modes, []string{"mean_tokens"}), slices.Equal(modes, []string{"mean"}):
	case slices.Equal(modes, []string{"cls_token"}), slices.Equal(modes, []string{"cls"}):
		p.first = true
	default:
		return fmt.Errorf("loading %s: %s: pooling by %v is not supported: want mean_tokens or cls_token alone", dir, name, modes)
	}
	return nil
}

// readJSON reports whether the file is there.
func readJSON(dir, name string, into any) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("loading %s: %w", dir, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return false, fmt.Errorf("parsing %s in %s: %w", name, dir, err)
	}
	return true, nil
}

func (p pooling) pool(dst, rows []float32) {
	h := len(dst)
	if p.first {
		copy(dst, rows)
	} else {
		n := float32(len(rows) / h)
		for i := 0; i < len(rows); i += h {
			for j := range dst {
				dst[j] += rows[i+j]
			}
		}
		for j := range dst {
			dst[j] /= n
		}
	}
	if !p.normalise {
		return
	}
	var sum float64
	for _, v := range dst {
		sum += float64(v) * float64(v)
	}
	length := float32(max(math.Sqrt(sum), 1e-12))
	for j := range dst {
		dst[j] /= length
	}
}
