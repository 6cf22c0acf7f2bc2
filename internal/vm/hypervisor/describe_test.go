package hypervisor

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func guestConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	config := Config{
		Spec: &vmpb.VMSpec{
			Name: "web", Namespace: "default", Uuid: "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
			Address: []string{"10.77.0.16", "fd77::16/128"},
		},
		Paths:   Paths{RootDisk: filepath.Join(dir, "disk.img"), Run: dir, UserData: filepath.Join(dir, "user-data")},
		Network: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/64")},
	}
	must(t, os.WriteFile(config.Paths.RootDisk, nil, 0o600))
	must(t, os.WriteFile(config.Paths.UserData, []byte("#cloud-config\n"), 0o600))
	return config
}

// The guest's kubelet needs the provider ID, which contains the UUID of the VM.
func TestDescribeGuest_FillsProviderID(t *testing.T) {
	config := guestConfig(t)
	const id = "millwright:///default/6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21"
	for given, want := range map[string]string{
		"--provider-id=<<PROVIDER_ID>>\n":                                 "user: --provider-id=" + id + "\n",
		"content: LS1wcm92aWRlci1pZD08PFBST1ZJREVSX0lEPj4K\n":             "content: " + base64.StdEncoding.EncodeToString([]byte("--provider-id="+id+"\n")) + "\n",
		"<<MACHINE_NAME>> stays: only its controller knows the Machine\n": "<<MACHINE_NAME>> stays",
	} {
		must(t, os.WriteFile(config.Paths.UserData, []byte("user: "+given), 0o600))
		machine, err := describeGuest(config)
		must(t, err)
		image, err := os.ReadFile(machine.Disks.Seed.Path)
		must(t, err)
		if !bytes.Contains(image, []byte(want)) || !bytes.Contains(image, []byte(`"provider-id":"`+id+`"`)) {
			t.Errorf("%q: the seed does not contain %q, or no provider ID in its meta-data", given, want)
		}
	}
	config.Spec.UserData = &vmpb.UserData{HostName: "machine-1"}
	named, err := describeGuest(config)
	must(t, err)
	if image, err := os.ReadFile(named.Disks.Seed.Path); err != nil || !bytes.Contains(image, []byte(`"local-hostname":"machine-1"`)) {
		t.Errorf("the meta-data does not contain the host name (%v)", err)
	}
	// A VM without a UUID has no provider ID.
	config.Spec.Uuid = ""
	must(t, os.WriteFile(config.Paths.UserData, []byte("<<PROVIDER_ID>>"), 0o600))
	machine, err := describeGuest(config)
	must(t, err)
	if image, err := os.ReadFile(machine.Disks.Seed.Path); err != nil || !bytes.Contains(image, []byte("<<PROVIDER_ID>>")) || bytes.Contains(image, []byte("provider-id")) {
		t.Errorf("a VM without a UUID has a provider ID (%v)", err)
	}
}

func TestDescribeGuest_RefusesUserData(t *testing.T) {
	config := guestConfig(t)
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	_, _ = w.Write(make([]byte, 17<<20))
	must(t, w.Close())
	must(t, os.WriteFile(config.Paths.UserData, bomb.Bytes(), 0o600))
	var wrong *vmspec.Error
	if _, err := describeGuest(config); !errors.As(err, &wrong) || wrong.Field != "user_data" {
		t.Errorf("describeGuest = %v, want an error about user_data", err)
	}
}

func TestDescribeGuest_ProvidesMetadata(t *testing.T) {
	config := guestConfig(t)
	machine, err := describeGuest(config)
	must(t, err)
	// The items are identified by position and size, so that the target of a migration has the same items.
	names := []string{"opt/vm.metropolis.monogon.dev/v1/metadata.pb", "vm.metropolis.monogon.dev/v1/metadata.pb"}
	if len(machine.Firmware) != len(names) {
		t.Fatalf("items of fw_cfg: %v", machine.Firmware)
	}
	want := &vmpb.VMMetadata{Name: "web", NetworkConfig: &vmpb.NetworkConfig{
		V4: &vmpb.PTPAddress{Ip: "10.77.0.16", PeerIp: "10.77.0.2"},
		V6: &vmpb.PTPAddress{Ip: "fd77::16", PeerIp: "fd77::2"},
	}}
	for i, item := range machine.Firmware {
		data, err := os.ReadFile(item.Path)
		must(t, err)
		got := &vmpb.VMMetadata{}
		must(t, proto.Unmarshal(data, got))
		if diff := cmp.Diff(want, got, protocmp.Transform()); item.Name != names[i] || diff != "" {
			t.Errorf("%s (-want +got):\n%s", item.Name, diff)
		}
	}
	if machine.Name != "default/web" || machine.UUID != config.Spec.GetUuid() || machine.Network.Guest4().String() != "10.77.0.16" {
		t.Errorf("machine = %+v", machine)
	}
	if machine.MemoryMiB != 512 || machine.Processor.Count != 1 {
		t.Errorf("memory = %d MiB, CPUs = %d, want the defaults", machine.MemoryMiB, machine.Processor.Count)
	}
	if machine.Processor.TranslatedMiB != vmpb.TranslatedCodeMiB {
		t.Errorf("TranslatedMiB = %d, but the Pod requests %d", machine.Processor.TranslatedMiB, vmpb.TranslatedCodeMiB)
	}
}

