package arrival

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// unreceptive is a machine that cannot receive.
type unreceptive struct{ machine }

func (unreceptive) Receive(context.Context, []qemu.Export) error { return errors.New("no socket") }

func TestArrival_SharedDisksAreNotCreated(t *testing.T) {
	shared := negotiation.Machine{Hardware: "pc", SharedDisk: true, DataDisks: []negotiation.DataDisk{{Name: "db"}}}
	var started []*vmpb.DiskSize
	var received []qemu.Export
	a := newArrival(func(o *Options) {
		o.Describe = func() (negotiation.Machine, error) { return shared, nil }
		o.Start = func(_ context.Context, disks []*vmpb.DiskSize) (Machine, error) {
			started = disks
			return exporting{machine{make(chan struct{})}, &received}, nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	response, err := a.StartMigration(t.Context(), &vmpb.StartMigrationRequest{
		Us: id("web-1", 1), SupportedMigrationProtocol: negotiation.Offer(shared),
	})
	wantCode(t, err, codes.OK)
	if chosen := response.GetMigrationProtocol().GetQemuNbd(); len(started)+len(received) > 0 || chosen.GetNegotiatedNbdEndpoint() != "" {
		t.Errorf("started with disks %v, exports %v, endpoint %q", started, received, chosen.GetNegotiatedNbdEndpoint())
	}
	address := strings.TrimPrefix(response.GetMigrationProtocol().GetQemuNbd().GetNegotiatedEndpoint(), "tcp:")
	cancel()
	<-ended
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the port is still open after Run has returned")
	}
}

func TestArrival_CallFailsIfTargetCannotReceive(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		fatal  bool // if false, a later call may succeed
	}{
		"no description": {func(o *Options) {
			o.Describe = func() (negotiation.Machine, error) { return negotiation.Machine{}, errors.New("no seed") }
		}, false},
		"no machine": {func(o *Options) {
			o.Start = func(context.Context, []*vmpb.DiskSize) (Machine, error) { return nil, errors.New("none") }
		}, true},
		"no socket": {func(o *Options) {
			o.Start = func(context.Context, []*vmpb.DiskSize) (Machine, error) {
				return unreceptive{machine{make(chan struct{})}}, nil
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArrival(test.change)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- a.Run(ctx) }()
			_, err := a.StartMigration(t.Context(), offer(id("web-1", 1), "pc"))
			wantCode(t, err, codes.Unavailable)
			if !test.fatal {
				cancel()
			}
			if err := <-ended; errors.Is(err, ErrNotArrived) != test.fatal {
				t.Errorf("error = %v", err)
			}
		})
	}
}
