package qemu

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/firewall"
	"github.com/millwright-dev/millwright/internal/vm/network"
)

// MachineType is the virtual hardware of every guest. It is pinned because it must be the same on both sides of a
// migration and after an update of QEMU.
const MachineType = "pc-q35-7.2"

// Config describes one virtual machine. Paths may contain any characters; none of them has a special meaning to
// QEMU.
type Config struct {
	// Name is shown in the process list. Required.
	Name string
	// UUID is the guest's SMBIOS system UUID in its 36-character form. If empty, the guest has none.
	UUID string
	// Processor is the processor of the guest. Required.
	Processor Processor
	// MemoryMiB is the guest's memory in MiB. It must be at least 1.
	MemoryMiB int
	// Disks are the disks of the guest. Required.
	Disks Disks
	// UEFI is the firmware that boots the root disk. If nil, that is SeaBIOS. It cannot be combined with Kernel.
	UEFI *UEFI
	// Kernel is the kernel to boot directly. If nil, the firmware boots the root disk.
	Kernel *Kernel
	// Network is the guest's network interface. If nil, the guest has none.
	Network *UserNetwork
	// Interfaces are additional network interfaces of the guest.
	Interfaces []Interface
	// Firmware holds the items of fw_cfg. Their order must be the same on both sides of a migration.
	Firmware []FirmwareItem
	// Display reports whether the guest has a display; see Process.DialDisplay. It requires Sockets.
	Display bool
	// Sockets is the directory for the sockets of a migration and of the display. No other user may have access to it.
	// Its path may have any length. If empty, the machine cannot migrate.
	Sockets string
	// Incoming reports whether the machine waits for the state of another machine; see Process.Receive. Such a
	// machine does not lock its disks until it has received the state. It requires Sockets.
	Incoming bool
}

// Processor is the guest's processor.
type Processor struct {
	// Count is the number of virtual CPUs. It must be at least 1.
	Count int
	// Accelerator executes their instructions. Required. With KVM, the guest sees the host's processor; with TCG,
	// it sees a generic processor of level x86-64-v2.
	Accelerator Accelerator
	// TranslatedMiB is the size of TCG's cache of translated code in MiB. When the cache is full, it is flushed,
	// and code is translated again as needed. The cache is not part of the guest's memory, and the guest does not
	// see it. If 0, QEMU's default applies, which is up to 1 GiB. KVM does not use it.
	TranslatedMiB int
}

// accelerator returns QEMU's option for the accelerator.
func (p Processor) accelerator() string {
	if p.Accelerator != TCG || p.TranslatedMiB == 0 {
		return string(p.Accelerator)
	}
	return string(p.Accelerator) + ",tb-size=" + strconv.Itoa(p.TranslatedMiB)
}

// Disks are the guest's block devices. All of them are raw and use virtio.
type Disks struct {
	// Root is the disk with the guest's operating system. Required. QEMU holds a lock on it for as long as it
	// runs; see ErrDiskLocked.
	Root Disk
	// Seed is a read-only image with the user data. If zero, the guest has none.
	Seed Disk
	// Data are further disks, locked like Root. They come last on the guest's bus, so they do not change the names
	// of its other devices.
	Data []DataDisk
	// Locks are open files that QEMU inherits but does not use. Their locks are held until QEMU has terminated,
	// even if this process terminates earlier. May be nil.
	Locks []*os.File
}

// DataDisk is a disk that the guest identifies by its serial number.
type DataDisk struct {
	Disk
	// Serial consists of 1 to 20 lower-case letters, digits and hyphens. It must be unique.
	Serial string
}

// Disk is a file or block device of the host, or a disk that another process serves.
type Disk struct {
	// Path is the path of the file or device.
	Path string
	// Block reports whether Path is a block device.
	Block bool
	// Direct reports whether QEMU bypasses the host's page cache, which other hosts cannot see. The file system
	// must support that.
	Direct bool
	// Served locates a served disk and replaces Path. It is zero for other disks.
	Served Served
}

// Served is a disk that is served by NBD. QEMU does not lock it. If the connection is lost, QEMU opens another one
// when the guest uses the disk, and the guest waits for it. After two seconds the guest's requests fail, which
// stops the guest. The guest may stop again after Process.Cont, because QEMU retries with increasing delays.
type Served struct {
	// Socket is the socket that QEMU connects to. It must be listening before QEMU starts. It requires
	// Config.Sockets.
	Socket Socket
	// Export is the name of the NBD export.
	Export string
}

