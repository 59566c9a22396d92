package cli

import (
	"context"
	"slices"
	"testing"
	"time"

	"llmops/pipeline/benchmark/load"
)

func TestTrafficGoesToRoutersInTurn(t *testing.T) {
	var got []int
	var all []load.Target
	for i := range 3 {
		all = append(all, func(context.Context, *load.Request, func() time.Duration, *load.Result) { got = append(got, i) })
	}
	to := inTurn(all)
	for range 4 {
		to(t.Context(), nil, nil, nil)
	}
	if !slices.Equal(got, []int{0, 1, 2, 0}) {
		t.Errorf("they went to %v", got)
	}
}
