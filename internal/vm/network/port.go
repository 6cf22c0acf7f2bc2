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
)

// Port says whose the port is, and what may come from it.
type Port struct {
	// VM is its namespace and name. Several ports may be of one VM: it moves between two while
	// it migrates. Required.
	VM string `json:"vm"`
	// MAC is the Ethernet address of the VM's card. Required.
	MAC net.HardwareAddr `json:"mac"`
	// IPv4 and IPv6 are the VM's addresses. Zero: none of this version.
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
}

// errPort means that a port cannot be one.
var errPort = errors.New("not a port")

// check returns an error if the port cannot be one.
func (p Port) check() error {
	const length = 6
	switch {
	case p.VM == "":
		return fmt.Errorf("%w: it is of no VM", errPort)
	case len(p.MAC) != length:
		return fmt.Errorf("%w: %q is no Ethernet address", errPort, p.MAC)
	case p.IPv4.IsValid() && (!p.IPv4.Is4() || !unicast(p.IPv4)), p.IPv6.IsValid() && (!p.IPv6.Is6() || p.IPv6.Is4In6() || !unicast(p.IPv6)):
		return fmt.Errorf("%w: %s and %s are not addresses of a VM", errPort, p.IPv4, p.IPv6)
	}
	return nil
}

// addresses returns the IP addresses that the port has.
func (p Port) addresses() []netip.Addr {
	var all []netip.Addr
	for _, address := range []netip.Addr{p.IPv4, p.IPv6} {
		if address.IsValid() {
			all = append(all, address)
		}
	}
	return all
}

// A connection to a switch carries frames as QEMU does: a length of four bytes, big endian, and
// the content. The first from the hypervisor is not a frame, but its Port as JSON.
const (
	lengthSize = 4
	// maxHello is the length of the longest Port, in bytes.
	maxHello = 4 << 10
	// maxUnread is the longest frame that is read past. One that is longer ends the connection.
	maxUnread = 1 << 17
)

func framed(content []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, lengthSize+len(content)), uint32(len(content))), content...)
}

// readFrame reads up to limit bytes of content. It returns nil for a frame that is longer, and
// reads past it.
func readFrame(in *bufio.Reader, limit int) ([]byte, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxUnread {
		return nil, fmt.Errorf("a frame of %d bytes", size)
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
	return port, port.check()
}
