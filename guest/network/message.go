package network

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// request is a message of rtnetlink: a header, a fixed part that depends on the type,
// and attributes.
type request struct {
	kind  uint16
	flags uint16
	body  []byte
}

// attribute appends one, padded to four bytes.
func (r *request) attribute(kind uint16, value []byte) {
	const header = 4
	r.body = binary.NativeEndian.AppendUint16(r.body, uint16(header+len(value)))
	r.body = binary.NativeEndian.AppendUint16(r.body, kind)
	r.body = append(r.body, value...)
	r.body = append(r.body, make([]byte, -len(value)&3)...)
}

// bytes is the message as it is sent, with a number that comes back in the answer.
func (r *request) bytes(sequence uint32) []byte {
	var message []byte
	message = binary.NativeEndian.AppendUint32(message, uint32(unix.NLMSG_HDRLEN+len(r.body)))
	message = binary.NativeEndian.AppendUint16(message, r.kind)
	message = binary.NativeEndian.AppendUint16(message, r.flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	message = binary.NativeEndian.AppendUint32(message, sequence)
	message = binary.NativeEndian.AppendUint32(message, 0) // to the kernel
	return append(message, r.body...)
}

// linkUp switches an interface on.
func linkUp(index int) *request {
	r := &request{kind: unix.RTM_NEWLINK, body: []byte{unix.AF_UNSPEC, 0, 0, 0}} // and no type
	r.body = binary.NativeEndian.AppendUint32(r.body, uint32(index))
	r.body = binary.NativeEndian.AppendUint32(r.body, unix.IFF_UP) // flags
	r.body = binary.NativeEndian.AppendUint32(r.body, unix.IFF_UP) // those that change
	return r
}

// addAddress is `ip addr add ADDRESS peer PEER dev INDEX nodad`. There is nobody else
// on the link, so the time that it takes to look for duplicates is saved.
func addAddress(index int, address, peer netip.Addr) *request {
	r := &request{kind: unix.RTM_NEWADDR, flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE}
	r.body = []byte{family(address), byte(address.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
	r.body = binary.NativeEndian.AppendUint32(r.body, uint32(index))
	r.attribute(unix.IFA_LOCAL, address.AsSlice())
	r.attribute(unix.IFA_ADDRESS, peer.AsSlice())
	return r
}

// addDefaultRoute is `ip route add default via GATEWAY dev INDEX`.
func addDefaultRoute(index int, gateway netip.Addr) *request {
	r := &request{kind: unix.RTM_NEWROUTE, flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE}
	r.body = []byte{
		family(gateway), 0, 0, 0, // to everywhere, from everywhere, any type of service
		unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST,
		0, 0, 0, 0, // flags
	}
	r.attribute(unix.RTA_GATEWAY, gateway.AsSlice())
	r.attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return r
}

func family(address netip.Addr) byte {
	if address.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
