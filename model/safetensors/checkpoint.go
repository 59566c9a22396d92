package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/model"
)

// IndexName is the index that loaders look for first.
const IndexName = "model.safetensors.index.json"

// Checkpoint is the tensors of a folder, over all its shards.
type Checkpoint struct {
	Dir     string
	Indexed bool
	shards  map[string]*File
	where   map[string]place
}

type place struct {
	tensor Tensor
	file   *File
}

// OpenDir opens every shard that the folder's index names, or all its
// safetensors files when it has none, and checks that index and headers agree.
func OpenDir(dir string) (*Checkpoint, error) {
	c := &Checkpoint{Dir: dir, shards: make(map[string]*File), where: make(map[string]place)}
	if err := c.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening checkpoint %s: %w", dir, err), c.Close())
	}
	return c, nil
}

func (c *Checkpoint) open() error {
	index, shards, err := c.find()
	if err != nil {
		return err
	}
	c.Indexed = index != nil
	for _, name := range shards {
		f, err := Open(filepath.Join(c.Dir, name))
		if errors.Is(err, os.ErrNotExist) && index != nil {
			return fmt.Errorf("shard %s is missing: the index names it", name)
		}
		if err != nil {
			return err
		}
		c.shards[name] = f
		for _, t := range f.Tensors {
			if other, twice := c.where[t.Name]; twice {
				return fmt.Errorf("tensor %q is in both %s and %s", t.Name, filepath.Base(other.file.Path), name)
			}
			if index != nil && index[t.Name] != name {
				return fmt.Errorf("tensor %q is in %s but the index has it in %q", t.Name, name, index[t.Name])
			}
			c.where[t.Name] = place{t, f}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		if _, ok := c.where[name]; !ok {
			return fmt.Errorf("tensor %q is in the index but not in %s", name, index[name])
		}
	}
	return nil
}

// find returns the index, if any, and the names of the shards in order.
func (c *Checkpoint) find() (map[string]string, []string, error) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, nil, err
	}
	var indexes, files, pickles []string
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasSuffix(name, ".safetensors.index.json"):
			indexes = append(indexes, name)
		case strings.HasSuffix(name, ".safetensors"):
			files = append(files, name)
		case model.Unsafe(name):
			pickles = append(pickles, name)
		}
	}
	switch {
	case slices.Contains(indexes, IndexName):
		return c.readIndex(IndexName)
	case slices.Contains(files, "model.safetensors"):
		return nil, []string{"model.safetensors"}, nil
	case len(indexes) == 1:
		return c.readIndex(indexes[0])
	case len(indexes) > 1:
		return nil, nil, fmt.Errorf("several indexes and no %s: %s", IndexName, strings.Join(indexes, ", "))
	case len(files) > 0:
		return nil, files, nil
	case len(pickles) > 0:
		return nil, nil, fmt.Errorf("only pickled weights (%s), which can run code when they are loaded: convert them to safetensors", pickles[0])
	}
	return nil, nil, errors.New("no safetensors file")
}

func (c *Checkpoint) readIndex(name string) (map[string]string, []string, error) {
	b, err := os.ReadFile(filepath.Join(c.Dir, name))
	if err != nil {
		return nil, nil, err
	}
	index, err := parseIndex(b)
	if err != nil {
		return nil, nil, fmt.Errorf("parsing %s: %w", name, err)
	}
	return index, slices.Compact(slices.Sorted(maps.Values(index))), nil
}

func parseIndex(b []byte) (map[string]string, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	var index map[string]string
	err := eachKey(d, func(key string) error {
		if key != "weight_map" {
			var ignored json.RawMessage
			return d.Decode(&ignored)
		}
		index = make(map[string]string)
		return eachKey(d, func(tensor string) error {
			var shard string
			if err := d.Decode(&shard); err != nil {
				return fmt.Errorf("shard of %q: %w", tensor, err)
			}
			if filepath.Base(shard) != shard || !strings.HasSuffix(shard, ".safetensors") {
				return fmt.Errorf("shard %q of %q is not the name of a safetensors file in this folder", shard, tensor)
			}
			index[tensor] = shard
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if len(index) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	return index, nil
}

// AppendIndex writes an index as loaders want it. size is the sum of tensor
// bytes, headers not counted.
func AppendIndex(dst []byte, size int64, shardOf map[string]string) ([]byte, error) {
	b, err := json.MarshalIndent(map[string]any{"metadata": map[string]int64{"total_size": size}, "weight_map": shardOf}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing index: %w", err)
	}
	return append(append(dst, b...), '\n'), nil
}

// Tensors lists every tensor by name. Offsets are those in its shard.
func (c *Checkpoint) Tensors() []Tensor {
	out := make([]Tensor, 0, len(c.where))
	for _, p := range c.where {
		out = append(out, p.tensor)
	}
	slices.SortFunc(out, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Lookup finds a tensor by name.
func (c *Checkpoint) Lookup(name string) (Tensor, bool) {
	p, ok := c.where[name]
	return p.tensor, ok
}

// Reader gives the bytes of the tensor called name.
func (c *Checkpoint) Reader(name string) (*io.SectionReader, error) {
	p, ok := c.where[name]
	if !ok {
		return nil, fmt.Errorf("checkpoint %s has no tensor %q", c.Dir, name)
	}
	return p.file.Reader(p.tensor), nil
}

// ShardOf is the file name that holds the tensor called name, "" for none.
func (c *Checkpoint) ShardOf(name string) string {
	p, ok := c.where[name]
	if !ok {
		return ""
	}
	return filepath.Base(p.file.Path)
}

// Close closes every shard.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.shards {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
