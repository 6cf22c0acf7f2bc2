package hypervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/ports"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/watchdog"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/image"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// envMember makes this program a hypervisor process that is configured by a memberConfig.
const envMember = "MILLWRIGHT_TEST_MEMBER"

// envWatchdog makes this program the watchdog of a hypervisor.
const envWatchdog = "MILLWRIGHT_TEST_WATCHDOG"

func TestMain(m *testing.M) {
	if os.Getenv(envWatchdog) != "" {
		if err := watchdog.Main(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(envMember); text != "" {
		os.Exit(runMember([]byte(text)))
	}
	atATime(4)
	os.Exit(m.Run())
}

// atATime sets how many of the parallel tests run at a time, like env.AtATime. Most tests wait for timers.
func atATime(tests int) {
	if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
		panic(err) // not in a test
	}
}

// memberConfig is the configuration of a hypervisor process.
type memberConfig struct {
	Spec      json.RawMessage
	Root      string
	Disk      string            // another path for the root disk
	Data      map[string]string // other paths for data disks
	Program   string            // the QEMU program
	Firmware  string            // the UEFI firmware
	Listen    string
	Authority []byte
	Bandwidth uint64
	Exposed   netip.AddrPort // where clients connect to the guest
	Slow      bool
	Hold      holdPoint
	Timing    hypervisor.Timing
	Departure departure.Timing
	Arrival   arrival.Timing
}

// runMember runs a hypervisor with some additional settings.
func runMember(text []byte) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var m memberConfig
	if err := json.Unmarshal(text, &m); err != nil {
		log.Error("configuration", "error", err)
		return 2
	}
	config, err := m.config(log)
	if err != nil {
		log.Error("configuration", "error", err)
		return 2
	}
	secondSignal, rest := hypervisor.SecondSIGTERM()
	defer rest()
	config.SecondSIGTERM = secondSignal
	end := hypervisor.Run(ctx, config)
	log.Info("ended", "reason", end.Reason, "message", end.Message)
	code, err := hypervisor.WriteTermination(filepath.Join(m.Root, "end"), end)
	if err != nil {
		return 2
	}
	return code
}

func (m memberConfig) config(log *slog.Logger) (hypervisor.Config, error) {
	spec, err := vmspec.Parse(string(m.Spec))
	if err != nil {
		return hypervisor.Config{}, err
	}
	credentials, err := identity.ForHypervisor(identity.Options{
		Authority: m.Authority, TokenFile: filepath.Join(m.Root, "token"), Endpoint: spec.GetControllerEndpoint(), Log: log,
	})
	if err != nil {
		return hypervisor.Config{}, err
	}
	paths := hypervisor.PathsFor(spec, m.Root)
	if m.Disk != "" {
		paths.RootDisk = m.Disk
	}
	maps.Copy(paths.DataDisks, m.Data)
	siblings := identity.Siblings{Credentials: credentials, Namespace: spec.GetNamespace(), VM: spec.GetName()}
	var machines hypervisor.Starter = holding{live{hypervisor.QEMU{Program: m.Program, Firmware: m.Firmware}}, m.Hold, filepath.Join(m.Root, "held")}
	if m.Slow {
		machines = slowly{machines}
	}
	var exposed *ports.Config
	var network []netip.Prefix
	if m.Exposed.IsValid() {
		probe, err := ports.ParseProbe(fmt.Sprintf("tcp://:%d", m.Exposed.Port()))
		if err != nil {
			return hypervisor.Config{}, err
		}
		exposed = &ports.Config{Address: m.Exposed.Addr().String(), Ports: []uint16{m.Exposed.Port()}, Probe: probe}
		network = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}
	}
	return hypervisor.Config{
		Ports: exposed, Network: network,
		Spec: spec, Paths: paths, Log: log, Timing: m.Timing, DiskServer: siblings.Connect,
		WriteDisk: func(ctx context.Context, source image.Source, target image.Target, options image.Options) error {
			options.Access.Servers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
			return image.WriteDisk(ctx, source, target, options)
		},
		Machines: machines,
		Watchdog: func() (hypervisor.Watchdog, error) {
			command := exec.Command(os.Args[0])
			command.Env = append(os.Environ(), envWatchdog+"=1")
			return watchdog.Start(command)
		},
		Connect: func(target string) (*grpc.ClientConn, error) {
			return credentials.Dial(target, identity.Controller(), controller.DialOptions()...)
		},
		Follow: credentials.FollowAuthorities,
		Peers: service.Peers{
			Listen: m.Listen, Options: credentials.ServerOptions(connlimit.Credentials),
			Authorize: func(context.Context, string) error { return nil },
		},
		Migration: &hypervisor.Migration{
			Siblings: siblings, Bandwidth: m.Bandwidth, Departure: m.Departure, Arrival: m.Arrival,
		},
	}, nil
}

