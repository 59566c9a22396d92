package cli

import (
	"encoding/json"

	"llmops/pipeline"
)

// sameSpec tells whether two specs ask for the same.
func sameSpec(a, b pipeline.Spec) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}
