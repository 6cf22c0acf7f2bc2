package hypervisor_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// The first output of the guests in testdata, and the input that makes echo power itself off.
const (
	counterBanner = "boot\n"
	echoBanner    = "ready\n"
	powerOffKey   = "\x04"
)

// waitTimeout limits every wait for a real machine. It is reached only if the test fails.
const waitTimeout = 5 * time.Minute

// spying records the QEMU that was started.
type spying struct {
	hypervisor.QEMU
	started chan *qemu.Process
}

func (s spying) Start(ctx context.Context, config qemu.Config) (hypervisor.Machine, error) {
	machine, err := s.QEMU.Start(ctx, config)
	if err == nil {
		s.started <- machine.(*qemu.Process)
	}
	return machine, err
}

// real is a hypervisor with a real QEMU whose guest is a boot sector.
type real struct {
	t          *testing.T
	controller *fakeController
	config     hypervisor.Config
	started    chan *qemu.Process
	term       context.CancelFunc
	done       chan struct{}
	end        vmpb.Termination
}

func newReal(t *testing.T, guest string) *real {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real QEMU machines")
	}
	if _, err := exec.LookPath(qemu.DefaultProgram); err != nil {
		t.Fatalf("%v; run hack/install-qemu.sh", err)
	}
	dir := t.TempDir()
	r := &real{t: t, controller: newFakeController(), started: make(chan *qemu.Process, 1), done: make(chan struct{})}
	t.Cleanup(r.controller.Close)
	spec := validSpec()
	spec.Resources = &vmpb.Resources{MemoryBytes: 32 << 20}
	spec.Address = []string{"10.77.0.16", "fd77::16"}
	paths := hypervisor.PathsFor(spec, dir)
	paths.UserData = filepath.Join(dir, "user-data")
	must(t, os.MkdirAll(filepath.Dir(paths.RootDisk), 0o700))
	must(t, os.WriteFile(paths.RootDisk, bootSector(t, guest), 0o600))
	must(t, os.WriteFile(paths.UserData, []byte("#cloud-config\n"), 0o600))
	r.config = hypervisor.Config{
		Spec: spec, Paths: paths, Connect: r.controller.Connect,
		Network:  []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/64")},
		Machines: spying{started: r.started},
	}
	return r
}

func (r *real) start() *real {
	ctx, cancel := context.WithCancel(context.Background())
	r.term = cancel
	go func() {
		defer close(r.done)
		r.end = hypervisor.Run(ctx, r.config)
	}()
	r.t.Cleanup(func() {
		r.controller.Respond(leaseTerminated())
		cancel()
		<-r.done
	})
	return r
}

// process waits for QEMU.
func (r *real) process() *qemu.Process {
	r.t.Helper()
	select {
	case process := <-r.started:
		return process
	case <-r.done:
		r.t.Fatalf("the hypervisor terminated: %+v", r.end)
	case <-time.After(waitTimeout):
		r.t.Fatal("QEMU did not start")
	}
	return nil
}

func (r *real) wantEnd(reason string) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(waitTimeout):
		r.t.Fatal("the hypervisor did not terminate")
	}
	if r.end.Reason != reason {
		r.t.Errorf("the hypervisor terminated with %+v, want %s", r.end, reason)
	}
}

func (r *real) dial() *grpc.ClientConn {
	r.t.Helper()
	conn, err := service.DialSocket(r.config.Paths.Socket())
	must(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *real) bounded() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), waitTimeout)
	r.t.Cleanup(cancel)
	return ctx
}

// terminal is a client of the console on the socket.
type terminal struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO]
	rest   string
}

func (r *real) console(conn *grpc.ClientConn) *terminal {
	r.t.Helper()
	stream, err := vmpb.NewOOBManagementClient(conn).Console(r.bounded())
	must(r.t, err)
	return &terminal{t: r.t, stream: stream}
}

// until reads up to the end of the text.
func (c *terminal) until(text string) {
	c.t.Helper()
	for {
		if _, after, found := strings.Cut(c.rest, text); found {
			c.rest = after
			return
		}
		message, err := c.stream.Recv()
		must(c.t, err)
		c.rest += string(message.GetData())
	}
}

func (c *terminal) send(text string) {
	c.t.Helper()
	must(c.t, c.stream.Send(&vmpb.ConsoleIO{Data: []byte(text)}))
}

func TestService_GuestOverSocket(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReal(t, "echo").start()
	process := r.process()
	conn := r.dial()
	first := r.console(conn)
	first.until(echoBanner)
	first.send("one\n")
	first.until("one\n")
	health, err := healthpb.NewHealthClient(conn).Check(r.bounded(), &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health.GetStatus(), err)
	}

	// A reset keeps the process and the console.
	for range 2 {
		_, err = vmpb.NewOOBManagementClient(conn).Reset(r.bounded(), &vmpb.ResetRequest{IdempotencyCounter: 7})
		must(t, err)
	}
	first.until(echoBanner)
	second := r.console(r.dial())
	first.send("two\n")
	first.until("two\n")
	second.until("two\n")
	var response struct{ Status runState }
	must(t, process.Monitor().Execute(r.bounded(), "query-status", nil, &response))
	if response.Status != running {
		t.Errorf("state = %s", response.Status)
	}

	second.send(powerOffKey)
	r.wantEnd(vmpb.EndGuestShutdown)
	if _, err := first.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("console error = %v, want UNAVAILABLE", err)
	}
}

