package download

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/download/hub"
)

// Sources reads sources of every kind: folders, and repositories of the Hub as
// hf://org/name@revision. Hub is how the latter are fetched; its Repo is filled in.
type Sources struct {
	Hub hub.Options
}

// Identify tells what src is now, without its weights: of a folder the digest of its
// content, of a repository its name and commit. Equal texts are equal weights.
func (s Sources) Identify(ctx context.Context, src string) (string, error) {
	if !strings.HasPrefix(src, hub.Scheme) {
		found, err := Inspect(ctx, src)
		return string(found.Digest), err
	}
	o, err := s.options(src)
	if err != nil {
		return "", err
	}
	commit, err := hub.Commit(ctx, o)
	return hub.Scheme + o.Repo.ID + "@" + commit, err
}

func (s Sources) options(src string) (hub.Options, error) {
	o := s.Hub
	var err error
	o.Repo, err = hub.ParseRepo(src)
	return o, err
}

// Fetch brings src into a folder of root named by its content. progress may be called
// from several goroutines.
func (s Sources) Fetch(ctx context.Context, src, root string, progress func(done, total int64)) (Snapshot, error) {
	if !strings.HasPrefix(src, hub.Scheme) {
		return Folder(ctx, src, root, progress)
	}
	o, err := s.options(src)
	if err != nil {
		return Snapshot{}, err
	}
	o.Progress = progress
	got, err := hub.Fetch(ctx, o)
	if err != nil {
		return Snapshot{}, err
	}
	out := Snapshot{Manifest: got.Files, Digest: got.Files.Digest(), Checked: len(got.Files.Files), Source: hub.Scheme + got.Repo.ID + "@" + got.Commit, License: got.License}
	for _, f := range got.Left {
		if model.Unsafe(f.Path) {
			out.Warnings = append(out.Warnings, fmt.Sprintf("%s is left behind: loading it can run code", f.Path))
		}
	}
	if err := complete(got.Dir); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", out.Source, err)
	}
	return out.link(ctx, got.Dir, root)
}

// complete holds a folder to what engines load.
func complete(dir string) error {
	if _, err := model.LoadShape(dir); err != nil {
		return err
	}
	c, err := safetensors.OpenDir(dir)
	if err != nil {
		return err
	}
	return c.Close()
}

// link makes the snapshot of files that have just been verified and that nobody writes
// to: as further names of the same bytes where the file system can, as copies otherwise.
func (s Snapshot) link(ctx context.Context, dir, root string) (Snapshot, error) {
	final := filepath.Join(root, s.Digest.Hex())
	if Whole(ctx, final, s.Digest) {
		s.Dir = final
		return s, nil
	}
	part := filepath.Join(root, ".partial-"+s.Digest.Hex())
	if err := os.MkdirAll(part, 0o700); err != nil {
		return s, fmt.Errorf("making room for the snapshot: %w", err)
	}
	for _, f := range s.Manifest.Files {
		real, err := filepath.EvalSymlinks(filepath.Join(dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return s, err
		}
		to := filepath.Join(part, filepath.FromSlash(f.Path))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.RemoveAll(to)); err != nil {
			return s, err
		}
		if os.Link(real, to) == nil {
			continue
		}
		if err := copyFile(ctx, dir, part, f, func(int64) {}); err != nil {
			return s, err
		}
	}
	if err := os.RemoveAll(final); err != nil {
		return s, fmt.Errorf("replacing a broken snapshot: %w", err)
	}
	if err := os.Rename(part, final); err != nil {
		return s, fmt.Errorf("finishing the snapshot: %w", err)
	}
	s.Dir = final
	return s, syncDir(root)
}
