package arrival

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// caller is the name of the calling Pod.
type caller string

func (c caller) Caller(context.Context) (string, error) {
	if c == "" {
		return "", status.Error(codes.Unauthenticated, "no certificate")
	}
	return string(c), nil
}

func (caller) Accept(context.Context, net.Conn, string, string) (*tls.Conn, error) {
	return nil, errors.New("no connection expected")
}

// machine waits for a state that never arrives.
type machine struct{ done chan struct{} }

func (machine) Receive(context.Context, []qemu.Export) error { return nil }
func (machine) Received(ctx context.Context) error           { <-ctx.Done(); return ctx.Err() }
func (machine) CloseExports(context.Context) error           { return nil }
func (machine) Dial(context.Context, qemu.Socket) (net.Conn, error) {
	return nil, errors.New("no connection expected")
}
func (m machine) Done() <-chan struct{} { return m.done }
func (machine) Exit() qemu.Exit         { return qemu.Exit{} }

// controller responds to switchover requests.
type controller struct {
	vmpb.VMControllerClient
	respond func() error
}

func (c controller) MigrationSwitchover(
	context.Context, *vmpb.MigrationSwitchoverRequest, ...grpc.CallOption,
) (*vmpb.MigrationSwitchoverResponse, error) {
	return &vmpb.MigrationSwitchoverResponse{}, c.respond()
}

func id(pod string, run uint64) *vmpb.HypervisorID {
	return &vmpb.HypervisorID{VmName: "web", Namespace: "default", PodName: pod, RunId: run}
}

func newArrival(change func(*Options)) *Arrival {
	options := Options{
		Us: id("web-2", 7), Source: "web-1", Siblings: caller("web-1"),
		Describe: func() (negotiation.Machine, error) { return negotiation.Machine{Hardware: "pc"}, nil },
		Start: func(context.Context, []*vmpb.DiskSize) (Machine, error) {
			return machine{make(chan struct{})}, nil
		},
		Log: slog.New(slog.DiscardHandler),
	}
	change(&options)
	return New(options)
}

func offer(us *vmpb.HypervisorID, hardware string) *vmpb.StartMigrationRequest {
	return &vmpb.StartMigrationRequest{
		Us: us, SupportedMigrationProtocol: negotiation.Offer(negotiation.Machine{Hardware: hardware, DiskBytes: 512}),
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestArrival_RejectsCallers(t *testing.T) {
	for name, test := range map[string]struct {
		caller caller
		us     *vmpb.HypervisorID
		want   codes.Code
	}{
		"no certificate":  {"", id("web-1", 1), codes.Unauthenticated},
		"nobody":          {"web-1", nil, codes.InvalidArgument},
		"no run ID":       {"web-1", id("web-1", 0), codes.InvalidArgument},
		"another Pod":     {"web-1", id("web-3", 1), codes.PermissionDenied},
		"another VM":      {"web-1", &vmpb.HypervisorID{VmName: "db", Namespace: "default", PodName: "web-1", RunId: 1}, codes.FailedPrecondition},
		"another source":  {"web-3", id("web-3", 1), codes.FailedPrecondition},
		"the same Pod":    {"web-2", id("web-2", 1), codes.FailedPrecondition},
		"not waiting yet": {"web-1", id("web-1", 1), codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newArrival(func(o *Options) { o.Siblings = test.caller })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := a.StartMigration(ctx, offer(test.us, "pc"))
				wantCode(t, err, test.want)
			})
		})
	}
	a := newArrival(func(o *Options) { o.Siblings, o.Source = caller("web-2"), "" })
	_, err := a.StartMigration(t.Context(), offer(id("web-2", 1), "pc"))
	wantCode(t, err, codes.InvalidArgument)
}

