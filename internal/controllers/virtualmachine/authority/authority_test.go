package authority

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestAuthorize(t *testing.T) {
	us := &vmpb.HypervisorID{VmName: "a", Namespace: "default", PodName: "p", RunId: 5}
	vm := func(pod, run string) *v1alpha1.VirtualMachine {
		vm := &v1alpha1.VirtualMachine{}
		vm.Status.ActivePodName, vm.Status.ActiveRunID = pod, run
		return vm
	}
	deleted := vm("p", "5")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	cases := map[string]struct {
		vm   *v1alpha1.VirtualMachine
		want authorization
	}{
		"gone":                        {nil, denied},
		"being deleted":               {deleted, denied},
		"undecided":                   {vm("", ""), undecided},
		"authority of another Pod":    {vm("q", "5"), denied},
		"authority of this process":   {vm("p", "5"), granted},
		"no process yet":              {vm("p", ""), adoptable},
		"authority of an older run":   {vm("p", "4"), adoptable},
		"authority of a newer run":    {vm("p", "6"), denied},
		"malformed run ID":            {vm("p", "x"), denied},
		"run IDs of different length": {vm("p", "10"), denied},
		"run ID with a leading zero":  {vm("p", "05"), denied},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := authorize(c.vm, us); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// TestHolds_NoPod checks that a process without a Pod name does not hold a VM without authority.
func TestHolds_NoPod(t *testing.T) {
	vm := &v1alpha1.VirtualMachine{}
	vm.Status.ActiveRunID = "5"
	if Holds(vm, &vmpb.HypervisorID{RunId: 5}) {
		t.Error("it holds the VM")
	}
}
