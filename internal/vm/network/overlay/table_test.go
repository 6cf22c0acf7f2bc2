package overlay

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// located returns a member at an endpoint with a port.
func located(vm string, port uint16, addresses ...string) Member {
	m := Member{VM: vm, Key: Key{vm[0], byte(port)}, Endpoint: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)}
	for _, address := range addresses {
		m.Addresses = append(m.Addresses, netip.MustParseAddr(address))
	}
	return m
}

func names(members []*member) string {
	var all []string
	for _, m := range members {
		all = append(all, m.VM)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestTable(t *testing.T) {
	all, stolen := newTable(), located("b", 10, "10.77.0.10")
	stolen.Key = located("a", 4).Key
	for _, step := range []struct {
		what              string
		update            Update
		gone, added, want string
	}{
		{"VMs", Update{Present: []Member{located("a", 1, "10.77.0.1"), located("b", 2, "10.77.0.2", "fd77::2"), located("c", 3, "10.77.0.3")}}, "", "a b c", "a b c"},
		{"the same", Update{Present: []Member{located("a", 1, "10.77.0.1")}}, "", "", "a b c"},
		{"a move", Update{Present: []Member{located("a", 4, "10.77.0.1")}}, "a", "a", "a b c"},
		{"VMs that are nowhere", Update{Absent: []string{"c", "unknown"}}, "c", "", "a b"},
		{"no news of a VM", Update{Unchanged: []string{"a"}}, "", "", "a b"},
		{"the address of another VM", Update{Present: []Member{located("d", 5, "fd77::2")}}, "b", "d", "a d"},
		{"the endpoint of another VM", Update{Present: []Member{located("e", 5, "10.77.0.5")}}, "d", "e", "a e"},
		{"two VMs with an address", Update{Present: []Member{located("f", 6, "10.77.0.6"), located("g", 7, "10.77.0.6")}}, "f", "g", "a e g"},
		{"the key of another VM", Update{Present: []Member{stolen, located("i", 9)}}, "", "i", "a e g i"},
		{"the key of another VM instead of its own", Update{Present: []Member{{"i", stolen.Key, stolen.Endpoint, nil}}}, "i", "", "a e g"},
		{"a snapshot", Update{Snapshot: true, Present: []Member{located("e", 5, "10.77.0.5"), located("h", 8)}, Unchanged: []string{"g", "unknown"}}, "a", "h", "e g h"},
		{"an empty snapshot", Update{Snapshot: true}, "e g h", "", ""},
	} {
		gone, added := all.apply(step.update)
		if names(gone) != step.gone || names(added) != step.added {
			t.Errorf("%s: %q is gone and %q is new, want %q and %q", step.what, names(gone), names(added), step.gone, step.added)
		}
		if got := names(slices.Collect(maps.Values(all.byVM))); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
		addresses := 0
		for _, m := range all.byVM {
			addresses += len(m.Addresses)
			if all.byEndpoint[m.Endpoint] != m {
				t.Errorf("%s: the endpoint of %s leads elsewhere", step.what, m.VM)
			}
			for _, address := range m.Addresses {
				if all.byAddress[address] != m {
					t.Errorf("%s: the address %s of %s leads elsewhere", step.what, address, m.VM)
				}
			}
		}
		if len(all.byEndpoint) != len(all.byVM) || len(all.byKey) != len(all.byVM) || len(all.byAddress) != addresses {
			t.Errorf("%s: %d endpoints of %d VMs, %d addresses, want %d", step.what, len(all.byEndpoint), len(all.byVM), len(all.byAddress), addresses)
		}
	}
}
