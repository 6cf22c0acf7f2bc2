package qemu

import (
	"fmt"
	"net"
	"net/netip"
	"os"
)

// MachineType is the virtual hardware of every guest. It is pinned, because it must
// be the same on both sides of a migration and after QEMU was updated.
const MachineType = "pc-q35-7.2"

// Config is one virtual machine. All paths are taken as they are: no path has a
// special meaning to QEMU, whatever characters are in it.
type Config struct {
	// Name shows in the process list. Required.
	Name string
	// UUID is the guest's SMBIOS system UUID, in its 36 character form. Empty: none.
	UUID string
	// Processor is how much the guest computes with. Required.
	Processor Processor
	// MemoryMiB is the size of the guest's memory in MiB. At least 1.
	MemoryMiB int
	// Disks are what the guest reads and writes.
	Disks Disks
	// Kernel, if set, is booted directly; nil lets the firmware boot the root disk.
	Kernel *Kernel
	// Network is the guest's network card; nil means none.
	Network *UserNetwork
	// Firmware are the items of fw_cfg, in an order that must be the same on both
	// sides of a migration.
	Firmware []FirmwareItem
}

// Processor is the guest's processor.
type Processor struct {
	// Count is the number of virtual CPUs. At least 1.
	Count int
	// Accelerator runs them. Required. KVM shows the guest the host's processor, TCG
	// a plain one of level x86-64-v2.
	Accelerator Accelerator
}

// Disks are the guest's block devices, all of raw format and on virtio.
type Disks struct {
	// Root is the disk with the guest's system. Required. QEMU holds a lock on it
	// as long as it runs; see ErrDiskLocked.
	Root Disk
	// Seed is a read-only image with the user data; zero means none.
	Seed Disk
}

// Disk is a file or block device of the host.
type Disk struct {
	// Path is the file or device.
	Path string
	// Block says that Path is a block device. QEMU wants to know.
	Block bool
}

// DiskAt looks what is at a path. An error wraps that of the file system, or is a
// *FieldError if it is neither a regular file nor a block device.
func DiskAt(path string) (Disk, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Disk{}, fmt.Errorf("looking for the disk: %w", err)
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

// Kernel is what direct boot starts instead of firmware and boot loader.
type Kernel struct {
	// Path is a bzImage, or an uncompressed kernel with a PVH entry. Required.
	Path string
	// Initrd is the initial file system; "" means none.
	Initrd string
	// Cmdline is the kernel's command line. May be empty.
	Cmdline string
}

// UserNetwork is a network card behind QEMU's user-mode network: a network that only
// this guest sees, with a gateway that reaches what the host's process reaches. The
// gateway's addresses stand for the host's loopback.
type UserNetwork struct {
	// MAC is the card's Ethernet address: 48 bits, not multicast. Required.
	MAC net.HardwareAddr
	// IPv4 is the guest's network, masked, of 8 to 28 bits. Required. Guests may have
	// the same one: they do not see each other.
	IPv4 netip.Prefix
	// IPv6 is the guest's IPv6 network: masked, of 64 bits. The zero value means no
	// IPv6.
	IPv6 netip.Prefix
	// Address4 is the guest's address in IPv4. The zero value: the fourth one.
	Address4 netip.Addr
	// Address6 is the guest's address in IPv6. The network carries any, so this is
	// only checked. The zero value: the guest chooses one, if it likes.
	Address6 netip.Addr
	// Forwards are ports of the host that lead into the guest.
	Forwards []Forward
}

// Forward passes connections to a TCP port of the host on to Guest4.
type Forward struct {
	// Host is where to listen: an IPv4 address and port.
	Host netip.AddrPort
	// Port is the guest's.
	Port uint16
}

// Offsets within the IPv4 network. They are QEMU's own choice for its default
// network, spelled out so that they hold for any.
const (
	gatewayOffset = 2
	dnsOffset     = 3
	guestOffset   = 4
)

// Gateway4 is the guest's IPv4 gateway, the second address of the network.
func (n UserNetwork) Gateway4() netip.Addr { return nth(n.IPv4, gatewayOffset) }

// DNS4 is the name server that the guest may use, the third address of the network.
func (n UserNetwork) DNS4() netip.Addr { return nth(n.IPv4, dnsOffset) }

// Guest4 is the guest's address. DHCP leases it.
func (n UserNetwork) Guest4() netip.Addr {
	if n.Address4.IsValid() {
		return n.Address4
	}
	return nth(n.IPv4, guestOffset)
}

// Gateway6 is the guest's IPv6 gateway, the second address of the network. It is the
// zero Addr without IPv6.
func (n UserNetwork) Gateway6() netip.Addr {
	if !n.IPv6.IsValid() {
		return netip.Addr{}
	}
	return nth(n.IPv6, gatewayOffset)
}

// nth is the address so many steps above a masked network's own.
func nth(network netip.Prefix, steps int) netip.Addr {
	address := network.Addr()
	for range steps {
		address = address.Next()
	}
	return address
}

// FirmwareItem is a blob that the guest finds in fw_cfg.
type FirmwareItem struct {
	// Name is 1 to 55 printable ASCII characters. Names outside of "opt/" work, but
	// QEMU warns that it might use them itself.
	Name string
	// Path is the file that holds the blob.
	Path string
}
