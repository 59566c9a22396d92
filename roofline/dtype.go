package roofline

import "slices"

// dtype is how numbers are stored, and what one of them takes.
type dtype struct {
	name  string
	bytes float64
}

// weightTypes and kvTypes are in the order in which they are offered. int4 counts a
// scale for each 128 weights, and tables that stay in bf16.
var (
	weightTypes = []dtype{{"bf16", 2}, {"fp8", 1}, {"int8", 1}, {"int4", 0.53}}
	kvTypes     = []dtype{{"bf16", 2}, {"fp8", 1}}
)

// WeightBytes is what a weight takes; not ok for a type that is none.
func WeightBytes(name string) (bytes float64, ok bool) { return bytesOf(weightTypes, name) }

// KVBytes is what an element of the cache takes; not ok for a type that is none.
func KVBytes(name string) (bytes float64, ok bool) { return bytesOf(kvTypes, name) }

// DTypes are the names that WeightBytes and KVBytes know.
func DTypes() (weights, kv []string) { return namesOf(weightTypes), namesOf(kvTypes) }

func bytesOf(all []dtype, name string) (float64, bool) {
	i := slices.IndexFunc(all, func(d dtype) bool { return d.name == name })
	if i < 0 {
		return 0, false
	}
	return all[i].bytes, true
}

func namesOf(all []dtype) (out []string) {
	for _, d := range all {
		out = append(out, d.name)
	}
	return out
}
