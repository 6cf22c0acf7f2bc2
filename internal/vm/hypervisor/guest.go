package hypervisor

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/seed"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// metadataKey is where the guest finds its VMMetadata in fw_cfg.
const metadataKey = "vm.metropolis.monogon.dev/v1/metadata.pb"

// Defaults of Resources.
const (
	defaultCPUs        = 1
	defaultMemoryBytes = 512 << 20
)

// describeGuest writes what the guest can learn about itself into the run folder, and
// gives the machine to start. The same specification gives the same machine, on every
// host.
func describeGuest(config Config) (qemu.Config, error) {
	spec := config.Spec
	network, err := guestNetwork(spec, config.Network)
	if err != nil {
		return qemu.Config{}, err
	}
	root, err := qemu.DiskAt(config.Paths.RootDisk)
	if err != nil {
		return qemu.Config{}, err
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
		Name:      spec.GetNamespace() + "/" + spec.GetName(),
		UUID:      spec.GetUuid(),
		Processor: qemu.Processor{Count: int(orDefault(spec.GetResources().GetCpus(), defaultCPUs))},
		MemoryMiB: int(orDefault(spec.GetResources().GetMemoryBytes(), defaultMemoryBytes) >> 20),
		Disks:     qemu.Disks{Root: root, Seed: qemu.Disk{Path: seedPath}},
		Kernel:    guestKernel(config),
		Network:   network,
		// Guests find items by position: order and number are part of the protocol.
		Firmware: []qemu.FirmwareItem{
			{Name: "opt/" + metadataKey, Path: metadata},
			{Name: metadataKey, Path: metadata},
		},
	}, nil
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// guestNetwork is the guest's network card; nil without a network. An address that the
// network cannot carry is a *SpecError.
func guestNetwork(spec *vmpb.VMSpec, prefixes []netip.Prefix) (*qemu.UserNetwork, error) {
	wanted, problem := parseAddresses(spec.GetAddress())
	if problem != nil {
		return nil, problem
	}
	if len(prefixes) == 0 {
		if wanted != (addresses{}) {
			return nil, &SpecError{"address", "there is no network to have an address in"}
		}
		return nil, nil
	}
	network := &qemu.UserNetwork{MAC: hardwareAddress(spec), Address4: wanted.v4, Address6: wanted.v6}
	for _, prefix := range prefixes {
		place := &network.IPv6
		if prefix.Addr().Is4() {
			place = &network.IPv4
		}
		if place.IsValid() {
			return nil, &SpecError{"spec", fmt.Sprintf("the network has a second prefix of one IP version, %s", prefix)}
		}
		*place = prefix
	}
	if err := network.Validate(); err != nil {
		return nil, &SpecError{"address", "does not fit the network: " + err.Error()}
	}
	return network, nil
}

// hardwareAddress is derived from the VM, so that it is the same on every host. It has
// the bit of addresses that no manufacturer gave out.
func hardwareAddress(spec *vmpb.VMSpec) net.HardwareAddr {
	sum := sha256.Sum256([]byte(identityOf(spec)))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// identityOf is what a guest's configuration is kept under.
func identityOf(spec *vmpb.VMSpec) string {
	return orDefault(spec.GetUuid(), spec.GetNamespace()+"/"+spec.GetName())
}

// links is how the guest reaches the network: only for addresses that it was given.
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
		err = replaceFile(path, data)
	}
	if err != nil {
		return fmt.Errorf("writing the guest's metadata: %w", err)
	}
	return nil
}

// writeSeed makes the volume with the guest's configuration, and returns its path; ""
// if there is none.
func writeSeed(config Config, network *qemu.UserNetwork) (string, error) {
	if config.Paths.UserData == "" {
		return "", nil
	}
	userData, err := os.ReadFile(config.Paths.UserData)
	if err != nil {
		return "", fmt.Errorf("reading the user data: %w", err)
	}
	image, err := seed.Image(seed.Content{
		InstanceID: identityOf(config.Spec),
		HostName:   config.Spec.GetName(),
		UserData:   userData,
		Network:    seedNetwork(network),
	})
	if err != nil {
		return "", &SpecError{"user_data", err.Error()}
	}
	path := filepath.Join(config.Paths.Run, "seed.iso")
	if err := replaceFile(path, image); err != nil {
		return "", fmt.Errorf("writing the seed: %w", err)
	}
	return path, nil
}

func seedNetwork(n *qemu.UserNetwork) *seed.Network {
	config := links(n)
	if config == nil {
		return nil
	}
	network := &seed.Network{MAC: n.MAC}
	for _, link := range []*vmpb.PTPAddress{config.GetV4(), config.GetV6()} {
		if link != nil {
			network.Links = append(network.Links, seed.Link{
				Address: netip.MustParseAddr(link.GetIp()), Gateway: netip.MustParseAddr(link.GetPeerIp()),
			})
		}
	}
	if n.Address4.IsValid() {
		network.NameServers = append(network.NameServers, n.DNS4())
	}
	return network
}

// Names of the boot files in the run folder.
const (
	kernelFile = "kernel"
	initrdFile = "initrd"
)

// guestKernel is what fetchBootFiles has fetched.
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

// errMachine is wrapped by what goes wrong between us and a machine.
var errMachine = errors.New("the machine failed")
