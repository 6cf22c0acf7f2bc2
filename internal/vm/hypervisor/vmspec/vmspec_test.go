package vmspec_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// validSpec returns a specification with only the required fields.
func validSpec() *vmpb.VMSpec {
	return &vmpb.VMSpec{
		Name: "web", Namespace: "default", PodName: "web-1", Uuid: "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		Mode: vmpb.VMSpec_SM_RUN, LeaseMode: vmpb.LeaseMode_LM_STORAGE_LOCKING,
		ControllerEndpoint: "controller:1", RootDiskBytes: 1 << 20,
	}
}

// fullSpec returns a specification that uses every field.
func fullSpec() *vmpb.VMSpec {
	spec := validSpec()
	spec.Mode = vmpb.VMSpec_SM_PREPARE_IMAGE
	checksum := "sha256:" + strings.Repeat("0a", 32)
	spec.InitialImage = &vmpb.InitialImage{Url: "https://images/a", Checksum: checksum, Format: vmpb.InitialImage_FORMAT_QCOW2}
	spec.Address = []string{"10.77.0.16/32", "fd77::16"}
	spec.Resources = &vmpb.Resources{Cpus: 2, MemoryBytes: 1 << 30}
	spec.KernelBoot = &vmpb.KernelBoot{
		Kernel: &vmpb.BootFile{Url: "http://boot/kernel", Checksum: checksum},
		Initrd: &vmpb.BootFile{Url: "file:///boot/initrd", Checksum: "sha512:" + strings.Repeat("0a", 64)}, CommandLine: "console=ttyS0",
	}
	spec.UserData = &vmpb.UserData{Path: vmpb.UserDataPath}
	spec.RootDiskPath = vmpb.RootDiskPath
	return spec
}

