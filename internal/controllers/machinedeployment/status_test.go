package machinedeployment

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachineDeployment_ReleasedSetsAreReported checks that released sets are reported with their machines, until the machines are gone
// or another object owns them.
func TestMachineDeployment_ReleasedSetsAreReported(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.Target = nil
	s.pass(t)
	name := s.only(t).Name
	s.setSet(t, name, fixture.Reports(3, 3))
	message := func() string {
		s.pass(t)
		if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentSetReleased); at >= 0 {
			return s.deployment().Status.Conditions[at].Message
		}
		return ""
	}
	labelled := func(value string) change {
		return func(d *v1alpha1.MachineDeployment) {
			d.Spec.Selector.MatchLabels = map[string]string{"name": value}
			d.Spec.Template.Labels = map[string]string{"name": value}
		}
	}
	want := func(when, machines string) {
		t.Helper()
		begin := "spec.selector: no longer matches machine sets of this deployment: " + name + " (machines: " + machines + "). "
		if got := message(); !strings.HasPrefix(got, begin) {
			t.Errorf("%s: %q", when, got)
		}
	}
	s.change(labelled("other"))
	s.pass(t)
	if set := s.all()[name]; len(set.OwnerReferences) > 0 || set.Spec.Replicas != 3 {
		t.Fatalf("the set was not released unchanged: %+v", set)
	}
	if got := s.ofSet(t.Context(), s.all()[name]); len(got) != 1 || got[0] != request {
		t.Errorf("requests for its events: %v", got)
	}
	want("released", "3")
	s.change(labelled(fixture.Pool))
	s.pass(t)
	if got := message(); strings.Contains(got, name) || len(s.all()[name].OwnerReferences) != 1 {
		t.Errorf("message after the set matches again: %q", got)
	}
	s.change(labelled("other"))
	s.pass(t)
	must(s.live.Delete(t.Context(), s.all()[name]))
	s.setSet(t, name, fixture.Reports(1, 0))
	want("the set is being deleted", "1")
	set := s.all()[name]
	set.Finalizers = nil
	must(s.live.Update(t.Context(), set))
	if got := message(); strings.Contains(got, name) {
		t.Errorf("gone: %q", got)
	}
}

// TestMachineDeployment_UnrelatedSetsAreNotReported checks sets without machines, and sets of other deployments.
func TestMachineDeployment_UnrelatedSetsAreNotReported(t *testing.T) {
	orphan := func(set *v1alpha1.MachineSet) {
		set.OwnerReferences, set.Labels["name"] = nil, "other"
		set.Name = revision.SetName(fixture.Pool, set.Spec.Template.Labels["machine-template-hash"])
	}
	s := newServer(fixture.Deployment(3, fixture.OfClass("d")), fixture.Set("a", 0, orphan), fixture.Set("b", 2, orphan, func(set *v1alpha1.MachineSet) {
		set.Name = "tool-" + strings.TrimPrefix(set.Name, "pool-")
	}), fixture.Set("c", 2, orphan, func(set *v1alpha1.MachineSet) {
		set.OwnerReferences = []metav1.OwnerReference{rollout.OwnerReference(fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.UID = "uid-of-another" }))}
	}))
	s.pass(t)
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentSetReleased); at >= 0 {
		t.Errorf("got %+v", s.deployment().Status.Conditions[at])
	}
}
