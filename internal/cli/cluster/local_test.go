package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
)

// TestUp_HintsMatchDriver checks that the suggested manifests match the driver.
func TestUp_HintsMatchDriver(t *testing.T) {
	for driver, want := range map[string]string{localdir.DriverVM: "get machinedeployments,machinesets,machines,virtualmachines,nodes\n", localdir.DriverSim: "get machinedeployments,machinesets,machines,nodes\n"} {
		t.Run(driver, func(t *testing.T) {
			mode := &local{upFlags: &upFlags{}}
			mode.Driver.Name = driver
			var out bytes.Buffer
			mode.printCommands(&out, "kubectl", "kubeconfig")
			if !strings.Contains(out.String(), want) {
				t.Errorf("output:\n%s", &out)
			}
		})
	}
}

// TestUp_MissesOnlyItsOwnGuest checks that a directory of images that the user chose needs no guest.
func TestUp_MissesOnlyItsOwnGuest(t *testing.T) {
	t.Setenv("MILLWRIGHT_CACHE", t.TempDir())
	for images, want := range map[string]bool{"": true, t.TempDir(): false} {
		mode := &local{upFlags: &upFlags{binaries: "bin", guest: guestSmall, images: images}}
		mode.Driver.Name = localdir.DriverVM
		if err := mode.find(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		if got := mode.lacksGuest(); got != want {
			t.Errorf("--images %q: a guest is missing: %t, want %t", images, got, want)
		}
	}
}

// TestUp_HintsForFullGuest checks that the hints name the examples for the full guest, and that its networks must not
// overlap.
func TestUp_HintsForFullGuest(t *testing.T) {
	mode := &local{upFlags: &upFlags{guest: guestFull}}
	var out bytes.Buffer
	mode.printCommands(&out, "kubectl", "kubeconfig")
	if !strings.Contains(out.String(), "nodes,pods\n") {
		t.Errorf("output:\n%s", &out)
	}
	for pods, valid := range map[string]bool{
		"10.78.0.0/16": true, "10.77.4.0/24": false, "10.0.0.0/8": false, "10.78.0.1/16": false, "10.78.0.0/25": false, "fd78::/16": false, "10.96.8.0/24": false,
	} {
		flags := &upFlags{network: netip.MustParsePrefix("10.77.0.0/16"), podNetwork: netip.MustParsePrefix(pods)}
		if err := flags.validatePodNetwork(); (err == nil) != valid {
			t.Errorf("%s: %v", pods, err)
		}
	}
	if got := hostAddress(netip.MustParsePrefix("10.77.0.0/16")); got != netip.MustParseAddr("10.77.0.4") {
		t.Errorf("the API server's address is %s", got)
	}
}

// TestUp_WarnsAboutHiddenNetworks checks that there is one warning for each host network that guests cannot reach, and
// none without guests or if guests must not reach these networks.
func TestUp_WarnsAboutHiddenNetworks(t *testing.T) {
	hidden := func(guests netip.Prefix) (string, error) {
		switch guests.String() {
		case "10.77.0.0/16":
			return "10.77.0.0/16 overlaps 10.0.0.0/8", nil
		case "10.78.0.0/16":
			return "10.78.0.0/16 overlaps 10.0.0.0/8", nil
		}
		return "", errors.New("unknown")
	}
	const (
		guests = "Warning: --vm-network: 10.77.0.0/16 overlaps 10.0.0.0/8; if guests need to reach them, choose another --vm-network\n"
		pods   = "Warning: --pod-network: 10.78.0.0/16 overlaps 10.0.0.0/8; if guests need to reach them, choose another --pod-network\n"
	)
	for name, test := range map[string]struct {
		change func(*upFlags)
		want   string
	}{
		"small guests":   {func(*upFlags) {}, guests},
		"full guests":    {func(f *upFlags) { f.guest = guestFull }, guests + pods},
		"kept inside":    {func(f *upFlags) { f.outside = false }, ""},
		"simulated":      {func(f *upFlags) { f.Driver.Name = localdir.DriverSim }, ""},
		"unknown routes": {func(f *upFlags) { f.network = netip.MustParsePrefix("10.79.0.0/16") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			flags := &upFlags{outside: true, network: netip.MustParsePrefix("10.77.0.0/16"), podNetwork: netip.MustParsePrefix("10.78.0.0/16")}
			flags.Driver.Name = localdir.DriverVM
			test.change(flags)
			var out bytes.Buffer
			flags.warnOfHidden(&out, hidden)
			if out.String() != test.want {
				t.Errorf("output:\n%s", &out)
			}
		})
	}
}

// TestUp_RejectsOverlappingNetworks checks that networks of this host are rejected with one sentence each, unless guests
// cannot reach them anyway.
func TestUp_RejectsOverlappingNetworks(t *testing.T) {
	taken := func(guests netip.Prefix) (string, error) {
		if guests.Bits() == 24 {
			return guests.String() + " overlaps 192.0.2.0/24, a network of this host (eth0): guests cannot reach hosts whose addresses are in both", nil
		}
		return "", errors.New("unknown")
	}
	const (
		pods   = "--pod-network: 192.0.2.0/24 overlaps 192.0.2.0/24, a network of this host (eth0): guests cannot reach hosts whose addresses are in both; choose another network, or set --guest-outside=false"
		guests = "--vm-network: 192.0.2.0/24 overlaps"
	)
	for name, test := range map[string]struct {
		change func(*upFlags)
		want   []string
	}{
		"small guests":    {func(f *upFlags) { f.guest = "small" }, []string{guests}},
		"full guests":     {func(f *upFlags) {}, []string{guests, pods}},
		"another network": {func(f *upFlags) { f.network = netip.MustParsePrefix("10.77.0.0/16") }, []string{pods}},
		"kept inside":     {func(f *upFlags) { f.outside = false }, nil},
		"simulated":       {func(f *upFlags) { f.Driver.Name = localdir.DriverSim }, nil},
		"unknown networks": {func(f *upFlags) {
			f.network, f.podNetwork = netip.MustParsePrefix("10.77.0.0/16"), f.network.Masked()
			f.guest = "small"
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			network := netip.MustParsePrefix("192.0.2.0/24")
			flags := &upFlags{outside: true, guest: guestFull, network: network, podNetwork: network}
			flags.Driver.Name = localdir.DriverVM
			test.change(flags)
			output := ""
			if err := flags.refuseTaken(taken); err != nil {
				output = err.Error()
			}
			for _, want := range test.want {
				if !strings.Contains(output, want) {
					t.Errorf("got %q, want %q", output, want)
				}
			}
			if (output == "") != (len(test.want) == 0) {
				t.Errorf("got %q", output)
			}
		})
	}
}

// TestUp_ReservesHostNames checks that the names of future hosts are reserved as well.
func TestUp_ReservesHostNames(t *testing.T) {
	for name, want := range map[string]bool{
		"host-1": true, "host-100": true, "host-": false, "host-a": false, "host-1a": false, "ghost-1": false, "host": false, "": false,
	} {
		if got := isHost(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// TestUp_ReportsComponentThatFailsToStart checks that the command stops the other components and returns the error of one that
// fails to start. After the user has interrupted the command, there is no error.
func TestUp_ReportsComponentThatFailsToStart(t *testing.T) {
	broken, ended := errors.New("the port is taken"), make(chan struct{})
	first := func(ctx context.Context, group *errgroup.Group) error {
		group.Go(func() error {
			<-ctx.Done()
			close(ended)
			return nil
		})
		return nil
	}
	parts := []part{first, func(context.Context, *errgroup.Group) error { return broken }}
	unused := func(context.Context) error {
		t.Error("it is used, though a part has not started")
		return nil
	}
	if err := runParts(t.Context(), parts, unused); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	<-ended
	over, end := context.WithCancel(t.Context())
	end()
	if err := runParts(over, parts[1:], unused); err != nil {
		t.Errorf("ended by the user, it returns %v", err)
	}
}
