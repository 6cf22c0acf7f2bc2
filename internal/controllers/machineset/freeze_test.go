package machineset

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func newParent(replicas int32, kind v1alpha1.MachineDeploymentStrategyType, surge string) *v1alpha1.MachineDeployment {
	parent := &v1alpha1.MachineDeployment{}
	parent.Spec.Replicas = replicas
	parent.Spec.Strategy.Type = kind
	if surge != "" {
		value := intstr.Parse(surge)
		bounds := v1alpha1.UpdateConfiguration{MaxSurge: &value}
		parent.Spec.Strategy.RollingUpdate = &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: bounds}
		parent.Spec.Strategy.InPlaceUpdate = &v1alpha1.InPlaceUpdateMachineDeployment{UpdateConfiguration: bounds}
	}
	return parent
}

// TestLimits finds out at how many Machines a set is frozen, and at how many it is unfrozen.
func TestLimits(t *testing.T) {
	const rolling, recreate, inPlace = v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		v1alpha1.RecreateMachineDeploymentStrategyType, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
	for reason, test := range map[string]struct {
		replicas  int32
		parent    *v1alpha1.MachineDeployment
		high, low int
	}{
		"no deployment: twice what is wanted":        {10, nil, 22, 21},
		"no deployment, nothing wanted":              {0, nil, 2, 1},
		"rolling, in numbers":                        {3, newParent(10, rolling, "3"), 15, 14},
		"rolling, in percent, rounded up":            {3, newParent(11, rolling, "10%"), 15, 14},
		"the default strategy with its default":      {3, newParent(10, "", ""), 13, 12},
		"in place":                                   {3, newParent(10, inPlace, "2"), 14, 13},
		"Recreate has no surge, and aborts nothing":  {0, newParent(10, recreate, ""), 12, 11},
		"a surge that cannot be read is none":        {3, newParent(10, rolling, "many"), 12, 11},
		"the set knows already that more are wanted": {20, newParent(10, rolling, "1"), 23, 22},
	} {
		t.Run(reason, func(t *testing.T) {
			f := facts{set: newSet(test.replicas), parent: test.parent, overshoot: &Overshoot{Up: 2, Down: 1}}
			high := 0
			for len(guard(f, high)) == 0 {
				high++
			}
			frozenSet(f.set)
			low := high
			for len(guard(f, low)) == 0 {
				low--
			}
			if high != test.high || low != test.low {
				t.Errorf("frozen at %d, unfrozen at %d; want %d and %d", high, low, test.high, test.low)
			}
		})
	}
}

// TestWhatFreezesASetNeverUnfreezesIt: whatever the two numbers are, it is frozen for some number of
// machines, and unfrozen for fewer, none at the latest.
func TestWhatFreezesASetNeverUnfreezesIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Int32Range(0, 5)
		when := &Overshoot{Up: small.Draw(t, "up"), Down: small.Draw(t, "down")}
		f := facts{set: newSet(small.Draw(t, "replicas")), overshoot: when}
		if rapid.Bool().Draw(t, "deployment") {
			f.parent = newParent(small.Draw(t, "wanted"), v1alpha1.RecreateMachineDeploymentStrategyType, "")
		}
		acts := func(count int) bool { return len(guard(f, count)) > 0 }
		if acts(0) {
			t.Fatal("a set without machines is frozen")
		}
		high := 1
		for !acts(high) {
			high++
		}
		frozenSet(f.set)
		if acts(high) {
			t.Fatalf("%d machines freeze and unfreeze it", high)
		}
		if !acts(0) {
			t.Fatal("a set without machines stays frozen")
		}
	})
}

