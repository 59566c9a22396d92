package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error types of the API.
const (
	TypeInvalid     = "invalid_request_error"
	TypeNotFound    = "not_found_error"
	TypeRateLimit   = "rate_limit_error"
	TypeUnavailable = "service_unavailable"
	TypeServer      = "server_error"
)

// Error is the error body of the API, {"error": {...}} on the wire.
type Error struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param"`
	Code    Code   `json:"code"`
}

// Code is a machine-readable reason; engines that send a number are read as
// its decimal digits.
type Code string

func (c *Code) UnmarshalJSON(b []byte) error {
	switch kind(b) {
	case 'n':
		*c = ""
		return nil
	case '"':
		return json.Unmarshal(b, (*string)(c))
	}
	*c = Code(b)
	return nil
}

func (e *Error) Error() string {
	if e.Param != "" && !strings.Contains(e.Message, e.Param) {
		return e.Param + ": " + e.Message
	}
	return e.Message
}

// MarshalJSON writes empty param and code as null, as clients expect.
func (e *Error) MarshalJSON() ([]byte, error) {
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return json.Marshal(map[string]any{
		"message": e.Message, "type": e.Type, "param": null(e.Param), "code": null(string(e.Code)),
	})
}

// Invalid makes a refusal of one request field.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Type: TypeInvalid, Param: param}
}

// WriteError answers with status and e as the body.
func WriteError(w http.ResponseWriter, status int, e *Error) {
	body, err := json.Marshal(map[string]*Error{"error": e})
	if err != nil {
		panic("openai: marshalling an error body: " + err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// A client that left needs no error.
	_, _ = w.Write(body)
}

// ErrTruncated is a stream that ended without [DONE].
var ErrTruncated = errors.New("stream ended before [DONE]")

// StatusError is an answer that is no success.
type StatusError struct {
	Status     int
	Method     string
	URL        string        // without user, password and query
	Body       string        // its first 512 bytes
	API        *Error        // the decoded error, nil when the body was none
	RetryAfter time.Duration // 0: not sent
}

func (e *StatusError) Error() string {
	msg := strings.TrimSpace(e.Body)
	if e.API != nil {
		msg = e.API.Error()
	}
	if msg == "" {
		return fmt.Sprintf("%s %s: status %d", e.Method, e.URL, e.Status)
	}
	return fmt.Sprintf("%s %s: status %d: %s", e.Method, e.URL, e.Status, msg)
}

// Unwrap gives the API's own error.
func (e *StatusError) Unwrap() error {
	if e.API == nil {
		return nil
	}
	return e.API
}

// Temporary reports whether the same request may succeed later.
func (e *StatusError) Temporary() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
