package capi

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// newTaggedHarness returns a harness with a machine whose VM can be updated.
func newTaggedHarness(t *testing.T) *harness {
	t.Helper()
	return newJoinedHarness(t, func(g *given) { g.infra.Spec.ProviderSpec = raw(`{"size":"small","tags":{"a":"1"}}`) })
}

// updateTo changes the specification and sets the annotation, as Cluster API does for an update in place.
func (h *harness) updateTo(spec string) {
	h.Helper()
	h.changeInfra(func(m *infrav1.MillwrightMachine) {
		m.Generation++
		m.Spec.ProviderSpec = raw(spec)
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, core.AnnotationUpdateInProgress, "")
	})
}

func (h *harness) wantUpToDate(status metav1.ConditionStatus, reason string, want ...string) {
	h.Helper()
	h.wantCondition(infrav1.ConditionUpToDate, status, reason, want...)
	for _, condition := range h.infra().Status.Conditions {
		if condition.Type == infrav1.ConditionUpToDate && condition.ObservedGeneration != h.infra().Generation {
			h.Errorf("observedGeneration is %d, want %d", condition.ObservedGeneration, h.infra().Generation)
		}
	}
}

// updates returns the number of calls that were to change the VM.
func (h *harness) updates() int {
	count := 0
	for _, q := range fake.Requests[*driver.UpdateMachineRequest](h.Driver) {
		if !q.DryRun {
			count++
		}
	}
	return count
}

// TestUpdate_InPlace checks that the VM is updated once to the specification that Cluster API has written, and stays
// the same VM.
func TestUpdate_InPlace(t *testing.T) {
	h := newTaggedHarness(t)
	before := h.Driver.VMs()[0]
	h.updateTo(`{"size":"small","tags":{"a":"2"}}`)
	h.Settle()
	h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	after := h.Driver.VMs()
	if len(after) != 1 || after[0].ProviderID != before.ProviderID || !strings.Contains(after[0].Spec, `"a":"2"`) || h.updates() != 1 {
		t.Errorf("VMs %v after %d updates", after, h.updates())
	}
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], infrav1.ReasonUpdated) {
		t.Errorf("events %q", events)
	}
	h.Writes = nil
	h.changeInfra(func(m *infrav1.MillwrightMachine) { delete(m.Annotations, core.AnnotationUpdateInProgress) })
	h.Settle()
	if h.updates() != 1 || len(h.Writes) != 0 {
		t.Errorf("%d updates; writes %v", h.updates(), h.Writes)
	}
	h.matchSpec(true) // the updated specification is used to find and delete the VM
	h.SettleAfter(checkDelay)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestUpdate_NothingToChange checks that a change that does not affect the VM is complete immediately, also when it is repeated.
func TestUpdate_NothingToChange(t *testing.T) {
	h := newTaggedHarness(t)
	h.updateTo(`{"tags":{"a":"1"},"size":"small"}`)
	h.Settle()
	h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
	h.changeInfra(func(m *infrav1.MillwrightMachine) {
		m.Generation++
		m.Spec.NodeTemplate = &infrav1.NodeTemplate{InstanceType: "x"}
	})
	h.Settle()
	h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
	if h.updates() != 0 {
		t.Errorf("%d updates", h.updates())
	}
}

// TestUpdate_RequiresAnnotation checks that a change of the spec without the annotation does not update the VM.
func TestUpdate_RequiresAnnotation(t *testing.T) {
	h := newTaggedHarness(t)
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(`{"size":"small","tags":{"a":"2"}}`) })
	h.Settle()
	if len(h.calls()) != 0 || len(h.Writes) != 0 {
		t.Errorf("calls %v, writes %v", h.calls(), h.Writes)
	}
}

