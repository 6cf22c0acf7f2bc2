package hypervisor_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/program"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	storagepb "github.com/millwright-dev/millwright/proto/storage"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// diskFixture is a controller with a disk server of the VM web, on the network.
type diskFixture struct {
	t          *testing.T
	controller *fakeController
	authority  *identity.Authority
	issuer     string
	// root contains the files of the server. images contains the files from which disks are created.
	root, images string
	spec         *vmpb.VMSpec // the VM as the server sees it
	stop         func()
	end          vmpb.Termination
	conn         *grpc.ClientConn // from the controller to the server
}

const disksPod = "web-disks"

func newDiskFixture(t *testing.T) *diskFixture {
	t.Helper()
	authority, err := identity.NewAuthority(time.Now())
	must(t, err)
	s := &diskFixture{t: t, controller: newFakeController(), authority: authority, root: t.TempDir(), images: t.TempDir(), stop: func() {}}
	t.Cleanup(s.controller.Close)
	server := grpc.NewServer(identity.ForController(authority, nil).ServerOptions()...)
	identitypb.RegisterCertificateAuthorityServer(server, &identity.Issuer{
		Authority: authority,
		Resolve: func(_ context.Context, token string) (identity.Peer, error) {
			vm, pod, _ := strings.Cut(token, "/")
			return identity.Peer{Namespace: "default", VM: vm, Pod: pod}, nil
		},
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.issuer = listener.Addr().String()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	s.spec = leasedSpec()
	s.spec.PodName, s.spec.Mode, s.spec.RootDiskBytes = disksPod, vmpb.VMSpec_SM_PREPARE_IMAGE, scribeDisk
	s.spec.InitialImage = &vmpb.InitialImage{Url: "file://" + filepath.Join(s.images, "scribe.img")}
	bootDisk(t, "scribe", filepath.Join(s.images, "scribe.img"), 1<<20)
	must(t, os.MkdirAll(filepath.Dir(s.disk()), 0o700))
	s.data("logs")
	return s
}

// leasedSpec returns the specification of a VM with leases.
func leasedSpec() *vmpb.VMSpec {
	spec := validSpec()
	spec.LeaseMode, spec.LeaseDuration = vmpb.LeaseMode_LM_FULL_LEASES, durationpb.New(longLease)
	spec.Resources = &vmpb.Resources{MemoryBytes: 32 << 20}
	return spec
}

// longLease does not expire during any test.
const longLease = 10 * time.Minute

// disk returns the file of the root disk.
func (s *diskFixture) disk() string { return hypervisor.PathsFor(s.spec, s.root).RootDisk }

// data adds the given data disks to the server.
func (s *diskFixture) data(names ...string) {
	s.spec.DataDisks = nil
	for _, name := range names {
		data := dataDisk(name, 1<<20)
		s.spec.DataDisks = append(s.spec.DataDisks, data)
		must(s.t, os.MkdirAll(filepath.Join(s.root, filepath.Dir(data.GetPath())), 0o700))
	}
}

func (s *diskFixture) siblings(vm, pod string) identity.Siblings {
	s.t.Helper()
	token := filepath.Join(s.t.TempDir(), "token")
	must(s.t, os.WriteFile(token, []byte(vm+"/"+pod), 0o600))
	pem, _ := s.authority.PEM()
	credentials, err := identity.ForHypervisor(identity.Options{Authority: pem, TokenFile: token, Endpoint: s.issuer})
	must(s.t, err)
	return identity.Siblings{Credentials: credentials, Namespace: "default", VM: vm}
}

// serve starts the server and returns its volume once it is ready.
func (s *diskFixture) serve() storage.Volume {
	s.t.Helper()
	before := len(s.controller.Reports())
	siblings := s.siblings("web", disksPod)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	spec := proto.CloneOf(s.spec)
	go func() {
		defer close(ended)
		s.end = program.Run(ctx, program.Config{
			Spec: spec, Paths: hypervisor.PathsFor(spec, s.root), Control: "127.0.0.1:0", Sessions: "127.0.0.1:0",
			Options: siblings.Credentials.ServerOptions(identity.Only(identity.Peer.IsController)), Accept: siblings.AcceptAny,
			Connect: s.controller.Connect, WriteDisk: func(ctx context.Context, source image.Source, target image.Target, options image.Options) error {
				options.Access = image.Access{Files: s.images}
				return image.WriteDisk(ctx, source, target, options)
			},
		})
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	s.t.Cleanup(s.stop)
	report := s.report(before, func(report *vmpb.ReportStateRequest) bool {
		return report.GetUs().GetPodName() == disksPod && report.GetState() == vmpb.ReportStateRequest_STATE_RUNNING
	})
	if !report.GetImagePrepared() || len(report.GetDisks()) != 1+len(s.spec.GetDataDisks()) {
		s.t.Errorf("unexpected report of the server: %v", report)
	}
	conn, err := identity.ForController(s.authority, nil).Dial(report.GetEndpoint(), identity.Peer{Namespace: "default", VM: "web", Pod: disksPod})
	must(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	s.conn = conn
	return storage.At(conn)
}

// report waits for a matching report after the given number of earlier reports.
func (s *diskFixture) report(before int, fits func(*vmpb.ReportStateRequest) bool) *vmpb.ReportStateRequest {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	report, err := s.controller.AwaitLaterReport(ctx, before, fits)
	if err != nil {
		s.t.Fatalf("no matching report in %v: %v", s.controller.Reports()[before:], err)
	}
	return report
}

// leads makes the hypervisors' leases refer to a server and a token.
func (s *diskFixture) leads(token storage.Token, at storage.Attachment) {
	update := leaseFor(longLease)
	update.FencingToken = uint64(token)
	if at != (storage.Attachment{}) {
		update.DiskServer = &vmpb.DiskServer{Address: at.Address, Pod: at.Pod}
	}
	s.controller.Respond(update)
}

// opens makes the server open the disks to a Pod.
func (s *diskFixture) opens(volume storage.Volume, token storage.Token, pod string) storage.Attachment {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	at, err := volume.Open(ctx, token, pod)
	must(s.t, err)
	return at
}

// hypervisor returns a hypervisor of the Pod web-1 without its own disks.
func (s *diskFixture) hypervisor(data ...string) *real {
	s.t.Helper()
	r := newReal(s.t, "scribe")
	r.controller = s.controller
	spec := leasedSpec()
	spec.DisksServed = true
	for _, name := range data {
		spec.DataDisks = append(spec.DataDisks, dataDisk(name, 0))
	}
	dir := s.t.TempDir()
	r.config.Spec, r.config.Paths, r.config.Network = spec, hypervisor.PathsFor(spec, dir), nil
	r.config.Connect = s.controller.Connect
	r.config.DiskServer = s.siblings("web", "web-1").Connect
	r.config.Watchdog = func() (hypervisor.Watchdog, error) { return &fakeWatchdog{lost: make(chan struct{})}, nil }
	r.config.Timing.LockRetry = 100 * time.Millisecond
	r.config.Timing.Resume, r.config.Timing.Settle = 100*time.Millisecond, 500*time.Millisecond
	return r
}

// of matches the reports of web-1 in a state.
func of(state vmpb.ReportStateRequest_State, message string) func(*vmpb.ReportStateRequest) bool {
	return func(report *vmpb.ReportStateRequest) bool {
		return report.GetUs().GetPodName() == "web-1" && report.GetState() == state && strings.Contains(report.GetMessage(), message)
	}
}

// A guest starts from an image that the server has prepared. It continues after the server has been restarted at
// another address, and stops forever when its token is revoked.
func TestServedDisks_GuestStartsAndContinues(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newDiskFixture(t)
	s.leads(7, storage.Attachment{})
	r := s.hypervisor("logs").start()
	s.report(0, of(vmpb.ReportStateRequest_STATE_WAITING, "waiting for the disk server"))

	at := s.opens(s.serve(), 7, "web-1")
	s.leads(7, at)
	process := r.process()
	running := s.report(0, of(vmpb.ReportStateRequest_STATE_RUNNING, ""))
	if got := sizes(running); got != "root 3145728, logs 1048576" || !running.GetImagePrepared() || running.GetCanMigrate() {
		t.Errorf("disks = %s, CanMigrate = %v", got, running.GetCanMigrate())
	}
	console := r.console(r.dial())
	console.until("\naaaa") // it is writing
	if _, err := os.Stat(r.config.Paths.RootDisk); !os.IsNotExist(err) {
		t.Errorf("the hypervisor has its own disk: %v", err)
	}

	before := len(s.controller.Reports())
	s.stop()
	if s.end.Reason != vmpb.EndStopped {
		t.Errorf("the server terminated with %+v", s.end)
	}
	s.report(before, of(vmpb.ReportStateRequest_STATE_PAUSED, "The disks cannot be attached:"))
	before = len(s.controller.Reports())
	volume := s.serve()
	again := s.opens(volume, 7, "web-1")
	if again == at {
		t.Errorf("the server is at %v again", at)
	}
	s.leads(7, again)
	s.report(before, of(vmpb.ReportStateRequest_STATE_RUNNING, ""))

	before = len(s.controller.Reports())
	must(t, volume.Revoke(t.Context(), 7))
	content, err := os.ReadFile(s.disk())
	must(t, err)
	s.report(before, of(vmpb.ReportStateRequest_STATE_PAUSED, storage.ErrRevoked.Error()))
	after, err := os.ReadFile(s.disk())
	must(t, err)
	if !bytes.Equal(content, after) {
		t.Error("the guest wrote after its token was revoked")
	}
	s.controller.Respond(leaseTerminated())
	r.wantEnd(vmpb.EndTerminated)
	<-process.Done()
}

// The hypervisor reports what prevents it from attaching its disks, and waits until the problem is solved.
func TestServedDisks_AttachProblemsAreReported(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("runs real storage daemons")
	}
	s := newDiskFixture(t)
	at := s.opens(s.serve(), 7, "web-1")
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, gone.Close())
	for name, test := range map[string]struct {
		vm      string
		data    []string
		token   storage.Token
		at      storage.Attachment
		message string
	}{
		"no server":              {"web", nil, 7, storage.Attachment{}, "waiting for the disk server"},
		"no listener":            {"web", nil, 7, storage.Attachment{Address: gone.Addr().String(), Pod: disksPod}, "cannot use the disk server"},
		"unexpected Pod":         {"web", nil, 7, storage.Attachment{Address: at.Address, Pod: "web-2"}, "cannot use the disk server"},
		"another VM":             {"other", nil, 7, at, "cannot use the disk server"},
		"a token of another Pod": {"web", nil, 8, at, storage.ErrNotOpen.Error()},
		"no token":               {"web", nil, 0, at, storage.ErrNoToken.Error()},
		"a disk is missing":      {"web", []string{"logs", "db"}, 7, at, storage.ErrNoDisk.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.t, s.controller = t, newFakeController()
			t.Cleanup(s.controller.Close)
			r := s.hypervisor(test.data...)
			machines := &fakeMachines{}
			r.config.Machines = machines
			r.config.DiskServer = s.siblings(test.vm, "web-1").Connect
			s.leads(test.token, test.at)
			r.start()
			s.report(0, of(vmpb.ReportStateRequest_STATE_WAITING, test.message))
			if started := len(machines.Started()); started > 0 {
				t.Errorf("started %d machines", started)
			}
			if test.vm != "web" || test.data != nil {
				return
			}
			s.leads(7, at)
			s.report(0, of(vmpb.ReportStateRequest_STATE_RUNNING, ""))
		})
	}
}

// Without a server, the guest does not start, however long that takes. The hypervisor terminates on request.
func TestServedDisks_GuestDoesNotStartWithout(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(*process)
		want string
	}{
		"terminated":         {func(p *process) { p.controller.Respond(leaseTerminated()) }, vmpb.EndTerminated},
		"asked to terminate": {func(p *process) { p.term() }, vmpb.EndStopped},
		"cut off":            {func(p *process) { p.controller.SetAway(true) }, vmpb.EndLeaseExpired},
	} {
		t.Run(name, func(t *testing.T) {
			withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
				w.config.Spec.DisksServed = true
				w.config.DiskServer = (identity.Siblings{}).Connect
				p := w.start()
				pass(10 * time.Minute)
				p.wantAlive()
				if started := len(w.machines.Started()); started > 0 || w.disk() != "" {
					t.Errorf("started %d machines, disk = %q", started, w.disk())
				}
				test.end(p)
				p.wantEnd(test.want)
			})
		})
	}
}

