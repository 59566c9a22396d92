package hub

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"llmops/pipeline/download/transfer"
)

// etag names the file's blob, as huggingface_hub does.
func etag(f transfer.File) string {
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
func (c *client) list(ctx context.Context, r Repo, commit string) ([]transfer.File, error) {
	at := c.endpoint + "/api/models/" + r.ID + "/tree/" + commit + "?recursive=true&expand=false"
	var out []transfer.File
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
	slices.SortFunc(out, func(a, b transfer.File) int { return strings.Compare(a.Path, b.Path) })
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
func (e entry) file() (transfer.File, error) {
	f := transfer.File{Path: e.Path, Size: e.Size, Git: e.OID}
	if e.LFS != nil {
		f.SHA256, f.Size = e.LFS.OID, e.LFS.Size
	}
	switch {
	case !transfer.SafePath(f.Path):
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