func TestGuard(t *testing.T) {
	asked := func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: "True"}
	}
	onlyCondition := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetFrozen, Status: v1alpha1.ConditionTrue}}
	}
	on := &Overshoot{Up: 2, Down: 1}
	for reason, test := range map[string]struct {
		set   *v1alpha1.MachineSet
		count int
		when  *Overshoot
		want  []string
	}{
		"few":                                    {newSet(3), 3, on, nil},
		"too many":                               {newSet(3), 8, on, []string{"freeze"}},
		"too many, frozen already":               {newSet(3, frozenSet), 8, on, nil},
		"few again":                              {newSet(3, frozenSet), 7, on, []string{"unfreeze"}},
		"a condition that was left":              {newSet(3, onlyCondition), 3, on, []string{"unfreeze"}},
		"somebody asks, though there are many":   {newSet(3, frozenSet, asked), 8, on, []string{"unfreeze"}},
		"somebody asks, though it is not frozen": {newSet(3, asked), 3, on, []string{"unfreeze"}},
		"switched off: never frozen":             {newSet(3), 100, nil, nil},
		"switched off: a label stays":            {newSet(3, frozenSet), 0, nil, nil},
		"switched off: somebody asks":            {newSet(3, frozenSet, asked), 0, nil, []string{"unfreeze"}},
	} {
		t.Run(reason, func(t *testing.T) {
			var got []string
			for _, op := range guard(facts{set: test.set, overshoot: test.when}, test.count) {
				got = append(got, string(op.action))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestUnfreezingWhatIsNotFrozen: the wish is taken off, and nothing is said of a change that is none.
func TestUnfreezingWhatIsNotFrozen(t *testing.T) {
	asked := func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: "True"}
	}
	noLabel := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{*isTrue(v1alpha1.MachineSetFrozen, reasonOvershoot, "too many", noon)}
	}
	for reason, test := range map[string]struct {
		set  *v1alpha1.MachineSet
		said int
	}{
		"it is not frozen":              {newSet(1, asked), 0},
		"it is":                         {newSet(1, asked, frozenSet), 1},
		"it is, but for the label":      {newSet(1, asked, noLabel), 1},
		"it was, and nobody has to ask": {newSet(1, noLabel), 1},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(test.set, machine("a"))
			s.overshoot = &Overshoot{Up: 2, Down: 1}
			c := s.newController()
			log, err := heard(t, c)
			if err != nil || len(s.events.lines) != test.said || len(log) != test.said {
				t.Errorf("got the error %v, the events %q and the log %q", err, s.events.lines, log)
			}
			pass(t, c)
			if set := s.set(); frozen(set) || set.Annotations[v1alpha1.AnnotationKeyUnfreeze] != "" || len(set.Status.Conditions) > 0 {
				t.Errorf("labels %v, annotations %v, conditions %+v", set.Labels, set.Annotations, set.Status.Conditions)
			}
		})
	}
}

// TestFreezeAndUnfreeze: somebody else makes Machines without end.
func TestFreezeAndUnfreeze(t *testing.T) {
	objects := []client.Object{newSet(2)}
	for _, m := range machines(9) {
		objects = append(objects, m)
	}
	s := newServer(objects...)
	s.overshoot = &Overshoot{Up: 2, Down: 1}
	c := s.newController()
	pass(t, c)
	set := s.set()
	if at := condition(set.Status.Conditions, v1alpha1.MachineSetFrozen); !frozen(set) || at < 0 ||
		set.Status.Conditions[at].Reason != "OverShootingReplicaCount" {
		t.Fatalf("labels %v, conditions %+v", set.Labels, set.Status.Conditions)
	}
	if n := s.activeCount(); n != 2 {
		t.Errorf("%d machines, want 2: a frozen set still deletes", n)
	}
	s.catchUp()
	pass(t, c)
	pass(t, c)
	if set := s.set(); frozen(set) || len(set.Status.Conditions) != 0 {
		t.Errorf("with two machines: labels %v, conditions %+v", set.Labels, set.Status.Conditions)
	}
	var frozenEvents []string
	for _, line := range s.events.lines {
		if strings.Contains(line, "rozeMachineSet: ") {
			frozenEvents = append(frozenEvents, line)
		}
	}
	want := []string{
		"FrozeMachineSet: Froze machine set pool: 9 machines exist, which is no less than the limit of 6",
		"UnfrozeMachineSet: Unfroze machine set pool: 2 machines exist, which is no more than the limit of 5",
	}
	if diff := cmp.Diff(want, frozenEvents); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
}

