package specialaddress

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// These are the entries of IANA's special-purpose address registries for IPv4 and IPv6, and the networks of multicast
// addresses. The first and the last address of each are checked.
func TestKind_IANARegistries(t *testing.T) {
	for prefix, want := range map[string]string{
		"0.0.0.0/8":          unspecified,
		"0.0.0.0/32":         unspecified,
		"10.0.0.0/8":         "", // private use
		"100.64.0.0/10":      "", // shared address space
		"127.0.0.0/8":        loopback,
		"169.254.0.0/16":     linkLocal,
		"172.16.0.0/12":      "", // private use
		"192.0.0.0/24":       reserved,
		"192.0.0.0/29":       reserved, // IPv4 service continuity
		"192.0.0.8/32":       reserved, // dummy address
		"192.0.0.9/32":       reserved, // port control protocol anycast
		"192.0.0.10/32":      reserved, // TURN anycast
		"192.0.0.170/32":     reserved, // NAT64/DNS64 discovery
		"192.0.0.171/32":     reserved,
		"192.0.0.192/32":     reserved, // Oracle's former metadata service
		"192.0.2.0/24":       "",       // documentation
		"192.31.196.0/24":    "",       // AS112
		"192.52.193.0/24":    "",       // AMT
		"192.88.99.0/24":     "",       // former 6to4 relays
		"192.168.0.0/16":     "",       // private use
		"192.175.48.0/24":    "",       // AS112
		"198.18.0.0/15":      "",       // benchmarks
		"198.51.100.0/24":    "",       // documentation
		"203.0.113.0/24":     "",       // documentation
		"224.0.0.0/4":        multicast,
		"240.0.0.0/4":        reserved,
		"255.255.255.255/32": reserved,

		"::1/128":           loopback,
		"::/128":            unspecified,
		"::ffff:0:0:0/96":   reserved, // IPv4-translated, formerly
		"2001::/23":         reserved,
		"2001::/32":         reserved, // Teredo
		"2001:1::1/128":     reserved, // port control protocol anycast
		"2001:1::2/128":     reserved, // TURN anycast
		"2001:1::3/128":     reserved, // DNS-SD anycast
		"2001:2::/48":       reserved, // benchmarks
		"2001:3::/32":       reserved, // AMT
		"2001:4:112::/48":   reserved, // AS112
		"2001:10::/28":      reserved, // ORCHID
		"2001:20::/28":      reserved, // ORCHIDv2
		"2001:30::/28":      reserved, // drone remote ID
		"2001:db8::/32":     "",       // documentation
		"100::/64":          "",       // discard only
		"100:0:0:1::/64":    "",       // dummy prefix
		"2620:4f:8000::/48": "",       // AS112
		"3fff::/20":         "",       // documentation
		"5f00::/16":         reserved,
		"fc00::/7":          "", // private use
		"fe80::/10":         linkLocal,
		"ff00::/8":          multicast,

		"8.8.8.8/32":         "",
		"2606:4700::1111/64": "",
	} {
		network := netip.MustParsePrefix(prefix)
		for _, address := range []netip.Addr{network.Addr(), last(network)} {
			if got := Kind(address); got != want {
				t.Errorf("%s of %s is %q, want %q", address, prefix, got, want)
			}
		}
	}
}

// last returns the last address of a network.
func last(network netip.Prefix) netip.Addr {
	octets := network.Masked().Addr().AsSlice()
	for bit := network.Bits(); bit < 8*len(octets); bit++ {
		octets[bit/8] |= 1 << (7 - bit%8)
	}
	address, _ := netip.AddrFromSlice(octets)
	return address
}

func TestKind_MetadataServices(t *testing.T) {
	for _, address := range []string{
		"100.100.100.200", "168.63.129.16", "100.80.80.80", "100.96.0.96", "fd00:a9fe:a9fe::1", "fd00:ec2::254", "fd00:ec2::23",
		"fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:ec2::254%eth0", "::ffff:100.100.100.200",
	} {
		if got := Kind(netip.MustParseAddr(address)); got != metadata {
			t.Errorf("%s is %q", address, got)
		}
	}
	for _, address := range []string{"100.100.100.201", "fd00:ec2::1", "fd00:42::43"} {
		if got := Kind(netip.MustParseAddr(address)); got != "" {
			t.Errorf("%s is %q", address, got)
		}
	}
}