// testCluster is a controller with the hypervisor processes of one VM on this host.
type testCluster struct {
	t          *testing.T
	controller *fakeController
	authority  []byte              // what new members trust
	issuer     *identity.Authority // signs their certificates
	server     *grpc.Server
	line       *line
	// The following settings apply to members that are created later.
	bandwidth uint64
	slow      bool // see slowly
	// limits are the controller's limits of migrations. If nil, the controller sets none.
	limits    *vmpb.MigrationLimits
	timing    hypervisor.Timing
	departure departure.Timing
	arrival   arrival.Timing
	grace     time.Duration
	// lease is the duration of leases. If 0, they do not expire.
	lease time.Duration
	// cable leads to the host of the targets. If nil, all members are on this host.
	cable *cable
	// size and memory are the sizes of the disk and the memory, in bytes.
	size   uint64
	memory uint64
	// image is the URL from which the root disk is created. If empty, the disk exists.
	image string
	// data are the data disks.
	data []*vmpb.DataDisk
	// firmware boots the guest. uefi is the path of the UEFI firmware of later members.
	firmware vmpb.VMSpec_Firmware
	uefi     string
	// display reports whether the VM has a display.
	display bool
	// shared reports whether all members use the disks of the first one.
	shared bool
	first  *member
	// fences serves the disks of the first member to all members. If nil, the disks are not served.
	fences *fences
	// hold is the point at which the members block in a migration.
	hold holdPoint
	// exposed is where clients connect to the guest at later members. If it is not valid, they do not.
	exposed netip.AddrPort
	// eager reports whether the guest counts as fast as possible. Otherwise it sleeps between two numbers and
	// leaves the processors to other processes.
	eager bool
	// dirties reports whether the guest writes to half a MiB of memory before each number.
	dirties bool
	// noise is the number of bytes of data on the root disk and the first data disk that scribe does not use.
	noise uint64
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	newReal(t, "scribe") // skips the test
	authority, err := identity.NewAuthority(time.Now())
	must(t, err)
	h := &testCluster{t: t, controller: newFakeController(), line: newCuttableLine(t), grace: time.Minute, size: scribeDisk, memory: 32 << 20}
	h.data = []*vmpb.DataDisk{dataDisk("logs", scribeDisk+1<<20), dataDisk("db", scribeDisk+3<<20)}
	t.Cleanup(h.controller.Close)
	h.issuer, h.authority = authority, authority.Bundle()
	server := grpc.NewServer(identity.ForController(authority, nil).ServerOptions()...)
	vmpb.RegisterVMControllerServer(server, h.controller)
	identitypb.RegisterCertificateAuthorityServer(server, &identity.Issuer{
		Authority: authority,
		Resolve: func(_ context.Context, token string) (identity.Peer, error) {
			return identity.Peer{Namespace: "default", VM: "web", Pod: token}, nil
		},
	})
	h.server = server
	go func() { _ = server.Serve(h.line) }()
	t.Cleanup(server.Stop)
	h.controller.Decide("web-1")
	return h
}

// line is a listener whose connections can be cut.
type line struct {
	net.Listener
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newCuttableLine(t *testing.T) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return &line{Listener: listener}
}

