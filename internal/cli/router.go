package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"llmops/serving/router"
	"llmops/serving/trace"
)

func newRouterCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "router",
		Short: "Give requests to the versions that serve them",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRouterServeCmd(e))
	return c
}

func newRouterServeCmd(e *env) *cobra.Command {
	var listen, admin, state, records, size string
	var o router.Options
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a router over a state directory",
		Long: `Serve runs a router: an OpenAI-compatible gateway on --listen and, on --admin,
what controllers talk to. It reads routes and replicas from the state directory
and needs nobody else to go on.

  llmops router serve --records /var/lib/llmops/records --records-size 4GiB

With --records it writes a line for each request: who asked which version for how many
tokens, when, and how it ended. There is no word of a prompt or an answer in it: of
prompts there are hashes, under a key that the folder has in its file key. llmops cost
--usage bills such a folder, llmops benchmark --trace replays it. A disk that is full or
slow costs records, which /metrics counts, and never a request.

` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			open := e.openHome
			if state != "" {
				open = func() (*home, error) { return e.homeAt(state) }
			}
			h, err := open()
			if err != nil {
				return err
			}
			o.Store = h.store
			o.Log = slog.New(slog.NewTextHandler(e.err, nil))
			if o.Records, err = recorder(records, size, o); err != nil {
				return err
			}
			return e.serveRouter(cmd.Context(), o, listen, admin)
		},
	}
	c.Flags().StringVar(&listen, "listen", defaultListen, "the address clients use")
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:0", "the address controllers use")
	c.Flags().StringVar(&state, "state", "", "the state directory; default: as for every command")
	c.Flags().StringVar(&o.Name, "name", "router", "the name in reports")
	c.Flags().StringVar(&o.Zone, "zone", "", "the zone it serves")
	c.Flags().StringVar(&o.Pool, "pool", "", "the pool it serves")
	c.Flags().StringVar(&records, "records", "", "a folder for a record of each request; without, there are none")
	c.Flags().StringVar(&size, "records-size", "1GiB", "what this router's files there may take; the oldest go first")
	return c
}

// recorder is what writes records into a folder; nil without one.
func recorder(dir, size string, o router.Options) (*trace.Recorder, error) {
	n, err := bytesOf("--records-size", size)
	if err != nil || dir == "" {
		return nil, err
	}
	if n < trace.MinSize {
		return nil, usage("--records-size %s: want at least %d KiB", size, trace.MinSize>>10)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, usage("--records: %w", err)
	}
	key, err := trace.MakeKey(filepath.Join(dir, trace.KeyFile))
	if err != nil {
		return nil, usage("--records: %w", err)
	}
	r, err := trace.NewRecorder(trace.Options{Dir: dir, Name: o.Name, Size: n, Key: key, Log: o.Log})
	if err != nil {
		return nil, usage("--records: %w", err)
	}
	return r, nil
}

func (e *env) serveRouter(ctx context.Context, o router.Options, listen, admin string) error {
	traffic, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listening: %w; choose another --listen", err)
	}
	control, err := net.Listen("tcp", admin)
	if err != nil {
		_ = traffic.Close()
		return fmt.Errorf("listening: %w; choose another --admin", err)
	}
	e.say("serving on http://%s, admin on http://%s", traffic.Addr(), control.Addr())
	return router.New(o).Serve(ctx, traffic, control)
}
