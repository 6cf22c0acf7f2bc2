package machineset

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/lockstep"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func newParent(replicas int32, kind v1alpha1.MachineDeploymentStrategyType, surge string) *v1alpha1.MachineDeployment {
	return fixture.Deployment(replicas, fixture.Strategy(kind, surge, ""))
}

// TestFreeze_UnfreezeWithoutFreeze checks that the annotation is removed, and that nothing is reported if the set is
// not frozen.
func TestFreeze_UnfreezeWithoutFreeze(t *testing.T) {
	asked := func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: "True"}
	}
	noLabel := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{*isTrue(v1alpha1.MachineSetFrozen, v1alpha1.MachineSetReasonOvershoot, "too many", noon)}
	}
	for reason, test := range map[string]struct {
		set   *v1alpha1.MachineSet
		lines int
	}{
		"not frozen":                   {newSet(1, asked), 0},
		"it is":                        {newSet(1, asked, frozenSet), 1},
		"frozen without the label":     {newSet(1, asked, noLabel), 1},
		"label removed, no annotation": {newSet(1, noLabel), 1},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(test.set, machine("a"))
			s.overshoot = &Overshoot{Up: 2, Down: 1}
			c := s.newController()
			log, err := lockstep.Logged(t, c, request)
			if err != nil || len(s.events.lines) != test.lines || len(log) != test.lines {
				t.Errorf("error %v, events %q, log %q", err, s.events.lines, log)
			}
			pass(t, c)
			if set := s.set(); scale.Frozen(set) || set.Annotations[v1alpha1.AnnotationKeyUnfreeze] != "" || len(set.Status.Conditions) > 0 {
				t.Errorf("labels %v, annotations %v, conditions %+v", set.Labels, set.Annotations, set.Status.Conditions)
			}
		})
	}
}

// TestFreeze_FreezesAndUnfreezes checks a set for which another client creates Machines.
func TestFreeze_FreezesAndUnfreezes(t *testing.T) {
	objects := []client.Object{newSet(2)}
	for _, m := range machines(9) {
		objects = append(objects, m)
	}
	s := newServer(objects...)
	s.overshoot = &Overshoot{Up: 2, Down: 1}
	c := s.newController()
	safety := &recorder{}
	c.SafetyEvents = safety
	pass(t, c)
	set := s.set()
	if at := condition(set.Status.Conditions, v1alpha1.MachineSetFrozen); !scale.Frozen(set) || at < 0 ||
		set.Status.Conditions[at].Reason != "OverShootingReplicaCount" {
		t.Fatalf("labels %v, conditions %+v", set.Labels, set.Status.Conditions)
	}
	if n := s.activeCount(); n != 2 {
		t.Errorf("%d machines, want 2: a frozen set still deletes", n)
	}
	s.catchUp()
	pass(t, c)
	pass(t, c)
	if set := s.set(); scale.Frozen(set) || len(set.Status.Conditions) != 0 {
		t.Errorf("with two machines: labels %v, conditions %+v", set.Labels, set.Status.Conditions)
	}
	for _, line := range s.events.lines {
		if strings.Contains(line, "rozeMachineSet: ") {
			t.Errorf("event %q has the source of other events", line)
		}
	}
	want := []string{
		"FrozeMachineSet: Froze machine set pool: 9 machines exist, at least the freeze limit of 6",
		"UnfrozeMachineSet: Unfroze machine set pool: 2 machines exist, at most the unfreeze limit of 5",
	}
	if diff := cmp.Diff(want, safety.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
}

// TestFreeze_ReasonIsStoredAfterConflict checks that the reason is stored even if Machines that are deleted
// in the same pass changed.
func TestFreeze_ReasonIsStoredAfterConflict(t *testing.T) {
	objects := []client.Object{newSet(2)}
	for _, m := range machines(9) {
		objects = append(objects, m)
	}
	s := newServer(objects...)
	s.overshoot = &Overshoot{Up: 2, Down: 5}
	s.respond = func(verb string, object client.Object) (error, bool) {
		if verb == "delete" && object.GetName() == "m3" {
			return apierrors.NewConflict(resource, "m3", errors.New("changed")), false
		}
		return nil, false
	}
	c := s.newController()
	for range 3 {
		pass(t, c)
		s.catchUp()
	}
	conditions := s.set().Status.Conditions
	at := condition(conditions, v1alpha1.MachineSetFrozen)
	if at < 0 || conditions[at].Message != "9 machines exist, at least the freeze limit of 6" || len(conditions) != 1 {
		t.Errorf("conditions %+v", conditions)
	}
}

// TestFreeze_CreatesNothingUntilUnfrozen checks that the annotation unfreezes a set and is removed with the
// freeze.
func TestFreeze_CreatesNothingUntilUnfrozen(t *testing.T) {
	s := newServer(newSet(2, frozenSet))
	c := s.newController() // without overshoot, nothing else unfreezes the set
	for range 3 {
		pass(t, c)
	}
	if set := s.set(); len(s.all()) != 0 || condition(set.Status.Conditions, v1alpha1.MachineSetFrozen) < 0 {
		t.Fatalf("%d machines, conditions %+v", len(s.all()), set.Status.Conditions)
	}
	set := s.set()
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyUnfreeze, "True")
	must(s.live.Update(t.Context(), set))
	pass(t, c)
	pass(t, c)
	if set := s.set(); len(s.all()) != 2 || scale.Frozen(set) || set.Annotations[v1alpha1.AnnotationKeyUnfreeze] != "" || len(set.Status.Conditions) != 0 {
		t.Errorf("%d machines, labels %v, annotations %v, conditions %+v", len(s.all()), set.Labels, set.Annotations, set.Status.Conditions)
	}
}

