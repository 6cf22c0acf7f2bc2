package guest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestGuest_SwitchIsolatesGuests checks that guests reach each other over both IP versions, and only the permitted port of
// the host. Packets with another guest's source address are dropped.
func TestGuest_SwitchIsolatesGuests(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server, client := direct(t), direct(t)
	between := network.NewSwitch(slog.New(slog.DiscardHandler))
	socket := serveSwitch(t, between)
	heard := &heard{}
	open, closed := echoServer(t, "127.0.0.1:0"), heard.tcp(t, "127.0.0.1:0")
	initrd := intruder(t, server.Kernel.Initrd)
	for last, config := range map[byte]*qemu.Config{23: &server, 22: &client} {
		config.Name = "vm-" + strconv.Itoa(int(last))
		config.Kernel.Initrd = initrd
		config.Kernel.Cmdline += fmt.Sprintf(" last=%d", last)
		n := config.Network
		n.MAC[5] = last
		n.IPv6, n.Switch, n.NoOutside, n.HostPorts = netip.MustParsePrefix("fd77::/64"), socket, true, []uint16{open}
		n.Address4 = netip.AddrFrom4([4]byte{10, 0, 2, last})
		n.Address6 = netip.MustParseAddr("fd77::" + strconv.FormatUint(uint64(last), 16))
	}
	server.Kernel.Cmdline += " try=greet:10.0.2.23:9 try=greet:[fd77::17]:9 try=mirror:10.0.2.23:7 try=mirror:[fd77::17]:7"
	boot(t, server).until("intruder: done")
	for _, try := range []string{
		"reach:10.0.2.23:9", "reach:[fd77::17]:9", "echo:10.0.2.23:7", "echo:[fd77::17]:7",
		fmt.Sprintf("echo:10.0.2.2:%d", open), fmt.Sprintf("tcp:10.0.2.2:%d", closed), "spoof:10.0.2.23:9", "spoof:[fd77::17]:9",
	} {
		client.Kernel.Cmdline += " try=" + try
	}
	connects := boot(t, client)
	output := connects.until("tried spoof:10.0.2.23:9")
	refused := func() uint64 { return between.Refused()["vm-22"][network.ForeignAddress] }
	refused4 := refused()
	output += "tried spoof:10.0.2.23:9" + connects.until("intruder: done")
	for _, want := range []string{
		`tried reach:10\.0\.2\.23:9: connected, got "hello" \(<nil>\)`,
		`tried reach:\[fd77::17\]:9: connected, got "hello" \(<nil>\)`,
		`tried echo:10\.0\.2\.23:7: echoed 20 times in .* \(<nil>\)`,
		`tried echo:\[fd77::17\]:7: echoed 20 times in .* \(<nil>\)`,
		`tried echo:10\.0\.2\.2:\d+: echoed 20 times in .* \(<nil>\)`,
		`tried spoof:10\.0\.2\.23:9: refused`,
		`tried spoof:\[fd77::17\]:9: refused`,
	} {
		if !regexp.MustCompile(want).MatchString(output) {
			t.Errorf("the console has no line %s", want)
		}
	}
	if got := heard.all(); len(got) > 0 || strings.Count(output, "connected") != 2 {
		t.Errorf("the guest reached %q, or more than it may", got)
	}
	if refused4 == 0 || refused() == refused4 {
		t.Errorf("of what another address sent nothing was refused: %d of IPv4, %d of both IP versions", refused4, refused())
	}
	t.Logf("refused: %v", between.Refused())
}
