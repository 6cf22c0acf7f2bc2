package capi

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// placer is a driver that knows every failure domain but "nowhere".
type placer struct{ driver.FailureDomains }

func (placer) PlaceMachine(req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if req.FailureDomain == "nowhere" {
		return nil, status.Error(codes.NotFound, "there is no such place")
	}
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, err
}

// TestDriverPlaces (S9, S38, M6): where the machine itself says nothing of its failure
// domain, the driver does, in creation and in deletion alike.
func TestDriverPlaces(t *testing.T) {
	h := newHarness(t, func(g *given) { g.machine.Spec.FailureDomain = "c" })
	h.controller.inputs.Placer = placer{}
	h.Settle()
	if got := h.infra(); got.Spec.FailureDomain != "c" || got.Status.FailureDomain != "c" || !got.Status.Ready {
		t.Errorf("failure domain %q, status %+v", got.Spec.FailureDomain, got.Status)
	}
	const want = `{"size":"small","zone":"c"}`
	if class := h.created()[0].MachineClass; string(class.ProviderSpec.Raw) != want || class.NodeTemplate.Zone != "c" {
		t.Errorf("class %s, zone %q", class.ProviderSpec.Raw, class.NodeTemplate.Zone)
	}
	h.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}})
	h.delete()
	h.Settle()
	if spec := string(h.deleted()[0].MachineClass.ProviderSpec.Raw); spec != want || !h.gone() {
		t.Errorf("deleted by class %s; gone: %v", spec, h.gone())
	}

	h = newHarness(t, func(g *given) { g.machine.Spec.FailureDomain = "nowhere" })
	h.controller.inputs.Placer = placer{}
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownFailureDomain, `"nowhere"`, "there is no such place")
	if len(h.calls()) != 0 {
		t.Errorf("the driver was asked: %v", h.calls())
	}
}
