package hypervisor

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/network/overlay"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

// leaveLimit is how long the controller may take to revoke the key of this process.
const leaveLimit = 2 * time.Second

// guestOverlay connects the guest to the guests of other hypervisors. The zero value connects it to none.
type guestOverlay struct {
	endpoint  *overlay.Endpoint // nil without an overlay
	cancel    context.CancelFunc
	following sync.WaitGroup
}

// openOverlay opens the overlay before the guest exists, so that others can learn early where it will be.
func (h *hypervisor) openOverlay(context.Context) error {
	if h.config.Overlay == nil || len(h.config.Network) == 0 {
		return nil
	}
	config := *h.config.Overlay
	config.Log = h.log
	endpoint, err := overlay.New(config)
	if errors.Is(err, syscall.EADDRINUSE) { // Pods that share the address of their host
		h.log.Warn("another process uses the port of the overlay; using another port, which network policies may block", "port", config.Listen.Port())
		config.Listen = netip.AddrPortFrom(config.Listen.Addr(), 0)
		endpoint, err = overlay.New(config)
	}
	if err != nil {
		return err
	}
	h.overlay.endpoint = endpoint
	h.overlay.follow(h.conn, h.us)
	return nil
}

// follow announces the endpoint for a run of this process, instead of an earlier one.
func (o *guestOverlay) follow(conn grpc.ClientConnInterface, us *vmpb.HypervisorID) {
	if o.endpoint == nil {
		return
	}
	o.stop()
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	o.following.Go(func() { o.endpoint.Follow(ctx, conn, overlayProcess(us)) })
}

func (o *guestOverlay) stop() {
	if o.cancel != nil {
		o.cancel()
		o.following.Wait()
	}
}

// close leaves the overlay once the guest has terminated.
func (o *guestOverlay) close(conn grpc.ClientConnInterface, us *vmpb.HypervisorID, log *slog.Logger) {
	if o.endpoint == nil {
		return
	}
	o.stop()
	o.endpoint.Close()
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	if err := overlay.Leave(ctx, conn, overlayProcess(us)); err != nil {
		log.Info("cannot revoke the key of the overlay; it is revoked when the pod has terminated", "error", err)
	}
}

func overlayProcess(us *vmpb.HypervisorID) *overlaypb.Process {
	return &overlaypb.Process{Namespace: us.GetNamespace(), VmName: us.GetVmName(), PodName: us.GetPodName(), RunId: us.GetRunId()}
}
