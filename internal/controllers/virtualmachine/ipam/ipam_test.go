package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// holders returns Holders that look up VMs as an index of a cache does.
func holders(all []v1alpha1.VirtualMachine) Holders {
	return Holders{VMs: func(address netip.Addr) (found []v1alpha1.VirtualMachine, err error) {
		for i := range all {
			if slices.Contains(Keys(&all[i]), address.String()) {
				found = append(found, all[i])
			}
		}
		return found, nil
	}, Guests: noGuests}
}

func noGuests(netip.Addr) ([]types.NamespacedName, error) { return nil, nil }

// TestAllocate_AddressOfRunningGuestIsTaken checks that an address is taken while a guest may be running with it, although no
// VM has or requests it, and that a VM keeps the address of its own guest.
func TestAllocate_AddressOfRunningGuestIsTaken(t *testing.T) {
	a := New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	running := map[string]string{"10.0.0.5": "edited", "10.0.0.16": "deleted"}
	with := holders(nil)
	with.Guests = func(address netip.Addr) ([]types.NamespacedName, error) {
		if name, found := running[address.String()]; found {
			return []types.NamespacedName{{Name: name}}, nil
		}
		return nil, nil
	}
	requesting := func(name string) *v1alpha1.VirtualMachine {
		return &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.VirtualMachineSpec{VMIPs: []string{"10.0.0.5"}}}
	}
	if _, err := a.Allocate(requesting("other"), with); !errors.As(err, new(*UnavailableError)) {
		t.Errorf("another VM that requests the address: got %v, want an UnavailableError", err)
	}
	if got, err := a.Allocate(requesting("edited"), with); err != nil || !slices.Equal(got, []string{"10.0.0.5"}) {
		t.Errorf("the VM of the guest gets %v, %v", got, err)
	}
	got, err := a.Allocate(&v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, with)
	if err != nil || !slices.Equal(got, []string{"10.0.0.17"}) {
		t.Errorf("a new VM gets %v, %v", got, err)
	}
}

func TestAllocate(t *testing.T) {
	requesting := func(name string, age time.Duration, ips ...string) v1alpha1.VirtualMachine {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		vm.Spec.VMIPs = ips
		vm.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0).Add(-age))
		return *vm
	}
	having := func(name, addresses string) v1alpha1.VirtualMachine {
		vm := requesting(name, 0)
		vm.Annotations = map[string]string{v1alpha1.AnnotationAddresses: addresses}
		return vm
	}
	small := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/27")}
	both := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	cloud := []netip.Prefix{netip.MustParsePrefix("100.80.80.64/27")} // contains a metadata service
	var full []v1alpha1.VirtualMachine
	for address := netip.MustParseAddr("10.0.0.16"); address != netip.MustParseAddr("10.0.0.31"); address = address.Next() {
		full = append(full, having("x"+address.String(), address.String()))
	}
	cases := map[string]struct {
		vm       v1alpha1.VirtualMachine
		others   []v1alpha1.VirtualMachine
		networks []netip.Prefix
		want     []string
		refused  bool
	}{
		"first VM":                 {requesting("a", 0), nil, both, []string{"10.0.0.16", "fd00::10"}, false},
		"no network":               {requesting("a", 0), nil, nil, nil, false},
		"lowest free address":      {requesting("a", 0), []v1alpha1.VirtualMachine{having("b", "10.0.0.16"), having("c", "10.0.0.18"), requesting("d", 0, "10.0.0.17/32")}, small, []string{"10.0.0.19"}, false},
		"assigned earlier":         {having("a", "10.0.0.20"), nil, small, []string{"10.0.0.20"}, false},
		"one address left":         {requesting("a", 0), full[1:], small, []string{"10.0.0.16"}, false},
		"no address left":          {requesting("a", 0), full, small, nil, true},
		"requested":                {requesting("a", 0, "10.0.0.5"), nil, small, []string{"10.0.0.5"}, false},
		"outside":                  {requesting("a", 0, "10.0.1.5"), nil, small, nil, true},
		"the gateway":              {requesting("a", 0, "10.0.0.2"), nil, small, nil, true},
		"the broadcast address":    {requesting("a", 0, "10.0.0.31"), nil, small, nil, true},
		"without a network":        {requesting("a", 0, "10.0.0.5"), nil, nil, nil, true},
		"taken":                    {requesting("a", time.Hour, "10.0.0.20"), []v1alpha1.VirtualMachine{having("b", "10.0.0.20")}, small, nil, true},
		"a metadata service":       {requesting("a", 0, "100.80.80.80"), nil, cloud, nil, true},
		"next to one":              {requesting("a", 0), nil, cloud, []string{"100.80.80.81"}, false},
		"requested by an older VM": {requesting("a", 0, "10.0.0.20"), []v1alpha1.VirtualMachine{requesting("b", time.Hour, "10.0.0.20")}, small, nil, true},
		"requested by a newer VM":  {requesting("a", time.Hour, "10.0.0.20"), []v1alpha1.VirtualMachine{requesting("b", 0, "10.0.0.20")}, small, []string{"10.0.0.20"}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			all := append(c.others, c.vm)
			got, err := New(c.networks).Allocate(&c.vm, holders(all))
			if _, refused := errors.AsType[*UnavailableError](err); refused != c.refused || err != nil && !refused {
				t.Fatalf("error: %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAllocate_AddressesOfPools checks that a VM gets the addresses that pools give to it, instead of those that it had, unless
// they do not fit the network or another VM has them.
func TestAllocate_AddressesOfPools(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	given := func(pool, address string, bits int, gateway string) Given {
		is := Given{Address: netip.MustParseAddr(address), Bits: bits, Pool: "pool " + pool, Claim: "claim-of-" + pool}
		if gateway != "" {
			is.Gateway = netip.MustParseAddr(gateway)
		}
		return is
	}
	requesting := v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "x"}, Spec: v1alpha1.VirtualMachineSpec{VMIPs: []string{"10.0.0.9"}}}
	for name, c := range map[string]struct {
		given   []Given
		want    []string
		refused string
	}{
		"both IP versions":   {[]Given{given("a", "10.0.0.8", 24, "10.0.0.2"), given("b", "fd00::8", 64, "fd00::2")}, []string{"10.0.0.8", "fd00::8"}, ""},
		"without a gateway":  {[]Given{given("a", "10.0.0.8", 24, "")}, []string{"10.0.0.8"}, ""},
		"one IP version":     {[]Given{given("a", "10.0.0.8", 24, ""), given("b", "10.0.0.7", 24, "")}, nil, "pool a and pool b: both give the guest an address of the same IP version, 10.0.0.8 and 10.0.0.7; use one pool for each version"},
		"another network":    {[]Given{given("a", "10.0.1.8", 24, "")}, nil, "pool a: guests cannot use address 10.0.1.8; guest networks: 10.0.0.0/24 and fd00::/64; correct the pool, then delete IPAddressClaim claim-of-a to get another address"},
		"the gateway itself": {[]Given{given("a", "10.0.0.2", 24, "")}, nil, "pool a: guests cannot use address 10.0.0.2; guest networks: 10.0.0.0/24 and fd00::/64; correct the pool, then delete IPAddressClaim claim-of-a to get another address"},
		"taken":              {[]Given{given("a", "10.0.0.9", 24, "")}, nil, "pool a: address 10.0.0.9 is already used by virtual machine x/b; correct the pool, then delete IPAddressClaim claim-of-a to get another address"},
		"another prefix":     {[]Given{given("a", "10.0.0.8", 25, "")}, nil, "pool a: address 10.0.0.8 has the prefix length 25, but guests have that of their network 10.0.0.0/24; correct the pool, then delete IPAddressClaim claim-of-a to get another address"},
		"another gateway":    {[]Given{given("a", "fd00::8", 64, "fd00::1")}, nil, "pool a: address fd00::8 has the gateway fd00::1, but guests have the gateway fd00::2 of their network fd00::/64; correct the pool, then delete IPAddressClaim claim-of-a to get another address"},
	} {
		t.Run(name, func(t *testing.T) {
			vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{v1alpha1.AnnotationAddresses: "10.0.0.20"}}}
			got, err := New(networks).Allocate(vm, holders([]v1alpha1.VirtualMachine{requesting}), c.given...)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if unavailable, is := errors.AsType[*UnavailableError](err); is != (c.refused != "") || is && unavailable.Error() != c.refused {
				t.Errorf("got the error %v, want %s", err, c.refused)
			}
		})
	}
}

