package machineset

import (
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// rolling is a deployment with two sets. It moves replicas between them as its surge allows.
type rolling struct {
	*server
	controller *Controller
	// current is the set that gets all replicas.
	current, other string
}

var versions = []string{pool, "next"}

func newRolling(t *rapid.T) *rolling {
	surge := rapid.SampledFrom([]string{"0", "1", "3", "50%"}).Draw(t, "surge")
	deployment := newParent(rapid.Int32Range(0, 8).Draw(t, "replicas"), v1alpha1.RollingUpdateMachineDeploymentStrategyType, surge)
	deployment.Namespace, deployment.Name, deployment.UID = fixture.Namespace, "owner", "d"
	r := &rolling{current: versions[1], other: versions[0]}
	r.server = newServer(deployment, newSet(deployment.Spec.Replicas, ofDeployment("d", "1")), namedSet(versions[1], ofDeployment("d", "2")))
	r.shownDeployment = deployment
	r.overshoot = &Overshoot{Up: 2, Down: 1}
	r.controller = r.newController()
	return r
}

func (r *rolling) version(name string) *v1alpha1.MachineSet {
	set := &v1alpha1.MachineSet{}
	must(r.live.Get(testContext, client.ObjectKey{Namespace: fixture.Namespace, Name: name}, set))
	return set
}

func (r *rolling) deployment() *v1alpha1.MachineDeployment {
	deployment := &v1alpha1.MachineDeployment{}
	must(r.live.Get(testContext, client.ObjectKey{Namespace: fixture.Namespace, Name: "owner"}, deployment))
	return deployment
}

func (r *rolling) resize(name string, by int32) {
	set := r.version(name)
	set.Spec.Replicas += by
	set.Generation++
	must(r.live.Update(testContext, set))
}

// grow scales up the current set: at most to the replicas of the deployment plus its surge. The cache shows the
// changes of the set and of the deployment independently.
func (r *rolling) grow(t *rapid.T) {
	deployment := r.deployment()
	surge, err := intstr.GetScaledValueFromIntOrPercent(deployment.Spec.Strategy.RollingUpdate.MaxSurge, int(deployment.Spec.Replicas), true)
	must(err)
	free := deployment.Spec.Replicas + int32(surge) - r.version(r.current).Spec.Replicas - r.version(r.other).Spec.Replicas
	r.resize(r.current, part(t, free))
}

func (r *rolling) shrink(t *rapid.T) {
	r.resize(r.other, -part(t, r.version(r.other).Spec.Replicas))
}

// part returns a random part of a number.
func part(t *rapid.T, of int32) int32 {
	if rapid.Bool().Draw(t, "all") {
		return max(0, of)
	}
	return rapid.Int32Range(0, max(0, of)).Draw(t, "part")
}

// turn changes the template back to that of the old set.
func (r *rolling) turn(*rapid.T) { r.current, r.other = r.other, r.current }

func (r *rolling) scaleUp(t *rapid.T) {
	deployment := r.deployment()
	deployment.Spec.Replicas += rapid.Int32Range(1, 9).Draw(t, "added replicas")
	must(r.live.Update(testContext, deployment))
}

func (r *rolling) showDeployment(*rapid.T) { r.shownDeployment = r.deployment() }

func (r *rolling) fail(t *rapid.T) {
	machines := r.all()
	for _, name := range slices.Sorted(maps.Keys(machines)) { // a fixed order
		if m := machines[name]; rapid.Bool().Draw(t, "fails") {
			m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
			must(r.live.Update(testContext, m))
		}
	}
}

func (r *rolling) bury(*rapid.T) {
	for name, m := range r.all() {
		if !m.DeletionTimestamp.IsZero() {
			r.vanish(name)
		}
	}
}

func (r *rolling) pass(t *rapid.T) {
	if rapid.Bool().Draw(t, "update the cache of machines") {
		r.catchUp()
	}
	name := rapid.SampledFrom(versions).Draw(t, "set")
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: fixture.Namespace, Name: name}}
	if _, err := r.controller.Reconcile(testContext, request); err != nil {
		t.Fatalf("reconciling: %v", err)
	}
	if set := r.version(name); scale.Frozen(set) {
		t.Fatalf("%s was frozen with %d of %d replicas; %d machines exist", name, set.Spec.Replicas, r.deployment().Spec.Replicas, r.activeCount())
	}
}

// TestMachineSet_RolloutDoesNotFreeze checks that no change of a deployment that keeps its replicas freezes a set, in whatever
// order the caches show it.
func TestMachineSet_RolloutDoesNotFreeze(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		r := newRolling(t)
		t.Repeat(map[string]func(*rapid.T){
			"pass":            r.pass,
			"another pass":    r.pass,
			"one more pass":   r.pass,
			"grow":            r.grow,
			"shrink":          r.shrink,
			"turn":            r.turn,
			"scale up":        r.scaleUp,
			"show deployment": r.showDeployment,
			"fail":            r.fail,
			"bury":            r.bury,
		})
	})
}