func asJSON(t testing.TB, spec *vmpb.VMSpec) string {
	t.Helper()
	text, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func asBase64(t testing.TB, spec *vmpb.VMSpec) string {
	t.Helper()
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(data)
}

func TestParse_AcceptsBothForms(t *testing.T) {
	uefi := validSpec()
	uefi.Firmware, uefi.Display = vmpb.VMSpec_FIRMWARE_UEFI, vmpb.VMSpec_DISPLAY_VNC
	for _, want := range []*vmpb.VMSpec{validSpec(), fullSpec(), uefi} {
		for _, text := range []string{asJSON(t, want), asBase64(t, want), "\n " + asJSON(t, want) + "\n", asBase64(t, want) + "\n"} {
			got, err := vmspec.Parse(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		}
	}
}

func TestParse_DropsUnknownFields(t *testing.T) {
	text := strings.Replace(asJSON(t, validSpec()), "{", `{"fromTheFuture":{"a":[1]},`, 1)
	if _, err := vmspec.Parse(text); err != nil {
		t.Errorf("JSON: %v", err)
	}
	data, err := proto.Marshal(validSpec())
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendVarint(protowire.AppendTag(data, 999, protowire.VarintType), 5)
	got, err := vmspec.Parse(base64.StdEncoding.EncodeToString(data))
	if err != nil || len(got.ProtoReflect().GetUnknown()) != 0 {
		t.Errorf("binary: %v, %v", got, err)
	}
}

func TestParse_ErrorNamesField(t *testing.T) {
	for name, test := range map[string]struct {
		field string
		spoil func(*vmpb.VMSpec)
	}{
		"no name":               {"name", func(s *vmpb.VMSpec) { s.Name = "" }},
		"name with a slash":     {"name", func(s *vmpb.VMSpec) { s.Name = "a/b" }},
		"no namespace":          {"namespace", func(s *vmpb.VMSpec) { s.Namespace = "" }},
		"line break in the Pod": {"pod_name", func(s *vmpb.VMSpec) { s.PodName = "a\nb" }},
		"no mode":               {"mode", func(s *vmpb.VMSpec) { s.Mode = vmpb.VMSpec_SM_UNKNOWN }},
		"unknown mode":          {"mode", func(s *vmpb.VMSpec) { s.Mode = 99 }},
		"a shared device":       {"root_disk_shared", func(s *vmpb.VMSpec) { s.RootDiskShared, s.RootDiskPath = true, vmpb.RootDevicePath }},
		"source is this Pod":    {"migration_source_pod", func(s *vmpb.VMSpec) { incoming(s); s.MigrationSourcePod = s.PodName }},
		"invalid source":        {"migration_source_pod", func(s *vmpb.VMSpec) { incoming(s); s.MigrationSourcePod = "a b" }},
		"no image":              {"initial_image.url", func(s *vmpb.VMSpec) { s.InitialImage = nil }},
		"no URL":                {"initial_image.url", func(s *vmpb.VMSpec) { s.InitialImage.Url = "" }},
		"unsupported scheme":    {"initial_image.url", func(s *vmpb.VMSpec) { s.InitialImage.Url = "ftp://a/b" }},
		"no scheme":             {"initial_image.url", func(s *vmpb.VMSpec) { s.InitialImage.Url = "/etc/shadow" }},
		"bad checksum":          {"initial_image.checksum", func(s *vmpb.VMSpec) { s.InitialImage.Checksum = "sha256:00" }},
		"short sha512":          {"initial_image.checksum", func(s *vmpb.VMSpec) { s.InitialImage.Checksum = "sha512:" + strings.Repeat("0", 64) }},
		"other checksum":        {"initial_image.checksum", func(s *vmpb.VMSpec) { s.InitialImage.Checksum = "md5:" + strings.Repeat("0", 32) }},
		"unknown format":        {"initial_image.format", func(s *vmpb.VMSpec) { s.InitialImage.Format = 9 }},
		"two IPv4":              {"address[2]", func(s *vmpb.VMSpec) { s.Address = append(s.Address, "10.0.0.1") }},
		"two IPv6":              {"address[1]", func(s *vmpb.VMSpec) { s.Address = []string{"fd00::1", "fd00::1/128"} }},
		"no address":            {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"10.0.0"} }},
		"short prefix":          {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"10.0.0.1/24"} }},
		"long prefix":           {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"10.0.0.1/33"} }},
		"zone":                  {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"fe80::1%eth0"} }},
		"IPv4 in IPv6":          {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"::ffff:10.0.0.1"} }},
		"loopback":              {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"127.0.0.1"} }},
		"metadata service":      {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"169.254.169.254"} }},
		"multicast":             {"address[0]", func(s *vmpb.VMSpec) { s.Address = []string{"224.0.0.1"} }},
		"no controller":         {"controller_endpoint", func(s *vmpb.VMSpec) { s.ControllerEndpoint = "" }},
		"no lease mode":         {"lease_mode", func(s *vmpb.VMSpec) { s.LeaseMode = vmpb.LeaseMode_LM_UNKNOWN }},
		"full leases":           {"lease_duration", func(s *vmpb.VMSpec) { s.LeaseMode = vmpb.LeaseMode_LM_FULL_LEASES }},
		"a short lease": {"lease_duration", func(s *vmpb.VMSpec) {
			s.LeaseMode, s.LeaseDuration = vmpb.LeaseMode_LM_FULL_LEASES, durationpb.New(5*time.Second)
		}},
		"a target without a lease": {"lease_duration", func(s *vmpb.VMSpec) {
			incoming(s)
			s.LeaseMode = vmpb.LeaseMode_LM_FULL_LEASES
		}},
		"served without leases": {"disks_served", func(s *vmpb.VMSpec) { s.DisksServed = true }},
		"served disks arrive without leases": {"disks_served", func(s *vmpb.VMSpec) {
			incoming(s)
			s.DisksServed = true
		}},
		"unknown lease mode":        {"lease_mode", func(s *vmpb.VMSpec) { s.LeaseMode = 99 }},
		"invalid UUID":              {"uuid", func(s *vmpb.VMSpec) { s.Uuid = "vm-1" }},
		"upper-case UUID":           {"uuid", func(s *vmpb.VMSpec) { s.Uuid = strings.ToUpper(s.Uuid) }},
		"too many CPUs":             {"resources.cpus", func(s *vmpb.VMSpec) { s.Resources.Cpus = 1 << 31 }},
		"too little memory":         {"resources.memory_bytes", func(s *vmpb.VMSpec) { s.Resources.MemoryBytes = 512 }},
		"too much memory":           {"resources.memory_bytes", func(s *vmpb.VMSpec) { s.Resources.MemoryBytes = 1 << 63 }},
		"no kernel":                 {"kernel_boot.kernel.url", func(s *vmpb.VMSpec) { s.KernelBoot.Kernel = nil }},
		"kernel's checksum":         {"kernel_boot.kernel.checksum", func(s *vmpb.VMSpec) { s.KernelBoot.Kernel.Checksum = "x" }},
		"initrd without URL":        {"kernel_boot.initrd.url", func(s *vmpb.VMSpec) { s.KernelBoot.Initrd.Url = "" }},
		"NUL in the command line":   {"kernel_boot.command_line", func(s *vmpb.VMSpec) { s.KernelBoot.CommandLine = "a\x00b" }},
		"no time to shut down":      {"shutdown_time", func(s *vmpb.VMSpec) { s.ShutdownTime = durationpb.New(0) }},
		"days to shut down":         {"shutdown_time", func(s *vmpb.VMSpec) { s.ShutdownTime = durationpb.New(48 * time.Hour) }},
		"network without a name":    {"networks[0].name", networks(&vmpb.NetworkInterface{Interface: "net1"})},
		"network without interface": {"networks[0].interface", networks(&vmpb.NetworkInterface{Name: "a"})},
		"interface with a path":     {"networks[0].interface", networks(&vmpb.NetworkInterface{Name: "a", Interface: "../net1"})},
		"duplicate network name":    {"networks[1].name", networks(&vmpb.NetworkInterface{Name: "a", Interface: "net1"}, &vmpb.NetworkInterface{Name: "a", Interface: "net2"})},
		"duplicate interface":       {"networks[1].interface", networks(&vmpb.NetworkInterface{Name: "a", Interface: "net1"}, &vmpb.NetworkInterface{Name: "b", Interface: "net1"})},
		"group address":             {"networks[0].mac", networks(&vmpb.NetworkInterface{Name: "a", Interface: "net1", Mac: "01:00:00:00:00:01"})},
		"zero address":              {"networks[0].mac", networks(&vmpb.NetworkInterface{Name: "a", Interface: "net1", Mac: "00:00:00:00:00:00"})},
		"address of eight bytes":    {"networks[0].mac", networks(&vmpb.NetworkInterface{Name: "a", Interface: "net1", Mac: "02:00:00:00:00:00:00:01"})},
		"nine networks":             {"networks", networks(make([]*vmpb.NetworkInterface, 9)...)},
		"unknown firmware":          {"firmware", func(s *vmpb.VMSpec) { s.Firmware = 9 }},
		"unknown display":           {"display", func(s *vmpb.VMSpec) { s.Display = 9 }},
		"UEFI with a kernel":        {"firmware", func(s *vmpb.VMSpec) { s.Firmware = vmpb.VMSpec_FIRMWARE_UEFI }},
		"UEFI with little memory": {"resources.memory_bytes", func(s *vmpb.VMSpec) {
			s.Firmware, s.KernelBoot, s.Resources.MemoryBytes = vmpb.VMSpec_FIRMWARE_UEFI, nil, 64<<20-1
		}},
		"relative user data": {"user_data.path", func(s *vmpb.VMSpec) { s.UserData.Path = "etc/user-data" }},
		"relative disk":      {"root_disk_path", func(s *vmpb.VMSpec) { s.RootDiskPath = "disk.img" }},
		"disk outside":       {"root_disk_path", func(s *vmpb.VMSpec) { s.RootDiskPath = "/../etc/shadow" }},
		"disk too large":     {"root_disk_bytes", func(s *vmpb.VMSpec) { s.RootDiskBytes = 1 << 63 }},
	} {
		t.Run(name, func(t *testing.T) {
			spec := fullSpec()
			test.spoil(spec)
			for _, text := range []string{asJSON(t, spec), asBase64(t, spec)} {
				var refusal *vmspec.Error
				if _, err := vmspec.Parse(text); !errors.As(err, &refusal) || refusal.Field != test.field {
					t.Errorf("error = %v, want one of %s", err, test.field)
				}
			}
		})
	}
}