func TestDescribeGuest_IsDeterministic(t *testing.T) {
	first, second := guestConfig(t), guestConfig(t)
	one, err := describeGuest(first)
	must(t, err)
	two, err := describeGuest(second)
	must(t, err)
	if one.Network.MAC.String() != two.Network.MAC.String() || one.Network.MAC[0] != 2 {
		t.Errorf("MAC addresses differ: %s and %s", one.Network.MAC, two.Network.MAC)
	}
	for _, pair := range [][2]string{{one.Disks.Seed.Path, two.Disks.Seed.Path}, {one.Firmware[0].Path, two.Firmware[0].Path}} {
		left, err := os.ReadFile(pair[0])
		must(t, err)
		right, err := os.ReadFile(pair[1])
		must(t, err)
		if len(left) == 0 || string(left) != string(right) {
			t.Errorf("%s differs", filepath.Base(pair[0]))
		}
	}
	second.Spec.Uuid = "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c22"
	two, err = describeGuest(second)
	must(t, err)
	if one.Network.MAC.String() == two.Network.MAC.String() {
		t.Error("two VMs have the same MAC address")
	}
}

func TestDescribeGuest_MinimalSpec(t *testing.T) {
	config := guestConfig(t)
	config.Spec.Address, config.Spec.Uuid, config.Network, config.Paths.UserData = nil, "", nil, ""
	config.Spec.Resources = &vmpb.Resources{Cpus: 3, MemoryBytes: 64<<20 + 5}
	machine, err := describeGuest(config)
	must(t, err)
	if machine.Network != nil || machine.Disks.Seed.Path != "" || machine.UUID != "" || machine.Kernel != nil {
		t.Errorf("machine = %+v", machine)
	}
	if machine.MemoryMiB != 64 || machine.Processor.Count != 3 {
		t.Errorf("memory = %d MiB, CPUs = %d", machine.MemoryMiB, machine.Processor.Count)
	}
	data, err := os.ReadFile(machine.Firmware[0].Path)
	must(t, err)
	metadata := &vmpb.VMMetadata{}
	must(t, proto.Unmarshal(data, metadata))
	if metadata.GetNetworkConfig() != nil {
		t.Errorf("metadata of a network without an address = %v", metadata)
	}
}

func TestDescribeGuest_AddressesMustFitNetwork(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/64")
	for name, test := range map[string]struct {
		addresses []string
		network   []netip.Prefix
		fits      bool
	}{
		"both":                           {[]string{"10.77.0.16", "fd77::16"}, []netip.Prefix{v6, v4}, true},
		"IPv4":                           {[]string{"10.77.0.16"}, []netip.Prefix{v4}, true},
		"no address":                     {nil, []netip.Prefix{v4, v6}, true},
		"nothing":                        {nil, nil, true},
		"no network":                     {[]string{"10.77.0.16"}, nil, false},
		"outside":                        {[]string{"10.78.0.16"}, []netip.Prefix{v4}, false},
		"the gateway":                    {[]string{"10.77.0.2"}, []netip.Prefix{v4}, false},
		"the name server":                {[]string{"10.77.0.3"}, []netip.Prefix{v4}, false},
		"IPv6 address without a network": {[]string{"fd77::16"}, []netip.Prefix{v4}, false},
		"IPv6 outside":                   {[]string{"fd78::16"}, []netip.Prefix{v4, v6}, false},
		"IPv6 network alone":             {[]string{"fd77::16"}, []netip.Prefix{v6}, false},
		"two networks of one version":    {nil, []netip.Prefix{v4, v4}, false},
	} {
		t.Run(name, func(t *testing.T) {
			config := guestConfig(t)
			config.Spec.Address = test.addresses
			_, err := guestNetwork(config.Spec, test.network, nil)
			var refusal *vmspec.Error
			if test.fits != (err == nil) || err != nil && !errors.As(err, &refusal) {
				t.Errorf("error = %v, want error: %t", err, !test.fits)
			}
		})
	}
}

func TestPaths_FollowSpecification(t *testing.T) {
	spec := &vmpb.VMSpec{}
	want := Paths{RootDisk: vmpb.RootDiskPath, Run: vmpb.DirRun}
	if diff := cmp.Diff(want, PathsFor(spec, "")); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if got := want.Socket(); got != vmpb.SocketPath {
		t.Errorf("socket = %s, want %s", got, vmpb.SocketPath)
	}
	spec.RootDiskPath, spec.UserData = "/data/root", &vmpb.UserData{Path: "/etc/user"}
	want = Paths{RootDisk: "/pod/data/root", Run: "/pod" + vmpb.DirRun, UserData: "/pod/etc/user"}
	if diff := cmp.Diff(want, PathsFor(spec, "/pod")); diff != "" {
		t.Errorf("below a root (-want +got):\n%s", diff)
	}
}
