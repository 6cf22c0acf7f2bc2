package machineset

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// statusOf returns the status that follows from the facts alone.
func statusOf(f scale.Facts) v1alpha1.MachineSetStatus { return statusAfter(f, nil) }

// statusAfter returns the status after a failure.
func statusAfter(f scale.Facts, failure error) v1alpha1.MachineSetStatus {
	return nextStatus(f, &outcome{set: f.Set, failure: failure})
}

func TestMachineSetStatus_Counts(t *testing.T) {
	failed := phase(v1alpha1.MachineFailed)
	full := map[string]string{"name": pool, "zone": "a"}
	set := newSet(9, func(set *v1alpha1.MachineSet) {
		set.Generation = 7
		set.Spec.Template.Labels = full
	})
	for reason, test := range map[string]struct {
		owned []*v1alpha1.Machine
		want  v1alpha1.MachineSetStatus
	}{
		"none": {},
		"Running": {
			machines(2), v1alpha1.MachineSetStatus{Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2},
		},
		"Available counts as available, not as ready": {
			machines(2, phase(v1alpha1.MachineAvailable)), v1alpha1.MachineSetStatus{Replicas: 2, AvailableReplicas: 2},
		},
		"other phases count as neither": {
			[]*v1alpha1.Machine{
				machine("a", phase("")), machine("b", phase(v1alpha1.MachinePending)), machine("c", phase(v1alpha1.MachineUnknown)),
				machine("d", failed), machine("e", phase(v1alpha1.MachineCrashLoopBackOff)), machine("f", phase(v1alpha1.MachineTerminating)),
				machine("g", phase(v1alpha1.MachineInPlaceUpdating)),
			}, v1alpha1.MachineSetStatus{Replicas: 7},
		},
		"a machine that is being deleted only counts as existing": {
			machines(2, deleting), v1alpha1.MachineSetStatus{Replicas: 2},
		},
		"fully labelled": {
			[]*v1alpha1.Machine{machine("a", func(m *v1alpha1.Machine) { m.Labels = map[string]string{"name": pool, "zone": "a", "more": "x"} }), machine("b")},
			v1alpha1.MachineSetStatus{Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, FullyLabeledReplicas: 1},
		},
		"preserved": {
			[]*v1alpha1.Machine{
				machine("a", failed, preservedUntil(noon.Add(time.Hour))),
				machine("b", failed, preservedUntil(noon.Add(-time.Hour))), // no longer preserved
				machine("c", failed, annotated(v1alpha1.AnnotationKeyPreserve, "auto-preserved")),
				machine("d", preservedUntil(noon.Add(time.Hour)), annotated(v1alpha1.AnnotationKeyPreserve, "auto-preserved")),
				machine("e", failed, annotated(v1alpha1.AnnotationKeyPreserve, "now")),
			},
			v1alpha1.MachineSetStatus{Replicas: 5, ReadyReplicas: 1, AvailableReplicas: 1, PreservedFailedReplicas: 3, AutoPreserveFailedMachineCount: 2},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			test.want.ObservedGeneration, test.want.Selector = 7, "name=pool"
			got := statusOf(scale.Facts{Set: set, Owned: test.owned, Current: true, Now: noon})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestMachineSetStatus_ExcludesDeletionsOfPass(t *testing.T) {
	f := scale.Facts{Set: newSet(1), Owned: machines(3), Current: true, Now: noon}
	done := &outcome{set: f.Set, leaving: map[types.UID]bool{}}
	for _, op := range scale.Plan(f) {
		done.leaving[op.Machine.UID] = true
	}
	if got := nextStatus(f, done); got.Replicas != 3 || got.AvailableReplicas != 1 || got.ReadyReplicas != 1 {
		t.Errorf("status after the deletions: %+v", got)
	}
	if got := statusAfter(f, errors.New("refused")); got.AvailableReplicas != 3 {
		t.Errorf("status after failed deletions: %+v", got)
	}
}

func TestMachineSetStatus_FailureKeepsObservedGeneration(t *testing.T) {
	set := newSet(1)
	set.Generation, set.Status.ObservedGeneration = 5, 4
	if got := statusAfter(scale.Facts{Set: set, Now: noon}, errors.New("no")); got.ObservedGeneration != 4 {
		t.Errorf("observed generation %d", got.ObservedGeneration)
	}
	if got := statusOf(scale.Facts{Set: set, Now: noon}); got.ObservedGeneration != 5 {
		t.Errorf("observed generation %d, want 5", got.ObservedGeneration)
	}
}

func failedOperation(m *v1alpha1.Machine) {
	m.Spec.ProviderID = "sim:///" + m.Name
	m.Status.LastOperation = v1alpha1.LastOperation{
		Description: "no capacity", ErrorCode: "ResourceExhausted",
		State: v1alpha1.MachineStateFailed, Type: v1alpha1.MachineOperationCreate,
	}
}

func TestMachineSetStatus_FailedMachines(t *testing.T) {
	failed := phase(v1alpha1.MachineFailed)
	owned := []*v1alpha1.Machine{
		machine("z", failedOperation, phase(v1alpha1.MachineCrashLoopBackOff)),
		machine("b", failedOperation, failed),
		machine("well", failed), // its last operation succeeded
		machine("kept", failedOperation, failed, preservedUntil(noon.Add(time.Hour))),
		machine("kept-but-not-failed", failedOperation, phase(v1alpha1.MachineUnknown), preservedUntil(noon.Add(time.Hour))),
		machine("was-kept", failedOperation, failed, preservedUntil(noon.Add(-time.Hour))),
	}
	got := statusOf(scale.Facts{Set: newSet(6), Owned: owned, Now: noon}).FailedMachines
	var want []v1alpha1.MachineSummary
	for _, i := range []int{1, 4, 5, 0} { // sorted by name
		m := owned[i]
		want = append(want, v1alpha1.MachineSummary{Name: m.Name, ProviderID: "sim:///" + m.Name, LastOperation: m.Status.LastOperation, OwnerRef: pool})
	}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

func TestMachineSetStatus_FailedMachinesAreLimited(t *testing.T) {
	for n, note := range map[int]string{100: "", 101: " (and 1 more failed machines)", 5000: " (and 4900 more failed machines)"} {
		var owned []*v1alpha1.Machine
		for i := range n {
			owned = append(owned, machine(fmt.Sprintf("m%04d", n-1-i), failedOperation))
		}
		got := *statusOf(scale.Facts{Set: newSet(6), Owned: owned, Now: noon}).FailedMachines
		if len(got) != 100 || got[0].Name != "m0000" || got[99].Name != "m0099" {
			t.Fatalf("%d failed machines: %d listed, from %s to %s", n, len(got), got[0].Name, got[len(got)-1].Name)
		}
		if got[99].LastOperation.Description != "no capacity"+note || got[98].LastOperation.Description != "no capacity" {
			t.Errorf("%d failed machines: last description %q", n, got[99].LastOperation.Description)
		}
		if owned[n-100].Status.LastOperation.Description != "no capacity" {
			t.Error("the machine itself was changed")
		}
	}
}

// TestMachineSetStatus_DescriptionsAreShortened checks that long descriptions are shortened, since some providers return HTML
// pages.
func TestMachineSetStatus_DescriptionsAreShortened(t *testing.T) {
	page := "no capacity " + strings.Repeat("<é>", 10_000)
	var owned []*v1alpha1.Machine
	for i := range 101 {
		owned = append(owned, machine(fmt.Sprintf("m%04d", i), failedOperation, func(m *v1alpha1.Machine) { m.Status.LastOperation.Description = page }))
	}
	got := *statusOf(scale.Facts{Set: newSet(6), Owned: owned, Now: noon}).FailedMachines
	for i, failed := range got {
		text, more, _ := strings.Cut(failed.LastOperation.Description, " (and ")
		if len(text) > 1024 || !utf8.ValidString(text) || !strings.HasPrefix(text, "no capacity <é><é>") || !strings.Contains(text, " [...] ") {
			t.Errorf("%d bytes: %.60s", len(text), text)
		}
		if last := i == len(got)-1; last != (more == "1 more failed machines)") {
			t.Errorf("machine %d of %d: suffix %q", i, len(got), more)
		}
	}
	if owned[0].Status.LastOperation.Description != page {
		t.Error("the machine itself was changed")
	}
}

func TestMachineSetStatus_ReplicaFailure(t *testing.T) {
	frozen := v1alpha1.MachineSetCondition{Type: v1alpha1.MachineSetFrozen, Status: v1alpha1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon)}
	set := newSet(1, frozenSet)
	set.Status.Conditions = []v1alpha1.MachineSetCondition{frozen}
	step := func(minutes int, failure error) []v1alpha1.MachineSetCondition {
		f := scale.Facts{Set: set, Now: noon.Add(time.Duration(minutes) * time.Minute)}
		set.Status = statusAfter(f, failure)
		return set.Status.Conditions
	}
	condition := func(reason, message string, since int) v1alpha1.MachineSetCondition {
		return v1alpha1.MachineSetCondition{
			Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(noon.Add(time.Duration(since) * time.Minute)),
		}
	}
	quota := fmt.Errorf("%w: quota", errCreate)
	denied := errors.New("denied")
	for minute, want := range []struct {
		failure    error
		conditions []v1alpha1.MachineSetCondition
	}{
		{nil, []v1alpha1.MachineSetCondition{frozen}},
		{quota, []v1alpha1.MachineSetCondition{frozen, condition("FailedCreate", quota.Error(), 1)}},
		{quota, []v1alpha1.MachineSetCondition{frozen, condition("FailedCreate", quota.Error(), 1)}},
		{denied, []v1alpha1.MachineSetCondition{frozen, condition("FailedDelete", "denied", 1)}},
		{errors.Join(denied, quota), []v1alpha1.MachineSetCondition{frozen, condition("FailedCreate", "denied\n"+quota.Error(), 1)}},
		{nil, []v1alpha1.MachineSetCondition{frozen}},
		{denied, []v1alpha1.MachineSetCondition{frozen, condition("FailedDelete", "denied", 6)}},
	} {
		if diff := cmp.Diff(want.conditions, step(minute, want.failure)); diff != "" {
			t.Errorf("minute %d: want - got +\n%s", minute, diff)
		}
	}
}

// TestStatus_SelectorAloneCausesNoWrite checks that a missing selector in the status causes no write, since the
// API server drops it under MCM's CRDs.
func TestStatus_SelectorAloneCausesNoWrite(t *testing.T) {
	s := newServer(newSet(1), machine("a"))
	c := s.newController()
	pass(t, c)
	set := s.set()
	if set.Status.Selector != "name=pool" {
		t.Fatalf("selector %q in the status", set.Status.Selector)
	}
	set.Status.Selector = ""
	must(s.live.Status().Update(t.Context(), set))
	s.writes = nil
	pass(t, c)
	if len(s.writes) > 0 {
		t.Errorf("writes: %q", s.writes)
	}
	s.vanishNow("a")
	s.catchUp()
	pass(t, c)
	if got := s.set().Status.Selector; got != "name=pool" {
		t.Errorf("selector %q after another change", got)
	}
}

func TestController_NoWritesWithoutChange(t *testing.T) {
	s := newServer(newSet(2), machine("a"), machine("b"))
	c := s.newController()
	pass(t, c)
	s.writes = nil
	s.clock.SetTime(noon.Add(time.Hour))
	for range 3 {
		pass(t, c)
	}
	if len(s.writes) > 0 {
		t.Errorf("writes: %q", s.writes)
	}
}

func TestMachineSet_InvalidSpec(t *testing.T) {
	set := newSet(1, func(set *v1alpha1.MachineSet) {
		set.Spec.Selector = nil
		set.Status = v1alpha1.MachineSetStatus{Replicas: 3, ObservedGeneration: 1}
		set.Generation = 2
	})
	s := newServer(set, machine("a"))
	c := s.newController()
	for range 3 {
		pass(t, c)
	}
	want := v1alpha1.MachineSetStatus{
		Replicas: 3, ObservedGeneration: 1,
		Conditions: []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: "InvalidSpec"}},
	}
	ignore := cmp.Options{
		cmpopts.IgnoreFields(v1alpha1.MachineSetCondition{}, "Message", "LastTransitionTime"),
		cmpopts.IgnoreFields(v1alpha1.MachineSetStatus{}, "LastOperation"),
	}
	got := s.set().Status
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("status: want - got +\n%s", diff)
	}
	if !strings.HasPrefix(got.Conditions[0].Message, "spec.selector: ") {
		t.Errorf("message %q does not name the field", got.Conditions[0].Message)
	}
	if diff := cmp.Diff([]string{"InvalidSpec: " + got.Conditions[0].Message}, s.events.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	if len(s.all()) != 1 {
		t.Error("machines were created or deleted")
	}

	fixed := s.set()
	fixed.Spec.Selector = newSet(0).Spec.Selector
	must(s.live.Update(t.Context(), fixed))
	pass(t, c)
	if got := s.set().Status; len(got.Conditions) != 0 || got.Replicas != 1 || got.ObservedGeneration != 2 {
		t.Errorf("status after the set was corrected: %+v", got)
	}
}

// TestMachineSet_InvalidSpecsAreReported checks that an invalid set is reported in a condition and in one event, both with the field, and
// that no Machine is created or deleted.
func TestMachineSet_InvalidSpecsAreReported(t *testing.T) {
	for reason, test := range map[string]struct {
		change func(*v1alpha1.MachineSet)
		field  string
	}{
		"nil selector":   {func(set *v1alpha1.MachineSet) { set.Spec.Selector = nil }, "spec.selector: "},
		"empty selector": {func(set *v1alpha1.MachineSet) { set.Spec.Selector = &metav1.LabelSelector{} }, "spec.selector: "},
		"malformed selector": {func(set *v1alpha1.MachineSet) {
			set.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Resembles"}}
		}, "spec.selector: "},
		"selector of another set": {func(set *v1alpha1.MachineSet) {
			set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": "other"}}
		}, "spec.template.metadata.labels: "},
		"negative replicas": {func(set *v1alpha1.MachineSet) { set.Spec.Replicas = -1 }, "spec.replicas: "},
		"no class":          {func(set *v1alpha1.MachineSet) { set.Spec.Template.Spec.Class.Name = "" }, "spec.template.spec.class.name: "},
		"no kind of class":  {func(set *v1alpha1.MachineSet) { set.Spec.Template.Spec.Class.Kind = "" }, "spec.template.spec.class.kind: "},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(newSet(3, test.change), machine("mine"), machine("lost", ownerless))
			c := s.newController()
			for range 3 {
				pass(t, c)
			}
			conditions := s.set().Status.Conditions
			if len(conditions) != 1 || conditions[0].Reason != v1alpha1.MachineSetReasonInvalidSpec || !strings.HasPrefix(conditions[0].Message, test.field) {
				t.Fatalf("conditions %+v", conditions)
			}
			if diff := cmp.Diff([]string{"InvalidSpec: " + conditions[0].Message}, s.events.lines); diff != "" {
				t.Errorf("events: want - got +\n%s", diff)
			}
			if len(s.all()) != 2 || len(s.all()["lost"].OwnerReferences) > 0 {
				t.Errorf("machines were created, deleted or adopted: %d", len(s.all()))
			}
		})
	}
}

