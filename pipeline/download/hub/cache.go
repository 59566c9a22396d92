package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"llmops/pipeline/download/transfer"
)

// cache is one repository in huggingface_hub's cache.
type cache struct {
	root string // of all repositories
	dir  string // of this one
	name string
}

func openCache(root string, r Repo) *cache {
	name := "models--" + strings.ReplaceAll(r.ID, "/", "--")
	return &cache{root: root, dir: filepath.Join(root, name), name: name}
}

func (c *cache) blob(f transfer.File) string { return filepath.Join(c.dir, "blobs", etag(f)) }

func (c *cache) lock(f transfer.File) string {
	return filepath.Join(c.root, ".locks", c.name, etag(f)+".lock")
}

func (c *cache) snapshot(commit string) string { return filepath.Join(c.dir, "snapshots", commit) }

func (c *cache) prepare() error {
	for _, sub := range []string{"blobs", "refs", "snapshots", "trees"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o755); err != nil {
			return fmt.Errorf("opening the cache: %w; HF_HOME or HF_HUB_CACHE chooses another place", err)
		}
	}
	// So that backups leave out what can be fetched again.
	tag := filepath.Join(c.root, "CACHEDIR.TAG")
	if _, err := os.Stat(tag); err == nil {
		return nil
	}
	return os.WriteFile(tag, []byte("Signature: 8a477f597d28d172789f06886806bc55\n# This file is a cache directory tag; see https://bford.info/cachedir/\n"), 0o644)
}

// tree is the listing of a commit as huggingface_hub keeps it.
type tree struct {
	Version int                 `json:"format_version"`
	Files   map[string]treeFile `json:"files"`
}

type treeFile struct {
	Size    int64  `json:"size"`
	Blob    string `json:"blob_id"`
	SHA256  string `json:"lfs_sha256,omitempty"`
	LFSSize int64  `json:"lfs_size,omitempty"`
}

func (c *cache) treeFile(commit string) string {
	return filepath.Join(c.dir, "trees", commit+".json")
}

func (c *cache) writeTree(commit string, files []transfer.File) error {
	t := tree{Version: 1, Files: map[string]treeFile{}}
	for _, f := range files {
		e := treeFile{Size: f.Size, Blob: f.Git, SHA256: f.SHA256}
		if f.SHA256 != "" {
			e.LFSSize = f.Size
		}
		t.Files[f.Path] = e
	}
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return renameio.WriteFile(c.treeFile(commit), b, 0o644)
}

// readTree is the listing of a commit, fs.ErrNotExist when it is not kept.
func (c *cache) readTree(commit string) ([]transfer.File, error) {
	b, err := os.ReadFile(c.treeFile(commit))
	if err != nil {
		return nil, err
	}
	var t tree
	if err := json.Unmarshal(b, &t); err != nil || t.Version != 1 {
		return nil, fmt.Errorf("%s: not a listing that is known here: %w", c.treeFile(commit), errors.Join(err, fs.ErrNotExist))
	}
	var out []transfer.File
	for path, e := range t.Files {
		f, err := entry{Path: path, Size: e.Size, OID: e.Blob}.file()
		if e.SHA256 != "" && err == nil {
			f.SHA256 = e.SHA256
			if !isHex(f.SHA256, 64) {
				err = fmt.Errorf("%s has the digest %q", path, f.SHA256)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.treeFile(commit), err)
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b transfer.File) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// ref is the commit that a revision was when it was last looked up.
func (c *cache) ref(r Repo) (string, error) {
	if r.Pinned() {
		return r.Revision, nil
	}
	b, err := os.ReadFile(filepath.Join(c.dir, "refs", filepath.FromSlash(r.Revision)))
	if err == nil && !commitID.Match(b) {
		err = fmt.Errorf("refs/%s holds no commit: %w", r.Revision, fs.ErrNotExist)
	}
	return string(b), err
}

func (c *cache) writeRef(r Repo, commit string) error {
	if r.Pinned() {
		return nil
	}
	path := filepath.Join(c.dir, "refs", filepath.FromSlash(r.Revision))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(path, []byte(commit), 0o644)
}

// link puts a file that is there into the commit's folder, as a relative link.
func (c *cache) link(commit string, f transfer.File) error {
	at := filepath.Join(c.snapshot(commit), filepath.FromSlash(f.Path))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	to, err := filepath.Rel(filepath.Dir(at), c.blob(f))
	if err != nil {
		return err
	}
	if old, err := os.Readlink(at); err == nil && old == to {
		return nil
	}
	return renameio.Symlink(to, at)
}
