package rollout_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// following returns a deployment with an update strategy.
func following(replicas int32, surge, unavailable string) *v1alpha1.MachineDeployment {
	d := fixture.Deployment(replicas, fixture.Rolling(surge, unavailable))
	d.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: string(liveupdate.Update)}
	return d
}

// TestLiveUpdate_SetFollowsClass checks that, in whatever order the controllers run, Machines whose VMs can be updated
// stay, the others are replaced within the limits, and the rollout completes.
func TestLiveUpdate_SetFollowsClass(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		replicas := rapid.Int32Range(1, 6).Draw(t, "replicas")
		bound := rapid.SampledFrom([]string{"0", "1", "2", "50%"})
		p := newPool(following(replicas, bound.Draw(t, "surge"), bound.Draw(t, "unavailable")))
		var stay []string
		for _, machine := range p.all() {
			if p.stuck[machine.Name] = rapid.Bool().Draw(t, machine.Name); !p.stuck[machine.Name] {
				stay = append(stay, machine.Name)
			}
		}
		surge, unavailable := rollout.Bounds(p.deployment)
		p.rollTo("b")
		check := func() {
			if is := int32(len(p.machines)); is > replicas+surge {
				t.Fatalf("%d machines exist, at most %d allowed", is, replicas+surge)
			}
			if is := int32(p.running(p.all())); is < replicas-unavailable {
				t.Fatalf("%d machines run, at least %d required", is, replicas-unavailable)
			}
		}
		for _, event := range rapid.SliceOfN(rapid.SampledFrom([]string{"deployment", "set", "machine"}), 0, 60).Draw(t, "events") {
			p.happens(t, event)
			check()
		}
		for range 60 {
			p.rounds(1)
			check()
		}
		if wrong := p.wrong(); wrong != "" {
			t.Fatal(wrong)
		}
		if len(stay) == 0 { // the template is rolled out as usual
			return
		}
		for _, name := range stay {
			if slices.Contains(p.gone, name) {
				t.Fatalf("machine %s was replaced although it could be updated", name)
			}
		}
		if len(p.sets) != 1 || len(p.gone) != int(replicas)-len(stay) {
			t.Fatalf("%d sets; machines %v were deleted, want %v to stay", len(p.sets), p.gone, stay)
		}
	})
}

// TestLiveUpdate_CompletesAfterAnyChange checks that a rollout completes if users scale the deployment and change
// class and strategy again, and if machines fail.
func TestLiveUpdate_CompletesAfterAnyChange(t *testing.T) {
	t.Parallel()
	events := []string{"deployment", "deployment", "set", "set", "machine", "machine", "machine", "fails", "scale", "class", "strategy"}
	tier.Check(t, func(t *rapid.T) {
		p := newPool(following(rapid.Int32Range(0, 5).Draw(t, "replicas"), "1", "0"))
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 0, 80).Draw(t, "events") {
			if event == "fails" && len(p.machines) > 0 { // its VM may not suit another class
				p.stuck[rapid.SampledFrom(p.all()).Draw(t, "stuck").Name] = true
			}
			p.happens(t, event)
		}
		p.deployment.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] = string(liveupdate.Update)
		p.rounds(100)
		if wrong := p.wrong(); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// TestLiveUpdate_DryRun checks that the drivers are queried, and nothing else changes until the strategy does.
func TestLiveUpdate_DryRun(t *testing.T) {
	p := newPool(following(3, "1", "0"))
	p.stuck[p.all()[0].Name] = true
	p.deployment.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] = string(liveupdate.DryRun)
	p.rollTo("b")
	p.rounds(20)
	is := status.Progress(p.deployment.Status)
	if want := "3 machines for class \"b\": 2 to be updated, 1 to be replaced"; is.Reason != v1alpha1.DeploymentReasonDryRun || !strings.Contains(is.Message, want) {
		t.Errorf("Progressing is %s: %s", is.Reason, is.Message)
	}
	if len(p.gone) > 0 || p.sets[0].Spec.Template.Spec.Class.Name != "a" {
		t.Errorf("machines %v were deleted, and the set has class %s", p.gone, p.sets[0].Spec.Template.Spec.Class.Name)
	}
	p.rollTo("a")
	p.rounds(20)
	for _, machine := range p.all() {
		if asked := liveupdate.RequestedClass(machine); asked != "" {
			t.Errorf("machine %s still has a request for %s", machine.Name, asked)
		}
	}
	if wrong := p.wrong(); wrong != "" {
		t.Error(wrong)
	}
}

// TestLiveUpdate_WithoutStrategyReplaces tests the behavior of MCM.
func TestLiveUpdate_WithoutStrategyReplaces(t *testing.T) {
	p := newPool(following(3, "1", "0"))
	delete(p.deployment.Annotations, v1alpha1.AnnotationKeyUpdateStrategy)
	p.rollTo("b")
	p.rounds(40)
	if wrong := p.wrong(); wrong != "" || len(p.gone) != 3 || len(p.sets) != 2 {
		t.Errorf("%s; machines %v were deleted, and there are %d sets", wrong, p.gone, len(p.sets))
	}
}
