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
	"github.com/millwright-dev/millwright/internal/vm/network/overlay"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// between connects guests to each other.
type between interface {
	// plug connects the guest with a network, whose last byte of the addresses is set, before the guest boots.
	plug(t *testing.T, n *qemu.UserNetwork, last byte)
	// refused returns why packets of the guest vm-22 were dropped.
	refused() map[network.Refusal]uint64
}

// throughSwitch connects guests of one host.
type throughSwitch struct {
	*network.Switch
	socket string
}

func (s throughSwitch) plug(_ *testing.T, n *qemu.UserNetwork, _ byte) { n.Switch = s.socket }
func (s throughSwitch) refused() map[network.Refusal]uint64            { return s.Refused()["vm-22"] }

// throughOverlay connects guests of different hosts.
type throughOverlay map[byte]*overlay.Endpoint

func (o throughOverlay) plug(t *testing.T, n *qemu.UserNetwork, last byte) {
	t.Helper()
	endpoint, err := overlay.New(overlay.Config{Listen: netip.MustParseAddrPort("127.0.0.1:0"), MTU: network.MinMTU})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(endpoint.Close)
	n.Overlay, o[last] = endpoint, endpoint
	member := func(last byte, endpoint *overlay.Endpoint) overlay.Update {
		return overlay.Update{Present: []overlay.Member{{
			VM: "vm-" + strconv.Itoa(int(last)), Key: endpoint.Key(), Endpoint: endpoint.Address(), Addresses: []netip.Addr{address4(last), address6(last)},
		}}}
	}
	for of, other := range o {
		if other != endpoint {
			other.Apply(member(last, endpoint))
			endpoint.Apply(member(of, other))
		}
	}
}

func (o throughOverlay) refused() map[network.Refusal]uint64 { return o[22].Refused()["vm-22"] }

func address4(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 2, last}) }
func address6(last byte) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 0x77, 15: last}) }

func TestGuest_SwitchIsolatesGuests(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := network.NewSwitch(slog.New(slog.DiscardHandler))
	isolatesGuests(t, throughSwitch{s, serveSwitch(t, s)})
}

func TestGuest_OverlayIsolatesGuests(t *testing.T) {
	tier.All(t)
	t.Parallel()
	isolatesGuests(t, throughOverlay{})
}

// isolatesGuests checks that guests reach each other over both IP versions, and only the permitted port of the host.
// Packets with another guest's source address are dropped.
func isolatesGuests(t *testing.T, between between) {
	t.Helper()
	server, client := direct(t), direct(t)
	heard := &heard{}
	open, closed := echoServer(t, "127.0.0.1:0"), heard.tcp(t, "127.0.0.1:0")
	initrd := intruder(t, server.Kernel.Initrd)
	for last, config := range map[byte]*qemu.Config{23: &server, 22: &client} {
		config.Name = "vm-" + strconv.Itoa(int(last))
		config.Kernel.Initrd = initrd
		config.Kernel.Cmdline += fmt.Sprintf(" last=%d", last)
		n := config.Network
		n.MAC[5] = last
		n.IPv6, n.NoOutside, n.HostPorts = netip.MustParsePrefix("fd77::/64"), true, []uint16{open}
		n.Address4, n.Address6 = address4(last), address6(last)
		between.plug(t, n, last)
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
	refused := func() uint64 { return between.refused()[network.ForeignAddress] }
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
	t.Logf("refused: %v", between.refused())
}
