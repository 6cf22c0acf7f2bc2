package machinedeployment

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// scaledByName returns a server with a complete deployment of three replicas, which an autoscaler scales to two
// and for which it names a Machine.
func scaledByName(t *testing.T, trigger string, machines ...func(*v1alpha1.Machine)) *server {
	t.Helper()
	set := fixture.Set("a", 3, fixture.WithUID)
	objects := []client.Object{fixture.Deployment(3), set}
	for i, name := range []string{"m-0", "m-1", "m-2"} {
		machine := fixture.Member(set, name)
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"}
		if i < len(machines) {
			machines[i](machine)
		}
		objects = append(objects, machine)
	}
	s := newServer(objects...)
	s.Target = nil
	s.pass(t)
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Spec.Replicas = 2
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, trigger)
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, fixture.Later)
	})
	s.writes = nil
	return s
}

func (s *server) machine(t *testing.T, name string) *v1alpha1.Machine {
	t.Helper()
	machine := &v1alpha1.Machine{}
	must(s.live.Get(t.Context(), client.ObjectKey{Namespace: fixture.Namespace, Name: name}, machine))
	return machine
}

// TestNamedMachine_IsMarkedBeforeScaling checks that the set is scaled down only after the cache shows the mark on the
// named Machine. Otherwise the set would delete another Machine.
func TestNamedMachine_IsMarkedBeforeScaling(t *testing.T) {
	for form, trigger := range map[string]string{"new": "m-1~" + fixture.Later, "old": "m-1"} {
		t.Run(form, func(t *testing.T) {
			s := scaledByName(t, trigger)
			s.pass(t)
			if diff := cmp.Diff([]string{"patch m-1"}, s.writes); diff != "" {
				t.Fatalf("first: want - got +\n%s", diff)
			}
			want := map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1", v1alpha1.AnnotationKeyMarkedForDeletionTime: fixture.Later}
			if diff := cmp.Diff(want, s.machine(t, "m-1").Annotations); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
			s.pass(t)
			set := s.only(t)
			if set.Spec.Replicas != 2 || set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != fixture.Later {
				t.Errorf("%d replicas, annotations %v", set.Spec.Replicas, set.Annotations)
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != "m-1~"+fixture.Later {
				t.Errorf("entry %q while the Machine exists", got)
			}
			must(s.live.Delete(t.Context(), s.machine(t, "m-1")))
			s.pass(t)
			if got, ok := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; ok {
				t.Errorf("annotation %q after the Machine is gone", got)
			}
			if n := slices.Index(s.writes, "patch m-0"); n >= 0 {
				t.Errorf("another Machine was changed: %q", s.writes)
			}
		})
	}
}

// TestNamedMachine_DeletedWithoutScaling checks Machines that are named without changing the replicas, by a user or an
// old autoscaler. Their set gets the time of the latest mark, so that it deletes and replaces them, as MCM does.
func TestNamedMachine_DeletedWithoutScaling(t *testing.T) {
	for form, trigger := range map[string]string{
		"bare": "m-1", "with a time": "m-1~" + fixture.Later, "with two times": "m-0~" + fixture.Early + ",m-1~" + fixture.Later,
	} {
		t.Run(form, func(t *testing.T) {
			s := scaledByName(t, trigger)
			s.change(func(d *v1alpha1.MachineDeployment) {
				d.Spec.Replicas = 3
				delete(d.Annotations, v1alpha1.AnnotationKeyLastReplicaChange)
			})
			for range 3 {
				s.pass(t)
			}
			set := s.only(t)
			if m := s.machine(t, "m-1"); !deletion.Named(m, set) {
				t.Errorf("the set does not delete the Machine: mark %q, time on the set %q",
					deletion.Marked(m), set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
			}
			if strings.HasPrefix(trigger, "m-0") && !deletion.Named(s.machine(t, "m-0"), set) {
				t.Error("the set does not delete the Machine that was named earlier")
			}
			if set.Spec.Replicas != 3 {
				t.Errorf("the set has %d replicas", set.Spec.Replicas)
			}
		})
	}
}

// TestNamedMachine_DeletedWithoutScalingAgain checks that a Machine that is named later is deleted, too.
func TestNamedMachine_DeletedWithoutScalingAgain(t *testing.T) {
	s := scaledByName(t, "m-0~"+fixture.Early)
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Spec.Replicas = 3
		delete(d.Annotations, v1alpha1.AnnotationKeyLastReplicaChange)
	})
	for range 3 {
		s.pass(t)
	}
	must(s.live.Delete(t.Context(), s.machine(t, "m-0")))
	s.change(func(d *v1alpha1.MachineDeployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, "m-1~"+fixture.Later)
	})
	for range 3 {
		s.pass(t)
	}
	if set := s.only(t); !deletion.Named(s.machine(t, "m-1"), set) {
		t.Errorf("the set does not delete the Machine; its time is %q", set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	}
}