// forms returns the forms in which an IPv6 address contains an IPv4 address.
func forms(address netip.Addr) map[string]netip.Addr {
	octets := address.As4()
	at := func(prefix string, places ...int) netip.Addr {
		all := netip.MustParseAddr(prefix).As16()
		for i, place := range places {
			all[place] = octets[i]
		}
		return netip.AddrFrom16(all)
	}
	return map[string]netip.Addr{
		"IPv4-mapped":             at("::ffff:0:0", 12, 13, 14, 15),
		"IPv4-mapped with a zone": at("::ffff:0:0", 12, 13, 14, 15).WithZone("eth0"),
		"NAT64":                   at("64:ff9b::", 12, 13, 14, 15),
		"local NAT64, /48":        at("64:ff9b:1::", 6, 7, 9, 10),
		"local NAT64, /56":        at("64:ff9b:1:ff00::", 7, 9, 10, 11),
		"local NAT64, /64":        at("64:ff9b:1:ffff::", 9, 10, 11, 12),
		"local NAT64, /96":        at("64:ff9b:1:ffff:0:ffff::", 12, 13, 14, 15),
		"6to4":                    at("2002::1", 2, 3, 4, 5),
	}
}

// IPv6 addresses that lead to IPv4 addresses are special if, and only if, the latter are.
func TestKind_EmbeddedAddresses(t *testing.T) {
	for _, text := range []string{"127.0.0.1", "169.254.169.254", "100.100.100.200"} {
		for name, form := range forms(netip.MustParseAddr(text)) {
			if got := Kind(form); !strings.HasSuffix(got, Kind(netip.MustParseAddr(text))) {
				t.Errorf("%s (%s of %s) is %q", form, name, text, got)
			}
		}
	}
	for _, text := range []string{"8.8.8.8", "10.1.2.3", "192.168.7.1", "192.0.2.1"} {
		for name, form := range forms(netip.MustParseAddr(text)) {
			if got := Kind(form); got != "" {
				t.Errorf("%s (%s of %s) is %q", form, name, text, got)
			}
		}
	}
	for _, text := range []string{"::8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::0.1.2.3", "64:ff9b::224.0.0.1", "2002:ffff:ffff::", "64:ff9b:2::1"} {
		if Kind(netip.MustParseAddr(text)) == "" {
			t.Errorf("%s is not special", text)
		}
	}
	want := "an IPv6 form of 169.254.169.254, a link-local address"
	if got := Kind(netip.MustParseAddr("64:ff9b::a9fe:a9fe")); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOverlapping(t *testing.T) {
	for network, want := range map[string]string{
		"10.0.0.0/8": "", "100.64.0.0/10": "", "fd00::/8": "", "0.0.0.0/0": "0.0.0.0/8", "127.1.0.0/16": "127.0.0.0/8",
		"fe80::/64": "fe80::/10", "64:ff9b::/64": "64:ff9b::/96", "64:ff9b:2::/64": "::/8", "2002:7f00:1::/64": "2002::/16", "2002:a00:1::/64": "",
	} {
		got, ok := Overlapping(netip.MustParsePrefix(network))
		if ok != (want != "") || ok && got != netip.MustParsePrefix(want) {
			t.Errorf("%s overlaps %s (%t), want %q", network, got, ok, want)
		}
	}
}

// A dialer with Control checks the address that a name resolves to, in the form in which it connects.
func TestControl(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	dialer := net.Dialer{Control: Control(Check)}
	for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1", "0.0.0.0"} {
		conn, err := dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "are not allowed: it is ") {
			t.Errorf("connecting to %s: %v", host, err)
		}
	}
	if err := Check(netip.MustParseAddrPort("10.0.0.1:80")); err != nil {
		t.Error(err)
	}
	if err := Control(Check)("unix", "/run/socket", nil); err == nil {
		t.Error("a socket is accepted")
	}
}

// FuzzKind checks that an address has the same kind in all forms, and that no address that leads to this host or its
// link is ordinary.
func FuzzKind(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add(netip.MustParseAddr("64:ff9b:1::a9fe:a9fe").AsSlice())
	f.Fuzz(func(t *testing.T, octets []byte) {
		address, ok := netip.AddrFromSlice(octets)
		if !ok {
			return
		}
		kind := Kind(address)
		if kind == "" && !address.IsGlobalUnicast() {
			t.Errorf("%s is ordinary", address)
		}
		if !address.Is4() {
			return
		}
		for name, form := range forms(address) {
			if got := Kind(form); got == "" && (kind == loopback || kind == linkLocal || kind == metadata) {
				t.Errorf("%s is %q, but its form %s (%s) is ordinary", address, kind, name, form)
			}
		}
	})
}
