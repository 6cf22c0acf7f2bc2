package machineset

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestEvents_EachOperationIsReported checks that each operation causes one event and one log line, both with the reason.
func TestEvents_EachOperationIsReported(t *testing.T) {
	const orphan, changed = "it has no owner and its labels match the selector", "its labels no longer match the selector"
	scaled := func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
	}
	lift := func(set *v1alpha1.MachineSet) {
		frozenSet(set)
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyUnfreeze, "True")
	}
	broken := func(m *v1alpha1.Machine) { m.Status.LastOperation.Description = "no such image" }
	configured := func(m *v1alpha1.Machine) { m.Spec.MachineConfiguration = drainFor(time.Hour) }
	relabelled := func(m *v1alpha1.Machine) { m.Spec.NodeTemplateSpec.Labels = map[string]string{"disk": "slow"} }
	for operation, test := range map[string]struct {
		objects     []client.Object
		events, log []string
	}{
		"create": {
			[]client.Object{newSet(1)},
			[]string{"SuccessfulCreate: Created 1 machine (pool-0001): 0 of 1 machines exist"}, []string{"Created machines: 0 of 1 machines exist"},
		},
		"delete": {
			[]client.Object{newSet(0), machine("a")},
			[]string{"SuccessfulDelete: Deleted 1 machine (a): 1 surplus machine, 0 desired"},
			[]string{"Deleted machines: 1 surplus machine, 0 desired"},
		},
		"delete one that was named": {
			[]client.Object{newSet(1, scaled), machine("a", marked(noon))},
			[]string{"SuccessfulDelete: Deleted 1 machine (a): it was named for deletion"}, []string{"Deleted machines: it was named for deletion"},
		},
		"delete one that failed": {
			[]client.Object{newSet(1), machine("a", phase(v1alpha1.MachineFailed), broken)},
			[]string{"SuccessfulDelete: Deleted 1 machine (a): it failed: no such image"}, []string{"Deleted machines: it failed: no such image"},
		},
		"adopt": {
			[]client.Object{newSet(1), machine("a", ownerless)},
			[]string{"Adopted: Adopted 1 machine (a): " + orphan}, []string{"Adopted machines: " + orphan},
		},
		"release": {
			[]client.Object{newSet(0), machine("a", unlabelled)},
			[]string{"Released: Released 1 machine (a): " + changed}, []string{"Released machines: " + changed},
		},
		"update, for different reasons": {
			[]client.Object{newSet(3), machine("a", configured), machine("b", relabelled), machine("c", configured)},
			[]string{
				"SuccessfulUpdate: Updated 2 machines (a, c): the machine set has a different configuration",
				"SuccessfulUpdate: Updated 1 machine (b): the machine set has a different node template",
			},
			[]string{"Updated machines: the machine set has a different configuration", "Updated machines: the machine set has a different node template"},
		},
		"freeze": {
			[]client.Object{newSet(0), machine("a"), machine("b")},
			[]string{
				"FrozeMachineSet: Froze machine set pool: 2 machines exist, at least the freeze limit of 2",
				"SuccessfulDelete: Deleted 2 machines (a, b): 2 surplus machines, 0 desired",
			},
			[]string{
				"Froze the machine set: 2 machines exist, at least the freeze limit of 2",
				"Deleted machines: 2 surplus machines, 0 desired",
			},
		},
		"unfreeze": {
			[]client.Object{newSet(0, lift)},
			[]string{"UnfrozeMachineSet: Unfroze machine set pool: annotation " + v1alpha1.AnnotationKeyUnfreeze + " requests it"},
			[]string{"Unfroze the machine set: annotation " + v1alpha1.AnnotationKeyUnfreeze + " requests it"},
		},
	} {
		t.Run(operation, func(t *testing.T) {
			s := newServer(test.objects...)
			if operation == "freeze" {
				s.overshoot = &Overshoot{Up: 2, Down: 1}
			}
			c := s.newController()
			logged, err := lockstep.Logged(t, c, request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.events, s.events.lines); diff != "" {
				t.Errorf("events: want - got +\n%s", diff)
			}
			if diff := cmp.Diff(test.log, logged); diff != "" {
				t.Errorf("log: want - got +\n%s", diff)
			}
			s.catchUp()
			s.events.lines = nil
			if _, err := lockstep.Logged(t, c, request); err != nil {
				t.Fatal(err)
			}
			for _, line := range s.events.lines {
				if slices.Contains(test.events, line) {
					t.Errorf("a completed operation was reported again: %q", line)
				}
			}
		})
	}
}

// TestEvents_RefusalIsReported checks that a refused write causes an event. The error of the pass is logged.
func TestEvents_RefusalIsReported(t *testing.T) {
	for verb, test := range map[string]struct {
		replicas int32
		want     string
	}{
		"create": {2, `FailedCreate: Error creating: machines.machine.sapcloud.io is forbidden: no`},
		"delete": {0, `FailedDelete: Error deleting: deleting machine a: machines.machine.sapcloud.io is forbidden: no`},
	} {
		t.Run(verb, func(t *testing.T) {
			s := newServer(newSet(test.replicas), machine("a"))
			s.respond = func(requested string, _ client.Object) (error, bool) {
				if requested == verb {
					return apierrors.NewForbidden(resource, "", errors.New("no")), false
				}
				return nil, false
			}
			if _, err := lockstep.Logged(t, s.newController(), request); !apierrors.IsForbidden(err) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff([]string{test.want}, s.events.lines); diff != "" {
				t.Errorf("events: want - got +\n%s", diff)
			}
		})
	}
}

// TestMachineSet_MissingMachineCountsAsDeleted checks that a Machine that another client deleted counts as deleted, even if the
// cache still contains it.
func TestMachineSet_MissingMachineCountsAsDeleted(t *testing.T) {
	s := newServer(newSet(0), machine("a"))
	c := s.newController()
	s.vanishNow("a")
	if _, err := lockstep.Logged(t, c, request); err != nil {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"SuccessfulDelete: Deleted 1 machine (a): 1 surplus machine, 0 desired"}, s.events.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	if set := s.set(); set.Status.ObservedGeneration != set.Generation || len(set.Status.Conditions) > 0 {
		t.Errorf("status %+v", set.Status)
	}
	writes := s.count("delete")
	pass(t, c)
	if again := s.count("delete") - writes; again > 0 {
		t.Error("the machine was deleted again before the cache was updated")
	}
}
