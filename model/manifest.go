package model

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// File is one file of a snapshot. Path is relative, slash-separated and clean.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Digest Digest `json:"digest"`
}

// Manifest lists a snapshot's files.
type Manifest struct {
	Files []File `json:"files"`
}

// Scan hashes every regular file under fsys. It follows no symbolic link that
// fsys does not follow itself, and refuses anything that is neither file nor folder.
func Scan(ctx context.Context, fsys fs.FS) (Manifest, error) {
	var m Manifest
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		info, err := fs.Stat(fsys, name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("scanning %s: not a regular file", name)
		}
		f, err := fsys.Open(name)
		if err != nil {
			return err
		}
		digest, size, err := DigestFrom(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("hashing %s: %w", name, err)
		}
		m.Files = append(m.Files, File{Path: name, Size: size, Digest: digest})
		return nil
	})
	if err != nil {
		return Manifest{}, err
	}
	return m, m.Validate()
}

// Validate reports every path that could leave the snapshot's folder or that
// two files share, and every size or digest that cannot be.
func (m Manifest) Validate() error {
	var errs []error
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		switch {
		case !fs.ValidPath(f.Path) || f.Path == "." || strings.ContainsAny(f.Path, "\\\x00\n\r"):
			errs = append(errs, fmt.Errorf("manifest names %q: not a clean relative path", f.Path))
		case seen[f.Path]:
			errs = append(errs, fmt.Errorf("manifest names %q twice", f.Path))
		case f.Size < 0:
			errs = append(errs, fmt.Errorf("manifest gives %q a size of %d", f.Path, f.Size))
		case !f.Digest.Valid():
			errs = append(errs, fmt.Errorf("manifest gives %q the digest %q", f.Path, f.Digest))
		}
		seen[f.Path] = true
	}
	return errors.Join(errs...)
}

// Digest is the snapshot's: of one "<hex> <size> <path>\n" line a file, in
// order of path, so that it depends on nothing but the content.
func (m Manifest) Digest() Digest {
	files := slices.Clone(m.Files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%s %d %s\n", f.Digest.Hex(), f.Size, f.Path)
	}
	return DigestOf([]byte(b.String()))
}

// Size is the sum of all files.
func (m Manifest) Size() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Lookup finds a file by path.
func (m Manifest) Lookup(name string) (File, bool) {
	i := slices.IndexFunc(m.Files, func(f File) bool { return f.Path == name })
	if i < 0 {
		return File{}, false
	}
	return m.Files[i], true
}

// Unsafe reports whether loading a file of this name can run code, which
// pickled weights do. Such files are never read.
func Unsafe(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz":
		return true
	}
	return false
}