// Accept implements net.Listener.
func (l *line) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		cut := l.cut
		l.conns = append(l.conns, conn)
		l.mu.Unlock()
		if !cut {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// Cut closes all connections and refuses new ones. If cut is false, connections are allowed again.
func (l *line) Cut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

// dataDisk returns a data disk of the given size.
func dataDisk(name string, bytes uint64) *vmpb.DataDisk {
	return &vmpb.DataDisk{Name: name, Path: vmpb.DataDiskPath(name), Bytes: bytes}
}

// member is a hypervisor process.
type member struct {
	t    *testing.T
	pod  string
	root string
	// disk is the file of the root disk. data contains the files of the data disks by name.
	disk    string
	data    map[string]string
	disks   []string // the names of the data disks, in the order of the guest's bus
	process *child.Process
}

// scribeDisk is the size of the disk that scribe needs, in bytes.
const scribeDisk = (2048 + 4096) * 512

const (
	// scribesDirties is the byte of scribes that makes it write to half a MiB of memory before each number.
	scribesDirties = 508
	// scribesSleep is the byte of scribes that makes it sleep.
	scribesSleep = 509
)

// scribes returns the guest that writes to all disks.
func (h *testCluster) scribes() []byte {
	h.t.Helper()
	guest := bootSector(h.t, "scribes")
	if !h.eager {
		guest[scribesSleep] = 1
	}
	if h.dirties {
		guest[scribesDirties] = 1
	}
	return guest
}

// source starts the hypervisor web-1, which runs scribes.
func (h *testCluster) source() *member {
	h.t.Helper()
	return h.start("web-1", vmpb.VMSpec_SM_RUN, func(m *member) {
		writeDisk(h.t, h.scribes(), m.disk, h.size)
		if h.noise > 0 {
			first := m.data[h.data[0].GetName()]
			must(h.t, os.WriteFile(first, nil, 0o600))
			fill(h.t, m.disk, h.noise)
			fill(h.t, first, h.noise)
		}
	})
}

// bootDisk creates a disk of the given size from which a guest boots.
func bootDisk(t *testing.T, guest, path string, size uint64) {
	t.Helper()
	writeDisk(t, bootSector(t, guest), path, size)
}

// writeDisk creates a disk of the given size that starts with a guest.
func writeDisk(t *testing.T, guest []byte, path string, size uint64) {
	t.Helper()
	must(t, os.WriteFile(path, guest, 0o600))
	must(t, os.Truncate(path, int64(size)))
}

// bootSector returns a guest from testdata.
func bootSector(t *testing.T, guest string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", guest+".img"))
	must(t, err)
	return content
}

// target starts a hypervisor that waits for the VM.
func (h *testCluster) target(pod string) *member {
	h.t.Helper()
	return h.start(pod, vmpb.VMSpec_SM_INCOMING_MIGRATION, func(*member) {})
}

func (h *testCluster) start(pod string, mode vmpb.VMSpec_StartMode, prepare func(*member)) *member {
	h.t.Helper()
	m := &member{t: h.t, pod: pod, root: h.t.TempDir()}
	spec := validSpec()
	spec.PodName, spec.Mode, spec.ControllerEndpoint = pod, mode, h.line.Addr().String()
	spec.Resources, spec.RootDiskBytes = &vmpb.Resources{MemoryBytes: h.memory}, h.size
	spec.Grace, spec.DataDisks, spec.RootDiskShared = durationpb.New(h.grace), h.data, h.shared
	spec.DisksServed, spec.Firmware = h.fences != nil, h.firmware
	if h.display {
		spec.Display = vmpb.VMSpec_DISPLAY_VNC
	}
	if h.image != "" {
		spec.InitialImage = &vmpb.InitialImage{Url: h.image}
	}
	if h.lease > 0 {
		spec.LeaseMode, spec.LeaseDuration = vmpb.LeaseMode_LM_FULL_LEASES, durationpb.New(h.lease)
	}
	if mode == vmpb.VMSpec_SM_INCOMING_MIGRATION {
		spec.MigrationSourcePod = h.controller.Holder().GetPodName()
		h.controller.Change(func(a *authority) { a.target = pod })
	}
	program, listen, machines := []string{os.Args[0]}, "127.0.0.1:0", ""
	if len(h.data) > 0 {
		var err error
		machines, err = filepath.Abs(filepath.Join("testdata", "boot-all"))
		must(h.t, err)
	}
	if mode == vmpb.VMSpec_SM_INCOMING_MIGRATION && h.cable != nil {
		program, listen = h.cable.program(), h.cable.remote+":0"
		spec.ControllerEndpoint = h.cable.controller
	}
	text, err := protojson.Marshal(spec)
	must(h.t, err)
	paths := hypervisor.PathsFor(spec, m.root)
	m.disk, m.data = paths.RootDisk, paths.DataDisks
	must(h.t, os.MkdirAll(filepath.Dir(m.disk), 0o700))
	for _, data := range h.data {
		m.disks = append(m.disks, data.GetName())
		must(h.t, os.MkdirAll(filepath.Dir(m.data[data.GetName()]), 0o700))
	}
	must(h.t, os.WriteFile(filepath.Join(m.root, "token"), []byte(pod), 0o600))
	if (h.shared || h.fences != nil) && h.first != nil {
		m.disk, m.data = h.first.disk, maps.Clone(h.first.data)
	}
	if h.first == nil {
		h.first = m
	}
	prepare(m)
	config, err := json.Marshal(memberConfig{
		Spec: text, Root: m.root, Disk: m.disk, Data: m.data, Program: machines, Firmware: h.uefi, Listen: listen, Authority: h.authority, Bandwidth: h.bandwidth, Exposed: h.exposed, Slow: h.slow, Hold: h.hold,
		Timing: h.timing, Departure: h.departure, Arrival: h.arrival,
	})
	must(h.t, err)
	command := exec.Command(program[0], program[1:]...)
	command.Env = append(os.Environ(), envMember+"="+string(config))
	log, err := os.Create(filepath.Join(m.root, "log"))
	must(h.t, err)
	command.Stderr = log
	m.process, err = child.Start(command, syscall.SIGKILL) // it terminates with the tests, whatever terminates them
	must(h.t, errors.Join(err, log.Close()))
	h.t.Cleanup(func() {
		m.kill()
		if h.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			h.t.Logf("%s:\n%s", pod, text)
		}
	})
	return m
}

