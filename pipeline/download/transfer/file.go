// Package transfer fetches files whose size is known, by ranges, several at a time, and
// proves what arrived.
//
// A [Fetcher] puts what a [Remote] names into a file. Every byte is hashed in order as it
// comes, and the digests are compared with those that were promised, if any were. What
// arrived before an interruption, of whatever process, is held to a checksum and kept. A
// connection that breaks goes on where it broke, one that brings nothing is given up, a
// server without ranges is read over one connection. The package reads no environment.
package transfer

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// ErrDigest reports bytes that are not those that were promised.
var ErrDigest = errors.New("the content does not match its digest")

// File is a file that somebody has: its path within a repository, its size in bytes, and
// what is known of its content. With neither digest nothing vouches for it.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	Git    string `json:"git,omitempty"` // git's sha1, of "blob", the size and the bytes
}

// SafePath tells whether a path stays within the folder it is taken relative to, on
// every system.
func SafePath(p string) bool {
	return fs.ValidPath(p) && p != "." && !strings.ContainsAny(p, "\\\x00\n\r:") && !strings.HasPrefix(path.Base(p), "..")
}

// Sums are the digests of a file's content, in hexadecimal.
type Sums struct{ SHA256, Git string }

// digests hashes as the listing does. The sha256 is made of every file, since that is
// what the rest of llmops knows files by.
type digests struct {
	sha hash.Hash
	git hash.Hash // nil for large files, whose git digest is that of a pointer
}

func newDigests(f File) *digests {
	d := &digests{sha: sha256.New()}
	if f.SHA256 == "" && f.Git != "" {
		d.git = sha1.New() // git's own digest, as a check against accidents
		_, _ = fmt.Fprintf(d.git, "blob %d\x00", f.Size)
	}
	return d
}

func (d *digests) Write(p []byte) (int, error) {
	if d.git != nil {
		_, _ = d.git.Write(p)
	}
	return d.sha.Write(p)
}

func (d *digests) sums() Sums {
	s := Sums{SHA256: hex.EncodeToString(d.sha.Sum(nil))}
	if d.git != nil {
		s.Git = hex.EncodeToString(d.git.Sum(nil))
	}
	return s
}

// Match is an error unless the sums are those that were promised.
func (f File) Match(s Sums) error {
	have, want := s.SHA256, f.SHA256
	if f.SHA256 == "" {
		have, want = s.Git, f.Git
	}
	if want != "" && have != want {
		return fmt.Errorf("%s: %w: have %s, want %s", f.Path, ErrDigest, have, want)
	}
	return nil
}

// Hash hashes a file that is there; ErrDigest when it has another size.
func Hash(ctx context.Context, path string, f File) (Sums, error) {
	in, err := os.Open(path)
	if err != nil {
		return Sums{}, err
	}
	defer func() { _ = in.Close() }()
	if info, err := in.Stat(); err != nil || info.Size() != f.Size {
		return Sums{}, errors.Join(err, fmt.Errorf("%s: %w: it has another size than %d", path, ErrDigest, f.Size))
	}
	d := newDigests(f)
	if _, err := io.Copy(d, &ctxReader{ctx, in}); err != nil {
		return Sums{}, err
	}
	return d.sums(), nil
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
