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
)

func TestValidateNamesTheField(t *testing.T) {
	for _, config := range []Config{everything(), minimal()} {
		if err := config.Validate(); err != nil {
			t.Errorf("a valid configuration is refused: %v", err)
		}
	}
	long := strings.Repeat("x", maxFirmwareName+1)
	for name, test := range map[string]struct {
		field string
		spoil func(*Config)
	}{
		"no name":             {"name", func(c *Config) { c.Name = "" }},
		"NUL in the name":     {"name", func(c *Config) { c.Name = "a\x00b" }},
		"no UUID in it":       {"uuid", func(c *Config) { c.UUID = "vm-1" }},
		"UUID and more":       {"uuid", func(c *Config) { c.UUID += ",x" }},
		"no processor":        {"processor.count", func(c *Config) { c.Processor.Count = 0 }},
		"no memory":           {"memoryMiB", func(c *Config) { c.MemoryMiB = 0 }},
		"unknown accelerator": {"processor.accelerator", func(c *Config) { c.Processor.Accelerator = "hvf" }},
		"no disk":             {"disks.root.path", func(c *Config) { c.Disks.Root.Path = "" }},
		"disk not UTF-8":      {"disks.root.path", func(c *Config) { c.Disks.Root.Path = "\xff" }},
		"NUL in the seed":     {"disks.seed.path", func(c *Config) { c.Disks.Seed.Path = "\x00" }},
		"no kernel":           {"kernel.path", func(c *Config) { c.Kernel.Path = "" }},
		"NUL in the initrd":   {"kernel.initrd", func(c *Config) { c.Kernel.Initrd = "\x00" }},
		"NUL in the cmdline":  {"kernel.cmdline", func(c *Config) { c.Kernel.Cmdline = "\x00" }},
		"no MAC":              {"network.mac", func(c *Config) { c.Network.MAC = nil }},
		"multicast MAC":       {"network.mac", func(c *Config) { c.Network.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} }},
		"no IPv4":             {"network.ipv4", func(c *Config) { c.Network.IPv4 = netip.Prefix{} }},
		"IPv4 not masked":     {"network.ipv4", func(c *Config) { c.Network.IPv4 = netip.MustParsePrefix("10.0.0.1/24") }},
		"IPv4 too small":      {"network.ipv4", func(c *Config) { c.Network.IPv4 = netip.MustParsePrefix("10.0.0.0/29") }},
		"IPv6 as IPv4":        {"network.ipv4", func(c *Config) { c.Network.IPv4 = c.Network.IPv6 }},
		"IPv4 as IPv6":        {"network.ipv6", func(c *Config) { c.Network.IPv6 = c.Network.IPv4 }},
		"IPv6 too small":      {"network.ipv6", func(c *Config) { c.Network.IPv6 = netip.MustParsePrefix("fd00::/96") }},
		"foreign IPv4":        {"network.address4", func(c *Config) { c.Network.Address4 = netip.MustParseAddr("10.83.8.9") }},
		"the gateway":         {"network.address4", func(c *Config) { c.Network.Address4 = c.Network.Gateway4() }},
		"the name server":     {"network.address4", func(c *Config) { c.Network.Address4 = c.Network.DNS4() }},
		"the network":         {"network.address4", func(c *Config) { c.Network.Address4 = c.Network.IPv4.Addr() }},
		"everybody":           {"network.address4", func(c *Config) { c.Network.Address4 = netip.MustParseAddr("10.83.7.255") }},
		"foreign IPv6":        {"network.address6", func(c *Config) { c.Network.Address6 = netip.MustParseAddr("fd84::9") }},
		"the IPv6 gateway":    {"network.address6", func(c *Config) { c.Network.Address6 = c.Network.Gateway6() }},
		"IPv6 without any":    {"network.address6", func(c *Config) { c.Network.IPv6, c.Network.Address6 = netip.Prefix{}, netip.MustParseAddr("fd83:7::9") }},
		"no host":             {"network.forwards[0].host", func(c *Config) { c.Network.Forwards[0].Host = netip.AddrPort{} }},
		"no guest port":       {"network.forwards[0].port", func(c *Config) { c.Network.Forwards[0].Port = 0 }},
		"no item name":        {"firmware[0].name", func(c *Config) { c.Firmware[0].Name = "" }},
		"long item name":      {"firmware[0].name", func(c *Config) { c.Firmware[0].Name = long }},
		"item name not ASCII": {"firmware[0].name", func(c *Config) { c.Firmware[0].Name = "ä" }},
		"item twice":          {"firmware[1].name", func(c *Config) { c.Firmware = append(c.Firmware, c.Firmware[0]) }},
		"no item path":        {"firmware[0].path", func(c *Config) { c.Firmware[0].Path = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			config := everything()
			test.spoil(&config)
			var refusal *FieldError
			if err := config.Validate(); !errors.As(err, &refusal) || refusal.Field != test.field {
				t.Errorf("error = %v, want one of %s", err, test.field)
			}
		})
	}
}

func TestAddressesOfTheUserNetwork(t *testing.T) {
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

func TestGuestsOwnAddress(t *testing.T) {
	n := UserNetwork{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, IPv4: netip.MustParsePrefix("10.77.0.0/16"), Address4: netip.MustParseAddr("10.77.3.9")}
	n.Forwards = []Forward{{Host: netip.MustParseAddrPort("127.0.0.1:18022"), Port: 22}}
	must(t, n.Validate())
	backend := networkArguments(&n)[1]
	for _, want := range []string{",host=10.77.0.2,", ",dns=10.77.0.3,", ",dhcpstart=10.77.3.9,", "-10.77.3.9:22"} {
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

func TestMachineWithoutUUID(t *testing.T) {
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
		t.Errorf("nothing: error = %v, want ErrNotExist", err)
	}
	for _, path := range []string{dir, "/dev/null"} {
		var refusal *FieldError
		if _, err := DiskAt(path); !errors.As(err, &refusal) {
			t.Errorf("%s: error = %v, want a *FieldError", path, err)
		}
	}
	device := filepath.Join(dir, "device")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		t.Logf("block devices are not tried: %v", err) // needs root
		return
	}
	if disk, err := DiskAt(device); err != nil || disk != (Disk{Path: device, Block: true}) {
		t.Errorf("block device: %+v, %v", disk, err)
	}
}