// kill kills the process, like a failure of the host. The kernel kills QEMU with it.
func (m *member) kill() {
	m.signal(syscall.SIGKILL)
	<-m.process.Ended()
}

func (m *member) term() { m.signal(syscall.SIGTERM) }

// signal sends a signal. It fails only if the process has terminated.
func (m *member) signal(signal syscall.Signal) { _ = m.process.Signal(signal) }

// wantEnd waits for the termination and checks its reason.
func (m *member) wantEnd(reason string) {
	m.t.Helper()
	select {
	case <-m.process.Ended():
	case <-time.After(waitTimeout):
		m.t.Fatalf("%s did not terminate", m.pod)
	}
	if got := readTermination(m.t, filepath.Join(m.root, "end")); got.Reason != reason {
		m.t.Errorf("%s terminated with %+v, want %s", m.pod, got, reason)
	}
}

// wantAlive fails the test if the process has terminated.
func (m *member) wantAlive() {
	m.t.Helper()
	select {
	case <-m.process.Ended():
		m.t.Fatalf("%s has terminated", m.pod)
	default:
	}
}

// names makes the controller name the target once the target has reported its address. make is called for each
// request, with its number.
func (h *testCluster) names(make func(question int) *member) {
	question := 0
	h.controller.Change(func(a *authority) {
		a.ensure = func(ctx context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
			target := make(question)
			question++
			if target == nil {
				return nil, status.Error(codes.Unavailable, "no target")
			}
			report, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool {
				return report.GetUs().GetPodName() == target.pod && report.GetState() == vmpb.ReportStateRequest_STATE_INCOMING
			})
			if err != nil {
				return nil, err
			}
			return &vmpb.EnsureMigrationTargetResponse{
				Action:         vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE,
				Limits:         h.limits,
				TargetEndpoint: report.GetEndpoint(), TargetPod: target.pod,
			}, nil
		}
	})
}
