package hub

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"llmops/model"
)

// File is one file of a commit. A large one has its sha256; of a small one there is
// only git's sha1, of "blob", its size and its bytes.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	Git    string `json:"git"`
}

// etag names the file's blob, as huggingface_hub does.
func (f File) etag() string {
	if f.SHA256 != "" {
		return f.SHA256
	}
	return f.Git
}

// maxFiles bounds a listing.
const maxFiles = 200_000

type entry struct {
	Type string `json:"type"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// commit pins the revision.
func (c *client) commit(ctx context.Context, r Repo) (string, error) {
	if r.Pinned() {
		return r.Revision, nil
	}
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := c.getJSON(ctx, c.endpoint+"/api/models/"+r.ID+"/revision/"+url.PathEscape(r.Revision), &info); err != nil {
		return "", fmt.Errorf("looking up %s: %w", r, err)
	}
	if !commitID.MatchString(info.SHA) {
		return "", fmt.Errorf("looking up %s: the Hub names %q as its commit", r, info.SHA)
	}
	return info.SHA, nil
}

// list returns all files of a commit, ordered by path.
func (c *client) list(ctx context.Context, r Repo, commit string) ([]File, error) {
	at := c.endpoint + "/api/models/" + r.ID + "/tree/" + commit + "?recursive=true&expand=false"
	var out []File
	for seen := map[string]bool{}; at != ""; {
		if seen[at] || len(out) > maxFiles {
			return nil, fmt.Errorf("listing %s: its pages do not end", r)
		}
		seen[at] = true
		var page []entry
		next, err := c.getJSON(ctx, at, &page)
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", r, err)
		}
		for _, e := range page {
			if e.Type != "file" {
				continue
			}
			f, err := e.file()
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", r, err)
			}
			out = append(out, f)
		}
		if at, err = absolute(at, next); err != nil {
			return nil, fmt.Errorf("listing %s: %w", r, err)
		}
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(out); i++ {
		if out[i].Path == out[i-1].Path {
			return nil, fmt.Errorf("listing %s: %s is named twice", r, out[i].Path)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("listing %s: it has no files", r)
	}
	return out, nil
}

// absolute is the address of the next page, which must be the endpoint's: the token
// goes with it.
func absolute(at, next string) (string, error) {
	if next == "" {
		return "", nil
	}
	base, err := url.Parse(at)
	if err != nil {
		return "", err
	}
	to, err := base.Parse(next)
	if err != nil || to.Host != base.Host {
		return "", fmt.Errorf("the next page is said to be at %q", next)
	}
	return to.String(), nil
}

// file holds an entry to what a file can be: nothing of it leaves the target.
func (e entry) file() (File, error) {
	f := File{Path: e.Path, Size: e.Size, Git: e.OID}
	if e.LFS != nil {
		f.SHA256, f.Size = e.LFS.OID, e.LFS.Size
	}
	switch {
	case !fs.ValidPath(f.Path) || f.Path == "." || strings.ContainsAny(f.Path, "\\\x00\n\r:") || strings.HasPrefix(path.Base(f.Path), ".."):
		return f, fmt.Errorf("%q is no path within a repository", f.Path)
	case f.Size < 0:
		return f, fmt.Errorf("%s has the size %d", f.Path, f.Size)
	case f.SHA256 != "" && !isHex(f.SHA256, 64), !isHex(f.Git, 40):
		return f, fmt.Errorf("%s has the digests %q and %q", f.Path, f.SHA256, f.Git)
	}
	return f, nil
}

func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && 2*len(b) == n && s == strings.ToLower(s)
}

// otherWeights are the suffixes of weights that are not read here. They are as large as
// those that are.
var otherWeights = []string{".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".tflite", ".ot", ".mlmodel", ".nemo", ".llamafile", ".pdparams"}

// choose splits a listing into what is wanted and what is left behind. A pattern is one
// of package path, of the whole path or of its last element.
func choose(files []File, include, exclude []string) (want, left []File, err error) {
	for _, p := range append(slices.Clone(include), exclude...) {
		if _, err := path.Match(p, ""); err != nil {
			return nil, nil, fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	hit := func(patterns []string, name string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			whole, _ := path.Match(p, name)
			last, _ := path.Match(p, path.Base(name))
			return whole || last
		})
	}
	for _, f := range files {
		name := strings.ToLower(f.Path)
		wanted := !slices.ContainsFunc(otherWeights, func(s string) bool { return strings.HasSuffix(name, s) })
		if len(include) > 0 {
			wanted = hit(include, f.Path)
		}
		if model.Unsafe(f.Path) || hit(exclude, f.Path) || strings.HasPrefix(f.Path, ".git") {
			wanted = false
		}
		if wanted {
			want = append(want, f)
		} else {
			left = append(left, f)
		}
	}
	return want, left, nil
}
