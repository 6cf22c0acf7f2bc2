package crash

import (
	"context"
	"errors"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// story creates a history from changes in the order in which they were observed, each with its version. Those up
// to version 10 existed before.
func story(changes ...change) *history {
	_, cancel := context.WithCancel(context.Background())
	h := &history{cancel: cancel, began: 10}
	for _, c := range changes {
		c.object.SetResourceVersion(strconv.FormatUint(c.version, 10))
		h.add(c.object, c.gone)
	}
	return h
}

func at(version uint64, object client.Object) change { return change{version: version, object: object} }

func goneAt(version uint64, object client.Object) change {
	return change{version: version, object: object, gone: true}
}

func runningMachine(name, class string) *v1alpha1.Machine {
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
	machine.OwnerReferences = []metav1.OwnerReference{{Name: "set"}}
	machine.Spec.Class.Name = class
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	return machine
}

func leavingMachine(name string) *v1alpha1.Machine {
	machine := runningMachine(name, "old")
	machine.DeletionTimestamp = &metav1.Time{}
	machine.DeletionTimestamp.Time = machine.DeletionTimestamp.AddDate(1, 0, 0)
	return machine
}

func pendingMachine(name string) *v1alpha1.Machine {
	machine := runningMachine(name, "new")
	machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	return machine
}

// inExcess returns an excess Machine of its MachineSet.
func inExcess(name string) *v1alpha1.Machine {
	machine := runningMachine(name, "old")
	machine.Spec = *reserve.Marked(&machine.Spec, reserve.NoSchedule)
	return machine
}

// keptMachine is preserved until the given number of years after Machines are deleted.
func keptMachine(years int) *v1alpha1.Machine {
	machine := runningMachine("kept", "old")
	machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: leavingMachine("").DeletionTimestamp.AddDate(years, 0, 0)}
	return machine
}

func setFrozen(frozen string) *v1alpha1.MachineSet {
	return &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Labels: map[string]string{v1alpha1.LabelKeyFreeze: frozen}}}
}

// infrastructure returns a MillwrightMachine with our finalizer and the given state.
func infrastructure(traits ...func(*infrav1.MillwrightMachine)) *infrav1.MillwrightMachine {
	infra := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: standalone, Finalizers: []string{infrav1.Finalizer}}}
	for _, has := range traits {
		has(infra)
	}
	return infra
}

func unheld(infra *infrav1.MillwrightMachine)     { infra.Finalizers = nil }
func hasID(infra *infrav1.MillwrightMachine)      { infra.Spec.ProviderID = "sim:///1" }
func hasOtherID(infra *infrav1.MillwrightMachine) { infra.Spec.ProviderID = "sim:///2" }
func isReady(infra *infrav1.MillwrightMachine) {
	infra.Status.Ready, infra.Status.ProviderID = true, "sim:///1"
}
func marked(infra *infrav1.MillwrightMachine) {
	infra.Annotations = map[string]string{infrav1.AnnotationCreationBegun: "now"}
}

func hasLocation(infra *infrav1.MillwrightMachine) {
	infra.Annotations = map[string]string{driver.AnnotationLocation: "default/pool"}
}

func machineWithID() *v1alpha1.Machine {
	machine := runningMachine("new", "new")
	machine.Spec.ProviderID = "sim:///1"
	return machine
}

