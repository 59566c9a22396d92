package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// Decode reads one JSON object into v, which points to a request type. What v
// does not know is refused by name and never ignored, so that a client learns
// that a parameter has no effect; so is a key sent twice or in another case,
// which two readers of the same bytes could take differently. The error is
// always a *Error.
func Decode(r io.Reader, v any) error {
	body, err := io.ReadAll(r)
	if err != nil {
		return refusal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return refusal(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Invalid("", "request body has data after the JSON object")
	}
	return checkKeys(body, reflect.TypeOf(v).Elem())
}

// checkKeys refuses what encoding/json lets pass at the top level: duplicate
// keys and keys that match a field only when case is folded.
func checkKeys(body []byte, typ reflect.Type) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return Invalid("", "request body is not a JSON object")
	}
	known := make(map[string]bool)
	fieldNames(typ, known)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return refusal(err)
		}
		key := tok.(string)
		first, ok := known[key]
		switch {
		case !ok:
			return unknownField(key)
		case !first:
			return &Error{Message: "field " + key + " is sent twice", Type: TypeInvalid, Param: key, Code: "duplicate_field"}
		}
		known[key] = false
		var skip json.RawMessage
		if err := dec.Decode(&skip); err != nil {
			return refusal(err)
		}
	}
	return nil
}

func fieldNames(typ reflect.Type, into map[string]bool) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			fieldNames(f.Type, into)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		into[name] = true
	}
}

func unknownField(name string) *Error {
	return &Error{Message: "unknown field " + name, Type: TypeInvalid, Param: name, Code: "unknown_field"}
}

func refusal(err error) *Error {
	var (
		typ *json.UnmarshalTypeError
		big *http.MaxBytesError
	)
	switch {
	case errors.As(err, &big):
		return &Error{Message: "request body is larger than the limit", Type: TypeInvalid, Code: "body_too_large"}
	case errors.As(err, &typ):
		// encoding/json puts the name of the embedded struct into the path.
		field := strings.TrimPrefix(typ.Field, "Sampling.")
		return Invalid(field, "%s cannot be %s", cmp.Or(field, "request body"), typ.Value)
	case err == io.EOF:
		return Invalid("", "request body is empty")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return unknownField(strings.Trim(name, `"`))
	}
	return Invalid("", "request body is not valid JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
}
