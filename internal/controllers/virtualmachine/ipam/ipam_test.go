package ipam

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

func TestAllocate(t *testing.T) {
	asking := func(name string, age time.Duration, ips ...string) v1alpha1.VirtualMachine {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		vm.Spec.VMIPs = ips
		vm.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0).Add(-age))
		return *vm
	}
	having := func(name, addresses string) v1alpha1.VirtualMachine {
		vm := asking(name, 0)
		vm.Annotations = map[string]string{v1alpha1.AnnotationAddresses: addresses}
		return vm
	}
	small := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/27")}
	both := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
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
		"the first":              {asking("a", 0), nil, both, []string{"10.0.0.16", "fd00::10"}, false},
		"no network":             {asking("a", 0), nil, nil, nil, false},
		"the lowest free":        {asking("a", 0), []v1alpha1.VirtualMachine{having("b", "10.0.0.16"), having("c", "10.0.0.18"), asking("d", 0, "10.0.0.17/32")}, small, []string{"10.0.0.19"}, false},
		"its own":                {having("a", "10.0.0.20"), nil, small, []string{"10.0.0.20"}, false},
		"all but the last":       {asking("a", 0), full[1:], small, []string{"10.0.0.16"}, false},
		"none left":              {asking("a", 0), full, small, nil, true},
		"asked for":              {asking("a", 0, "10.0.0.5"), nil, small, []string{"10.0.0.5"}, false},
		"outside":                {asking("a", 0, "10.0.1.5"), nil, small, nil, true},
		"the gateway":            {asking("a", 0, "10.0.0.2"), nil, small, nil, true},
		"the broadcast address":  {asking("a", 0, "10.0.0.31"), nil, small, nil, true},
		"without a network":      {asking("a", 0, "10.0.0.5"), nil, nil, nil, true},
		"taken":                  {asking("a", time.Hour, "10.0.0.20"), []v1alpha1.VirtualMachine{having("b", "10.0.0.20")}, small, nil, true},
		"wanted by an older one": {asking("a", 0, "10.0.0.20"), []v1alpha1.VirtualMachine{asking("b", time.Hour, "10.0.0.20")}, small, nil, true},
		"wanted by a newer one":  {asking("a", time.Hour, "10.0.0.20"), []v1alpha1.VirtualMachine{asking("b", 0, "10.0.0.20")}, small, []string{"10.0.0.20"}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			all := append(c.others, c.vm)
			got, err := New(c.networks).Allocate(&c.vm, func() ([]v1alpha1.VirtualMachine, error) { return all, nil })
			if _, refused := errors.AsType[*UnavailableError](err); refused != c.refused || err != nil && !refused {
				t.Fatalf("error: %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}
