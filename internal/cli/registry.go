package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/objects"
	"llmops/model"
	"llmops/pipeline"
	"llmops/pipeline/download/registry"
)

// shared opens the registry at an address, or where the fleet keeps its blobs.
func (e *env) shared(h *home, at string) (*objects.Bucket, error) {
	if at == "" && h != nil {
		at = h.bucket
	}
	if at == "" {
		return nil, usage("there is no registry: give --registry s3://bucket/prefix, or set blobs in fleet.yaml")
	}
	b, err := objects.Open(at, e.objects())
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return b, nil
}

// refused makes what a person must do something about a usage error.
func refused(err error) error {
	for _, r := range append(slices.Clone(refusals), registry.ErrExists, registry.ErrVersion) {
		if errors.Is(err, r) {
			return &exitError{exitUsage, err}
		}
	}
	return err
}

const registryFlag = "the registry, as s3://bucket/prefix; default: where fleet.yaml has blobs"

func newModelsShowCmd(e *env) *cobra.Command {
	var at string
	c := &cobra.Command{
		Use:   "show NAME@VERSION",
		Short: "Say what a version is and what it was made from",
		Long: `Show tells of a version what it is, which run made it from what, and which files it
has; with --registry, as the registry knows it.

  llmops models show freight@v1
  llmops models show freight@v1 --registry s3://acme/models`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, version, err := registry.ParseRef(args[0])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if at != "" {
				b, err := e.shared(nil, at)
				if err != nil {
					return err
				}
				m, err := registry.Get(cmd.Context(), b, name, version)
				if err != nil {
					return refused(err)
				}
				return e.answer(m, func(w *tabwriter.Writer) { manifestTable(w, m) })
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			s, err := e.describe(cmd.Context(), h, name, version)
			if err != nil {
				return err
			}
			return e.answer(s, func(w *tabwriter.Writer) { shownVersionTable(w, s) })
		},
	}
	c.Flags().StringVar(&at, "registry", "", "look into this registry, as s3://bucket/prefix")
	return c
}

// shownVersion is a version as this machine knows it.
type shownVersion struct {
	pipeline.Registered
	Made  pipeline.Made `json:"made"`
	Same  []string      `json:"same,omitempty"` // versions with the same weights
	Files []shownFile   `json:"files,omitempty"`
}

type shownFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

func filesOf(dir string) (out []shownFile, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out = append(out, shownFile{name, info.Size()})
		}
		return err
	})
	return out, err
}

func (e *env) describe(ctx context.Context, h *home, name, version string) (shownVersion, error) {
	all, err := pipeline.Models(ctx, h.deps(), name)
	if err != nil {
		return shownVersion{}, err
	}
	var s shownVersion
	for _, r := range all {
		if r.Name == version {
			s.Registered = r
		}
	}
	if s.Dir == "" {
		return s, usage("no version %s of %s is known; llmops models list names all", version, name)
	}
	for _, r := range all {
		if r.Dir == s.Dir && r.Name != version {
			s.Same = append(s.Same, r.Name)
		}
	}
	if s.Made, err = pipeline.Making(ctx, h.deps(), s.Version); err != nil {
		return s, err
	}
	if !s.Missing {
		s.Files, err = filesOf(s.Dir)
	}
	return s, err
}

func shownVersionTable(w *tabwriter.Writer, s shownVersion) {
	row(w, "version", s.Alias+"@"+s.Name)
	row(w, "state", dash(s.State))
	row(w, "weights", s.Made.Digest)
	if s.Made.Base != "" {
		row(w, "made from", s.Made.Base+" by "+s.Scheme)
	}
	row(w, "source", dash(s.Made.Source))
	row(w, "licence", dash(s.Made.License))
	row(w, "run", s.Run)
	row(w, "created", s.Created.UTC().Format(time.DateTime))
	for _, v := range s.Same {
		row(w, "same weights", s.Alias+"@"+v)
	}
	if s.Missing {
		row(w, "folder", "not here")
		return
	}
	row(w, "folder", s.Dir)
	for _, f := range s.Files {
		row(w, "file", f.Path, f.Size)
	}
}

func manifestTable(w *tabwriter.Writer, m registry.Manifest) {
	row(w, "version", m.Name+"@"+m.Version)
	row(w, "kind", m.Kind)
	row(w, "weights", m.Digest)
	if m.Base != "" {
		row(w, "made from", m.Base+" by "+dash(m.Scheme))
	}
	row(w, "source", dash(m.Source))
	row(w, "licence", dash(m.License))
	row(w, "run", dash(m.Run))
	row(w, "pushed", m.Made.UTC().Format(time.DateTime)+" by "+dash(m.By))
	for _, f := range m.Files {
		row(w, "file", f.Path, f.Size, f.Digest.Short())
	}
}