// TestFreeze_IgnoresOwnReplacements checks that a set is not frozen when its Machines fail and are replaced, its cache is
// stale, and it is scaled up, although many more Machine objects exist than desired.
func TestFreeze_IgnoresOwnReplacements(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		s := newServer(newSet(rapid.Int32Range(0, 4).Draw(t, "replicas")))
		s.overshoot = &Overshoot{Up: 2, Down: 1}
		c := s.newController()
		for range 20 {
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0:
				s.scale(s.set().Spec.Replicas + rapid.Int32Range(0, 3).Draw(t, "more"))
			case 1:
				for _, m := range s.all() {
					m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
					must(s.live.Update(testContext, m))
				}
			case 2:
				s.catchUp()
			}
			pass(t, c)
			if scale.Frozen(s.set()) {
				t.Fatalf("frozen with %d of %d machines", s.activeCount(), s.set().Spec.Replicas)
			}
		}
	})
}

// TestFreeze_ReadsCurrentDeployment checks a set that a rollout scaled from eight to zero while the cache shows
// only the change of the set. A scale-down of the deployment by a user freezes the set.
func TestFreeze_ReadsCurrentDeployment(t *testing.T) {
	for reason, test := range map[string]struct {
		shown, is int32
		want      bool
	}{
		"the deployment keeps its replicas": {shown: 0, is: 8, want: false},
		"the deployment has fewer, too":     {shown: 0, is: 1, want: true},
		"the cache is current":              {shown: 8, is: 8, want: false},
	} {
		t.Run(reason, func(t *testing.T) {
			deployment := newParent(test.is, v1alpha1.RollingUpdateMachineDeploymentStrategyType, "1")
			deployment.Namespace, deployment.Name, deployment.UID = fixture.Namespace, "owner", "d"
			objects := []client.Object{deployment, newSet(0, ofDeployment("d", "1"))}
			for _, m := range machines(8) {
				m.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey] = "1"
				objects = append(objects, m)
			}
			s := newServer(objects...)
			s.overshoot = &Overshoot{Up: 2, Down: 1}
			s.shownDeployment = deployment.DeepCopy()
			s.shownDeployment.Spec.Replicas = test.shown
			pass(t, s.newController())
			if set := s.set(); scale.Frozen(set) != test.want {
				t.Errorf("labels %v, want frozen: %t", set.Labels, test.want)
			}
			if n := s.activeCount(); n != 0 {
				t.Errorf("%d machines, want none", n)
			}
		})
	}
}

// TestFreeze_LargeScaleDown checks that a set that is scaled down by many replicas is frozen and unfrozen once, as
// MCM's integration tests require. This does not delay a user who scales up again.
func TestFreeze_LargeScaleDown(t *testing.T) {
	for reason, test := range map[string]struct{ from, to, then int32 }{
		"a few":                   {6, 2, 2},
		"more than a burst":       {104, 2, 2},
		"all":                     {5, 0, 0},
		"scaled up again":         {9, 3, 8},
		"scaled back to the same": {12, 3, 12},
	} {
		t.Run(reason, func(t *testing.T) {
			objects := []client.Object{newSet(test.from)}
			for _, m := range machines(int(test.from)) {
				objects = append(objects, m)
			}
			s := newServer(objects...)
			s.overshoot = &Overshoot{Up: 2, Down: 1}
			c := s.newController()
			s.scale(test.to)
			pass(t, c)
			if !scale.Frozen(s.set()) {
				t.Error("the set was not frozen")
			}
			s.scale(test.then)
			for range 10 {
				s.catchUp()
				pass(t, c)
			}
			set := s.set()
			if scale.Frozen(set) || len(set.Status.Conditions) > 0 || s.activeCount() != int(test.then) {
				t.Errorf("after settling: %d machines, labels %v, conditions %+v", s.activeCount(), set.Labels, set.Status.Conditions)
			}
			seen := map[string]int{}
			for _, line := range s.events.lines {
				topic, _, _ := strings.Cut(line, ":")
				seen[topic]++
			}
			if seen["FrozeMachineSet"] != 1 || seen["UnfrozeMachineSet"] != 1 {
				t.Errorf("frozen %d times, unfrozen %d times", seen["FrozeMachineSet"], seen["UnfrozeMachineSet"])
			}
		})
	}
}

// TestFreeze_IgnoresForeignDeployment checks that a deployment that replaced the set's owner under the same name
// is ignored.
func TestFreeze_IgnoresForeignDeployment(t *testing.T) {
	deployment := newParent(100, v1alpha1.RollingUpdateMachineDeploymentStrategyType, "")
	deployment.Namespace, deployment.Name = fixture.Namespace, "owner"
	for uid, want := range map[string]bool{"its own": false, "another": true} {
		t.Run(uid, func(t *testing.T) {
			deployment.UID = "d"
			if want {
				deployment.UID = "e"
			}
			objects := []client.Object{newSet(3, ofDeployment("d", "1")), deployment}
			for _, m := range machines(8) {
				m.Labels = newSet(0, ofDeployment("d", "1")).Spec.Template.Labels
				objects = append(objects, m)
			}
			s := newServer(objects...)
			s.overshoot = &Overshoot{Up: 2, Down: 1}
			pass(t, s.newController())
			if got := scale.Frozen(s.set()); got != want { // without a deployment, the limit is 8
				t.Errorf("frozen: %t", got)
			}
		})
	}
}