func TestGuest_IsShutDownOnSIGTERM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		guest  string
		banner string
		grace  time.Duration
		want   qemu.ExitReason
	}{
		"obedient":           {"echo", echoBanner, waitTimeout, qemu.GuestShutdown},
		"ignores the button": {"counter", counterBanner, 5 * time.Second, qemu.HostQuit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReal(t, test.guest)
			r.config.Timing.Grace, r.config.Timing.Quit = test.grace, waitTimeout
			r.start()
			process := r.process()
			r.console(r.dial()).until(test.banner)
			r.term()
			r.wantEnd(vmpb.EndStopped)
			if exit := process.Exit(); exit.Reason != test.want {
				t.Errorf("exit = %s, want %s", exit, test.want)
			}
		})
	}
}

func TestGuest_IsPausedAndKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReal(t, "counter")
	r.controller.Respond(leasePaused())
	r.start()
	process := r.process()
	r.controller.Respond(leaseOK())
	r.console(r.dial()).until(counterBanner)
	r.controller.Respond(leaseTerminated())
	r.wantEnd(vmpb.EndTerminated)
	if exit := process.Exit(); exit.Reason != qemu.HostKilled {
		t.Errorf("exit = %s", exit)
	}
}

func TestGuest_QEMUCrashIsReported(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReal(t, "counter").start()
	process := r.process()
	r.console(r.dial()).until(counterBanner)
	must(t, syscall.Kill(process.PID(), syscall.SIGKILL))
	r.wantEnd(vmpb.EndQEMUFailed)
	if want := "QEMU exited: Crashed (signal: killed)"; r.end.Message != want {
		t.Errorf("message = %q, want %q", r.end.Message, want)
	}
}

func TestDisk_SecondHypervisorIsRejected(t *testing.T) {
	tier.All(t)
	t.Parallel()
	first := newReal(t, "counter").start()
	process := first.process()
	// Another Pod has its own run directory. The two locks are tested one at a time.
	for name, spoil := range map[string]func(path string){
		"the hypervisor's lock": func(string) {},
		"QEMU's lock":           func(path string) { must(t, os.Rename(path+".lock", path+".taken")) },
	} {
		t.Run(name, func(t *testing.T) {
			second := newReal(t, "counter")
			second.config.Paths.RootDisk = first.config.Paths.RootDisk
			spoil(first.config.Paths.RootDisk)
			second.config.Timing.LockRetry, second.config.Timing.LockLimit = 50*time.Millisecond, 500*time.Millisecond
			second.start().wantEnd(vmpb.EndDiskLocked)
		})
	}
	select {
	case <-process.Done():
		t.Errorf("the first machine failed: %s", process.Exit())
	default:
	}
}

func TestHypervisor_SpecRejectedByQEMU(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReal(t, "counter")
	r.config.Machines = hypervisor.QEMU{Override: "abacus"}
	r.start().wantEnd(vmpb.EndInvalidSpec)

	r = newReal(t, "counter")
	r.config.Machines = hypervisor.QEMU{Program: "qemu-that-is-missing"}
	r.start().wantEnd(vmpb.EndNoQEMU)
}

// The services are available at the reported endpoint, but only to authorized callers.
func TestService_OverNetwork(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReal(t, "echo")
	asked := make(chan string, 10)
	r.config.Peers = service.Peers{
		Listen: "127.0.0.1:0", Options: []grpc.ServerOption{grpc.MaxConcurrentStreams(10)},
		Authorize: func(_ context.Context, method string) error {
			asked <- method
			return status.Error(codes.PermissionDenied, "not you")
		},
	}
	r.start()
	r.process()
	r.console(r.dial()).until(echoBanner)
	report, err := r.controller.AwaitReport(r.bounded(), func(report *vmpb.ReportStateRequest) bool { return report.GetEndpoint() != "" })
	must(t, err)
	endpoint := report.GetEndpoint()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = vmpb.NewOOBManagementClient(conn).Reset(r.bounded(), &vmpb.ResetRequest{})
	if status.Code(err) != codes.PermissionDenied || <-asked != vmpb.OOBManagement_Reset_FullMethodName {
		t.Errorf("error = %v, want PERMISSION_DENIED", err)
	}
	r.term()
	r.wantEnd(vmpb.EndStopped)
	if _, err := net.Dial("tcp", endpoint); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the termination: %v", err)
	}
}
