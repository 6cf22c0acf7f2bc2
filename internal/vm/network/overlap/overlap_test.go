package overlap

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var guests = netip.MustParsePrefix("10.77.0.0/16")

// The rejected sizes are those that QEMU or the allocation of addresses does not support.
func TestNetwork_Unusable(t *testing.T) {
	for network, want := range map[string]string{
		"10.77.0.0/16": "", "10.0.0.0/8": "", "192.168.7.0/24": "", "192.168.7.32/27": "", "fd77::/64": "",
		"10.77.0.1/16":        "10.77.0.1/16 is an address in the network 10.77.0.0/16; specify the network",
		"fd77::1/64":          "fd77::1/64 is an address in the network fd77::/64; specify the network",
		"10.77.0.0/28":        "10.77.0.0/28 is not an IPv4 network of 8 to 27 bits",
		"10.77.0.9/32":        "10.77.0.9/32 is not an IPv4 network of 8 to 27 bits",
		"64.0.0.0/7":          "64.0.0.0/7 is not an IPv4 network of 8 to 27 bits",
		"fd77::/48":           "fd77::/48 is not an IPv6 network of 64 bits",
		"fd77::/96":           "fd77::/96 is not an IPv6 network of 64 bits",
		"::ffff:10.77.0.0/64": "::ffff:10.77.0.0/64 is not an IPv6 network of 64 bits",
		"fe80::/64":           "fe80::/64 overlaps fe80::/10",
		"127.0.0.0/16":        "127.0.0.0/16 overlaps 127.0.0.0/8",
	} {
		if got := Unusable(netip.MustParsePrefix(network)); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", network, got, want)
		}
	}
	if Unusable(netip.Prefix{}) == "" {
		t.Error("accepted the zero prefix as a network")
	}
}

func TestNetwork_Overlapping(t *testing.T) {
	for name, test := range map[string]struct {
		networks map[string]string
		want     string
	}{
		"nothing":        {map[string]string{"192.0.2.0/24": "eth0", "10.78.0.0/16": "eth1", "fd77::/64": "eth0"}, ""},
		"default routes": {map[string]string{"0.0.0.0/0": "eth0", "0.0.0.0/1": "tun0", "::/0": "eth0"}, ""},
		"a larger network": {
			map[string]string{"10.0.0.0/8": "tun0"},
			"10.77.0.0/16 overlaps 10.0.0.0/8, a route of this host (tun0): guests cannot reach hosts whose addresses are in both",
		},
		"an address and its network": {
			map[string]string{"10.77.4.9/32": "eth0", "10.77.4.0/24": "eth0"},
			"10.77.0.0/16 overlaps 10.77.4.0/24, a route of this host (eth0): guests cannot reach hosts whose addresses are in both",
		},
		"two": {
			map[string]string{"10.77.9.9/32": "lo", "10.77.4.0/24": ""},
			"10.77.0.0/16 overlaps 10.77.4.0/24, a route of this host, and 10.77.9.9/32, an address of this host (lo): guests cannot reach hosts whose addresses are in both",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var networks []Network
			for prefix, card := range test.networks {
				networks = append(networks, Network{Prefix: netip.MustParsePrefix(prefix), Interface: card})
			}
			if diff := cmp.Diff(test.want, describe(guests, overlapping(guests, networks))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Every host has a loopback interface.
func TestNetwork_OfThisHost(t *testing.T) {
	sentence, err := Hidden(netip.MustParsePrefix("127.0.0.0/16"))
	if err != nil || !strings.HasPrefix(sentence, "127.0.0.0/16 overlaps 127.0.0.0/8, a network of this host") && !strings.HasPrefix(sentence, "127.0.0.0/16 overlaps 127.0.0.") {
		t.Errorf("got %q, %v", sentence, err)
	}
	if sentence, err := Taken(netip.MustParsePrefix("127.0.0.0/16")); err != nil || !strings.HasPrefix(sentence, "127.0.0.0/16 overlaps 127.0.0.") {
		t.Errorf("Taken() = %q, %v", sentence, err)
	}
	// An address for documentation (RFC 5737), which no host has.
	if sentence, err := Taken(netip.MustParsePrefix("203.0.113.0/24")); sentence != "" || err != nil {
		t.Errorf("Taken() = %q, %v", sentence, err)
	}
	if sentence, err := Hidden(netip.MustParsePrefix("203.0.113.0/24")); sentence != "" || err != nil {
		t.Errorf("got %q, %v", sentence, err)
	}
}

func TestNetwork_Reserved(t *testing.T) {
	for network, fine := range map[string]bool{
		"10.77.0.0/16": true, "192.168.7.0/24": true, "100.64.0.0/16": true, "fd77::/64": true, "2001:db8::/64": true,
		"127.0.0.0/16": false, "169.254.0.0/16": false, "224.0.0.0/8": false, "255.0.0.0/8": false, "0.0.0.0/8": false,
		"fe80::/64": false, "ff02::/64": false, "::/64": false,
		"192.0.0.0/27": false, "64:ff9b::/64": false, "2001::/64": false,
	} {
		if problem := Reserved(netip.MustParsePrefix(network)); (problem == "") != fine || !fine && !strings.Contains(problem, network) {
			t.Errorf("%s: %q", network, problem)
		}
	}
}
