package qemu

import (
	"encoding/json"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/test/support/tier"
)

var update = flag.Bool("update", false, "update the golden files")

// everything returns a configuration that uses each field.
func everything() Config {
	return Config{
		Name:      "default/vm-1",
		UUID:      "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		Processor: Processor{Count: 2, Accelerator: TCG, TranslatedMiB: 128},
		MemoryMiB: 256,
		Disks: Disks{
			Root: Disk{Path: "/dev/disk/root", Block: true},
			Seed: Disk{Path: "/run/vm/seed.iso"},
			Data: []DataDisk{{Disk: Disk{Path: "/data/logs/disk.img"}, Serial: "logs"}, {Disk: Disk{Path: "/data/db/disk.img", Direct: true}, Serial: "db"}},
		},
		Kernel: &Kernel{Path: "/boot/vmlinux", Initrd: "/boot/initrd", Cmdline: "console=ttyS0 quiet"},
		Network: &UserNetwork{
			MAC:    net.HardwareAddr{0x02, 0, 0, 0, 0, 7},
			IPv4:   netip.MustParsePrefix("10.83.7.0/24"),
			IPv6:   netip.MustParsePrefix("fd83:7::/64"),
			Switch: "/run/switch.sock",
		},
		Display:    true,
		Interfaces: []Interface{{net.HardwareAddr{0x02, 0, 0, 0, 0, 8}, func(net.Conn) {}}, {net.HardwareAddr{0x02, 0, 0, 0, 0, 9}, func(net.Conn) {}}},
		Firmware:   []FirmwareItem{{Name: "opt/example/metadata", Path: "/run/vm/metadata.pb"}},
	}
}

func minimal() Config {
	c := everything()
	c.Processor = Processor{Count: 1, Accelerator: KVM, TranslatedMiB: 128}
	c.Disks = Disks{Root: Disk{Path: "root.raw"}}
	c.Kernel, c.Network, c.Interfaces, c.Firmware, c.Display = nil, nil, nil, nil, false
	return c
}

func uefi() Config {
	c := minimal()
	c.UEFI = &UEFI{Path: DefaultUEFI}
	return c
}

func TestArguments_Golden(t *testing.T) {
	for name, config := range map[string]Config{"everything": everything(), "minimal": minimal(), "uefi": uefi()} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".args")
			// One option per line. No argument in this test contains a line break.
			got := strings.ReplaceAll(strings.Join(arguments(config), " "), " -", "\n-") + "\n"
			if *update {
				must(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			must(t, err)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("arguments (-want +got; -update writes them):\n%s", diff)
			}
		})
	}
}

// hostile generates texts from the characters that QEMU's option parsers interpret.
var hostile = rapid.Custom(func(t *rapid.T) string {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{
		",", ",,", "=", " ", "-", "-S", "\"", "}", "\\", "\n", "file=", "json:{", "nbd://", ",readonly=on", "a", "ä", "%", "<&>",
	}), 1, 8).Draw(t, "parts")
	return strings.Join(parts, "")
})

// Whatever users write into names, paths and the command line, the arguments have the same structure and contain
// exactly that text.
func TestArguments_InputCannotInjectOptions(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		c := everything()
		text := func(label string) string { return hostile.Draw(t, label) }
		c.Name = text("name")
		c.Disks.Root.Path, c.Disks.Seed.Path = text("root"), text("seed")
		c.Kernel = &Kernel{Path: text("kernel"), Initrd: text("initrd"), Cmdline: text("cmdline")}
		c.Firmware[0].Path = text("item")
		args, plain := arguments(c), arguments(everything())
		if len(args) != len(plain) {
			t.Fatalf("got %d arguments, want %d: %q", len(args), len(plain), args)
		}
		want := []string{c.Name, c.Disks.Root.Path, c.Disks.Seed.Path, c.Kernel.Path, c.Kernel.Initrd, c.Kernel.Cmdline, c.Firmware[0].Path}
		got := []string{
			keyValues(after(args, "-name", 0))["guest"],
			filename(t, after(args, "-blockdev", 0)), filename(t, after(args, "-blockdev", 1)),
			after(args, "-kernel", 0), after(args, "-initrd", 0), after(args, "-append", 0),
			keyValues(after(args, "-fw_cfg", 0))["file"],
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("texts that QEMU reads (-want +got):\n%s", diff)
		}
		for _, option := range []string{"-name", "-fw_cfg"} {
			if pairs := keyValues(after(args, option, 0)); len(pairs) != 2 {
				t.Errorf("%s has %d keys, want 2: %q", option, len(pairs), pairs)
			}
		}
	})
}

// after returns the argument of the nth use of an option. Values may look like options, so it reads pairs, except
// for options without a value.
func after(args []string, option string, nth int) string {
	for i := 0; i < len(args); i++ {
		if slices.Contains([]string{"-nodefaults", "-no-user-config", "-S"}, args[i]) {
			continue
		}
		if args[i] == option {
			if nth == 0 {
				return args[i+1]
			}
			nth--
		}
		i++
	}
	return ""
}