// The first acceptable call starts the migration. The same source may repeat the call until it connects.
func TestArrival_CallsMayBeRepeated(t *testing.T) {
	var started [][]*vmpb.DiskSize
	a := newArrival(func(o *Options) {
		start := o.Start
		o.Start = func(ctx context.Context, disks []*vmpb.DiskSize) (Machine, error) {
			started = append(started, disks)
			return start(ctx, disks)
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	_, err := a.StartMigration(t.Context(), offer(id("web-1", 1), "another machine"))
	wantCode(t, err, codes.InvalidArgument)
	first, err := a.StartMigration(t.Context(), offer(id("web-1", 1), "pc"))
	wantCode(t, err, codes.OK)
	if _, err := negotiation.Verify(offer(nil, "pc").GetSupportedMigrationProtocol(), first.GetMigrationProtocol()); err != nil {
		t.Error(err)
	}
	again, err := a.StartMigration(t.Context(), offer(id("web-1", 1), "pc"))
	wantCode(t, err, codes.OK)
	if !proto.Equal(first, again) || len(started) != 1 || started[0][0].GetBytes() != 512 {
		t.Errorf("started %d machines, responses %v and %v", len(started), first, again)
	}
	_, err = a.StartMigration(t.Context(), offer(id("web-1", 2), "pc"))
	wantCode(t, err, codes.FailedPrecondition)
	end := errors.New("the process must terminate")
	cancel(end)
	if err := <-ended; !errors.Is(err, end) {
		t.Errorf("error = %v", err)
	}
	_, err = a.StartMigration(t.Context(), offer(id("web-1", 1), "pc"))
	wantCode(t, err, codes.FailedPrecondition)
}

// Each disk has its own export and starts empty, with the size of the source's disk.
func TestArrival_DisksAreExportedOneByOne(t *testing.T) {
	source := negotiation.Machine{Hardware: "pc", DiskBytes: 512, DataDisks: []negotiation.DataDisk{{Name: "root", Bytes: 1024}, {Name: "db", Bytes: 2048}}}
	var started []*vmpb.DiskSize
	var received []qemu.Export
	a := newArrival(func(o *Options) {
		o.Describe = func() (negotiation.Machine, error) { return source, nil }
		o.Start = func(_ context.Context, disks []*vmpb.DiskSize) (Machine, error) {
			started = disks
			return exporting{machine{make(chan struct{})}, &received}, nil
		}
	})
	go func() { _ = a.Run(t.Context()) }()
	offered := negotiation.Offer(source)
	response, err := a.StartMigration(t.Context(), &vmpb.StartMigrationRequest{Us: id("web-1", 1), SupportedMigrationProtocol: offered})
	wantCode(t, err, codes.OK)
	agreed, err := negotiation.Verify(offered, response.GetMigrationProtocol())
	if err != nil {
		t.Fatal(err)
	}
	want := []qemu.Export{{Name: agreed.GetNegotiatedExport()}, {Serial: "root", Name: agreed.GetNegotiatedDataExports()[0]}, {Serial: "db", Name: agreed.GetNegotiatedDataExports()[1]}}
	if !slices.Equal(received, want) {
		t.Errorf("received exports %v, want %v", received, want)
	}
	var sizes []uint64
	for _, disk := range started {
		sizes = append(sizes, disk.GetBytes())
	}
	if !slices.Equal(sizes, []uint64{512, 1024, 2048}) {
		t.Errorf("started the machine with disks of %v bytes", sizes)
	}
}

// exporting records the exports that it receives.
type exporting struct {
	machine
	received *[]qemu.Export
}

func (e exporting) Receive(_ context.Context, exports []qemu.Export) error {
	*e.received = exports
	return nil
}

func TestArrival_NoMigration(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no call":       func(o *Options) { o.Timing.Call = time.Nanosecond },
		"no connection": func(o *Options) { o.Timing.Connect = time.Nanosecond },
		"no QEMU": func(o *Options) {
			o.Start = func(context.Context, []*vmpb.DiskSize) (Machine, error) { return nil, errors.New("none") }
		},
		"QEMU exits": func(o *Options) {
			o.Start = func(context.Context, []*vmpb.DiskSize) (Machine, error) {
				m := machine{make(chan struct{})}
				close(m.done)
				return m, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArrival(change)
			ended := make(chan error)
			go func() { ended <- a.Run(t.Context()) }()
			if name != "no call" {
				_, _ = a.StartMigration(t.Context(), offer(id("web-1", 1), "pc"))
			}
			if err := <-ended; !errors.Is(err, ErrNotArrived) {
				t.Errorf("error = %v, want ErrNotArrived", err)
			}
			if a.target.MayRun() {
				t.Error("MayRun() = true, want false")
			}
		})
	}
}

// Only OK lets the guest run, and only FAILED_PRECONDITION means that it must not run.
func TestArrival_Switchover(t *testing.T) {
	away := status.Error(codes.Unavailable, "")
	for name, test := range map[string]struct {
		responses []error // the last one is repeated
		runs      bool
		within    time.Duration
	}{
		"yes":                {[]error{nil}, true, 0},
		"no":                 {[]error{status.Error(codes.FailedPrecondition, "")}, false, 0},
		"eventually granted": {[]error{away, errors.New("lost"), nil}, true, time.Second},
		"no response":        {[]error{away}, false, 31 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				a := newArrival(func(o *Options) {
					o.Controller = controller{respond: func() error {
						asked++
						return test.responses[min(asked, len(test.responses))-1]
					}}
				})
				a.machine = machine{make(chan struct{})}
				a.take(handover.Called)
				a.take(handover.Received)
				begun := time.Now()
				err := a.switchOver(t.Context())
				if a.target.MayRun() {
					t.Error("the guest may run without a lease")
				}
				if err == nil {
					err = a.awaitLease(t.Context())
				}
				if (err == nil) != test.runs || a.target.MayRun() != test.runs || time.Since(begun) > test.within {
					t.Errorf("error = %v after %v, MayRun() = %t", err, time.Since(begun), a.target.MayRun())
				}
			})
		})
	}
}

