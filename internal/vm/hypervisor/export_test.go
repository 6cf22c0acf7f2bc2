package hypervisor

import (
	"context"
	"net"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// RunOn is like Run, with a listener of the test instead of the Unix socket. In a testing/synctest bubble, time
// does not pass while a goroutine waits for a real socket.
func RunOn(ctx context.Context, config Config, local net.Listener) vmpb.Termination {
	return TerminationOf(run(ctx, config.withDefaults(), func(Config) (net.Listener, net.Listener, error) {
		return local, nil, nil
	}))
}
