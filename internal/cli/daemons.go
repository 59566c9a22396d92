package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet/local"
	"llmops/watch"
)

// drainWait bounds how long a server goes on with what it has begun.
const drainWait = 10 * time.Second

// serveHTTP serves until the context ends, then lets drain finish what has
// begun.
func (e *env) serveHTTP(ctx context.Context, listen string, h http.Handler, drain func(context.Context) error) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listening: %w; choose another --listen", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	e.say("serving on http://%s", l.Addr())
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWait)
	defer cancel()
	err = drain(dctx)
	if errors.Is(err, context.DeadlineExceeded) {
		e.say("what was not finished after %v was broken off", drainWait)
		err = nil
	}
	sctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	if serr := srv.Shutdown(sctx); serr != nil {
		serr = srv.Close()
		err = errors.Join(err, serr)
	}
	return err
}

func newWatchCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Supervise replicas and drive detached runs",
		Long: `Watch supervises the replicas of this machine's fleet and drives the runs that
were handed over to it. Other commands start it in the background when they
need it; one runs for each state directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := e.openHome()
			if err != nil {
				return err
			}
			return e.watch(cmd.Context(), h)
		},
	}
}

func (e *env) watch(ctx context.Context, h *home) error {
	bin, err := os.Executable()
	if err != nil {
		return err
	}
	owner, release, err := h.own("watch")
	if err != nil {
		return err
	}
	defer release()
	log := slog.New(slog.NewTextHandler(e.err, nil))
	deps := h.deps()
	deps.Point = e.faultPoint()
	err = watch.Run(ctx, watch.Options{
		Supervisor: &local.Supervisor{Store: h.local, Dir: h.dir, Bin: bin, Env: os.Environ(), Log: log},
		Store:      h.store,
		Owner:      owner,
		Log:        log,
		Deps:       deps,
	})
	if errors.Is(err, local.ErrSupervised) {
		return usage("%s: %w", h.dir, err)
	}
	return err
}
