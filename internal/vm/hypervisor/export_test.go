package hypervisor

import (
	"context"
	"net"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// RunOn is Run with a listener of the test instead of the unix socket: in a bubble of testing/synctest, time does not
// pass while a goroutine waits for a real socket.
func RunOn(ctx context.Context, config Config, local net.Listener) vmpb.Termination {
	return TerminationOf(run(ctx, config.withDefaults(), func(Config) (net.Listener, net.Listener, error) {
		return local, nil, nil
	}))
}
