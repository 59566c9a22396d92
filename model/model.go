// Package model says what is served: the digest of a snapshot's bytes, the
// Manifest that lists its files, and the Shape that config.json describes.
//
// Every family's config.json parses into a Shape, so that planning works for
// models that no engine here can run; an engine refuses a Shape it cannot
// compute. Everything in this package is a plain value and safe to share.
//
// It does not fetch, convert or run models, and it reads no weights: see the
// folders safetensors, tokenizer and chat below it.
package model
