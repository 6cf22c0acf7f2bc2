package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/seed"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) {
	env.Main(m)
}

// waitTimeout limits each wait. A boot takes about 3 s on an idle machine, and 20 s with twenty busy processes on
// two cores.
const waitTimeout = env.WaitTimeout

// The guest's network. The API server's certificate contains the gateway, 10.0.2.2.
var (
	prefix  = netip.MustParsePrefix("10.0.2.0/24")
	address = netip.MustParseAddr("10.0.2.16")
)

const uuid = "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21"

// artifacts returns the directory of the last `make guest`. It skips the test if there is none.
func artifacts(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this test boots machines in QEMU")
	}
	if _, err := exec.LookPath(qemu.DefaultProgram); err != nil {
		t.Fatalf("%v; run `make qemu`", err)
	}
	cache, err := localdir.Cache()
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(cache, "guest", "current")
	if _, err := os.Stat(filepath.Join(directory, "boot.raw")); err != nil {
		t.Skipf("the guest is not built, run `make guest`: %v", err)
	}
	return directory
}

// direct boots the kernel without firmware, with a blank root disk.
func direct(t *testing.T) qemu.Config {
	t.Helper()
	files := artifacts(t)
	commandLine, err := os.ReadFile(filepath.Join(files, "cmdline"))
	must(t, err)
	root := filepath.Join(t.TempDir(), "root.raw")
	must(t, os.WriteFile(root, nil, 0o600))
	must(t, os.Truncate(root, 64<<20))
	config := machine(t, root)
	config.Kernel = &qemu.Kernel{
		Path: filepath.Join(files, "vmlinux"), Initrd: filepath.Join(files, "initrd"),
		Cmdline: strings.TrimSpace(string(commandLine)),
	}
	return config
}

// fromDisk boots from a copy of the bootable disk.
func fromDisk(t *testing.T) qemu.Config {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(artifacts(t), "boot.raw"))
	must(t, err)
	root := filepath.Join(t.TempDir(), "boot.raw")
	must(t, os.WriteFile(root, content, 0o600))
	return machine(t, root)
}

// machine has a network and the metadata that describes it.
func machine(t *testing.T, root string) qemu.Config {
	t.Helper()
	accelerator, err := qemu.DetectAccelerator("")
	must(t, err)
	network := &qemu.UserNetwork{MAC: net.HardwareAddr{2, 0, 10, 0, 2, 16}, IPv4: prefix}
	message, err := proto.Marshal(&vmpb.VMMetadata{Name: "vm-1", NetworkConfig: &vmpb.NetworkConfig{
		V4: &vmpb.PTPAddress{Ip: address.String(), PeerIp: network.Gateway4().String()},
	}})
	must(t, err)
	path := filepath.Join(t.TempDir(), "metadata.pb")
	must(t, os.WriteFile(path, message, 0o600))
	return qemu.Config{
		Name: "vm-1", UUID: uuid, Processor: qemu.Processor{Count: 1, Accelerator: accelerator}, MemoryMiB: 192,
		Disks:    qemu.Disks{Root: qemu.Disk{Path: root}},
		Network:  network,
		Firmware: []qemu.FirmwareItem{{Name: "opt/vm.metropolis.monogon.dev/v1/metadata.pb", Path: path}},
	}
}

// withSeed adds a volume with the user data.
func withSeed(t *testing.T, config qemu.Config, userData string) qemu.Config {
	t.Helper()
	image, err := seed.Image(seed.Content{InstanceID: uuid, HostName: "vm-1", UserData: []byte(userData)})
	must(t, err)
	path := filepath.Join(t.TempDir(), "seed.iso")
	must(t, os.WriteFile(path, image, 0o600))
	config.Disks.Seed = qemu.Disk{Path: path}
	return config
}

// running is a machine whose console is read in the order of a test's expectations.
type running struct {
	*qemu.Process
	t       *testing.T
	client  *console.Client
	rest    []byte
	started time.Time
}

// boot runs a machine until the end of the test.
func boot(t *testing.T, config qemu.Config) *running {
	t.Helper()
	started := time.Now()
	process, err := qemu.Start(bounded(t), "", config)
	must(t, err)
	t.Cleanup(func() { must(t, process.Kill(bounded(t))) })
	r := &running{Process: process, t: t, client: process.Console().Attach(), started: started}
	t.Cleanup(r.client.Close)
	must(t, process.Cont(bounded(t)))
	return r
}

// until reads up to the text, and returns the output before it. On failure, the whole console is logged.
func (r *running) until(text string) string {
	r.t.Helper()
	ctx := bounded(r.t)
	for {
		if before, after, found := bytes.Cut(r.rest, []byte(text)); found {
			r.rest = after
			r.t.Logf("%.2f s: %s%s", time.Since(r.started).Seconds(), before, text)
			return string(before)
		}
		output, err := r.client.Next(ctx)
		if err != nil {
			r.t.Fatalf("waiting for %q on the console, after %q: %v", text, r.rest, err)
		}
		r.rest = append(r.rest, output...)
	}
}

// send types on the console.
func (r *running) send(text string) {
	r.t.Helper()
	must(r.t, r.client.Write(bounded(r.t), []byte(text)))
}

// awaitEnd waits until the guest has powered itself off.
func (r *running) awaitEnd() {
	r.t.Helper()
	select {
	case <-r.Done():
	case <-bounded(r.t).Done():
		r.t.Fatal("the machine does not end")
	}
	if rest, err := r.client.Next(bounded(r.t)); err != nil && !errors.Is(err, io.EOF) {
		r.t.Errorf("reading the console's end: %v", err)
	} else if len(rest) > 0 {
		r.t.Logf("last words: %s", rest)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
