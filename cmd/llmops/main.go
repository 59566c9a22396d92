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
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // a terminal that closes, unless nohup was asked for
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	code := cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
