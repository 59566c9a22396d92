package safetensors

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"

	"github.com/google/renameio/v2"

	"llmops/model"
)

// Writer writes one file. Until Commit nothing is to be seen at the target;
// exactly one of Commit and Abort must be called, and Abort after Commit is a no-op.
type Writer struct {
	Header
	f       *renameio.PendingFile
	at      map[string]int
	written []atomic.Int64
	total   atomic.Int64 // of written
}

// writeOutBytes is how much is written before the disk is told to begin. Left to
// itself, the kernel waits until a tenth of the memory is dirty, and the sync at
// the end waits for all of that.
const writeOutBytes = 32 << 20

// Create lays tensors out and opens a temporary sibling of path. Offsets in
// tensors are ignored.
func Create(path string, tensors []Tensor, metadata map[string]string) (*Writer, error) {
	laid, err := Layout(tensors)
	if err != nil {
		return nil, err
	}
	head, err := AppendHeader(nil, laid, metadata)
	if err != nil {
		return nil, err
	}
	// Elsewhere, which TMPDIR may name, nobody would find what a kill leaves.
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644), renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		return nil, fmt.Errorf("creating %s: %w", path, err)
	}
	w := &Writer{
		Header: Header{Tensors: laid, Metadata: metadata, Data: int64(len(head))},
		f:      f, at: make(map[string]int, len(laid)), written: make([]atomic.Int64, len(laid)),
	}
	for i, t := range laid {
		w.at[t.Name] = i
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("writing header of %s: %w", path, err), f.Cleanup())
	}
	return w, nil
}

// WriteAt writes p at byte off of the tensor called name. Each byte must be
// written once; callers may write in any order and at the same time.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	i, ok := w.at[name]
	if !ok {
		return fmt.Errorf("writing tensor %q: it is not in the header", name)
	}
	t := w.Tensors[i]
	if off < 0 || int64(len(p)) > t.Size()-off {
		return fmt.Errorf("writing tensor %q: bytes %d to %d are outside its %d", name, off, off+int64(len(p)), t.Size())
	}
	if _, err := w.f.WriteAt(p, w.Data+t.Begin+off); err != nil {
		return fmt.Errorf("writing tensor %q at byte %d: %w", name, off, err)
	}
	w.written[i].Add(int64(len(p)))
	if n := w.total.Add(int64(len(p))); n/writeOutBytes != (n-int64(len(p)))/writeOutBytes {
		writeOut(w.f.File)
	}
	return nil
}

// Digest is that of the whole file, and its size. It makes what was written
// durable meanwhile, so that the disk is busy while the bytes are still in memory.
// Nothing may be written at the same time or later.
func (w *Writer) Digest() (model.Digest, int64, error) {
	synced := make(chan error, 1)
	go func() { synced <- w.f.Sync() }()
	d, n, err := model.DigestFrom(io.NewSectionReader(w.f, 0, 1<<62))
	if err = errors.Join(err, <-synced); err != nil {
		return "", 0, fmt.Errorf("taking the digest of %s: %w", w.f.Name(), err)
	}
	return d, n, nil
}

// Commit makes the file durable and moves it to its place. It refuses when a
// tensor is not complete.
func (w *Writer) Commit() error {
	for i, t := range w.Tensors {
		if n := w.written[i].Load(); n != t.Size() {
			return errors.Join(fmt.Errorf("committing: tensor %q has %d of %d bytes", t.Name, n, t.Size()), w.Abort())
		}
	}
	if err := w.f.CloseAtomicallyReplace(); err != nil {
		return errors.Join(fmt.Errorf("committing %s: %w", w.f.Name(), err), w.Abort())
	}
	return nil
}

// Abort removes what was written.
func (w *Writer) Abort() error { return w.f.Cleanup() }
