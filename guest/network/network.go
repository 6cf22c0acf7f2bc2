// Package network changes when the way in which the guest sets up its network does.
package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNoCard means that the machine has no network card.
var ErrNoCard = errors.New("there is no network card")

// Card finds the network card: the interface with an Ethernet address whose index is
// the lowest.
func Card() (net.Interface, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, err
	}
	for _, card := range interfaces {
		if card.Flags&net.FlagLoopback == 0 && len(card.HardwareAddr) > 0 {
			return card, nil
		}
	}
	return net.Interface{}, ErrNoCard
}

// Up switches an interface on, and keeps it from taking IPv6 addresses and routes that
// others advertise: only what the metadata says counts.
func Up(card net.Interface) error {
	path := filepath.Join("/proc/sys/net/ipv6/conf", card.Name, "accept_ra")
	if err := os.WriteFile(path, []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return exchange(linkUp(card.Index))
}

// Connect gives an interface one end of a point-to-point link, and makes the other end
// the default gateway. It may be repeated.
func Connect(card net.Interface, address, peer netip.Addr) error {
	return exchange(addAddress(card.Index, address, peer), addDefaultRoute(card.Index, peer))
}

// exchange sends requests one after the other, each after the answer to the one before.
func exchange(requests ...*request) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	answer := make([]byte, os.Getpagesize())
	for i, request := range requests {
		sequence := uint32(i + 1)
		if err := unix.Sendto(socket, request.bytes(sequence), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return fmt.Errorf("sending to the kernel: %w", err)
		}
		length, _, err := unix.Recvfrom(socket, answer, 0)
		if err != nil {
			return fmt.Errorf("receiving from the kernel: %w", err)
		}
		if err := parseAnswer(answer[:length], sequence); err != nil {
			return err
		}
	}
	return nil
}

// ErrAnswer is what errors wrap when the kernel's answer is none to the request.
var ErrAnswer = errors.New("unexpected answer of the kernel")

// parseAnswer reads the acknowledgement of a request: a message of type error, whose
// number is 0 after success. Any other number is a unix.Errno.
func parseAnswer(answer []byte, sequence uint32) error {
	if len(answer) < unix.NLMSG_HDRLEN+4 {
		return fmt.Errorf("%w: %d bytes", ErrAnswer, len(answer))
	}
	kind := binary.NativeEndian.Uint16(answer[4:])
	if got := binary.NativeEndian.Uint32(answer[8:]); kind != unix.NLMSG_ERROR || got != sequence {
		return fmt.Errorf("%w: type %d to request %d", ErrAnswer, kind, got)
	}
	if number := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); number != 0 {
		return fmt.Errorf("configuring the network: %w", unix.Errno(-number))
	}
	return nil
}
