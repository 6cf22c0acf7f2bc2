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
		"another pod's":               {vm("q", "5"), denied},
		"ours":                        {vm("p", "5"), granted},
		"not yet called":              {vm("p", ""), adoptable},
		"an older run's":              {vm("p", "4"), adoptable},
		"a newer run's":               {vm("p", "6"), denied},
		"a malformed run's":           {vm("p", "x"), denied},
		"numbers of different length": {vm("p", "10"), denied},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := authorize(c.vm, us); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}
