// Command driver runs the sim driver as a separate program, for a container. Its nodes join the cluster in which
// the Pod runs.
package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/cli/drivers"
	"github.com/millwright-dev/millwright/provider"
)

func main() {
	provider.Serve("sim", func(ctx context.Context, environment provider.Environment) (driver.Driver, error) {
		cluster, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the cluster that nodes join: %w", err)
		}
		environment.Target = cluster
		return (&drivers.SimOptions{Heartbeat: drivers.DefaultHeartbeat}).Open(ctx, environment)
	})
}
