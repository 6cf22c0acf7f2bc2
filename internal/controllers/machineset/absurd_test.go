package machineset

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// FuzzReconcile checks that a pass terminates for any objects, and that no Machine is created or deleted
// unnecessarily.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil))
		f.Add([]byte(nil), data)
	})
	f.Fuzz(func(t *testing.T, ofSet, ofMachines []byte) {
		deployment := fixture.MachineDeployment()
		set := fixture.OwnedBy(deployment, newSet(3))
		members := []client.Object{machine("m0"), machine("m1"), machine("m2", ownerless)}
		absurd.Objects(ofSet, set, deployment)
		absurd.Objects(ofMachines, members...)
		s := newFleet(append(members, set, deployment)...)
		const passes = 3
		for range passes {
			absurd.Within("a pass", func() { _, _ = s.controller.Reconcile(testContext, request) }) // errors are allowed
			s.catchUp()
			s.clock.SetTime(s.clock.Now().Add(time.Minute))
		}
		created, deleted := 0, 0
		for _, write := range s.writes {
			switch {
			case strings.HasPrefix(write, "create Machine "):
				created++
			case strings.HasPrefix(write, "delete Machine "):
				deleted++
			}
		}
		desired, count := int(max(0, set.Spec.Replicas)), len(members)
		if most := count - desired; len(ofMachines) == 0 && set.DeletionTimestamp == nil && deleted > max(0, most) {
			t.Errorf("%d machines were deleted: %d exist, %d desired", deleted, count, set.Spec.Replicas)
		}
		if set.Spec.Replicas < 0 && set.DeletionTimestamp == nil && created+deleted > 0 {
			t.Errorf("writes for a negative number of replicas: %q", s.writes)
		}
		if created > desired {
			t.Errorf("%d machines were created, %d desired", created, desired)
		}
		checkTexts(t, s)
	})
}

// checkTexts reports texts in the status that are too long. Such texts in many objects would fill the API server.
func checkTexts(t *testing.T, s *fleet) {
	t.Helper()
	found := &v1alpha1.MachineSet{}
	if s.live.Get(testContext, request.NamespacedName, found) != nil {
		return // the set is deleted
	}
	for _, condition := range found.Status.Conditions {
		if len(condition.Message) > 4096 {
			t.Errorf("condition %s has a message of %d bytes", condition.Type, len(condition.Message))
		}
	}
	if len(found.Status.LastOperation.Description) > 4096 {
		t.Errorf("the last operation has %d bytes", len(found.Status.LastOperation.Description))
	}
}
