package guest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/ports"
	"github.com/millwright-dev/millwright/test/support/freeport"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestGuest_Ports checks that clients reach a port of the guest at its hypervisor, over TCP and UDP, also with datagrams that
// are longer than its MTU, and that the guest is ready once it listens there.
func TestGuest_Ports(t *testing.T) {
	tier.All(t)
	t.Parallel()
	port := freeport.Address(t).Port()
	config := direct(t)
	config.Network.Address4 = address
	config.Kernel.Initrd = intruder(t, config.Kernel.Initrd)
	config.Kernel.Cmdline += fmt.Sprintf(" last=16 try=return:%s:%d try=mirror:%s:%d", address, port, address, port)
	guest := boot(t, config)
	probe, err := ports.ParseProbe(fmt.Sprintf("tcp://:%d", port))
	must(t, err)
	server, err := ports.Listen(ports.Config{Address: "127.0.0.1", Ports: []uint16{port}, UDPPorts: []uint16{port}, Probe: probe}, guest, nil)
	must(t, err)
	t.Cleanup(server.Close)
	results := make(chan error, 100)
	server.Check(false, func(problem error) { results <- problem })
	for problem := <-results; problem != nil; problem = <-results {
		t.Logf("not ready: %v", problem)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(waitTimeout)))
	_, err = fmt.Fprintln(conn, "through the hypervisor")
	must(t, err)
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "through the hypervisor\n" {
		t.Errorf("the guest returned %q, %v", line, err)
	}

	datagrams, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	must(t, err)
	defer datagrams.Close()
	must(t, datagrams.SetDeadline(time.Now().Add(waitTimeout)))
	for _, length := range []int{1, 1472, 1473, 9000, 65507} {
		sent, got := bytes.Repeat([]byte("u"), length), make([]byte, 1<<16)
		_, err = datagrams.Write(sent)
		must(t, err)
		if n, err := datagrams.Read(got); err != nil || !bytes.Equal(got[:n], sent) {
			t.Errorf("the guest returned %d of %d bytes, %v", n, length, err)
		}
	}
}
