package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/test/support/freeport"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// way is a path for packets between two guests.
type way struct {
	name string
	// measure boots two guests, and returns the console output of the sender.
	measure func(*testing.T) string
	// The results, one for each round.
	rates []float64
	turns []time.Duration
}

// TestGuest_NetworkThroughput measures the paths between two guests: through the switch, through the overlay, through the user-mode networks of two
// bare QEMUs, and through two tap devices with the kernel routing between them. It alternates between them.
func TestGuest_NetworkThroughput(t *testing.T) {
	tier.All(t)
	text := os.Getenv("MILLWRIGHT_ROUNDS")
	if text == "" {
		t.Skip("only measures; TestGuest_SwitchIsolatesGuests tests the switch. Run make bench-network")
	}
	rounds, err := strconv.Atoi(text)
	must(t, err)
	ways := []*way{{name: "switch", measure: bySwitch}, {name: "overlay", measure: byOverlay}, {name: "user-mode", measure: byUserMode}, {name: "tap, routed", measure: byTap}}
	for range rounds {
		for _, w := range ways {
			t.Run(w.name, func(t *testing.T) { w.add(t, w.measure(t)) })
		}
	}
	for _, w := range ways {
		if len(w.rates) < rounds {
			t.Fatalf("%s was not measured each time", w.name)
		}
		slices.Sort(w.rates)
		slices.Sort(w.turns)
		middle := rounds / 2
		t.Logf("%-12s %6.1f MiB/s %12s there and back; all: %v and %v", w.name, w.rates[middle], w.turns[middle], w.rates, w.turns)
	}
}

// Lines of the console output.
var (
	rateLine = regexp.MustCompile(`tried stream:\S+: ([\d.]+) MiB/s \(<nil>\)`)
	turnLine = regexp.MustCompile(`tried turns:\S+: (\S+) \(<nil>\)`)
)

func (w *way) add(t *testing.T, output string) {
	t.Helper()
	rate, turn := rateLine.FindStringSubmatch(output), turnLine.FindStringSubmatch(output)
	if rate == nil || turn == nil {
		t.Fatalf("the console has no results: %s", output)
	}
	mbps, err := strconv.ParseFloat(rate[1], 64)
	must(t, err)
	took, err := time.ParseDuration(turn[1])
	must(t, err)
	w.rates, w.turns = append(w.rates, mbps), append(w.turns, took)
}

// The programs of the guests. The last bytes of their addresses are 23 and 22.
const (
	receive = " last=23 try=sink:10.0.2.23:9 try=mirror:10.0.2.23:7"
	done    = "intruder: done"
)

func send(sink, mirror string) string { return " last=22 try=stream:" + sink + " try=turns:" + mirror }

func bySwitch(t *testing.T) string {
	s := network.NewSwitch(slog.New(slog.DiscardHandler))
	return through(t, throughSwitch{s, serveSwitch(t, s)})
}

func byOverlay(t *testing.T) string { return through(t, throughOverlay{}) }

func through(t *testing.T, between between) string {
	t.Helper()
	receiver, sender := direct(t), direct(t)
	initrd := intruder(t, receiver.Kernel.Initrd)
	for last, config := range map[byte]*qemu.Config{23: &receiver, 22: &sender} {
		config.Name, config.Kernel.Initrd = "vm-"+strconv.Itoa(int(last)), initrd
		n := config.Network
		n.MAC[5], n.NoOutside, n.Address4 = last, true, address4(last)
		between.plug(t, n, last)
	}
	receiver.Kernel.Cmdline += receive
	sender.Kernel.Cmdline += send("10.0.2.23:9", "10.0.2.23:7")
	boot(t, receiver).until(done)
	return boot(t, sender).until(done)
}

// byUserMode forwards two ports of the host to one guest. The other guest connects to them.
func byUserMode(t *testing.T) string {
	initrd := intruder(t, direct(t).Kernel.Initrd)
	sink, mirror := freeport.Address(t), freeport.Address(t)
	bootBare(t, initrd, receive, fmt.Sprintf("user,net=10.0.2.0/24,hostfwd=tcp:%s-10.0.2.23:9,hostfwd=tcp:%s-10.0.2.23:7", sink, mirror), 23)
	return bootBare(t, initrd, send(fmt.Sprintf("10.0.2.2:%d", sink.Port()), fmt.Sprintf("10.0.2.2:%d", mirror.Port())), "user,net=10.0.2.0/24", 22)
}

// byTap creates a network namespace with a tap device for each guest, and routes between them.
func byTap(t *testing.T) string {
	initrd := intruder(t, direct(t).Kernel.Initrd)
	runtime.LockOSThread() // never unlocked: the thread exits with the test, and its namespace with the QEMUs
	if err := routedTaps("tap23", "tap22"); err != nil {
		t.Fatalf("making tap devices, which needs root: %v", err)
	}
	bootBare(t, initrd, receive, "tap,ifname=tap23,script=no,downscript=no", 23)
	return bootBare(t, initrd, send("10.0.2.23:9", "10.0.2.23:7"), "tap,ifname=tap22,script=no,downscript=no", 22)
}

// routedTaps creates tap devices in a new namespace of the calling thread. Each is the gateway of the guest whose
// address has the suffix in its name.
func routedTaps(names ...string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	for _, name := range names {
		tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1, Flags: netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		for _, queue := range tap.Fds {
			_ = queue.Close()
		}
		address, err := netlink.ParseAddr("10.0.2.2/32")
		if err != nil {
			return err
		}
		guest := net.IPv4(10, 0, 2, 20+name[len(name)-1]-'0').To4()
		route := &netlink.Route{LinkIndex: tap.Attrs().Index, Dst: &net.IPNet{IP: guest, Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}
		if err := errors.Join(netlink.AddrAdd(tap, address), netlink.LinkSetUp(tap), netlink.RouteAdd(route)); err != nil {
			return err
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// bootBare runs QEMU alone with the guest of boot until the guest is done, and returns the console output. QEMU
// stops at the end of the test.
func bootBare(t *testing.T, initrd, what, netdev string, last byte) string {
	t.Helper()
	kernel := direct(t)
	command := exec.Command(qemu.DefaultProgram, "-machine", qemu.MachineType, "-accel", string(kernel.Processor.Accelerator), "-nodefaults", "-display", "none",
		"-m", strconv.Itoa(kernel.MemoryMiB), "-kernel", kernel.Kernel.Path, "-initrd", initrd, "-append", kernel.Kernel.Cmdline+what, "-serial", "stdio",
		"-device", "virtio-rng-pci", "-netdev", netdev+",id=net0", "-device", fmt.Sprintf("virtio-net-pci,netdev=net0,mac=02:00:0a:00:02:%02x,romfile=", last))
	command.Stderr = os.Stderr
	console, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	stop := context.AfterFunc(bounded(t), func() { _ = command.Process.Kill() })
	defer stop()
	var printed strings.Builder
	for lines := bufio.NewScanner(console); lines.Scan(); {
		printed.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), done) {
			return printed.String()
		}
	}
	t.Errorf("the guest ended: %s", printed.String())
	return printed.String()
}

// serveSwitch serves a switch until the end of the test, and returns the path of its socket.
func serveSwitch(t *testing.T, between *network.Switch) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "switch.sock")
	listener, err := network.Listen(socket)
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- between.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
	})
	return socket
}
