package quantise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"llmops/model"
)

// sumsName is the file of digests that sha256sum -c reads.
const sumsName = "SHA256SUMS"

// apart refuses a result that would be copied into itself, or replace its source.
func apart(src, dst string) error {
	from, err := filepath.EvalSymlinks(src)
	if err != nil {
		return fmt.Errorf("quantising: %w", err)
	}
	to := filepath.Clean(dst)
	if parent, err := filepath.EvalSymlinks(filepath.Dir(to)); err == nil {
		to = filepath.Join(parent, filepath.Base(to))
	}
	for _, p := range []*string{&from, &to} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	within := func(a, b string) bool { return strings.HasPrefix(a+"/", b+"/") }
	if within(from, to) || within(to, from) {
		return fmt.Errorf("%s and %s lie in each other; quantise to a folder beside the source", src, dst)
	}
	return nil
}

// claim empties the folder beside dst in which the result is made, and locks it
// until it is closed.
func claim(dst string) (*os.File, error) {
	name := filepath.Join(filepath.Dir(dst), ".partial-"+filepath.Base(dst))
	if err := os.MkdirAll(name, 0o700); err != nil {
		return nil, fmt.Errorf("making room for the quantised model: %w", err)
	}
	part, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("making room for the quantised model: %w", err)
	}
	if err := syscall.Flock(int(part.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is being written by another process; wait for it", dst), part.Close())
	}
	left, err := os.ReadDir(name)
	for _, e := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(name, e.Name())))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("removing what an earlier run left: %w", err), part.Close())
	}
	return part, nil
}

// room refuses what the disk of dir cannot hold, before the hour in which it
// would find out.
func room(dir string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return nil // some file systems do not tell
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need {
		return fmt.Errorf("%s has %d bytes free, the quantised model needs %d", filepath.Dir(dir), free, need)
	}
	return nil
}

// side carries over every file that is neither weights nor rewritten. Weights in
// folders below belong to other modules and stay as they are; folders whose name
// begins with a dot are a clone's or a download's own.
func side(src, dst string) error {
	return filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			if rel != "." && strings.HasPrefix(e.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case filepath.Base(rel) == rel && (strings.HasSuffix(rel, ".safetensors") || strings.HasSuffix(rel, ".safetensors.index.json")),
			rel == "config.json", rel == sumsName, model.Unsafe(rel):
			return nil
		}
		if info, err := os.Stat(path); err != nil {
			return fmt.Errorf("carrying over %s: %w", path, err)
		} else if !info.Mode().IsRegular() {
			return fmt.Errorf("carrying over %s: it is not a file; remove it", path)
		}
		to := filepath.Join(dst, rel)
		return errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), copyFile(path, to))
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), in.Close(), out.Close())
}

func writeFile(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error { return syncFile(dir) }

// writeSums writes the digests of files to dir and returns the file that has them.
func writeSums(dir string, files []model.File) (model.File, error) {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%s  %s\n", f.Digest.Hex(), f.Path)
	}
	if err := errors.Join(writeFile(filepath.Join(dir, sumsName), []byte(b.String())), syncDir(dir)); err != nil {
		return model.File{}, fmt.Errorf("writing digests: %w", err)
	}
	return model.File{Path: sumsName, Size: int64(b.Len()), Digest: model.DigestOf([]byte(b.String()))}, nil
}

// config writes config.json with what an engine must know of the scheme.
func config(src, dst string, o Options, steps []Step) error {
	return writeConfig(src, dst, schemes[o.Scheme].config(ignored(steps), o.Scales != nil && len(o.Scales.KV) > 0))
}

// writeConfig writes the source's config.json with quant, in the place where all
// engines look first.
func writeConfig(src, dst string, quant map[string]any) error {
	b, err := os.ReadFile(filepath.Join(src, "config.json"))
	if err != nil {
		return err
	}
	var c map[string]any
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("reading %s: %w", filepath.Join(src, "config.json"), err)
	}
	for _, key := range []string{"text_config", "llm_config", "language_config"} {
		if inner, ok := c[key].(map[string]any); ok {
			delete(inner, "quantization_config")
		}
	}
	delete(c, "compression_config")
	c["quantization_config"] = quant
	out, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dst, "config.json"), append(out, '\n'))
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