// TestWhyASetIsFrozenIsSaidAlsoAfterAConflict: Machines that are deleted in the same pass may be
// changed by others meanwhile.
func TestWhyASetIsFrozenIsSaidAlsoAfterAConflict(t *testing.T) {
	objects := []client.Object{newSet(2)}
	for _, m := range machines(9) {
		objects = append(objects, m)
	}
	s := newServer(objects...)
	s.overshoot = &Overshoot{Up: 2, Down: 5}
	s.answer = func(verb string, object client.Object) (error, bool) {
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
	if at < 0 || conditions[at].Message != "9 machines exist, which is no less than the limit of 6" || len(conditions) != 1 {
		t.Errorf("conditions %+v", conditions)
	}
}

// TestAFrozenSetCreatesNothingUntilItIsAskedTo: the annotation goes with the freeze.
func TestAFrozenSetCreatesNothingUntilItIsAskedTo(t *testing.T) {
	s := newServer(newSet(2, frozenSet))
	c := s.newController() // overshoot is off: nothing else lifts the freeze
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
	if set := s.set(); len(s.all()) != 2 || frozen(set) || len(set.Annotations) != 0 || len(set.Status.Conditions) != 0 {
		t.Errorf("%d machines, labels %v, annotations %v, conditions %+v", len(s.all()), set.Labels, set.Annotations, set.Status.Conditions)
	}
}

// TestOwnWorkNeverFreezes: a set whose Machines fail and are replaced, whose cache lags and
// that is scaled up, is not frozen, though far more Machine objects exist than are wanted.
func TestOwnWorkNeverFreezes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
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
			if frozen(s.set()) {
				t.Fatalf("frozen with %d machines of %d", s.activeCount(), s.set().Spec.Replicas)
			}
		}
	})
}

// TestNoSetIsFrozenOverAnOldDeployment: eight machines were asked for, and then a rollout took the
// set to none, of which the cache shows the set alone. A user who wants fewer is another matter.
func TestNoSetIsFrozenOverAnOldDeployment(t *testing.T) {
	for reason, test := range map[string]struct {
		shown, is int32
		want      bool
	}{
		"the deployment asks for as many":    {shown: 0, is: 8, want: false},
		"the deployment asks for fewer, too": {shown: 0, is: 1, want: true},
		"the cache shows it":                 {shown: 8, is: 8, want: false},
	} {
		t.Run(reason, func(t *testing.T) {
			deployment := newParent(test.is, v1alpha1.RollingUpdateMachineDeploymentStrategyType, "1")
			deployment.Namespace, deployment.Name, deployment.UID = "default", "owner", "d"
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
			if set := s.set(); frozen(set) != test.want {
				t.Errorf("labels %v, want frozen: %t", set.Labels, test.want)
			}
			if n := s.activeCount(); n != 0 {
				t.Errorf("%d machines, want none", n)
			}
		})
	}
}

// TestAUserWhoTakesManyAway sees the set frozen and unfrozen, once, as MCM's integration
// tests want it. Nothing waits for that: who changes his mind in between gets his Machines.
func TestAUserWhoTakesManyAway(t *testing.T) {
	for reason, test := range map[string]struct{ from, to, then int32 }{
		"a few":                      {6, 2, 2},
		"more than a burst":          {104, 2, 2},
		"all":                        {5, 0, 0},
		"and he wants them back":     {9, 3, 8},
		"and he wants as many again": {12, 3, 12},
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
			if !frozen(s.set()) {
				t.Error("the set is not frozen")
			}
			s.scale(test.then)
			for range 10 {
				s.catchUp()
				pass(t, c)
			}
			set := s.set()
			if frozen(set) || len(set.Status.Conditions) > 0 || s.activeCount() != int(test.then) {
				t.Errorf("in the end: %d machines, labels %v, conditions %+v", s.activeCount(), set.Labels, set.Status.Conditions)
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

// TestPreservedMachinesDoNotFreeze: they are kept because somebody asked for that.
func TestPreservedMachinesDoNotFreeze(t *testing.T) {
	owned := machines(9, annotated(v1alpha1.AnnotationKeyPreserve, "now"))
	got := plan(facts{set: newSet(0), owned: owned, certain: true, now: noon, overshoot: &Overshoot{Up: 2, Down: 1}})
	if diff := cmp.Diff([]string(nil), brief(t, got)); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}