// TestNamedMachine_InvalidEntriesAreDropped checks that invalid entries in the annotation mark no Machine and delay nothing.
func TestNamedMachine_InvalidEntriesAreDropped(t *testing.T) {
	phase := func(phase v1alpha1.MachinePhase) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase }
	}
	for reason, test := range map[string]struct {
		trigger string
		machine func(*v1alpha1.Machine)
	}{
		"failed":      {"m-0~" + fixture.Later, phase(v1alpha1.MachineFailed)},
		"terminating": {"m-0~" + fixture.Later, phase(v1alpha1.MachineTerminating)},
		"gone":        {"m-9~" + fixture.Later, phase(v1alpha1.MachineRunning)},
		"another's":   {"m-0~" + fixture.Later, func(m *v1alpha1.Machine) { m.OwnerReferences[0].UID = "uid-of-another" }},
		"no time":     {"m-0~soon", phase(v1alpha1.MachineRunning)},
	} {
		t.Run(reason, func(t *testing.T) {
			s := scaledByName(t, test.trigger, test.machine)
			s.pass(t)
			if got := s.machine(t, "m-0").Annotations[v1alpha1.AnnotationKeyMachinePriority]; got != "3" {
				t.Errorf("priority %q", got)
			}
			if got, ok := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; ok {
				t.Errorf("annotation %q", got)
			}
			if got := s.only(t).Spec.Replicas; got != 2 {
				t.Errorf("the set has %d replicas", got)
			}
		})
	}
}

func TestPredicates_MachineChanges(t *testing.T) {
	set := fixture.Set("a", 1, fixture.WithUID)
	s := newServer(fixture.Deployment(1), set)
	plain := fixture.Member(set, "m")
	marked := plain.DeepCopy()
	marked.Annotations = map[string]string{v1alpha1.AnnotationKeyMarkedForDeletionTime: fixture.Later}
	prior := marked.DeepCopy()
	prior.Annotations[v1alpha1.AnnotationKeyMachinePriority] = "1"
	failed := marked.DeepCopy()
	failed.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	busy := marked.DeepCopy()
	busy.Status.LastOperation.Description = "busy"
	other := plain.DeepCopy()
	other.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	changed := func(from *v1alpha1.Machine, change func(*v1alpha1.Machine)) *v1alpha1.Machine {
		is := from.DeepCopy()
		is.Annotations = maps.Clone(is.Annotations)
		if is.Annotations == nil {
			is.Annotations = map[string]string{}
		}
		change(is)
		return is
	}
	annotate := func(from *v1alpha1.Machine, key, value string) *v1alpha1.Machine {
		return changed(from, func(machine *v1alpha1.Machine) { machine.Annotations[key] = value })
	}
	asked := annotate(plain, v1alpha1.AnnotationKeyUpdateClass, "b")
	for reason, test := range map[string]struct {
		was, is *v1alpha1.Machine
		want    bool
	}{
		"an update is planned": {plain, asked, true}, "the driver has responded": {asked, annotate(asked, v1alpha1.AnnotationKeyUpdatePlan, "{}"), true},
		"another has a plan":      {plain, annotate(plain, v1alpha1.AnnotationKeyUpdatePlan, "{}"), false},
		"one with a plan fails":   {asked, changed(asked, func(machine *v1alpha1.Machine) { machine.Status.CurrentStatus.Phase = v1alpha1.MachineFailed }), true},
		"it follows":              {plain, changed(plain, func(machine *v1alpha1.Machine) { machine.Spec.Class.Name = "b" }), true},
		"it is excluded":          {plain, annotate(plain, v1alpha1.AnnotationKeyUpdateStrategy, ""), true},
		"it is allowed":           {plain, annotate(plain, v1alpha1.AnnotationKeyUpdateStrategy, "Update"), true},
		"an excluded one retires": {plain, annotate(plain, v1alpha1.AnnotationKeyMachinePriority, "1"), true},
		"it is marked":            {plain, marked, true}, "a marked one fails": {marked, failed, true}, "its priority is set": {marked, prior, true},
		"a marked one is busy": {marked, busy, false}, "another fails": {plain, other, false},
	} {
		if got := machineChanges().Update(event.UpdateEvent{ObjectOld: test.was, ObjectNew: test.is}); got != test.want {
			t.Errorf("%s: %t", reason, got)
		}
	}
	if got := s.ofMachine(t.Context(), marked); len(got) != 1 || got[0] != request {
		t.Errorf("got %v, want %v", got, request)
	}
	orphan := marked.DeepCopy()
	orphan.OwnerReferences = nil
	if got := s.ofMachine(t.Context(), orphan); len(got) != 0 {
		t.Errorf("requests for an orphan: %v", got)
	}
}

// TestNamedMachine_IsMarkedOnce checks a pass in which only some Machines could be marked.
func TestNamedMachine_IsMarkedOnce(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later+",m-2~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.pass(t)
	if n := len(slices.DeleteFunc(slices.Clone(s.writes), func(write string) bool { return write != "patch m-2" })); n != 1 {
		t.Errorf("writes %q", s.writes)
	}
}

// TestNamedMachine_ConflictIsRetried checks that a conflict is retried and not reported.
func TestNamedMachine_ConflictIsRetried(t *testing.T) {
	s := scaledByName(t, "m-1~"+fixture.Later)
	s.refuse = func(verb string, object client.Object) error {
		if verb == "patch" && object.GetName() == "m-1" {
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource(), "m-1", errors.New("it was changed"))
		}
		return nil
	}
	if after := s.pass(t).RequeueAfter; after != expectations.StaleCache {
		t.Errorf("the next pass is due in %s", after)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 || strings.Contains(strings.Join(s.lines, "\n"), v1alpha1.DeploymentReasonMarkError) {
		t.Errorf("events %q, status %+v", s.lines, s.deployment().Status)
	}
}
