package route

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"llmops/fleet"
)

// KeyName is the document that holds a fleet's [Key].
const KeyName = "router-key"

// HeaderSignature carries what Key.Sign gives for the body of a push.
const HeaderSignature = "Llmops-Signature"

// Key shows a router that a push comes from whoever may read the fleet's store: its
// admin address takes no other. A push that somebody repeats is of an old revision,
// which changes nothing.
type Key []byte

// Sign is the HMAC-SHA256 of body in hexadecimal.
func (k Key) Sign(body []byte) string { return hex.EncodeToString(k.mac(body)) }

// Signed tells whether signature is that of body. No key has signed anything.
func (k Key) Signed(body []byte, signature string) bool {
	got, err := hex.DecodeString(signature)
	return err == nil && len(k) > 0 && hmac.Equal(got, k.mac(body))
}

func (k Key) mac(body []byte) []byte {
	h := hmac.New(sha256.New, k)
	h.Write(body)
	return h.Sum(nil)
}

// keyBytes are as many as the hash has.
const keyBytes = sha256.Size

// ReadKey is the key of the store's fleet, or fleet.ErrNotFound.
func ReadKey(ctx context.Context, s fleet.Store) (Key, error) {
	d, err := s.Get(ctx, KeyName)
	if err != nil {
		return nil, fmt.Errorf("reading the key of pushes: %w", err)
	}
	k, err := base64.StdEncoding.DecodeString(string(d.Body))
	if err != nil || len(k) != keyBytes {
		return nil, fmt.Errorf("reading the key of pushes: document %s is not %d bytes in base64; delete it, and the next push makes another", KeyName, keyBytes)
	}
	return k, nil
}

// MakeKey is ReadKey, and makes the key where there is none.
func MakeKey(ctx context.Context, s fleet.Store) (Key, error) {
	k, err := ReadKey(ctx, s)
	if !errors.Is(err, fleet.ErrNotFound) {
		return k, err
	}
	k = make(Key, keyBytes)
	_, _ = rand.Read(k) // never fails
	_, err = s.Put(ctx, KeyName, []byte(base64.StdEncoding.EncodeToString(k)), 0)
	if errors.Is(err, fleet.ErrConflict) { // somebody else was first
		return ReadKey(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("making the key of pushes: %w", err)
	}
	return k, nil
}