// DiskAt returns the disk at a path. Errors: those of the file system, or a *FieldError if the path is neither a
// regular file nor a block device.
func DiskAt(path string) (Disk, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Disk{}, fmt.Errorf("checking the disk: %w", err)
	}
	switch info.Mode().Type() & (os.ModeType | os.ModeCharDevice) {
	case 0:
		return Disk{Path: path}, nil
	case os.ModeDevice:
		return Disk{Path: path, Block: true}, nil
	default:
		return Disk{}, &FieldError{"disk", path + " is neither a file nor a block device"}
	}
}

// Kernel is a kernel that QEMU boots directly, without firmware and boot loader.
type Kernel struct {
	// Path is the path of a bzImage, or of an uncompressed kernel with a PVH entry. Required.
	Path string
	// Initrd is the path of the initial RAM disk. If empty, the guest has none.
	Initrd string
	// Cmdline is the kernel's command line. Optional.
	Cmdline string
}

// FirmwareItem is a blob that the guest reads from fw_cfg.
type FirmwareItem struct {
	// Name consists of 1 to 55 printable ASCII characters. QEMU warns about names outside "opt/".
	Name string
	// Path is the path of the file with the blob.
	Path string
}

// UserNetwork is a network interface on QEMU's user-mode network: a private network of this guest, with a gateway
// that reaches what the process on the host reaches. The addresses of the gateway represent the host's loopback
// interface, of which only HostPorts can be reached.
type UserNetwork struct {
	// MAC is the Ethernet address of the interface. Required.
	MAC net.HardwareAddr
	// IPv4 is the guest's network, masked, with 8 to 28 bits. Required. Several guests may use the same network;
	// they do not see each other.
	IPv4 netip.Prefix
	// IPv6 is the guest's IPv6 network, masked, with 64 bits. If zero, the guest has no IPv6.
	IPv6 netip.Prefix
	// Address4 is the guest's IPv4 address. The default is the fourth address of the network.
	Address4 netip.Addr
	// Address6 is the guest's IPv6 address. QEMU accepts any address, so the address is only validated. If zero,
	// the guest chooses one.
	Address6 netip.Addr
	// HostPorts are the TCP ports of the host's loopback interface that the guest may connect to, at the addresses
	// of the gateway.
	HostPorts []uint16
	// Switch is the path of the socket of the switch that connects the guest to other guests; see package network.
	// If empty, the guest cannot reach other guests.
	Switch string
	// Overlay connects the guest to guests on other hosts, and replaces Switch. It is an *overlay.Endpoint. If nil, the
	// guest cannot reach guests on other hosts.
	Overlay Overlay
	// Log is the logger for errors of the connection to the switch. If nil, nothing is logged.
	Log *slog.Logger
	// NoOutside restricts the guest to other guests and HostPorts.
	NoOutside bool
}

// Interface is a network interface of the guest whose frames this process passes to a network.
type Interface struct {
	// MAC is the Ethernet address of the interface. Required.
	MAC net.HardwareAddr
	// Pass passes frames between the network and the guest until the connection is closed. Each message on the
	// connection is a frame. Required.
	Pass func(guest net.Conn) `json:"-"`
}

// Overlay is a network of guests on different hosts.
type Overlay interface {
	// Attach connects a guest until the context is canceled, like overlay.Endpoint.Attach.
	Attach(ctx context.Context, port network.Port, deliver func(framed []byte) error) (send func(frame []byte), err error)
}

// Offsets of special addresses within the IPv4 network. These are QEMU's defaults, set explicitly for any network.
const (
	gatewayOffset = 2
	dnsOffset     = 3
	guestOffset   = 4
)

// Gateway4 returns the guest's IPv4 gateway, the second address of the network.
func (n UserNetwork) Gateway4() netip.Addr { return nth(n.IPv4, gatewayOffset) }

// DNS4 returns the guest's name server, the third address of the network.
func (n UserNetwork) DNS4() netip.Addr { return nth(n.IPv4, dnsOffset) }

