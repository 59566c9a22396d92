package safetensors

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"llmops/model"
)

// File is an open safetensors file.
type File struct {
	*Header
	Path string
	f    *os.File
}

// Open reads the header of the file at path.
func Open(path string) (*File, error) {
	if model.Unsafe(path) {
		return nil, fmt.Errorf("opening %s: pickled weights can run code when they are loaded: convert them to safetensors", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening tensors: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening tensors: %w", err), f.Close())
	}
	h, err := ReadHeader(f, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading %s: %w", filepath.Base(path), err), f.Close())
	}
	return &File{Header: h, Path: path, f: f}, nil
}

// Reader gives the bytes of t, which must be of this file.
func (f *File) Reader(t Tensor) *io.SectionReader {
	return io.NewSectionReader(f.f, f.Data+t.Begin, t.Size())
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