// The guest runs only with a lease.
func TestArrival_GuestRequiresLease(t *testing.T) {
	denied := errors.New("terminated")
	for name, want := range map[string]error{"given": nil, "denied": denied} {
		t.Run(name, func(t *testing.T) {
			a := newArrival(func(o *Options) { o.Lease = func(context.Context) error { return want } })
			for _, event := range []handover.TargetEvent{handover.Called, handover.Received, handover.SwitchedOver} {
				a.take(event)
			}
			err := a.awaitLease(t.Context())
			if !errors.Is(err, want) || a.target.MayRun() != (want == nil) {
				t.Errorf("error = %v, MayRun() = %t", err, a.target.MayRun())
			}
		})
	}
}

// loaded is a machine that has loaded its state and has no exports.
type loaded struct{ machine }

func (loaded) Received(context.Context) error     { return nil }
func (loaded) CloseExports(context.Context) error { return errors.New("no exports") }

// A target that shares disks with the source asks for the authority only once it holds their locks.
func TestArrival_TakesSharedDisksFirst(t *testing.T) {
	locked := errors.New("another process holds a lock")
	for name, want := range map[string]error{"free": nil, "locked": locked} {
		t.Run(name, func(t *testing.T) {
			taken := 0
			a := newArrival(func(o *Options) {
				o.TakeDisks = func(_ context.Context, from *vmpb.HypervisorID) error {
					taken += int(from.GetRunId())
					return want
				}
			})
			a.machine, a.response = loaded{machine{make(chan struct{})}}, &vmpb.StartMigrationResponse{
				MigrationProtocol: negotiation.Offer(negotiation.Machine{Hardware: "pc", SharedDisk: true})[0],
			}
			a.them = id("web-1", 1)
			a.take(handover.Called)
			err := a.complete(t.Context())
			if !errors.Is(err, want) || taken != 1 || (a.target.State() == handover.Switching) != (want == nil) {
				t.Errorf("error = %v, %d attempts to take the disks, target state = %s", err, taken, a.target.State())
			}
		})
	}
}

// The target's own disks are locked from the beginning.
func TestArrival_OwnDisksAreNotLockedAgain(t *testing.T) {
	a := newArrival(func(o *Options) {
		o.TakeDisks = func(context.Context, *vmpb.HypervisorID) error { return errors.New("the disks are already locked") }
	})
	a.machine, a.response = machine{make(chan struct{})}, &vmpb.StartMigrationResponse{
		MigrationProtocol: negotiation.Offer(negotiation.Machine{Hardware: "pc", DiskBytes: 512})[0],
	}
	a.take(handover.Called)
	if err := a.complete(t.Context()); err != nil || a.target.State() != handover.Switching {
		t.Errorf("error = %v, target state = %s", err, a.target.State())
	}
}