// TestUpdate_NeedsReplacement checks that the possible changes are made, and that the condition reports the others,
// which wait for a replacement.
func TestUpdate_NeedsReplacement(t *testing.T) {
	h := newTaggedHarness(t)
	h.updateTo(`{"size":"big","tags":{"a":"2"}}`)
	h.Settle()
	h.wantUpToDate(metav1.ConditionFalse, infrav1.ReasonReplacementNeeded, "size", h.infra().Spec.ProviderID)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if h.updates() != 1 {
		t.Errorf("%d updates", h.updates())
	}
	h.Writes = nil
	h.SettleAfter(retryDelay)
	if h.updates() != 1 || len(h.Writes) != 0 {
		t.Errorf("%d updates; writes %v", h.updates(), h.Writes)
	}
	h.updateTo(`{"size":"small","tags":{"a":"1"}}`) // the change is reverted
	h.Settle()
	h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
	if vm := h.Driver.VMs()[0]; !strings.Contains(vm.Spec, `"a":"1"`) {
		t.Errorf("the VM has the spec %s", vm.Spec)
	}
}

// TestUpdate_FailureIsRetried checks that an error of the driver is reported, and that the call is retried.
func TestUpdate_FailureIsRetried(t *testing.T) {
	h := newTaggedHarness(t)
	h.Driver.FailWith(fake.UpdateMachine, status.Error(codes.ResourceExhausted, "no quota"))
	h.updateTo(`{"size":"small","tags":{"a":"2"}}`)
	h.Settle()
	h.wantUpToDate(metav1.ConditionFalse, infrav1.ReasonUpdateFailed, "no quota", "ResourceExhausted")
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.SettleAfter(5 * time.Minute)
	h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
	if events := h.takeEvents(); len(events) != 2 {
		t.Errorf("events %q", events)
	}
}

// TestUpdate_MissingClassIsReported checks that a missing class is reported and the VM stays as it is.
func TestUpdate_MissingClassIsReported(t *testing.T) {
	h := newTaggedHarness(t)
	h.changeInfra(func(m *infrav1.MillwrightMachine) {
		m.Generation++
		m.Spec.ProviderSpec, m.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "missing"}
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, core.AnnotationUpdateInProgress, "")
	})
	h.Settle()
	h.wantUpToDate(metav1.ConditionFalse, infrav1.ReasonUpdateFailed, `MachineClass "missing"`)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if len(h.calls()) != 0 {
		t.Errorf("calls %v", h.calls())
	}
}

// TestUpdate_LateResponse checks a driver that responds late.
func TestUpdate_LateResponse(t *testing.T) {
	h := newTaggedHarness(t)
	h.updateTo(`{"size":"small","tags":{"a":"2"}}`)
	for len(h.Tasks) == 0 {
		h.Pass()
	}
	h.wantUpToDate(metav1.ConditionFalse, infrav1.ReasonUpdating)
	h.Clock.Step(instance.Silence)
	h.Pass()
	h.wantUpToDate(metav1.ConditionFalse, infrav1.ReasonUpdateFailed, "has not responded")
	h.Settle()
	h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
}

// TestUpdate_InterruptedIsCompleted checks that another process completes or reverts an update that was interrupted.
func TestUpdate_InterruptedIsCompleted(t *testing.T) {
	for name, spec := range map[string]string{"completed": `{"size":"small","tags":{"a":"2"}}`, "reverted": `{"size":"small","tags":{"a":"1"}}`} {
		t.Run(name, func(t *testing.T) {
			h := newTaggedHarness(t)
			h.Driver.FailAfter(fake.UpdateMachine, codes.OK, codes.Unavailable) // the dry run and the change
			h.updateTo(`{"size":"small","tags":{"a":"2"}}`)
			h.Settle()
			if plan := liveupdate.Read(h.infra().Annotations).Plan; plan == nil || !plan.Begun {
				t.Fatalf("plan %+v", plan)
			}
			h.restart()
			h.updateTo(spec)
			h.SettleAfter(5 * time.Minute)
			h.wantUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated)
			vms := h.Driver.VMs()
			if state := liveupdate.Read(h.infra().Annotations); len(vms) != 1 || vms[0].Spec != string(state.Made.Spec) || state.Plan != nil {
				t.Errorf("VMs %v, state %+v", vms, state)
			}
		})
	}
}

// TestUpdate_OfDeletedMachine checks that a deletion does not wait for an update.
func TestUpdate_OfDeletedMachine(t *testing.T) {
	h := newTaggedHarness(t)
	h.Driver.Fail(fake.UpdateMachine, slices.Repeat([]codes.Code{codes.Internal}, 20)...)
	h.updateTo(`{"size":"small","tags":{"a":"2"}}`)
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}
