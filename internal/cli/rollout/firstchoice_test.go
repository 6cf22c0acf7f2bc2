package rollout

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

// TestFirstChoice_FindsNewMachine checks that the new machine is found among machines created in the same second, in any
// list order.
func TestFirstChoice_FindsNewMachine(t *testing.T) {
	start := time.Unix(1000, 0)
	machine := func(name string, second int, leaves bool) *v1alpha1.Machine {
		m := &v1alpha1.Machine{}
		m.Name, m.UID, m.CreationTimestamp = name, types.UID(name), metav1.NewTime(start.Add(time.Duration(second)*time.Second))
		if leaves {
			m.DeletionTimestamp = &m.CreationTimestamp
		}
		return m
	}
	facts := func(machines ...*v1alpha1.Machine) (f rollout.Facts) {
		f.Machines = machines
		return f
	}
	replaced, other, added := machine("replaced", 0, false), machine("other", 0, false), machine("added", 0, false)
	for name, test := range map[string]struct {
		begun         bool
		before, after rollout.Facts
		want          string
	}{
		"in the same second, listed last":               {before: facts(replaced, other), after: facts(replaced, other, added), want: "added"},
		"in the same second, listed first":              {before: facts(replaced, other), after: facts(added, other, replaced), want: "added"},
		"created earlier by another clock":              {before: facts(replaced, machine("other", 5, false)), after: facts(machine("other", 5, false), added), want: "added"},
		"started before: creation time decides":         {begun: true, before: facts(replaced, other, machine("added", 1, false)), after: facts(machine("added", 1, false), other, replaced), want: "added"},
		"a machine being deleted is ignored":            {before: facts(replaced, other), after: facts(replaced, other, machine("added", 1, true)), want: "other"},
		"the replaced machine is ignored, although new": {begun: true, before: facts(replaced), after: facts(replaced), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if newest := newestOther(change.Replacement{Machine: replaced, Started: test.begun}, test.before, test.after); newest != nil {
				got = newest.Name
			}
			if got != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}
