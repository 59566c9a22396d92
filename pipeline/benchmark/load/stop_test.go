package load

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A source that makes requests ahead ends with the run's context, and may notice first.
// The run was stopped then, and nothing has failed.
func TestStoppedBySource(t *testing.T) {
	for name, run := range map[string]func(ctx context.Context, source Source, emit func(*Result)) (Stats, error){
		"open": func(ctx context.Context, source Source, emit func(*Result)) (Stats, error) {
			return Run(ctx, atOnce, Constant(1000), source, Options{}, emit)
		},
		"closed": func(ctx context.Context, source Source, emit func(*Result)) (Stats, error) {
			return Closed(ctx, atOnce, 1, 0, time.Hour, 0, source, Options{}, emit)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			got := 0
			stats, err := run(ctx, func(i int) (*Request, error) {
				if i == 3 {
					stop()
					return nil, errors.New("no more requests are made")
				}
				return &Request{}, nil
			}, func(*Result) { got++ })
			if err != nil || !stats.Stopped || stats.Sent != 3 || got != 3 {
				t.Errorf("%+v, %d results, %v", stats, got, err)
			}
		})
	}
}

func atOnce(_ context.Context, _ *Request, now func() time.Duration, res *Result) { res.Sent = now() }