func newModelsPushCmd(e *env) *cobra.Command {
	var at, dir string
	c := &cobra.Command{
		Use:   "push NAME@VERSION",
		Short: "Store a version in the fleet's registry",
		Long: `Push stores a version's files in a registry, each by its digest and once, and then a
manifest that says what the version is and what it was made from. A version in a
registry never changes. With --dir it is a folder: a model, an encoder, or a LoRA
adapter as PEFT writes it.

  llmops models push freight@v1 --registry s3://acme/models
  llmops models push claims-adapter@2026-11 --dir ./adapter --registry s3://acme/models`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, version, err := registry.ParseRef(args[0])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			h, err := e.openHome()
			if err != nil {
				return err
			}
			b, err := e.shared(h, at)
			if err != nil {
				return err
			}
			return e.push(cmd.Context(), h, b, name, version, dir)
		},
	}
	c.Flags().StringVar(&at, "registry", "", registryFlag)
	c.Flags().StringVar(&dir, "dir", "", "a folder to push; default: the version that this fleet has")
	return c
}

func (e *env) push(ctx context.Context, h *home, b *objects.Bucket, name, version, dir string) error {
	m := registry.Manifest{Name: name, Version: version, By: "llmops " + readVersion().Version, Made: time.Now()}
	var want model.Digest
	if dir == "" {
		s, err := e.describe(ctx, h, name, version)
		if err != nil {
			return err
		}
		if s.Missing {
			return usage("the weights of %s@%s are not on this machine; push where they are", name, version)
		}
		dir, want = s.Dir, model.Digest(s.Made.Digest)
		m.Scheme, m.Source, m.License, m.Base, m.Run = s.Scheme, s.Made.Source, s.Made.License, s.Made.Base, s.Run
	}
	m, sent, err := registry.Push(ctx, b, dir, m, want, e.bytes())
	if err != nil {
		return refused(err)
	}
	return e.answer(m, func(w *tabwriter.Writer) {
		row(w, "VERSION", "KIND", "DIGEST", "SENT", "REGISTRY")
		row(w, m.Name+"@"+m.Version, m.Kind, m.Digest.Short(), mib(sent), b)
	})
}

func newModelsPullCmd(e *env) *cobra.Command {
	var at, out string
	c := &cobra.Command{
		Use:   "pull NAME@VERSION --out DIR",
		Short: "Bring a version in from the fleet's registry",
		Long: `Pull brings a version's files from a registry to a folder of --out that is named by
their digest, as llmops download does, which also takes s3://bucket/prefix#NAME@VERSION,
and so does source in a model.yaml. What is there already is not fetched.

  llmops models pull freight@v1 --registry s3://acme/models --out /var/lib/models`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return usage("models pull needs --out")
			}
			if _, _, err := registry.ParseRef(args[0]); err != nil {
				return &exitError{exitUsage, err}
			}
			var h *home
			if at == "" {
				var err error
				if h, err = e.openHome(); err != nil {
					return err
				}
			}
			b, err := e.shared(h, at)
			if err != nil {
				return err
			}
			return e.download(cmd.Context(), e.sources(), b.String()+"#"+args[0], out)
		},
	}
	c.Flags().StringVar(&at, "registry", "", registryFlag)
	c.Flags().StringVar(&out, "out", "", "the folder that snapshots are kept in")
	return c
}

// registered lists what a registry has.
func (e *env) registered(ctx context.Context, at, name string) error {
	b, err := e.shared(nil, at)
	if err != nil {
		return err
	}
	all, err := registry.List(ctx, b, name)
	if err != nil {
		return refused(err)
	}
	if name != "" && len(all) == 0 {
		return refused(fmt.Errorf("%s has no version of %s: %w", b, name, fleet.ErrNotFound))
	}
	if all == nil {
		all = []registry.Manifest{}
	}
	return e.answer(all, func(w *tabwriter.Writer) {
		row(w, "NAME", "VERSION", "KIND", "SCHEME", "SIZE", "DIGEST", "MADE FROM", "SOURCE", "LICENCE")
		for _, m := range all {
			row(w, m.Name, m.Version, m.Kind, dash(m.Scheme), mib(model.Manifest{Files: m.Files}.Size()), m.Digest.Short(), dash(short(m.Base)), dash(m.Source), dash(m.License))
		}
	})
}

// short is a digest in a column, or whatever else it is.
func short(s string) string {
	if d, err := model.ParseDigest(s); err == nil {
		return d.Short()
	}
	return s
}
