package qemu

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestUserNetwork_ValidateNamesField(t *testing.T) {
	if err := everything().Network.Validate(); err != nil {
		t.Errorf("a valid network was rejected: %v", err)
	}
	for name, test := range map[string]struct {
		field string
		spoil func(*UserNetwork)
	}{
		"no IPv4":                        {"network.ipv4", func(n *UserNetwork) { n.IPv4 = netip.Prefix{} }},
		"IPv4 not masked":                {"network.ipv4", func(n *UserNetwork) { n.IPv4 = netip.MustParsePrefix("10.0.0.1/24") }},
		"IPv4 too small":                 {"network.ipv4", func(n *UserNetwork) { n.IPv4 = netip.MustParsePrefix("10.0.0.0/29") }},
		"IPv6 as IPv4":                   {"network.ipv4", func(n *UserNetwork) { n.IPv4 = n.IPv6 }},
		"IPv4 as IPv6":                   {"network.ipv6", func(n *UserNetwork) { n.IPv6 = n.IPv4 }},
		"IPv6 too small":                 {"network.ipv6", func(n *UserNetwork) { n.IPv6 = netip.MustParsePrefix("fd00::/96") }},
		"IPv4 outside the network":       {"network.address4", func(n *UserNetwork) { n.Address4 = netip.MustParseAddr("10.83.8.9") }},
		"the gateway":                    {"network.address4", func(n *UserNetwork) { n.Address4 = n.Gateway4() }},
		"the name server":                {"network.address4", func(n *UserNetwork) { n.Address4 = n.DNS4() }},
		"the network":                    {"network.address4", func(n *UserNetwork) { n.Address4 = n.IPv4.Addr() }},
		"broadcast":                      {"network.address4", func(n *UserNetwork) { n.Address4 = netip.MustParseAddr("10.83.7.255") }},
		"IPv6 outside the network":       {"network.address6", func(n *UserNetwork) { n.Address6 = netip.MustParseAddr("fd84::9") }},
		"the IPv6 gateway":               {"network.address6", func(n *UserNetwork) { n.Address6 = n.Gateway6() }},
		"IPv6 address without a network": {"network.address6", func(n *UserNetwork) { n.IPv6, n.Address6 = netip.Prefix{}, netip.MustParseAddr("fd83:7::9") }},
	} {
		t.Run(name, func(t *testing.T) {
			network := *everything().Network
			test.spoil(&network)
			var refusal *FieldError
			if err := network.Validate(); !errors.As(err, &refusal) || refusal.Field != test.field {
				t.Errorf("error = %v, want one of %s", err, test.field)
			}
		})
	}
}

func TestUserNetwork_Addresses(t *testing.T) {
	n := UserNetwork{IPv4: netip.MustParsePrefix("10.83.7.16/28"), IPv6: netip.MustParsePrefix("fd83:7::/64")}
	want := []string{"10.83.7.18", "10.83.7.19", "10.83.7.20", "fd83:7::2", "invalid IP"}
	got := []string{
		n.Gateway4().String(), n.DNS4().String(), n.Guest4().String(), n.Gateway6().String(),
		UserNetwork{IPv4: n.IPv4}.Gateway6().String(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestUserNetwork_GuestAddress(t *testing.T) {
	n := UserNetwork{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, IPv4: netip.MustParsePrefix("10.77.0.0/16"), Address4: netip.MustParseAddr("10.77.3.9")}
	must(t, n.Validate())
	backend := networkArguments(&n)[1]
	for _, want := range []string{",host=10.77.0.2,", ",dns=10.77.0.3,", ",dhcpstart=10.77.3.9,"} {
		if !strings.Contains(backend, want) {
			t.Errorf("%q is not in %s", want, backend)
		}
	}
	n.Address4 = n.Gateway4()
	var refusal *FieldError
	if err := n.Validate(); !errors.As(err, &refusal) {
		t.Errorf("error = %v, want a *FieldError", err)
	}
}

func TestConfig_WithoutUUID(t *testing.T) {
	tier.All(t)
	config := machine(t, echo)
	config.UUID = ""
	p := start(t, config)
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(echoBanner)
}

func TestDiskAt(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "disk")
	must(t, os.WriteFile(file, nil, 0o600))
	if disk, err := DiskAt(file); err != nil || disk != (Disk{Path: file}) {
		t.Errorf("file: %+v, %v", disk, err)
	}
	if _, err := DiskAt(filepath.Join(dir, "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing path: error = %v, want ErrNotExist", err)
	}
	for _, path := range []string{dir, "/dev/null"} {
		var refusal *FieldError
		if _, err := DiskAt(path); !errors.As(err, &refusal) {
			t.Errorf("%s: error = %v, want a *FieldError", path, err)
		}
	}
	device := filepath.Join(dir, "device")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		t.Logf("block devices are not tested: %v", err) // requires root
		return
	}
	if disk, err := DiskAt(device); err != nil || disk != (Disk{Path: device, Block: true}) {
		t.Errorf("block device: got %+v, %v", disk, err)
	}
}
