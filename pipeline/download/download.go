// Package download brings a model's files in and proves that they arrived.
//
// [Sources] takes a folder, or a repository of the Hub with package hub. [Folder]
// copies a repository that is a folder into a snapshot folder named
// by the digest of its content. Every file is hashed where it came from and
// again as it is written; a SHA256SUMS file of the source must agree. Only
// safetensors weights are taken: a file that could run code when loaded is
// left behind and named, and folders whose names begin with a dot, such as a
// clone's history, are not looked into. What was copied before an interruption is verified
// and kept. A call works alone on its target; different targets may be filled
// at the same time.
package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
	"llmops/pipeline/download/transfer"
)

// Snapshot is a verified copy of a repository.
type Snapshot struct {
	Dir      string         `json:"dir"`
	Digest   model.Digest   `json:"digest"`
	Manifest model.Manifest `json:"manifest"`
	Warnings []string       `json:"warnings,omitempty"`
	Checked  int            `json:"checked"`           // files that the source's own digests vouched for
	Source   string         `json:"source,omitempty"`  // of a repository, with its commit
	License  string         `json:"license,omitempty"` // as its card says
}

// Inspect hashes the repository in src and checks all that can be checked
// without a copy: names, index and headers, SHA256SUMS, config.json.
func Inspect(ctx context.Context, src string) (Snapshot, error) {
	info, err := os.Stat(src)
	if err != nil {
		return Snapshot{}, fmt.Errorf("reading source: %w", err)
	}
	if !info.IsDir() {
		return Snapshot{}, fmt.Errorf("reading source: %s is not a folder", src)
	}
	all, err := model.Scan(ctx, visible{os.DirFS(src)})
	if err != nil {
		return Snapshot{}, fmt.Errorf("reading source %s: %w", src, err)
	}
	s := Snapshot{Dir: src}
	weights := 0
	for _, f := range all.Files {
		switch {
		case model.Unsafe(f.Path):
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s is left behind: loading it can run code", f.Path))
			continue
		case strings.HasSuffix(f.Path, ".safetensors"):
			weights++
		}
		s.Manifest.Files = append(s.Manifest.Files, f)
	}
	if weights == 0 {
		hint := "no .safetensors file"
		if len(s.Warnings) > 0 {
			hint = "only pickled weights, which are never loaded; convert them to safetensors first"
		}
		return Snapshot{}, fmt.Errorf("source %s has %s", src, hint)
	}
	if err := s.Manifest.Validate(); err != nil {
		return Snapshot{}, fmt.Errorf("source %s: %w", src, err)
	}
	s.Digest = s.Manifest.Digest()
	vouched, err := checkSums(src, s.Manifest)
	if err != nil {
		return Snapshot{}, err
	}
	s.Checked = len(vouched)
	if s.Checked > 0 {
		var rest []string
		for _, f := range s.Manifest.Files {
			if !vouched[f.Path] && f.Path != transfer.SumsName {
				rest = append(rest, f.Path)
			}
		}
		if n := len(rest); n > 0 {
			s.Warnings = append(s.Warnings, fmt.Sprintf("nothing vouches for %d files that are not in %s: %s", n, transfer.SumsName, strings.Join(rest[:min(n, 5)], ", ")))
		}
	}
	return s, complete(src)
}

// visible is a file system without the folders whose names begin with a dot.
type visible struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (v visible) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(v.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() && strings.HasPrefix(e.Name(), ".") }), err
}

// checkSums compares the manifest with the source's own list of digests and
// returns the files that the list vouched for.
func checkSums(src string, m model.Manifest) (vouched map[string]bool, err error) {
	f, err := os.Open(filepath.Join(src, transfer.SumsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sums, err := transfer.ReadSums(f, f.Name())
	if err != nil {
		return nil, err
	}
	vouched = map[string]bool{}
	for _, sum := range sums {
		if model.Unsafe(sum.Path) {
			continue
		}
		got, ok := m.Lookup(sum.Path)
		if !ok {
			return nil, fmt.Errorf("%s:%d: %s is missing from %s", f.Name(), sum.Line, sum.Path, src)
		}
		if got.Digest.Hex() != sum.SHA256 {
			return nil, fmt.Errorf("%s does not match its digest in %s: have %s, want %s; fetch it again", filepath.Join(src, sum.Path), transfer.SumsName, got.Digest.Short(), sum.SHA256[:12])
		}
		vouched[sum.Path] = true
	}
	return vouched, nil
}

// Folder copies the repository in src to a folder of root named by its digest.
// When that snapshot is there and whole nothing is copied. progress gets bytes
// done and to do, from the calling goroutine.
func Folder(ctx context.Context, src, root string, progress func(done, total int64)) (Snapshot, error) {
	s, err := Inspect(ctx, src)
	if err != nil {
		return Snapshot{}, err
	}
	final := filepath.Join(root, s.Digest.Hex())
	if Whole(ctx, final, s.Digest) {
		s.Dir = final
		return s, nil
	}
	part := filepath.Join(root, ".partial-"+s.Digest.Hex())
	if err := os.MkdirAll(part, 0o700); err != nil {
		return Snapshot{}, fmt.Errorf("making room for the snapshot: %w", err)
	}
	var done int64
	total := s.Manifest.Size()
	for _, f := range s.Manifest.Files {
		if err := copyFile(ctx, src, part, f, func(n int64) { progress(done+n, total) }); err != nil {
			return Snapshot{}, err
		}
		done += f.Size
		progress(done, total)
	}
	if err := os.RemoveAll(final); err != nil {
		return Snapshot{}, fmt.Errorf("replacing a broken snapshot: %w", err)
	}
	if err := os.Rename(part, final); err != nil {
		return Snapshot{}, fmt.Errorf("finishing the snapshot: %w", err)
	}
	s.Dir = final
	return s, syncDir(root)
}

// Whole tells whether dir holds exactly the snapshot of that digest.
func Whole(ctx context.Context, dir string, d model.Digest) bool {
	m, err := model.Scan(ctx, os.DirFS(dir))
	return err == nil && m.Digest() == d
}

// copyFile copies one file unless an earlier copy of it is whole.
func copyFile(ctx context.Context, src, dst string, f model.File, progress func(int64)) (err error) {
	to := filepath.Join(dst, filepath.FromSlash(f.Path))
	if old, err := os.Open(to); err == nil {
		got, _, err := model.DigestFrom(old)
		_ = old.Close()
		if err == nil && got == f.Digest {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	in, err := os.Open(filepath.Join(src, filepath.FromSlash(f.Path)))
	if err != nil {
		return fmt.Errorf("copying %s: %w", f.Path, err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("copying %s: %w", f.Path, err)
	}
	got, _, err := model.DigestFrom(io.TeeReader(&counting{ctx: ctx, r: in, report: progress}, out))
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("copying %s: %w", f.Path, err)
	}
	if got != f.Digest {
		return fmt.Errorf("copying %s: it changed while it was read; run again when its writer is done", in.Name())
	}
	return nil
}

type counting struct {
	ctx    context.Context
	r      io.Reader
	n      int64
	report func(int64)
}

func (c *counting) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.report(c.n)
	return n, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
