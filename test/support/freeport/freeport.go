// Package freeport reserves ports for servers that tests start.
package freeport

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// Address returns 127.0.0.1 with a port that no other process gets until the end of the test: a socket is bound to it, but
// does not listen. Servers that set SO_REUSEADDR can listen at the address. Those of Go and of QEMU do.
func Address(t testing.TB) netip.AddrPort {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	t.Cleanup(func() { _ = unix.Close(socket) })
	address := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	must(unix.Bind(socket, &unix.SockaddrInet4{Addr: address.As4()}))
	must(unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	bound, err := unix.Getsockname(socket)
	must(err)
	return netip.AddrPortFrom(address, uint16(bound.(*unix.SockaddrInet4).Port))
}
