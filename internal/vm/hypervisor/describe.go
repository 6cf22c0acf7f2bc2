package hypervisor

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/placeholder"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/seed"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// metadataKey is the fw_cfg key under which the guest finds its VMMetadata.
const metadataKey = "vm.metropolis.monogon.dev/v1/metadata.pb"

// Defaults of Resources.
const (
	defaultCPUs        = 1
	defaultMemoryBytes = 512 << 20
)

// describeGuest writes the guest's inputs to the run directory and returns the description of the machine, without
// its firmware, accelerator and disks. The same specification results in the same machine on every host.
func describeGuest(config Config) (qemu.Config, error) {
	spec := config.Spec
	network, err := guestNetwork(spec, config.Network, config.HostPorts)
	if err != nil {
		return qemu.Config{}, err
	}
	if network != nil {
		network.Switch, network.NoOutside, network.Log = config.Switch, config.NoOutside, config.Log
	}
	metadata := filepath.Join(config.Paths.Run, "metadata.pb")
	if err := writeMetadata(metadata, spec, network); err != nil {
		return qemu.Config{}, err
	}
	seedPath, err := writeSeed(config, network)
	if err != nil {
		return qemu.Config{}, err
	}
	return qemu.Config{
		Name: spec.GetNamespace() + "/" + spec.GetName(),
		UUID: spec.GetUuid(),
		Processor: qemu.Processor{
			Count: int(cmp.Or(spec.GetResources().GetCpus(), defaultCPUs)), TranslatedMiB: vmpb.TranslatedCodeMiB,
		},
		MemoryMiB: int(cmp.Or(spec.GetResources().GetMemoryBytes(), defaultMemoryBytes) >> 20),
		Disks:     qemu.Disks{Seed: qemu.Disk{Path: seedPath}},
		Kernel:    guestKernel(config),
		Network:   network,
		// A migrated guest finds items by position, so their order and number must not change.
		Firmware: []qemu.FirmwareItem{
			{Name: "opt/" + metadataKey, Path: metadata},
			{Name: metadataKey, Path: metadata},
		},
		Display: spec.GetDisplay() == vmpb.VMSpec_DISPLAY_VNC,
		Sockets: config.Paths.Run,
	}, nil
}

// guestNetwork returns the guest's network interface, or nil if the guest has no network. The error is a
// *vmspec.Error.
func guestNetwork(spec *vmpb.VMSpec, prefixes []netip.Prefix, hostPorts []uint16) (*qemu.UserNetwork, error) {
	desired, err := vmspec.ParseAddresses(spec.GetAddress())
	if err != nil {
		return nil, err
	}
	if len(prefixes) == 0 {
		if desired != (vmspec.Addresses{}) {
			return nil, &vmspec.Error{Field: "address", Problem: "requires a network, and the guest has none"}
		}
		return nil, nil
	}
	network := &qemu.UserNetwork{MAC: hardwareAddress(spec), Address4: desired.V4, Address6: desired.V6, HostPorts: hostPorts}
	for _, prefix := range prefixes {
		place := &network.IPv6
		if prefix.Addr().Is4() {
			place = &network.IPv4
		}
		if place.IsValid() {
			return nil, &vmspec.Error{Field: "spec", Problem: fmt.Sprintf("the network has more than one prefix of the same IP version as %s", prefix)}
		}
		*place = prefix
	}
	if err := network.Validate(); err != nil {
		return nil, &vmspec.Error{Field: "address", Problem: "does not fit the network: " + err.Error()}
	}
	return network, nil
}