func TestMachineSet_InvalidSetCanBeDeleted(t *testing.T) {
	s := newServer(newSet(1), machine("a"))
	c := s.newController()
	pass(t, c)
	set := s.set()
	set.Spec.Selector = nil
	must(s.live.Update(t.Context(), set))
	must(s.live.Delete(t.Context(), set))
	pass(t, s.newController())
	if s.activeCount() != 0 {
		t.Error("its machine was not deleted")
	}
}

// TestMachineSet_NegativeMinReadySeconds checks that a negative minReadySeconds is reported, and that nothing is done.
func TestMachineSet_NegativeMinReadySeconds(t *testing.T) {
	s := newServer(newSet(1, func(set *v1alpha1.MachineSet) { set.Spec.MinReadySeconds = -5 }))
	c := s.newController()
	pass(t, c)
	is := s.set().Status.Conditions
	if len(is) != 1 || is[0].Reason != "InvalidSpec" || !strings.HasPrefix(is[0].Message, "spec.minReadySeconds: ") {
		t.Errorf("conditions %+v", is)
	}
	if len(s.all()) > 0 {
		t.Error("machines were created")
	}
}

// TestMachineSetStatus_LastOperationTime checks that the time of the last operation is that of the last status update.
func TestMachineSetStatus_LastOperationTime(t *testing.T) {
	s := newServer(newSet(1), machine("a"))
	c := s.newController()
	at := func(want time.Time) {
		t.Helper()
		pass(t, c)
		if got := s.set().Status.LastOperation.LastUpdateTime; !got.Time.Equal(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	at(noon)
	s.clock.SetTime(noon.Add(time.Minute))
	at(noon)
	s.vanishNow("a")
	s.catchUp()
	at(noon.Add(time.Minute))
}

// TestMachineSetStatus_CountsAfterFailure checks that after a failed pass, the status counts each Machine that may
// exist, and counts as usable no Machine that may be deleted. The deployment relies on it.
func TestMachineSetStatus_CountsAfterFailure(t *testing.T) {
	forbidden := apierrors.NewForbidden(resource, "", errors.New("no"))
	for reason, test := range map[string]struct {
		replicas int32
		machines int
		verb     string
		nth      int
		err      error
		done     bool
		want     string
	}{
		"a creation timed out":               {5, 2, "create", 1, apierrors.NewTimeoutError("etcd", 1), false, "3 exist, 2 ready, 2 available"},
		"a creation timed out and succeeded": {5, 2, "create", 1, apierrors.NewTimeoutError("etcd", 1), true, "3 exist, 2 ready, 2 available"},
		"the second of three was lost":       {5, 2, "create", 2, errLost, true, "5 exist, 2 ready, 2 available"},
		"a creation was refused":             {5, 2, "create", 1, forbidden, false, "2 exist, 2 ready, 2 available"},
		"the second of three was refused":    {5, 2, "create", 2, forbidden, false, "4 exist, 2 ready, 2 available"},
		"one of two deletions was refused":   {1, 3, "delete", 1, forbidden, false, "3 exist, 2 ready, 2 available"},
		"one of two deletions was lost":      {1, 3, "delete", 1, errLost, true, "3 exist, 1 ready, 1 available"},
	} {
		t.Run(reason, func(t *testing.T) {
			objects := []client.Object{newSet(test.replicas)}
			for _, m := range machines(test.machines) {
				objects = append(objects, m)
			}
			s := newServer(objects...)
			asked := 0
			s.respond = func(verb string, _ client.Object) (error, bool) {
				if verb != test.verb {
					return nil, false
				}
				if asked++; asked != test.nth {
					return nil, false
				}
				return test.err, test.done
			}
			c := s.newController()
			if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, test.err) {
				t.Errorf("error %v", err)
			}
			if got := s.counters(); got != test.want+"; generation 0" {
				t.Errorf("got %s, want %s", got, test.want)
			}
			for range 3 {
				s.catchUp()
				pass(t, c)
			}
			s.catchUp()
			if status := s.set().Status; int(status.Replicas) != len(s.all()) || len(status.Conditions) > 0 {
				t.Errorf("after settling, %d machines: %s", len(s.all()), s.counters())
			}
		})
	}
}
