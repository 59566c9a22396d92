package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"llmops/serving/embedded/ceiling"
)

// ceilingsFile keeps what doctor measured of a machine in the state directory.
const ceilingsFile = "ceilings.json"

const howToMeasure = "llmops doctor --measure, while nothing else runs; benchmarks of gpu: cpu are then held against it"

// ceilings are those of this machine, as measured; nil where they were not, or on
// another machine, or before this one was changed.
func ceilings(dir string) (*ceiling.Ceilings, error) {
	c, err := ceiling.Read(filepath.Join(dir, ceilingsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	here := ceiling.ThisMachine()
	here.MemoryBytes = c.Machine.MemoryBytes // kernels differ in what they keep of it
	if c.Machine != here {
		return nil, fmt.Errorf("they are of %s with %d threads of %s; this is %s with %d of %s", c.Machine.Host, c.Machine.Threads, c.Machine.CPU, here.Host, here.Threads, here.CPU)
	}
	return c, nil
}

// checkCeilings tells what was measured earlier.
func checkCeilings(dir string, now time.Time) examined {
	c, err := ceilings(dir)
	switch {
	case err != nil:
		return examined{check: check{"ceilings", checkInfo, err.Error(), howToMeasure}}
	case c == nil:
		return examined{check: check{"ceilings", checkInfo, "not measured", howToMeasure}}
	}
	found := fmt.Sprintf("%s; measured %s ago", reached(c), ago(now.Sub(c.Measured)))
	return examined{check{"ceilings", checkOK, found, "nothing; --measure measures again"}, c}
}

// measureCeilings measures this machine and keeps the result. What a busy machine
// reaches is refused: it is not enough evidence, and nothing is kept.
func measureCeilings(ctx context.Context, dir string, now time.Time) (examined, error) {
	bad := func(code int, err error) (examined, error) {
		return examined{check: check{"ceilings", checkWarn, "not measured, see below", howToMeasure}}, &exitError{code, err}
	}
	o := ceiling.Options{Machine: ceiling.ThisMachine(), Now: now}
	o.FreeBytes, _ = freeMemory()
	c, err := ceiling.Measure(ctx, o)
	if err != nil {
		return bad(exitInconclusive, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return bad(exitFailed, fmt.Errorf("keeping what was measured: %w", err))
	}
	if err := ceiling.Write(filepath.Join(dir, ceilingsFile), c); err != nil {
		return bad(exitFailed, fmt.Errorf("keeping what was measured: %w", err))
	}
	out := examined{check{"ceilings", checkOK, fmt.Sprintf("%s; measured in %.1f s", reached(c), c.Took), "nothing; benchmarks of gpu: cpu are held against it"}, c}
	if w := c.Warnings(); len(w) > 0 {
		out.State, out.Found, out.Do = checkWarn, out.Found+"; "+strings.Join(w, "; "), "measure again while the machine has nothing else to do"
	}
	return out, nil
}

// reached says what the two roofs are; the figures behind them are in the JSON.
func reached(c *ceiling.Ceilings) string {
	below := 0.0
	for _, r := range []ceiling.Rates{c.One, c.All} {
		below = max(below, r.Read.Spread, r.Row.Spread, r.F32.Spread, r.BF16.Spread)
	}
	return fmt.Sprintf("memory %.1f GB/s on 1 thread, %.1f on %d; arithmetic %.0f GFLOP/s on 1, %.0f on %d; medians up to %.0f%% below",
		c.One.Bandwidth()/1e9, c.All.Bandwidth()/1e9, c.All.Threads, c.One.FLOPS()/1e9, c.All.FLOPS()/1e9, c.All.Threads, 100*below)
}

// ago is a time in its largest unit.
func ago(d time.Duration) string {
	switch {
	case d < time.Hour:
		return fmt.Sprintf("%d min", max(0, d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