// An earlier process in the same Pod may have left its QEMU running, which has attached the disks with the same
// token. The hypervisor asks for a lease only after that QEMU has terminated.
func TestServedDisks_WaitForEarlierProcess(t *testing.T) {
	withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
		w.config.Spec.DisksServed = true
		w.config.DiskServer = (identity.Siblings{}).Connect
		must(t, os.MkdirAll(w.config.Paths.Run, 0o700))
		left, err := disk.Acquire(filepath.Join(w.config.Paths.Run, "disks"))
		must(t, err)
		w.start().wantEnd(vmpb.EndDiskLocked)
		if asked := w.controller.Runs(); len(asked) > 0 {
			t.Errorf("unexpected lease requests by %v", asked)
		}
		must(t, left.Release())
		p := w.start()
		pass(time.Minute)
		p.wantAlive()
	})
}

// Without a connection to a disk server, the specification does not match the configuration.
func TestServedDisks_RequireConnection(t *testing.T) {
	withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
		w.config.Spec.DisksServed = true
		w.start().wantEnd(vmpb.EndInvalidSpec)
	})
}

// A server enlarges the disks. A client that attaches them with a later token sees the new sizes; an earlier guest
// keeps the old ones.
func TestServedDisks_Grow(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("runs real storage daemons")
	}
	s := newDiskFixture(t)
	s.data("logs", "db")
	volume := s.serve()
	at := s.opens(volume, 7, "web-1")
	control := storagepb.NewDiskServerClient(s.conn)
	before := len(s.controller.Reports())
	grown, err := control.Grow(t.Context(), &storagepb.GrowRequest{Disks: []*storagepb.DiskSize{
		{Bytes: 8 << 20}, {Name: "logs", Bytes: 1 << 10}, {Name: "db", Bytes: 2 << 20}, {Name: "other", Bytes: 9 << 20},
	}})
	must(t, err)
	has := map[string]uint64{}
	for _, disk := range grown.GetDisks() {
		has[disk.GetName()] = disk.GetBytes()
	}
	if diff := gocmp.Diff(map[string]uint64{"": 8 << 20, "logs": 1 << 20, "db": 2 << 20}, has); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	if got := sizes(s.report(before, func(*vmpb.ReportStateRequest) bool { return true })); got != "root 8388608, logs 1048576, db 2097152" {
		t.Errorf("reported sizes = %s", got)
	}
	later := s.opens(volume, 8, "web-1")
	for token, want := range map[storage.Token][]uint64{7: {scribeDisk, 1 << 20}, 8: {8 << 20, 2 << 20}} {
		carrier := session.Carrier{To: at, Token: token, Connect: s.siblings("web", "web-1").Connect}
		got, err := carrier.Sizes(t.Context(), []string{session.Export(""), session.Export("db")})
		if diff := gocmp.Diff(want, got); err != nil || diff != "" || later != at {
			t.Errorf("token %d: %v (-want +got):\n%s", token, err, diff)
		}
	}
	_, err = control.Grow(t.Context(), &storagepb.GrowRequest{Disks: []*storagepb.DiskSize{{Bytes: 1<<52 + 1}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("disk larger than 4 PiB: error = %v", err)
	}
	stranger, err := s.siblings("web", "web-1").Dial(s.conn.Target(), disksPod)
	must(t, err)
	defer func() { _ = stranger.Close() }()
	if _, err := storagepb.NewDiskServerClient(stranger).Grow(t.Context(), &storagepb.GrowRequest{}); err == nil {
		t.Error("a hypervisor enlarged disks")
	}
}