func TestParse_RejectsUnreadableSpecs(t *testing.T) {
	for _, text := range []string{"", " \n", "{", "{}x", "[]", "null", "ÿ", "====", `{"name": 5}`, `{"mode": "SM_ELSE"}`, "/////w=="} {
		var refusal *vmspec.Error
		if spec, err := vmspec.Parse(text); !errors.As(err, &refusal) {
			t.Errorf("%q: %v, %v; want a *vmspec.Error", text, spec, err)
		}
	}
}

// In SM_RUN, the image is ignored.
func TestParse_IgnoresImageInRunMode(t *testing.T) {
	spec := fullSpec()
	spec.Mode, spec.InitialImage = vmpb.VMSpec_SM_RUN, &vmpb.InitialImage{Url: "ftp://a"}
	if _, err := vmspec.Parse(asJSON(t, spec)); err != nil {
		t.Error(err)
	}
}

// An accepted specification is accepted again in both forms, and satisfies the most important rules.
func FuzzParse(f *testing.F) {
	leased := validSpec()
	leased.LeaseMode, leased.LeaseDuration = vmpb.LeaseMode_LM_FULL_LEASES, durationpb.New(lease.DefaultDuration)
	for _, spec := range []*vmpb.VMSpec{validSpec(), fullSpec(), leased} {
		f.Add(asJSON(f, spec))
		f.Add(asBase64(f, spec))
	}
	f.Add(`{"mode": 7}`)
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := vmspec.Parse(text)
		if err != nil {
			var refusal *vmspec.Error
			if spec != nil || !errors.As(err, &refusal) || refusal.Field == "" {
				t.Fatalf("%v, %v; want only a *vmspec.Error", spec, err)
			}
			return
		}
		if spec.GetName() == "" || !hasLeaseTerms(spec) {
			t.Errorf("accepted: %v", spec)
		}
		again, err := vmspec.Parse(asBase64(t, spec))
		if err != nil || !proto.Equal(spec, again) {
			t.Errorf("the binary form is different: %v, %v", again, err)
		}
		if hypervisor.PathsFor(spec, "/container").RootDisk[:11] != "/container/" {
			t.Errorf("the disk is outside of the root: %s", spec.GetRootDiskPath())
		}
	})
}

// hasLeaseTerms reports whether a specification defines the conditions under which the guest may run.
func hasLeaseTerms(spec *vmpb.VMSpec) bool {
	switch spec.GetLeaseMode() {
	case vmpb.LeaseMode_LM_STORAGE_LOCKING:
		return true
	case vmpb.LeaseMode_LM_FULL_LEASES:
		return lease.Check(spec.GetLeaseDuration().AsDuration()) == nil
	}
	return false
}

func incoming(spec *vmpb.VMSpec) { spec.Mode = vmpb.VMSpec_SM_INCOMING_MIGRATION }

func TestVMSpec_IncomingMigration(t *testing.T) {
	for _, source := range []string{"", "web-0"} {
		spec := fullSpec()
		incoming(spec)
		spec.MigrationSourcePod = source
		if _, err := vmspec.Parse(asJSON(t, spec)); err != nil {
			t.Errorf("from %q: %v", source, err)
		}
	}
}

func networks(all ...*vmpb.NetworkInterface) func(*vmpb.VMSpec) {
	return func(s *vmpb.VMSpec) { s.Networks = all }
}
