package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxHeader is the longest header in bytes, as in the reference reader.
const MaxHeader = 100_000_000

const metadataKey = "__metadata__"

// Header is what a file says about itself. Tensors are in order of offset.
type Header struct {
	Tensors  []Tensor
	Metadata map[string]string
	Data     int64 // where the tensors' bytes begin in the file
}

// Lookup finds a tensor by name.
func (h *Header) Lookup(name string) (Tensor, bool) {
	for _, t := range h.Tensors {
		if t.Name == name {
			return t, true
		}
	}
	return Tensor{}, false
}

// ReadHeader reads and checks the header of a file of size bytes. The last
// tensor must end where the file does, so that a truncated download never loads.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	var word [8]byte
	if size < int64(len(word)) {
		return nil, fmt.Errorf("file has %d bytes: too short for a header", size)
	}
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, size), word[:]); err != nil {
		return nil, fmt.Errorf("reading header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(word[:])
	if n > MaxHeader {
		if bytes.HasPrefix(word[:], []byte("PK\x03\x04")) || word[0] == 0x80 {
			return nil, errors.New("this is a pickle, which can run code when it is loaded: convert it to safetensors")
		}
		return nil, fmt.Errorf("header of %d bytes is over the limit of %d", n, MaxHeader)
	}
	if int64(n) > size-int64(len(word)) {
		return nil, fmt.Errorf("header of %d bytes ends beyond the file of %d: the file is truncated", n, size)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r, int64(len(word)), int64(n)), text); err != nil {
		return nil, fmt.Errorf("reading header: %w", err)
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, err
	}
	h.Data = int64(len(word)) + int64(n)
	return h, h.check(size - h.Data)
}

// check wants the tensors to tile data bytes without hole or overlap.
func (h *Header) check(data int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	at := int64(0)
	for _, t := range h.Tensors {
		if t.Begin != at || t.End < t.Begin {
			return fmt.Errorf("tensor %q has offsets %d to %d, want them to begin at %d", t.Name, t.Begin, t.End, at)
		}
		want, err := bytesFor(t.DType, t.Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if t.Size() != want {
			return fmt.Errorf("tensor %q has %d bytes, want %d for %s %v", t.Name, t.Size(), want, t.DType, t.Shape)
		}
		at = t.End
	}
	if at != data {
		return fmt.Errorf("tensors end at byte %d of the data, the file at %d: it is truncated or too long", at, data)
	}
	return nil
}

func parseHeader(text []byte) (*Header, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("header is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	h := &Header{}
	err := eachKey(d, func(name string) (err error) {
		if name == metadataKey {
			h.Metadata = make(map[string]string)
			return eachKey(d, func(key string) error {
				var v *string
				if err := d.Decode(&v); err != nil || v == nil {
					return fmt.Errorf("metadata %q is not a string", key)
				}
				h.Metadata[key] = *v
				return nil
			})
		}
		t, err := parseTensor(d)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		t.Name = name
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("parsing header: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("parsing header: something follows the object")
	}
	return h, nil
}

func parseTensor(d *json.Decoder) (Tensor, error) {
	var t Tensor
	var offsets []int64
	err := eachKey(d, func(key string) (err error) {
		switch key {
		case "dtype":
			var s string
			if err := d.Decode(&s); err != nil {
				return err
			}
			t.DType, err = ParseDType(s)
			return err
		case "shape":
			t.Shape, err = parseSizes(d)
			return err
		case "data_offsets":
			offsets, err = parseSizes(d)
			return err
		}
		var ignored json.RawMessage
		return d.Decode(&ignored)
	})
	switch {
	case err != nil:
		return Tensor{}, err
	case t.DType == 0:
		return Tensor{}, errors.New("dtype is missing")
	case t.Shape == nil:
		return Tensor{}, errors.New("shape is missing")
	case len(offsets) != 2:
		return Tensor{}, fmt.Errorf("data_offsets has %d numbers, want 2", len(offsets))
	}
	t.Begin, t.End = offsets[0], offsets[1]
	return t, nil
}

func parseSizes(d *json.Decoder) ([]int64, error) {
	var numbers []json.Number
	if err := d.Decode(&numbers); err != nil {
		return nil, err
	}
	if numbers == nil {
		return nil, errors.New("want a list")
	}
	sizes := make([]int64, len(numbers))
	for i, n := range numbers {
		v, err := strconv.ParseUint(string(n), 10, 63)
		if err != nil {
			return nil, fmt.Errorf("%q is not a size", string(n))
		}
		sizes[i] = int64(v)
	}
	return sizes, nil
}

// eachKey reads an object and calls fn with each key, which must read the value.
func eachKey(d *json.Decoder, fn func(key string) error) error {
	tok, err := d.Token()
	if err != nil {
		return unexpectedEnd(err)
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("want an object, have %v", tok)
	}
	seen := make(map[string]struct{})
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return unexpectedEnd(err)
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("want a key, have %v", tok)
		}
		if _, twice := seen[key]; twice {
			return fmt.Errorf("key %q is there twice", key)
		}
		seen[key] = struct{}{}
		if err := fn(key); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return unexpectedEnd(err)
}

func unexpectedEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Layout gives tensors their offsets in the reference writer's order: wide
// elements first, then by name, so that scales stay aligned beside one-byte weights.
func Layout(tensors []Tensor) ([]Tensor, error) {
	out := slices.Clone(tensors)
	slices.SortFunc(out, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.DType, a.DType), cmp.Compare(a.Name, b.Name))
	})
	at := int64(0)
	for i := range out {
		t := &out[i]
		if t.DType < Bool || int(t.DType) >= len(dtypes) {
			return nil, fmt.Errorf("laying out tensor %q: it has no dtype", t.Name)
		}
		if t.Name == metadataKey || !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("laying out tensor %q: the format cannot hold this name", t.Name)
		}
		if i > 0 && out[i-1].Name == t.Name && out[i-1].DType == t.DType {
			return nil, fmt.Errorf("laying out tensor %q: it is there twice", t.Name)
		}
		n, err := bytesFor(t.DType, t.Shape)
		if err != nil {
			return nil, fmt.Errorf("laying out tensor %q: %w", t.Name, err)
		}
		if n > math.MaxInt64-at {
			return nil, fmt.Errorf("laying out tensor %q: the file overflows", t.Name)
		}
		t.Begin, t.End = at, at+n
		at = t.End
	}
	return out, nil
}

