package arrival

import (
	"context"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// StartMigration implements vmpb.HypervisorServer. Its errors are gRPC statuses.
func (a *Arrival) StartMigration(ctx context.Context, request *vmpb.StartMigrationRequest) (*vmpb.StartMigrationResponse, error) {
	if err := a.admit(ctx, request.GetUs()); err != nil {
		return nil, err
	}
	got := make(chan reply, 1)
	select {
	case a.calls <- call{request, localHost(ctx), got}:
	case <-a.over:
		return nil, errBusy
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	select {
	case r := <-got:
		return r.response, r.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// admit rejects callers that are not the source.
func (a *Arrival) admit(ctx context.Context, us *vmpb.HypervisorID) error {
	pod, err := a.Siblings.Caller(ctx)
	switch {
	case err != nil:
		return err
	case us.GetPodName() == "" || us.GetRunId() == 0:
		return status.Error(codes.InvalidArgument, "the caller's identity is incomplete")
	case us.GetPodName() != pod:
		return status.Errorf(codes.PermissionDenied, "%s may not act for %s", pod, us.GetPodName())
	case us.GetVmName() != a.Us.GetVmName() || us.GetNamespace() != a.Us.GetNamespace():
		return status.Error(codes.FailedPrecondition, "this hypervisor is waiting for another VM")
	case a.Source != "" && a.Source != pod:
		return status.Errorf(codes.FailedPrecondition, "this hypervisor is waiting for a migration from %s", a.Source)
	case pod == a.Us.GetPodName():
		return status.Error(codes.InvalidArgument, "a VM cannot migrate to its own hypervisor")
	}
	return nil
}

// localHost returns the local address that the caller connected to.
func localHost(ctx context.Context) string {
	if caller, known := peer.FromContext(ctx); known {
		if address, isTCP := caller.LocalAddr.(*net.TCPAddr); isTCP {
			return address.IP.String()
		}
	}
	return "localhost"
}
