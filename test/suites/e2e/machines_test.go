package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/seed"
	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// guests is the network of the machines.
var guests = netip.MustParsePrefix("10.77.0.0/24")

// machines boots full guests that reach each other, without a cluster around them.
type machines struct {
	*testing.T
	built  string // directory of the guest's files
	dir    string
	socket string
	// dialer reaches the machines.
	dialer *dialer.Dialer
}

// builtGuest returns the directory of a kind of guest. It skips the test unless the test is selected.
func builtGuest(t *testing.T, kind string) string {
	t.Helper()
	return builtFile(t, kind, "root.raw")
}

// builtFile is like builtGuest, for a directory with another file.
func builtFile(t *testing.T, kind, file string) string {
	t.Helper()
	if os.Getenv(environment) == "" {
		t.Skipf("takes minutes; run \"make test-e2e\", which sets %s", environment)
	}
	cache, err := localdir.Cache()
	if err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(cache, kind, "current")
	if _, err := os.Stat(filepath.Join(built, file)); err != nil {
		t.Fatalf("there is no guest to boot, run \"make %s\": %v", kind, err)
	}
	return built
}

// newMachines prepares machines of a kind of guest.
func newMachines(t *testing.T, kind string) *machines {
	t.Helper()
	m := &machines{T: t, built: builtGuest(t, kind), dir: t.TempDir()}
	short, err := os.MkdirTemp("", "e2e-") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.must(os.RemoveAll(short)) })
	m.socket = filepath.Join(short, "switch.sock")
	listener, err := network.Listen(m.socket)
	m.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- network.NewSwitch(slog.New(slog.DiscardHandler)).Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		m.must(<-served)
	})
	m.dialer, err = dialer.New(ctx, m.socket, m.address(5), guests, slog.New(slog.NewTextHandler(io.Discard, nil)))
	m.must(err)
	return m
}

func (m *machines) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// address returns the address with the given last number in the machines' network.
func (m *machines) address(last byte) netip.Addr {
	bytes := guests.Addr().As4()
	bytes[3] = last
	return netip.AddrFrom4(bytes)
}

// booted is a machine that runs until the end of the test.
type booted struct {
	*machines
	name, uuid string
	console    *console.Client
	printed    bytes.Buffer
}

// boot starts a machine with user data. It has two CPUs, as kubeadm requires.
func (m *machines) boot(name string, last byte, memoryMiB int, userData string) *booted {
	m.Helper()
	b := &booted{machines: m, name: name, uuid: fmt.Sprintf("6b0ff0b6-6a5f-4b8b-9c0a-0000000000%02x", last)}
	b.start(hardware{processors: 2, memoryMiB: memoryMiB, card: &qemu.UserNetwork{
		MAC: net.HardwareAddr{2, 0, 10, 77, 0, last}, IPv4: guests, Address4: m.address(last), Switch: m.socket, NoOutside: true,
	}}, userData)
	return b
}

// hardware contains what differs between machines.
type hardware struct {
	processors, memoryMiB int
	card                  *qemu.UserNetwork
}

// start starts QEMU as a user could.
func (b *booted) start(h hardware, userData string) {
	m, name, card := b.machines, b.name, h.card
	m.Helper()
	accelerator, err := qemu.DetectAccelerator("")
	m.must(err)
	commandLine, err := os.ReadFile(filepath.Join(m.built, "cmdline"))
	m.must(err)
	metadata, err := proto.Marshal(&vmpb.VMMetadata{Name: name, NetworkConfig: &vmpb.NetworkConfig{
		V4: &vmpb.PTPAddress{Ip: card.Guest4().String(), PeerIp: card.Gateway4().String()},
	}})
	m.must(err)
	volume, err := seed.Image(seed.Content{InstanceID: b.uuid, HostName: name, UserData: []byte(userData)})
	m.must(err)
	process, err := qemu.Start(m.Context(), "", qemu.Config{
		Name: name, UUID: b.uuid, Processor: qemu.Processor{Count: h.processors, Accelerator: accelerator}, MemoryMiB: h.memoryMiB,
		Kernel: &qemu.Kernel{
			Path: filepath.Join(m.built, "vmlinux"), Initrd: filepath.Join(m.built, "initrd"), Cmdline: strings.TrimSpace(string(commandLine)),
		},
		Disks:    qemu.Disks{Root: qemu.Disk{Path: m.rootDisk(name)}, Seed: qemu.Disk{Path: m.file(name+".iso", volume)}},
		Network:  card,
		Firmware: []qemu.FirmwareItem{{Name: "opt/vm.metropolis.monogon.dev/v1/metadata.pb", Path: m.file(name+".pb", metadata)}},
	})
	m.must(err)
	b.console = process.Console().Attach()
	m.Cleanup(func() {
		b.console.Close()
		m.must(process.Kill(context.WithoutCancel(m.Context())))
		if m.Failed() {
			m.Logf("the console of %s:\n%s", name, b.printed.Bytes())
		}
	})
	m.must(process.Cont(m.Context()))
}

// file returns the path of a file of the machines.
func (m *machines) file(name string, content []byte) string {
	m.Helper()
	path := filepath.Join(m.dir, name)
	m.must(os.WriteFile(path, content, 0o600))
	return path
}

// rootDiskSize is the size in examples/full.
const rootDiskSize = 4 << 30

// rootDisk makes a sparse copy of the guest's disk.
func (m *machines) rootDisk(name string) string {
	m.Helper()
	path := filepath.Join(m.dir, name+".raw")
	if output, err := exec.Command("cp", "--sparse=always", filepath.Join(m.built, "root.raw"), path).CombinedOutput(); err != nil {
		m.Fatalf("copying the disk: %v: %s", err, output)
	}
	m.must(os.Truncate(path, rootDiskSize))
	return path
}

// awaitConsole reads the console up to a text. It fails if the console prints an error before that.
func (b *booted) awaitConsole(text string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), late)
	defer cancel()
	for !bytes.Contains(b.printed.Bytes(), []byte(text)) {
		if bytes.Contains(b.printed.Bytes(), []byte("bootstrap: failed")) {
			b.Fatalf("%s failed", b.name)
		}
		output, err := b.console.Next(ctx)
		if err != nil {
			b.Fatalf("waiting for %q on the console of %s: %v", text, b.name, err)
		}
		b.printed.Write(output)
	}
}
