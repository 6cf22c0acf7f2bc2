package overlap

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var guests = netip.MustParsePrefix("10.77.0.0/16")

func TestOverlapping(t *testing.T) {
	for name, test := range map[string]struct {
		networks map[string]string
		want     string
	}{
		"nothing":           {map[string]string{"192.0.2.0/24": "eth0", "10.78.0.0/16": "eth1", "fd77::/64": "eth0"}, ""},
		"the way to others": {map[string]string{"0.0.0.0/0": "eth0", "0.0.0.0/1": "tun0", "::/0": "eth0"}, ""},
		"a larger network": {
			map[string]string{"10.0.0.0/8": "tun0"},
			"10.77.0.0/16 overlaps 10.0.0.0/8, a route of this host (tun0): guests do not reach hosts whose addresses are in both",
		},
		"an address and its network": {
			map[string]string{"10.77.4.9/32": "eth0", "10.77.4.0/24": "eth0"},
			"10.77.0.0/16 overlaps 10.77.4.0/24, a route of this host (eth0): guests do not reach hosts whose addresses are in both",
		},
		"two": {
			map[string]string{"10.77.9.9/32": "lo", "10.77.4.0/24": ""},
			"10.77.0.0/16 overlaps 10.77.4.0/24, a route of this host, and 10.77.9.9/32, an address of this host (lo): guests do not reach hosts whose addresses are in both",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var networks []Network
			for prefix, card := range test.networks {
				networks = append(networks, Network{netip.MustParsePrefix(prefix), card})
			}
			if diff := cmp.Diff(test.want, describe(guests, overlapping(guests, networks))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Every host has its loopback.
func TestNetworksOfThisHost(t *testing.T) {
	said, err := Hidden(netip.MustParsePrefix("127.0.0.0/16"))
	if err != nil || !strings.HasPrefix(said, "127.0.0.0/16 overlaps 127.0.0.0/8, a route of this host") && !strings.HasPrefix(said, "127.0.0.0/16 overlaps 127.0.0.") {
		t.Errorf("got %q, %v", said, err)
	}
	// An address for documentation (RFC 5737), which nobody has.
	if said, err := Hidden(netip.MustParsePrefix("203.0.113.0/24")); said != "" || err != nil {
		t.Errorf("got %q, %v", said, err)
	}
}

func TestReserved(t *testing.T) {
	for network, fine := range map[string]bool{
		"10.77.0.0/16": true, "192.168.7.0/24": true, "100.64.0.0/16": true, "fd77::/64": true, "2001:db8::/64": true,
		"127.0.0.0/16": false, "169.254.0.0/16": false, "224.0.0.0/8": false, "255.0.0.0/8": false, "0.0.0.0/8": false,
		"fe80::/64": false, "ff02::/64": false, "::/64": false,
	} {
		if problem := Reserved(netip.MustParsePrefix(network)); (problem == "") != fine || !fine && !strings.Contains(problem, network) {
			t.Errorf("%s: %q", network, problem)
		}
	}
}