// hardwareAddress returns a locally administered address, which is the same on every host.
func hardwareAddress(spec *vmpb.VMSpec) net.HardwareAddr {
	sum := sha256.Sum256([]byte(identityOf(spec)))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// identityOf returns the instance ID of the guest.
func identityOf(spec *vmpb.VMSpec) string {
	return cmp.Or(spec.GetUuid(), spec.GetNamespace()+"/"+spec.GetName())
}

// providerID returns the provider ID of the guest, as the driver for VirtualMachines returns it, or an empty text if
// the guest has no UUID.
func providerID(spec *vmpb.VMSpec) string {
	if spec.GetUuid() == "" {
		return ""
	}
	return "millwright:///" + spec.GetNamespace() + "/" + spec.GetUuid()
}

// links returns the guest's links, or nil if the guest has no static addresses.
func links(n *qemu.UserNetwork) *vmpb.NetworkConfig {
	if n == nil || !n.Address4.IsValid() && !n.Address6.IsValid() {
		return nil
	}
	config := &vmpb.NetworkConfig{}
	if n.Address4.IsValid() {
		config.V4 = &vmpb.PTPAddress{Ip: n.Address4.String(), PeerIp: n.Gateway4().String()}
	}
	if n.Address6.IsValid() {
		config.V6 = &vmpb.PTPAddress{Ip: n.Address6.String(), PeerIp: n.Gateway6().String()}
	}
	return config
}

func writeMetadata(path string, spec *vmpb.VMSpec, network *qemu.UserNetwork) error {
	metadata := &vmpb.VMMetadata{Name: spec.GetName(), NetworkConfig: links(network)}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(metadata)
	if err == nil {
		err = disk.ReplaceFile(path, data)
	}
	if err != nil {
		return fmt.Errorf("writing the guest's metadata: %w", err)
	}
	return nil
}

// writeSeed writes the volume with the guest's configuration and returns its path. Without user data it returns an
// empty path.
func writeSeed(config Config, network *qemu.UserNetwork) (string, error) {
	if config.Paths.UserData == "" {
		return "", nil
	}
	userData, err := os.ReadFile(config.Paths.UserData)
	if err != nil {
		return "", fmt.Errorf("reading the user data: %w", err)
	}
	content := seed.Content{
		InstanceID: identityOf(config.Spec),
		HostName:   cmp.Or(config.Spec.GetUserData().GetHostName(), config.Spec.GetName()),
		ProviderID: providerID(config.Spec),
		UserData:   userData,
		Network:    seedNetwork(network),
	}
	// The UUID is not known before the VM exists, so only the hypervisor can fill this placeholder.
	if content.ProviderID != "" {
		content.UserData, err = placeholder.Fill(userData, placeholder.Value{Placeholder: placeholder.ProviderID, Value: content.ProviderID})
	}
	var image []byte
	if err == nil {
		image, err = seed.Image(content)
	}
	if err != nil {
		return "", &vmspec.Error{Field: "user_data", Problem: err.Error()}
	}
	path := filepath.Join(config.Paths.Run, "seed.iso")
	if err := disk.ReplaceFile(path, image); err != nil {
		return "", fmt.Errorf("writing the seed: %w", err)
	}
	return path, nil
}

func seedNetwork(n *qemu.UserNetwork) *seed.Network {
	if links(n) == nil {
		return nil
	}
	network := &seed.Network{MAC: n.MAC}
	if n.Address4.IsValid() {
		network.Links = append(network.Links, seed.Link{Address: netip.PrefixFrom(n.Address4, n.IPv4.Bits()), Gateway: n.Gateway4()})
		network.NameServers = append(network.NameServers, n.DNS4())
	}
	if n.Address6.IsValid() {
		network.Links = append(network.Links, seed.Link{Address: netip.PrefixFrom(n.Address6, n.IPv6.Bits()), Gateway: n.Gateway6()})
	}
	return network
}

// Names of the boot files in the run directory.
const (
	kernelFile = "kernel"
	initrdFile = "initrd"
)

// guestKernel returns the boot files that fetchBootFiles has downloaded.
func guestKernel(config Config) *qemu.Kernel {
	boot := config.Spec.GetKernelBoot()
	if boot == nil {
		return nil
	}
	kernel := &qemu.Kernel{Path: filepath.Join(config.Paths.Run, kernelFile), Cmdline: boot.GetCommandLine()}
	if boot.GetInitrd() != nil {
		kernel.Initrd = filepath.Join(config.Paths.Run, initrdFile)
	}
	return kernel
}
