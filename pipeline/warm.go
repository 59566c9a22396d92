package pipeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"llmops/serving/deploy"
	"llmops/serving/openai"
)

// maxWarm is the greatest number of prompts that a replica is warmed with.
const maxWarm = 1000

// warmPrompts reads a file of prompts, one {"messages": […]} a line; of no file there
// are none.
func warmPrompts(path string) (deploy.Prompts, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading prompts to warm with: %w", err)
	}
	defer func() { _ = f.Close() }()
	var out deploy.Prompts
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var p struct {
			Messages []openai.Message `json:"messages"`
		}
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if len(p.Messages) == 0 {
			return nil, fmt.Errorf("%s:%d: no messages", path, n)
		}
		if out = append(out, p.Messages); len(out) > maxWarm {
			return nil, fmt.Errorf("%s: more than %d prompts: a replica that is warmed for long is a replica less", path, maxWarm)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}