// Guest4 returns the guest's address, which QEMU leases by DHCP.
func (n UserNetwork) Guest4() netip.Addr {
	if n.Address4.IsValid() {
		return n.Address4
	}
	return nth(n.IPv4, guestOffset)
}

// Gateway6 returns the guest's IPv6 gateway, the second address of the network, or the zero Addr without IPv6.
func (n UserNetwork) Gateway6() netip.Addr {
	if !n.IPv6.IsValid() {
		return netip.Addr{}
	}
	return nth(n.IPv6, gatewayOffset)
}

// DNS6 returns the guest's IPv6 name server, the third address of the network, or the zero Addr without IPv6.
func (n UserNetwork) DNS6() netip.Addr {
	if !n.IPv6.IsValid() {
		return netip.Addr{}
	}
	return nth(n.IPv6, dnsOffset)
}

// rules returns what the guest may reach in its own network.
func (n UserNetwork) rules() firewall.Rules {
	rules := firewall.Rules{
		Networks:  []firewall.Network{{Prefix: n.IPv4, Gateway: n.Gateway4(), NameServer: n.DNS4()}},
		HostPorts: n.HostPorts, NoOutside: n.NoOutside,
	}
	if n.IPv6.IsValid() {
		rules.Networks = append(rules.Networks, firewall.Network{Prefix: n.IPv6, Gateway: n.Gateway6(), NameServer: n.DNS6()})
	}
	return rules
}

// linkNetworks returns the networks in which the guest may look for other guests. Without a fixed IPv6 address, others
// cannot respond to it over IPv6.
func (n UserNetwork) linkNetworks() []network.Network {
	networks := []network.Network{{Prefix: n.IPv4, OnLink: []netip.Addr{n.Gateway4(), n.DNS4()}}}
	if n.Address6.IsValid() {
		networks = append(networks, network.Network{Prefix: n.IPv6, OnLink: []netip.Addr{n.Gateway6(), n.DNS6()}})
	}
	return networks
}

func nth(network netip.Prefix, steps int) netip.Addr {
	address := network.Addr()
	for range steps {
		address = address.Next()
	}
	return address
}

// FieldError reports an invalid input. Nothing was started.
type FieldError struct {
	// Field is the path of the input, such as "network.ipv4".
	Field string
	// Problem is a message for users.
	Problem string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Validate returns a *FieldError for the first value that QEMU would reject or could not use, or nil if all values
// are valid.
func (n UserNetwork) Validate() error {
	switch {
	case !validIPv4(n.IPv4):
		return &FieldError{"network.ipv4", fmt.Sprintf("%s is not a masked IPv4 network of 8 to 28 bits", n.IPv4)}
	case n.IPv6.IsValid() && !validIPv6(n.IPv6):
		return &FieldError{"network.ipv6", fmt.Sprintf("%s is not a masked IPv6 network of 64 bits", n.IPv6)}
	case n.Address4.IsValid() && !n.isFree(n.Address4, n.IPv4):
		return &FieldError{"network.address4", fmt.Sprintf("%s is not available to a guest in %s", n.Address4, n.IPv4)}
	case n.Address6.IsValid() && !n.isFree(n.Address6, n.IPv6):
		return &FieldError{"network.address6", fmt.Sprintf("%s is not available to a guest in %s", n.Address6, n.IPv6)}
	}
	return nil
}

// isFree reports whether the address is in the network and is not a special address of it.
func (n UserNetwork) isFree(address netip.Addr, network netip.Prefix) bool {
	if !network.Contains(address) || address == network.Addr() {
		return false
	}
	switch address {
	case n.Gateway4(), n.DNS4(), n.Gateway6(), n.DNS6():
		return false
	}
	// The last address of an IPv4 network is its broadcast address.
	return address.Is6() || network.Contains(address.Next())
}

// validIPv4 reports whether the network is large enough for UserNetwork's addresses.
func validIPv4(network netip.Prefix) bool {
	return network.Addr().Is4() && network == network.Masked() && network.Bits() >= 8 && network.Bits() <= 28
}

// validIPv6 reports whether guests can choose addresses themselves.
func validIPv6(network netip.Prefix) bool {
	address := network.Addr()
	return address.Is6() && !address.Is4In6() && network == network.Masked() && network.Bits() == 64
}