// TestPool_ReleasedAddressesAreReused checks that an address is free again when its VM is gone or has another address, even if
// another process has granted it, and that the lowest free address is allocated.
func TestPool_ReleasedAddressesAreReused(t *testing.T) {
	a := New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/27")})
	var all []v1alpha1.VirtualMachine
	allocate := func(name, want string) {
		t.Helper()
		vm := v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name}}
		got, err := a.Allocate(&vm, holders(all))
		if err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s gets %v, %v, want %s", name, got, err, want)
		}
	}
	old := v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Status: v1alpha1.VirtualMachineStatus{Addresses: []string{"10.0.0.16"}}}
	all = append(all, old)
	allocate("a", "10.0.0.17")
	allocate("b", "10.0.0.18")
	allocate("c", "10.0.0.19")
	a.Observe(&old)
	all = nil
	allocate("d", "10.0.0.20") // addresses of the old VM may be in use until it is forgotten
	a.Forget(types.NamespacedName{Name: "old"})
	allocate("e", "10.0.0.16")
	a.Forget(types.NamespacedName{Name: "b"})
	allocate("f", "10.0.0.18")
	moved := v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.VirtualMachineSpec{VMIPs: []string{"10.0.0.5"}}}
	if _, err := a.Allocate(&moved, holders(all)); err != nil {
		t.Error(err)
	}
	allocate("g", "10.0.0.17")
}

// TestPool_MakesFewLookups checks that the cost of an allocation does not depend on the number of VMs or on which of them
// request addresses again.
func TestPool_MakesFewLookups(t *testing.T) {
	const count = 2000
	a := New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")})
	byAddress, lookups := map[netip.Addr][]v1alpha1.VirtualMachine{}, 0
	find := func(address netip.Addr) ([]v1alpha1.VirtualMachine, error) {
		lookups++
		return byAddress[address], nil
	}
	for round := range 3 {
		for i := range count {
			vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
			key := types.NamespacedName{Name: vm.Name}
			if round == 1 { // a second pass
				metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationAddresses, strings.Join(texts(a.known[key]), ","))
			}
			if round == 2 { // one VM is deleted and another one created
				for _, address := range a.known[key] {
					delete(byAddress, address)
				}
				a.Forget(key)
			}
			addresses, err := a.Allocate(vm, Holders{VMs: find, Guests: noGuests})
			if err != nil {
				t.Fatal(err)
			}
			for _, address := range parse(addresses) {
				byAddress[address] = []v1alpha1.VirtualMachine{*vm}
			}
			a.Observe(vm)
		}
	}
	if most := 3 * 2 * 2 * count; lookups > most {
		t.Errorf("%d lookups for %d allocations, want at most %d", lookups, 3*count, most)
	}
}
