// Package metadata decodes the message metropolis.proto.vm.VMMetadata, which a hypervisor passes
// to its guest. The generated type would add gRPC to the guest's program.
package metadata

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrEncoding means that the bytes are not such a message.
var ErrEncoding = errors.New("not a VMMetadata message")

// Metadata is the content of a VMMetadata message.
type Metadata struct {
	// Name of the VirtualMachine object.
	Name string
	// Links are the point-to-point links of the network card, IPv4 before IPv6, at most one of each. If empty,
	// the VM has no address.
	Links []Link
}

// Link is a point-to-point link. Both addresses have the same IP version.
type Link struct {
	// Address of the VM.
	Address netip.Addr
	// Peer is the other end, and the default gateway.
	Peer netip.Addr
}

// The names of the message in fw_cfg. QEMU supports the second name.
var names = []string{
	"vm.metropolis.monogon.dev/v1/metadata.pb", "opt/vm.metropolis.monogon.dev/v1/metadata.pb",
}

// Read returns the metadata of this machine.
func Read() (Metadata, error) {
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join("/sys/firmware/qemu_fw_cfg/by_name", name, "raw"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return Metadata{}, err
		}
		return Parse(content)
	}
	return Metadata{}, errors.New("there is none in fw_cfg, so there is no network")
}

// Field numbers of vm.proto.
const (
	nameField    = 1
	networkField = 2
	v4Field      = 1
	v6Field      = 2
	addressField = 1
	peerField    = 2
)

// Parse decodes the binary form of a VMMetadata message. It ignores unknown fields, and zero bytes at the end:
// after a migration, the item has the size that it had before.
func Parse(message []byte) (Metadata, error) {
	fields, err := split(message)
	if err != nil {
		return Metadata{}, err
	}
	m := Metadata{Name: string(fields[nameField])}
	links, err := split(fields[networkField])
	if err != nil {
		return Metadata{}, fmt.Errorf("network_config: %w", err)
	}
	for _, version := range []struct {
		field protowire.Number
		name  string
		is    func(netip.Addr) bool
	}{{v4Field, "v4", netip.Addr.Is4}, {v6Field, "v6", netip.Addr.Is6}} {
		encoded, ok := links[version.field]
		if !ok {
			continue
		}
		link, err := parseLink(encoded, version.is)
		if err != nil {
			return Metadata{}, fmt.Errorf("network_config.%s: %w", version.name, err)
		}
		m.Links = append(m.Links, link)
	}
	return m, nil
}

func parseLink(message []byte, isVersion func(netip.Addr) bool) (Link, error) {
	fields, err := split(message)
	if err != nil {
		return Link{}, err
	}
	address, err := netip.ParseAddr(string(fields[addressField]))
	if err != nil {
		return Link{}, fmt.Errorf("%w: ip: %w", ErrEncoding, err)
	}
	peer, err := netip.ParseAddr(string(fields[peerField]))
	if err != nil {
		return Link{}, fmt.Errorf("%w: peer_ip: %w", ErrEncoding, err)
	}
	if !isVersion(address) || !isVersion(peer) {
		return Link{}, fmt.Errorf("%w: %s and %s are not both of this version", ErrEncoding, address, peer)
	}
	return Link{Address: address, Peer: peer}, nil
}

// split returns the last value of each field of type bytes.
func split(message []byte) (map[protowire.Number][]byte, error) {
	fields := map[protowire.Number][]byte{}
	for len(message) > 0 && message[0] != 0 { // no field has the tag 0
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return nil, fmt.Errorf("%w: %w", ErrEncoding, protowire.ParseError(length))
		}
		message = message[length:]
		if length = protowire.ConsumeFieldValue(number, kind, message); length < 0 {
			return nil, fmt.Errorf("%w: %w", ErrEncoding, protowire.ParseError(length))
		}
		if kind == protowire.BytesType {
			fields[number], _ = protowire.ConsumeBytes(message)
		}
		message = message[length:]
	}
	return fields, nil
}
