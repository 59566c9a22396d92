// Package chat renders a conversation into the text that a model was trained on,
// by the Jinja template that its repository ships.
//
// A Template is immutable and safe for concurrent use. Rendering sees what
// transformers gives a template: the messages, the tools, raise_exception,
// strftime_now, tojson that keeps the order of keys, and the repository's special
// tokens. Templates come with the weights and are not trusted: they can neither
// read a file nor include another.
//
// The Jinja library does not tell undefined from none, which is the empty string
// where Python writes None, and has no % formatting; a template that needs one of
// these fails or differs, so compare a new model's once.
// The package does not tokenise and knows no default template: a model without one is
// ErrNoTemplate, because a guess would change what the model was trained on.
package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// ErrNoTemplate is a repository without chat template.
var ErrNoTemplate = errors.New("no chat template: neither chat_template.jinja nor a chat_template in tokenizer_config.json")

// Template renders conversations.
type Template struct {
	plain, tools *exec.Template // tools may be nil
	tokens       map[string]string
}

// Request is what a template is rendered for.
type Request struct {
	Messages json.RawMessage // a list of objects
	Tools    json.RawMessage // a list, or empty
	Prompt   bool            // end with what begins the assistant's turn
	Extra    json.RawMessage // an object of further variables, or empty
	Now      time.Time       // for strftime_now
}

// Load reads the template of the repository in dir.
func Load(dir string) (*Template, error) {
	var conf struct {
		Template json.RawMessage `json:"chat_template"`
	}
	tokens := make(map[string]string)
	b, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading chat template: %w", err)
	}
	if err == nil {
		if err := json.Unmarshal(b, &conf); err != nil {
			return nil, fmt.Errorf("parsing tokenizer_config.json in %s: %w", dir, err)
		}
		tokens = specialTokens(b)
	}
	b, err = os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err == nil {
		return Parse(string(b), tokens)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading chat template: %w", err)
	}
	var one string
	if json.Unmarshal(conf.Template, &one) == nil && one != "" {
		return Parse(one, tokens)
	}
	var several []struct{ Name, Template string }
	if json.Unmarshal(conf.Template, &several) == nil {
		named := make(map[string]string)
		for _, t := range several {
			named[t.Name] = t.Template
		}
		if plain := named["default"]; plain != "" {
			t, err := Parse(plain, tokens)
			if err == nil && named["tool_use"] != "" {
				t.tools, err = compile(named["tool_use"])
			}
			return t, err
		}
	}
	return nil, fmt.Errorf("%s: %w", dir, ErrNoTemplate)
}

// specialTokens are the entries of tokenizer_config.json that end in _token:
// strings, or objects with their content.
func specialTokens(b []byte) map[string]string {
	var all map[string]json.RawMessage
	tokens := make(map[string]string)
	if json.Unmarshal(b, &all) != nil {
		return tokens
	}
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"} {
		var s string
		var o struct{ Content string }
		if json.Unmarshal(all[name], &s) == nil && s != "" {
			tokens[name] = s
		} else if json.Unmarshal(all[name], &o) == nil && o.Content != "" {
			tokens[name] = o.Content
		}
	}
	return tokens
}

// Parse compiles a template. tokens are the special tokens it may name, such as
// bos_token.
func Parse(source string, tokens map[string]string) (*Template, error) {
	t, err := compile(source)
	if err != nil {
		return nil, err
	}
	return &Template{plain: t, tokens: maps.Clone(tokens)}, nil
}

// generation marks what training scores; it has no effect on the text, and Jinja
// does not know it.
var generation = regexp.MustCompile(`\{%(-?)\s*(end)?generation\s*(-?)%\}`)

func compile(source string) (t *exec.Template, err error) {
	source = generation.ReplaceAllStringFunc(source, func(tag string) string {
		m := generation.FindStringSubmatch(tag)
		if m[2] == "" {
			return "{%" + m[1] + " if true " + m[3] + "%}"
		}
		return "{%" + m[1] + " endif " + m[3] + "%}"
	})
	defer func() {
		if r := recover(); r != nil { // the library panics on some malformed templates
			err = fmt.Errorf("compiling chat template: %v", r)
		}
	}()
	c := config.New()
	c.TrimBlocks, c.LeftStripBlocks = true, true
	t, err = exec.NewTemplate(root, c, sole(source), environment)
	if err != nil {
		return nil, fmt.Errorf("compiling chat template: %w", err)
	}
	return t, nil
}

// Render gives the text of a conversation. An error that the template raised
// itself is a *Refused.
func (t *Template) Render(r Request) (text string, err error) {
	vars := map[string]any{"tools": nil, "documents": nil, "add_generation_prompt": r.Prompt}
	for name, token := range t.tokens {
		vars[name] = token
	}
	messages, err := decode(r.Messages)
	if err != nil {
		return "", fmt.Errorf("reading messages: %w", err)
	}
	vars["messages"] = messages
	use := t.plain
	if len(r.Tools) > 0 {
		tools, err := decode(r.Tools)
		if err != nil {
			return "", fmt.Errorf("reading tools: %w", err)
		}
		vars["tools"] = tools
		if t.tools != nil && tools != nil {
			use = t.tools
		}
	}
	if len(r.Extra) > 0 {
		extra, err := decode(r.Extra)
		if err != nil {
			return "", fmt.Errorf("reading template variables: %w", err)
		}
		v := exec.AsValue(extra)
		if !v.IsNil() && !v.IsDict() {
			return "", errors.New("reading template variables: want an object")
		}
		for _, p := range pairs(v) {
			vars[p[0].(string)] = p[1]
		}
	}
	var refused *Refused
	vars["raise_exception"] = func(message string) (string, error) {
		refused = &Refused{Message: message}
		return "", refused
	}
	vars["strftime_now"] = func(format string) string { return strftime(r.Now, format) }
	defer func() {
		if p := recover(); p != nil { // as in compile; a template must not end the server
			text, err = "", fmt.Errorf("rendering chat template: %v", p)
		}
	}()
	var out bytes.Buffer
	err = use.Execute(&out, exec.NewContext(vars))
	if refused != nil {
		return "", refused
	}
	if err != nil {
		return "", fmt.Errorf("rendering chat template: %w", err)
	}
	return out.String(), nil
}

// Refused is what a template raised: the conversation is not one it was made for.
type Refused struct{ Message string }

func (r *Refused) Error() string { return "chat template refuses the conversation: " + r.Message }

const root = "/chat_template"

// sole is a loader of one template; there is nothing else to include.
type sole string

func (s sole) Read(path string) (io.Reader, error) {
	if path != root {
		return nil, fmt.Errorf("a chat template cannot read %q", path)
	}
	return bytes.NewReader([]byte(s)), nil
}
func (s sole) Resolve(path string) (string, error)         { return path, nil }
func (s sole) Inherit(from string) (loaders.Loader, error) { return s, nil }

var environment = &exec.Environment{
	Context:           exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables),
	Filters:           filters,
	Tests:             builtins.Tests,
	ControlStructures: builtins.ControlStructures,
	Methods:           methods,
}
