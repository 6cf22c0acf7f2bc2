// Package app runs the machine controller of a provider, at MCM's import path.
package app

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/app/options"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
)

// Run runs the machine controller of a provider until it receives SIGTERM or SIGINT, and then returns nil. If the
// program was called with the command "conformance" or "instance", Run runs that command instead, which needs no cluster.
// Run may be called once in a process.
func Run(s *options.MCServer, d driver.Driver) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer context.AfterFunc(ctx, stop)() // a second signal terminates the process immediately
	serveDefaultMetrics()
	return s.Serve(ctx, d)
}