// keyValues parses key=value pairs like QEMU: a double comma stands for a comma.
func keyValues(text string) map[string]string {
	const comma = "\x00"
	pairs := map[string]string{}
	for _, pair := range strings.Split(strings.ReplaceAll(text, ",,", comma), ",") {
		key, value, _ := strings.Cut(pair, "=")
		pairs[key] = strings.ReplaceAll(value, comma, ",")
	}
	return pairs
}

func filename(t interface{ Fatal(...any) }, text string) string {
	var node struct {
		File struct {
			Filename string `json:"filename"`
		} `json:"file"`
	}
	if err := json.Unmarshal([]byte(text), &node); err != nil {
		t.Fatal(err)
	}
	return node.File.Filename
}

// This test uses QEMU's real parser with a real file. The guest must find its boot sector.
func TestArguments_HostilePathsWithQEMU(t *testing.T) {
	for _, name := range []string{`a,readonly=on,,b=c.raw`, `json:{"driver":"null-co"}`, "nbd:x\n", `"quoted" \ ä & <b>`, "-S"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir) // so that the start of the path looks like a protocol
			config := machineAt(t, name, echo)
			config.Name = name
			config.Firmware = []FirmwareItem{{Name: "opt/" + strings.Map(printable, name), Path: name}}
			p := start(t, config)
			console := attach(t, p)
			must(t, p.Cont(bounded(t)))
			console.until(echoBanner)
		})
	}
}

func printable(letter rune) rune {
	if letter < ' ' || letter > '~' {
		return '_'
	}
	return letter
}

func TestArguments_EveryOptionWithQEMU(t *testing.T) {
	config := everything()
	dir, data := t.TempDir(), config.Disks.Data
	for i := range data {
		data[i].Path = filepath.Join(dir, data[i].Serial)
		must(t, os.WriteFile(data[i].Path, make([]byte, 1<<20), 0o600))
	}
	config.Disks = machine(t, echo).Disks
	config.Disks.Data = data
	config.Kernel = nil // the test has no kernel, so the firmware boots the disk
	config.Disks.Seed.Path = filepath.Join(dir, "seed")
	config.Firmware[0].Path = filepath.Join(dir, "item")
	must(t, os.WriteFile(config.Disks.Seed.Path, make([]byte, 1<<20), 0o400))
	must(t, os.WriteFile(config.Firmware[0].Path, []byte("item"), 0o600))
	config.Sockets = t.TempDir()
	p := start(t, config)
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(echoBanner)

	var blocks []struct {
		Device   string `json:"qdev"`
		Inserted struct {
			Node     string `json:"node-name"`
			ReadOnly bool   `json:"ro"`
		} `json:"inserted"`
	}
	must(t, p.Monitor().Execute(bounded(t), "query-block", nil, &blocks))
	readOnly := map[string]bool{}
	for _, block := range blocks {
		readOnly[block.Inserted.Node] = block.Inserted.ReadOnly
	}
	if diff := cmp.Diff(map[string]bool{"root": false, "seed": true, "data-logs": false, "data-db": false}, readOnly); diff != "" {
		t.Errorf("disks and whether they are read-only (-want +got):\n%s", diff)
	}
	growOneOfTwo(t, p, data)
}

// growOneOfTwo enlarges one data disk while the guest runs. Linux identifies the disk by its serial number.
func growOneOfTwo(t *testing.T, p *Process, data []DataDisk) {
	t.Helper()
	must(t, p.Grow(bounded(t), "db", 3<<20))
	for i, want := range []int64{1 << 20, 3 << 20} {
		if size, err := sizeOf(data[i].Path); err != nil || size != want {
			t.Errorf("disk %s has %d bytes, %v, want %d", data[i].Serial, size, err, want)
		}
		var serial string
		where := object{"path": "/machine/peripheral/data-" + data[i].Serial, "property": "serial"}
		must(t, p.Monitor().Execute(bounded(t), "qom-get", where, &serial))
		if serial != data[i].Serial {
			t.Errorf("serial number = %q, want %q", serial, data[i].Serial)
		}
	}
	if err := p.Grow(bounded(t), "other", 3<<20); err == nil {
		t.Error("enlarged a disk that does not exist")
	}
}

func TestScripts_UseMachineTypeAndFirmware(t *testing.T) {
	for _, name := range []string{"install-qemu.sh", "hypervisor.sh"} {
		script, err := os.ReadFile("../../../../hack/" + name)
		must(t, err)
		if !strings.Contains(string(script), "\nmachine="+MachineType+" ") {
			t.Errorf("hack/%s does not use %s", name, MachineType)
		}
		if !strings.Contains(string(script), "\nuefi="+DefaultUEFI+" ") {
			t.Errorf("hack/%s does not use %s", name, DefaultUEFI)
		}
	}
}
