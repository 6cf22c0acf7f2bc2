package qemu

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// The hardware that a guest sees makes a difference, but the paths on the host do not.
func TestHardware(t *testing.T) {
	describe := func(change func(*Config)) string {
		t.Helper()
		dir := t.TempDir()
		file := func(name, content string) string {
			path := filepath.Join(dir, name)
			must(t, os.WriteFile(path, []byte(content), 0o600))
			return path
		}
		config := Config{
			Name: "vm", UUID: "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
			Processor: Processor{Count: 1, Accelerator: TCG}, MemoryMiB: 32,
			Disks:    Disks{Root: Disk{Path: file("root", "root")}, Seed: Disk{Path: file("seed", "seed")}},
			Firmware: []FirmwareItem{{"opt/a", file("a", "a")}, {"opt/b", file("b", "b")}},
			Network: &UserNetwork{
				MAC:  net.HardwareAddr{2, 0, 0, 0, 0, 1},
				IPv4: netip.MustParsePrefix("10.77.0.0/16"), IPv6: netip.MustParsePrefix("fd77::/64"),
			},
		}
		change(&config)
		text, err := config.Hardware()
		must(t, err)
		return text
	}
	one := describe(func(*Config) {})
	if other := describe(func(c *Config) { c.Sockets, c.Incoming, c.Processor.TranslatedMiB = "/elsewhere", true, 64 }); other != one {
		t.Errorf("hardware differs on another host:\n%s\n%s", one, other)
	}
	seen := map[string]string{one: "none"}
	for name, change := range map[string]func(*Config){
		"processors":  func(c *Config) { c.Processor.Count = 2 },
		"accelerator": func(c *Config) { c.Processor.Accelerator = KVM },
		"memory":      func(c *Config) { c.MemoryMiB = 64 },
		"UUID":        func(c *Config) { c.UUID = "" },
		"no seed":     func(c *Config) { c.Disks.Seed = Disk{} },
		"seed":        func(c *Config) { must(t, os.WriteFile(c.Disks.Seed.Path, []byte("longer"), 0o600)) },
		"kernel":      func(c *Config) { c.Kernel = &Kernel{} },
		"UEFI":        func(c *Config) { c.UEFI = &UEFI{Path: "/a", Digest: "0a"} },
		"other UEFI":  func(c *Config) { c.UEFI = &UEFI{Path: "/a", Digest: "0b"} },
		"display":     func(c *Config) { c.Display = true },
		"no network":  func(c *Config) { c.Network = nil },
		"network":     func(c *Config) { c.Network.IPv6 = netip.Prefix{} },
		"interface":   func(c *Config) { c.Interfaces = []Interface{{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}} },
		"order":       func(c *Config) { c.Firmware[0], c.Firmware[1] = c.Firmware[1], c.Firmware[0] },
		"firmware":    func(c *Config) { must(t, os.WriteFile(c.Firmware[0].Path, []byte("longer"), 0o600)) },
	} {
		text := describe(change)
		if as, same := seen[text]; same {
			t.Errorf("%s does not differ from %s: %s", name, as, text)
		}
		seen[text] = name
	}
	if one, other := hostModel("model name\t: X\nflags\t: a b\n"), hostModel("model name\t: X\nflags\t: a\n"); one == other {
		t.Errorf("two different processors have the same model %s", one)
	}
	missing := Config{Firmware: []FirmwareItem{{"opt/a", "/missing"}}}
	if text, err := missing.Hardware(); err == nil {
		t.Errorf("got hardware %s for a missing file", text)
	}
}
