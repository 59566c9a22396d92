package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"

	"llmops/model"
	"llmops/serving/openai"
)

const maxLine = 4 << 20

// Item is one question with its right answer. Items of one Doc share text and
// are one cluster.
type Item struct {
	ID        string           `json:"id"`
	Task      string           `json:"task,omitempty"`
	Doc       string           `json:"doc,omitempty"`
	Messages  []openai.Message `json:"messages"`
	Answer    string           `json:"answer"`
	Kind      string           `json:"kind"` // field, number or json
	MaxTokens int              `json:"max_tokens"`
}

// ReadItems reads items from the JSON Lines file at path, at most limit of them
// when that is not 0, and returns the digest of the whole file.
func ReadItems(path string, limit int) ([]Item, model.Digest, error) {
	var items []Item
	seen := map[string]bool{}
	digest, err := readLines(path, func(line int, b []byte) error {
		var it Item
		if err := strict(b, &it); err != nil {
			return err
		}
		switch {
		case it.ID == "" || seen[it.ID]:
			return fmt.Errorf("item needs an id of its own, has %q", it.ID)
		case len(it.Messages) == 0:
			return fmt.Errorf("item %s has no messages", it.ID)
		case it.MaxTokens <= 0:
			return fmt.Errorf("item %s needs max_tokens", it.ID)
		case it.Kind != "field" && it.Kind != "number" && it.Kind != "json":
			return fmt.Errorf("item %s: kind %q is not one of field, number, json", it.ID, it.Kind)
		}
		if _, ok := score(it, it.Answer); !ok {
			return fmt.Errorf("item %s: its own answer %q does not pass as a %s", it.ID, it.Answer, it.Kind)
		}
		seen[it.ID] = true
		if limit == 0 || len(items) < limit {
			items = append(items, it)
		}
		return nil
	})
	if err == nil && len(items) == 0 {
		err = fmt.Errorf("%s holds no items", path)
	}
	return items, digest, err
}

// Text is a document of held-out text.
type Text struct {
	ID       string `json:"id"`
	Text     string `json:"text"`
	AnswerAt int    `json:"answer_at,omitempty"` // byte where an answer begins
}

// ReadTexts reads documents from the JSON Lines file at path.
func ReadTexts(path string) ([]Text, error) {
	var out []Text
	_, err := readLines(path, func(_ int, b []byte) error {
		var t Text
		if err := json.Unmarshal(b, &t); err != nil {
			return err
		}
		if t.Text == "" || t.AnswerAt < 0 || t.AnswerAt > len(t.Text) {
			return fmt.Errorf("document %s has no text, or an answer outside it", t.ID)
		}
		out = append(out, t)
		return nil
	})
	return out, err
}

func readLines(path string, fn func(line int, b []byte) error) (model.Digest, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading items: %w", err)
	}
	sc := bufio.NewScanner(bytes.NewReader(src))
	sc.Buffer(nil, maxLine)
	line := 0
	for sc.Scan() {
		line++
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		if err := fn(line, sc.Bytes()); err != nil {
			return "", fmt.Errorf("%s:%d: %w", path, line, err)
		}
	}
	if err := sc.Err(); err != nil {
		return "", fmt.Errorf("%s:%d: %w", path, line+1, err)
	}
	return model.DigestOf(src), nil
}

func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	return end(d)
}

// end tells whether a decoder has read everything. Its More does not: it takes a
// bracket too many for the end of a list.
func end(d *json.Decoder) error {
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is text after the document")
	}
	return nil
}

// score compares an answer. valid says that it has the right form, whatever it
// says: a number, a JSON document, or any text.
func score(it Item, answer string) (right, valid bool) {
	got, want := strings.TrimSpace(answer), strings.TrimSpace(it.Answer)
	switch it.Kind {
	case "number":
		a, err1 := strconv.ParseFloat(got, 64)
		b, err2 := strconv.ParseFloat(want, 64)
		valid = err1 == nil && !math.IsNaN(a) && !math.IsInf(a, 0)
		return valid && err2 == nil && a == b, valid
	case "json":
		a, err1 := document(got)
		b, err2 := document(want)
		return err1 == nil && err2 == nil && reflect.DeepEqual(a, b), err1 == nil
	}
	return got == want, true
}

// document reads exactly one JSON document, numbers by their digits.
func document(s string) (any, error) {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return v, end(d)
}
