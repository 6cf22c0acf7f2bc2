package rollout_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// excesses are the requested excess replicas.
var excesses = []string{"0", "1", "2", "50%", "100%"}

// reserved returns a pool with machines in excess.
func reserved(t *rapid.T) *pool {
	bound := rapid.SampledFrom([]string{"0", "1", "2", "50%", "100%"})
	d := fixture.Deployment(rapid.Int32Range(0, 5).Draw(t, "replicas"), fixture.Rolling(bound.Draw(t, "surge"), bound.Draw(t, "unavailable")))
	d.Spec.ExcessReplicas = ptr.To(intstr.Parse(rapid.SampledFrom(excesses).Draw(t, "excess")))
	p := newPool(d)
	if wrong := p.wrong(); wrong != "" {
		t.Fatalf("the first machines: %s", wrong)
	}
	return p
}

// promised returns how many Machines exist or will be created.
func (p *pool) promised() (n int32) {
	for _, set := range p.sets {
		n += max(counts.Desired(set), int32(len(p.of(set))))
	}
	return n
}

// usable returns how many Machines run and are for Pods.
func (p *pool) usable() (n int) {
	for _, machine := range p.all() {
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning && !reserve.In(&machine.Spec) {
			n++
		}
	}
	return n
}

// TestReserve_OfPool checks the reserve while users scale the deployment, change its reserve and roll out other
// templates, and the controllers of deployment and sets run in any order. At every moment
//
//   - no Machine is created while an excess Machine could be used for Pods: taints are removed first, and Machines are created afterwards;
//   - no running Machine for Pods is deleted or joins the reserve if fewer than the replicas without maxUnavailable would remain;
//   - at most as many Machines exist or are requested as replicas, excess and surge allow.
//
// In the end, exactly the excess Machines have the taint.
func TestReserve_OfPool(t *testing.T) {
	t.Parallel()
	events := []string{"deployment", "deployment", "set", "set", "set", "machine", "machine", "machine", "scale", "excess", "class"}
	tier.Check(t, func(t *rapid.T) {
		p := reserved(t)
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 0, 100).Draw(t, "events") {
			before, promised := p.usable(), p.promised()
			p.happens(t, event)
			if p.broken != "" {
				t.Fatalf("%s: %s", p.broken, p)
			}
			if is := p.usable(); is < min(before, p.minAvailable) {
				t.Fatalf("%d machines run for pods, %d before, %d required: %s", is, before, p.minAvailable, p)
			}
			surge, _ := rollout.Bounds(p.deployment)
			if is, most := p.promised(), p.planned.Replicas+p.planned.Excess+surge; is > max(promised, most) {
				t.Fatalf("%d machines exist or are requested, at most %d allowed: %s", is, most, p)
			}
		}
		p.rounds(100)
		if wrong := p.wrong(); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// TestReserve_CompletesAfterAnyChange checks the reserve if machines also fail and rollouts are paused.
func TestReserve_CompletesAfterAnyChange(t *testing.T) {
	t.Parallel()
	events := []string{"deployment", "deployment", "set", "set", "machine", "machine", "fails", "scale", "excess", "class", "pause", "resume"}
	tier.Check(t, func(t *rapid.T) {
		p := reserved(t)
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 0, 100).Draw(t, "events") {
			p.happens(t, event)
		}
		p.deployment.Spec.Paused = false
		p.rounds(100)
		if wrong := p.wrong(); wrong != "" {
			t.Fatal(wrong)
		}
	})
}
