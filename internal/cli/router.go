package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"llmops/serving/router"
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
	var listen, admin, state string
	var o router.Options
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a router over a state directory",
		Long: `Serve runs a router: an OpenAI-compatible gateway on --listen and, on --admin,
what controllers talk to. It reads routes and replicas from the state directory
and needs nobody else to go on.

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
			return e.serveRouter(cmd.Context(), o, listen, admin)
		},
	}
	c.Flags().StringVar(&listen, "listen", defaultListen, "the address clients use")
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:0", "the address controllers use")
	c.Flags().StringVar(&state, "state", "", "the state directory; default: as for every command")
	c.Flags().StringVar(&o.Name, "name", "router", "the name in reports")
	c.Flags().StringVar(&o.Zone, "zone", "", "the zone it serves")
	c.Flags().StringVar(&o.Pool, "pool", "", "the pool it serves")
	return c
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