// TestRules checks that each rule finds its violation, however short it is and in whatever order the changes of
// different kinds are observed, and nothing else.
func TestRules(t *testing.T) {
	old, other := runningMachine("old", "old"), runningMachine("other", "old")
	for name, tc := range map[string]struct {
		rule    rule
		changes []change
		want    error
	}{
		"as many as may be": {most(2), []change{at(1, old), at(2, other), goneAt(20, other), at(21, pendingMachine("new"))}, nil},
		"too many, for the time of one write": {
			most(2), []change{at(1, old), at(2, other), at(20, pendingMachine("new")), goneAt(21, old)}, errTooMany,
		},
		"too many, but before the beginning": {most(1), []change{at(1, old), at(2, other), goneAt(11, other)}, nil},
		"as few as may be":                   {least(1), []change{at(1, old), at(2, other), at(20, leavingMachine("other"))}, nil},
		"too few, since one leaves":          {least(2), []change{at(1, old), at(2, other), at(20, leavingMachine("other"))}, errTooFew},
		"too few, since the new one does not run": {
			least(2), []change{at(1, old), at(2, other), at(20, pendingMachine("new")), goneAt(21, other)}, errTooFew,
		},
		"enough are for pods":  {forPods(1), []change{at(1, old), at(20, inExcess("other"))}, nil},
		"too few are for pods": {forPods(2), []change{at(1, old), at(2, other), at(20, inExcess("other"))}, errKeptFree},
		"freed, then one more": {freedFirst(2), []change{at(1, old), at(2, inExcess("other")), at(20, other), at(21, inExcess("new"))}, nil},
		"one more, then freed": {freedFirst(2), []change{at(1, old), at(2, inExcess("other")), at(20, inExcess("new")), at(21, other)}, errMadeSoon},
		"new after old":        {notMixed, []change{at(1, old), goneAt(20, old), at(21, pendingMachine("new"))}, nil},
		"new next to old":      {notMixed, []change{at(1, old), at(20, pendingMachine("new")), goneAt(21, old)}, errMixed},
		"the named one goes": {
			onlyNamed, []change{at(1, old), at(2, runningMachine("named", "old")), at(20, leavingMachine("named")), goneAt(21, leavingMachine("named"))}, nil,
		},
		"another one leaves":  {onlyNamed, []change{at(1, old), at(20, leavingMachine("old"))}, errVictim},
		"another one is gone": {onlyNamed, []change{at(1, old), goneAt(20, old)}, errVictim},
		"frozen, and shrinks": {frozenMakeNothing, []change{at(1, old), goneAt(20, old), at(3, setFrozen("True"))}, nil},
		"frozen, and grows":   {frozenMakeNothing, []change{at(1, old), at(20, other), at(3, setFrozen("True"))}, errFrozen},
		"grows before it is frozen": {
			frozenMakeNothing, []change{at(1, setFrozen("False")), at(21, setFrozen("True")), at(20, other)}, nil,
		},
		"grows after it was frozen": {
			frozenMakeNothing, []change{at(1, setFrozen("True")), at(20, setFrozen("False")), at(21, other)}, nil,
		},
		"infrastructure, from the mark to the VM": {
			orderly, []change{at(20, infrastructure(marked)), at(21, infrastructure(marked, hasID)), at(22, infrastructure(marked, hasID, isReady))}, nil,
		},
		"marked before it is held":  {orderly, []change{at(20, infrastructure(marked, unheld))}, errUnheld},
		"given up before its VM is": {orderly, []change{at(1, infrastructure(hasID)), at(20, infrastructure(hasID, unheld))}, errUnheld},
		"ready before its ID":       {orderly, []change{at(20, infrastructure(isReady)), at(21, infrastructure(isReady, hasID))}, errNoID},
		"ready no more":             {orderly, []change{at(1, infrastructure(hasID, isReady)), at(20, infrastructure(hasID))}, errTakenBack},
		"another ID":                {orderly, []change{at(1, infrastructure(hasID)), at(20, infrastructure(hasOtherID))}, errTakenBack},
		"preserved, and stays":      {keepPreserved, []change{at(1, keptMachine(1)), at(20, keptMachine(1))}, nil},
		"preserved, and leaves":     {keepPreserved, []change{at(1, keptMachine(1)), at(20, leavingMachine("kept"))}, errPreserved},
		"preserved, and gone":       {keepPreserved, []change{at(1, keptMachine(1)), goneAt(20, keptMachine(1))}, errPreserved},
		"leaves when that is over":  {keepPreserved, []change{at(1, keptMachine(0)), at(20, leavingMachine("kept"))}, nil},
		"released, and leaves":      {keepPreserved, []change{at(1, keptMachine(1)), at(19, runningMachine("kept", "old")), at(20, leavingMachine("kept"))}, nil},
		"both, the second":          {both(most(9), least(1)), []change{at(1, old), goneAt(20, old)}, errTooFew},
		"an ID, and where it is":    {located, []change{at(20, infrastructure(hasID, hasLocation))}, nil},
		"an ID without that":        {located, []change{at(20, infrastructure(hasID))}, errUnlocated},
		"a Machine's without":       {located, []change{at(20, machineWithID())}, errUnlocated},
	} {
		t.Run(name, func(t *testing.T) {
			var copies []change
			for _, c := range tc.changes {
				copies = append(copies, change{c.version, c.object.DeepCopyObject().(client.Object), c.gone})
			}
			if err := story(copies...).judge(&run{named: "named"}, tc.rule); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("the rule finds %v, want %v", err, tc.want)
			}
		})
	}
}

// TestRules_GapInHistoryIsFound checks that a history with a broken watch, which may have missed changes, is not
// accepted.
func TestRules_GapInHistoryIsFound(t *testing.T) {
	h := story(at(1, runningMachine("old", "old")))
	gap := errors.New("the watch broke")
	h.fail(gap)
	if err := h.judge(&run{}, most(9)); !errors.Is(err, gap) {
		t.Errorf("the rule finds %v, want %v", err, gap)
	}
}
