package machinedeployment

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestEvents_EachOperationIsReported checks that each operation causes one event and one log line, both with the reason.
func TestEvents_EachOperationIsReported(t *testing.T) {
	const named, orphan = "the autoscaler named it for deletion", "it has no owner and its labels match the selector"
	free := func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }
	other := func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{"name": "other"} }
	noHistory := func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }
	trigger := func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyTriggerDeletion: "m~" + fixture.Later}
	}
	slow := func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = 9 }
	set := fixture.Set("a", 3, fixture.WithUID)
	for operation, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		objects    []client.Object
		event, log string
	}{
		"create": {
			fixture.Deployment(3), nil,
			"ScalingMachineSet: Scaled up machine set pool-69569 to 3: no machine set has this template yet",
			"Scaled up machine set: no machine set has this template yet",
		},
		"scale up": {
			fixture.Deployment(5), []client.Object{set},
			"ScalingMachineSet: Scaled up machine set pool-a to 5: 5 replicas desired",
			"Scaled up machine set: 5 replicas desired",
		},
		"scale down": {
			fixture.Deployment(1), []client.Object{set},
			"ScalingMachineSet: Scaled down machine set pool-a to 1: 1 replica desired",
			"Scaled down machine set: 1 replica desired",
		},
		"adopt": {
			fixture.Deployment(3), []client.Object{fixture.Set("a", 3, free)},
			"Adopted: Adopted machine set pool-a: " + orphan, "Adopted machine set: " + orphan,
		},
		"release": {
			fixture.Deployment(3), []client.Object{set, fixture.Set("b", 2, fixture.WithUID, other)},
			"Released: Released machine set pool-b: its labels no longer match the selector",
			"Released machine set: its labels no longer match the selector",
		},
		"refresh": {
			fixture.Deployment(3, slow), []client.Object{set},
			"RefreshedMachineSet: Refreshed machine set pool-a: the deployment changed in fields that need no new machines",
			"Refreshed machine set: the deployment changed in fields that need no new machines",
		},
		"refresh annotations": {
			fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) { d.Annotations = map[string]string{"why": "so"} }), []client.Object{set},
			"RefreshedMachineSet: Refreshed machine set pool-a: its annotations were updated from the deployment and its rollout",
			"Refreshed machine set: its annotations were updated from the deployment and its rollout",
		},
		"prune": {
			fixture.Deployment(3, fixture.OfClass("b"), noHistory), []client.Object{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("1")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))},
			"DeletedMachineSet: Deleted machine set pool-a of revision 1: revisionHistoryLimit is 0",
			"Deleted machine set: revisionHistoryLimit is 0",
		},
		"mark": {
			fixture.Deployment(2, trigger), []client.Object{set, fixture.Member(set, "m")},
			"MachineMarked: Machine m is deleted first: " + named, "Marked machine for deletion: " + named,
		},
		"roll back": {
			fixture.Deployment(3, fixture.OfClass("b"), rollbackTo(1)), []client.Object{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("1")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))},
			`DeploymentRollback: Rolled back deployment "pool" to revision 1`,
			`Handled spec.rollbackTo: Rolled back deployment "pool" to revision 1`,
		},
		"refuse": {
			fixture.Deployment(3, rollbackTo(7)), []client.Object{set},
			"DeploymentRollbackRevisionNotFound: spec.rollbackTo.revision: no machine set has revision 7",
			"Handled spec.rollbackTo: spec.rollbackTo.revision: no machine set has revision 7",
		},
	} {
		t.Run(operation, func(t *testing.T) {
			s := newServer(append([]client.Object{test.deployment}, test.objects...)...)
			s.Target = nil
			logged, err := lockstep.Logged(t, s, request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{test.event}, s.lines); diff != "" {
				t.Errorf("events: want - got +\n%s", diff)
			}
			if diff := cmp.Diff([]string{test.log}, logged); diff != "" {
				t.Errorf("log: want - got +\n%s", diff)
			}
			again, err := lockstep.Logged(t, s, request)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range again {
				if line == test.log {
					t.Errorf("a completed operation was reported again: %q", again)
				}
			}
		})
	}
}

// TestEvents_MarkedNodesAreReported checks that every marking is logged, and that only the first and the last cause
// events. The marking of new nodes during the rollout is not interesting for users.
func TestEvents_MarkedNodesAreReported(t *testing.T) {
	s := duringRollout(t, 2, 1)
	s.setSet(t, "pool-b", fixture.Reports(1, 0)) // no other operations are needed
	s.pass(t)
	if events := strings.Join(s.lines, "\n"); strings.Count(events, "NodesMarked: Marked 2 nodes of machines that will be replaced") != 1 {
		t.Errorf("first: %q", s.lines)
	}
	must(s.live.Create(t.Context(), fixture.Member(s.all()["pool-b"], "late")))
	must(s.target.Create(t.Context(), nodeNamed("late")))
	step := func(when string, event, log []string) {
		t.Helper()
		s.lines = nil
		logged, err := lockstep.Logged(t, s, request)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(log, logged); diff != "" {
			t.Errorf("%s: log: want - got +\n%s", when, diff)
		}
		if diff := cmp.Diff(event, s.lines); diff != "" {
			t.Errorf("%s: events: want - got +\n%s", when, diff)
		}
	}
	step("a new node", nil, []string{"Patched nodes: 1 node of new machines updated during the rollout"})
	step("nothing new", nil, nil)
	finish(t, s)
	step("it is over", []string{"NodesUnmarked: Unmarked 1 node: the rollout is complete"}, []string{"Patched nodes: Unmarked 1 node: the rollout is complete"})
}

// TestEvents_RefusedSetIsReported checks that a refused creation causes an event. The error of the pass is logged.
func TestEvents_RefusedSetIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.refuse = func(verb string, _ client.Object) error {
		if verb == "create" {
			return errors.New("exceeded quota")
		}
		return nil
	}
	if _, err := lockstep.Logged(t, s, request); !errors.Is(err, rollout.ErrCreate) {
		t.Fatalf("error %v", err)
	}
	if diff := cmp.Diff([]string{"MachineSetCreateError: Failed to create machine set pool-69569: exceeded quota"}, s.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
}
