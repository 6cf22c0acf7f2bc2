package network

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// Port describes the VM of a port, and the addresses that it may send from.
type Port struct {
	// VM is the namespace and name of the VM. A VM may have several ports: during a migration it moves from one to
	// another. Required.
	VM string `json:"vm"`
	// MAC is the Ethernet address of the VM's network interface. Required.
	MAC net.HardwareAddr `json:"mac"`
	// IPv4 and IPv6 are the VM's addresses. A zero value means that it has no address of this version.
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
	// Networks are the networks that the VM treats as its own link. The Link responds to the VM when it looks for
	// other guests in them, and may send it errors from their gateways; the switch does not know them. Optional.
	Networks []Network `json:"-"`
}

// errPort means that a port is invalid.
var errPort = errors.New("invalid port")

// Check returns an error if the port is invalid.
func (p Port) Check() error {
	const length = 6
	switch {
	case p.VM == "":
		return fmt.Errorf("%w: no VM is set", errPort)
	case len(p.MAC) != length:
		return fmt.Errorf("%w: %q is not an Ethernet address", errPort, p.MAC)
	case p.IPv4.IsValid() && (!p.IPv4.Is4() || specialaddress.Kind(p.IPv4) != ""),
		p.IPv6.IsValid() && (!p.IPv6.Is6() || p.IPv6.Is4In6() || p.IPv6.Zone() != "" || specialaddress.Kind(p.IPv6) != ""):
		return fmt.Errorf("%w: %s and %s are not addresses of a VM", errPort, p.IPv4, p.IPv6)
	}
	return nil
}

// Addresses returns the IP addresses of the port.
func (p Port) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, address := range []netip.Addr{p.IPv4, p.IPv6} {
		if address.IsValid() {
			all = append(all, address)
		}
	}
	return all
}

// A connection to a switch carries frames in the same format as QEMU: a length of four bytes, big-endian, followed
// by the content. The first message from the hypervisor is not a frame but its Port, encoded as JSON.
const (
	lengthSize = 4
	// maxHello is the maximum length of an encoded Port, in bytes.
	maxHello = 4 << 10
	// maxUnread is the length of the longest frame that is skipped. A longer frame closes the connection.
	maxUnread = 1 << 17
)

func framed(content []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, lengthSize+len(content)), uint32(len(content))), content...)
}

// readFrame reads up to limit bytes of content. It skips a longer frame and returns nil.
func readFrame(in *bufio.Reader, limit int) ([]byte, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxUnread {
		return nil, fmt.Errorf("frame of %d bytes is out of range", size)
	}
	if int(size) > limit {
		_, err := in.Discard(int(size))
		return nil, err
	}
	frame := make([]byte, size)
	_, err := io.ReadFull(in, frame)
	return frame, err
}

func readHello(in *bufio.Reader) (Port, error) {
	content, err := readFrame(in, maxHello)
	if err != nil {
		return Port{}, err
	}
	var port Port
	if err := json.Unmarshal(content, &port); err != nil {
		return Port{}, fmt.Errorf("%w: %w", errPort, err)
	}
	return port, port.Check()
}