// AppendHeader appends the length and the padded JSON of a header whose tensors
// already have their offsets. Equal input gives equal bytes.
func AppendHeader(dst []byte, tensors []Tensor, metadata map[string]string) ([]byte, error) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, '{')
	names := make(map[string]struct{}, len(tensors))
	if len(metadata) > 0 {
		dst = append(dst, `"__metadata__":{`...)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(dst, key)
			dst = append(dst, ':')
			dst = appendString(dst, metadata[key])
		}
		dst = append(dst, '}')
	}
	for i, t := range tensors {
		if _, twice := names[t.Name]; twice {
			return nil, fmt.Errorf("writing header: tensor %q is there twice", t.Name)
		}
		names[t.Name] = struct{}{}
		if i > 0 || len(metadata) > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, t.Name)
		dst = append(dst, `:{"dtype":"`...)
		dst = append(dst, t.DType.String()...)
		dst = append(dst, `","shape":[`...)
		for j, n := range t.Shape {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, n, 10)
		}
		dst = append(dst, `],"data_offsets":[`...)
		dst = strconv.AppendInt(dst, t.Begin, 10)
		dst = append(dst, ',')
		dst = strconv.AppendInt(dst, t.End, 10)
		dst = append(dst, "]}"...)
	}
	dst = append(dst, '}')
	for (len(dst)-start)%8 != 0 {
		dst = append(dst, ' ')
	}
	n := len(dst) - start - 8
	if n > MaxHeader {
		return nil, fmt.Errorf("writing header: %d bytes are over the limit of %d", n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(dst[start:], uint64(n))
	return dst, nil
}

func appendString(dst []byte, s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("safetensors: marshalling a string: " + err.Error())
	}
	return append(dst, b...)
}
