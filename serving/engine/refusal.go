package engine

import (
	"errors"
	"fmt"
)

// Refusal is something asked for that an engine does not have, or not in this way.
type Refusal struct {
	Engine string
	Option string // as model.yaml names it within engine; "source" and "gpu" are not in there
	Reason string // empty: the engine has no such option
}

func (r *Refusal) Error() string {
	if r.Reason == "" {
		return fmt.Sprintf("engine %s has no %s", r.Engine, r.Option)
	}
	return fmt.Sprintf("engine %s: %s: %s", r.Engine, r.Option, r.Reason)
}

// Refusals are those in an error of [Group] or [About], and what else it says.
func Refusals(err error) (all []*Refusal, others []error) {
	var one *Refusal
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
	case ok:
		for _, e := range joined.Unwrap() {
			r, o := Refusals(e)
			all, others = append(all, r...), append(others, o...)
		}
	case errors.As(err, &one):
		all = append(all, one)
	default:
		others = append(others, err)
	}
	return all, others
}
