// Command llmops brings open-weight models into live traffic and takes them
// back. See its help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"llmops/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
