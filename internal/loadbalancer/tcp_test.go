package loadbalancer

import (
	"net"
	"testing"
)

// Machines cannot have addresses of this host or its link, so these are not dialed, however they are written.
func TestDial_RefusesSpecialAddresses(t *testing.T) {
	listener, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fd00:ec2::254", "64:ff9b::7f00:1"} {
		conn, err := Dial(t.Context(), net.JoinHostPort(host, port))
		if err == nil {
			_ = conn.Close()
			t.Errorf("connected to %s", host)
		}
	}
}
