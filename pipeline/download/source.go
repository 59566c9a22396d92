package download

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"llmops/fleet/objects"
	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/download/hub"
	"llmops/pipeline/download/registry"
	"llmops/pipeline/download/transfer"
)

// Sources reads sources of every kind: folders, repositories of the Hub as
// hf://org/name@revision, prefixes of a bucket as s3://bucket/prefix, and folders of web
// servers that have a SHA256SUMS, as https://host/folder/. Hub is how all but the first
// are fetched, and Objects where buckets are.
type Sources struct {
	Hub     hub.Options // Repo is filled in
	Objects objects.Options

	part   int64 // as in hub.Options; these are for tests
	adjust func(*transfer.Client)
}

// Local tells whether a source is a folder.
func Local(src string) bool {
	return !strings.HasPrefix(src, hub.Scheme) && !strings.HasPrefix(src, objects.Scheme) && !onWeb(src)
}

// CheckSource tells whether src can name something, without asking anybody.
func CheckSource(src string) error {
	switch {
	case strings.HasPrefix(src, hub.Scheme):
		_, err := hub.ParseRepo(src)
		return err
	case strings.HasPrefix(src, objects.Scheme):
		at, ref, registered := strings.Cut(src, "#")
		_, err := objects.Open(at, objects.Options{Anonymous: true})
		if err == nil && registered {
			_, _, err = registry.ParseRef(ref)
		}
		return err
	case onWeb(src):
		_, err := parseWeb(src)
		return err
	}
	return nil
}

func onWeb(src string) bool {
	return strings.HasPrefix(src, "https://") || strings.HasPrefix(src, "http://")
}

// list asks a server that is not the Hub what it has.
func (s Sources) list(ctx context.Context, src string) (listing, error) {
	if onWeb(src) {
		return s.web(ctx, src)
	}
	if at, ref, ok := strings.Cut(src, "#"); ok {
		return s.registered(ctx, at, ref)
	}
	return s.objects(ctx, src)
}

// Identify tells what src is now, without its weights: of a folder the digest of its
// content, of a repository its name and commit, of others their list. Equal texts are equal weights.
func (s Sources) Identify(ctx context.Context, src string) (string, error) {
	if Local(src) {
		found, err := Inspect(ctx, src)
		return string(found.Digest), err
	}
	if !strings.HasPrefix(src, hub.Scheme) {
		l, err := s.list(ctx, src)
		return l.id, err
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
	if Local(src) {
		return Folder(ctx, src, root, progress)
	}
	if !strings.HasPrefix(src, hub.Scheme) {
		l, err := s.list(ctx, src)
		if err != nil {
			return Snapshot{}, err
		}
		return s.bring(ctx, l, root, progress)
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
	out.warn(got.Left)
	if err := complete(got.Dir); err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", out.Source, err)
	}
	return out.link(ctx, got.Dir, root)
}

// complete holds a folder to what engines load: a model, or an adapter.
func complete(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, registry.AdapterConfig)); err == nil {
		f, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
		if err != nil {
			return err
		}
		return f.Close()
	}
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
