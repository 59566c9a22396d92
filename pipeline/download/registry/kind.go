package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
)

// Kind is what a version can be used as.
type Kind string

// What there is.
const (
	Model   Kind = "model"   // generates text
	Encoder Kind = "encoder" // makes vectors or ranks passages
	Adapter Kind = "adapter" // LoRA weights for a model
)

// AdapterConfig is what PEFT calls the file that describes an adapter.
const AdapterConfig = "adapter_config.json"

// kindOf looks at a folder. base is the model that an adapter says it is for.
func kindOf(dir string) (kind Kind, base string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, AdapterConfig))
	if err == nil {
		var c struct {
			Base string `json:"base_model_name_or_path"`
		}
		if err := json.Unmarshal(b, &c); err != nil {
			return "", "", fmt.Errorf("%s of %s: %w", AdapterConfig, dir, err)
		}
		return Adapter, c.Base, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	s, err := model.LoadShape(dir)
	if err != nil {
		return "", "", err
	}
	generates := func(a string) bool {
		return strings.HasSuffix(a, "ForCausalLM") || strings.HasSuffix(a, "ForConditionalGeneration") || strings.HasSuffix(a, "LMHeadModel")
	}
	if len(s.Architectures) > 0 && !slices.ContainsFunc(s.Architectures, generates) {
		return Encoder, "", nil
	}
	return Model, "", nil
}
