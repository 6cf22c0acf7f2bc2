package machinedeployment

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// scaledFor is a set that was last scaled when the deployment had that size.
func scaledFor(replicas, most int) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) {
		set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] = strconv.Itoa(replicas)
		set.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = strconv.Itoa(most)
	}
}

func TestPlanScaleDown(t *testing.T) {
	of10 := scaledFor(10, 10)
	for reason, test := range map[string]struct {
		replicas int32
		strategy change
		sets     sets
		want     []string
	}{
		"in proportion": {5, rolling("0", "5"), sets{setOf("a", 6, of10), setOf("b", 4, of10)}, []string{"pool-a to 3", "pool-b to 2"}},
		"what is left over goes from the largest":                 {4, rolling("0", "4"), sets{setOf("a", 5, of10), setOf("b", 3, of10), setOf("c", 2, of10)}, []string{"pool-a to 2", "pool-b to 1", "pool-c to 1"}},
		"the annotation says of what":                             {5, rolling("0", "5"), sets{setOf("a", 6, scaledFor(20, 20)), setOf("c", 4, scaledFor(20, 20))}, []string{"pool-a to 2", "pool-c to 3"}},
		"an annotation that is no number":                         {5, rolling("0", "5"), sets{setOf("a", 6, of10), setOf("c", 4, of10, func(s *v1alpha1.MachineSet) { s.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = "x" })}, []string{"pool-a to 3", "pool-c to 2"}},
		"new ones that are not there yet go rather than old ones": {5, rolling("0", "0%"), sets{setOf("a", 5, of10), setOf("c", 5, of10, reports(5, 0))}, []string{"pool-a to 4", "pool-c to 1"}},
		"nobody scaled, so the rollout goes on":                   {10, rolling("0", "1"), sets{setOf("a", 6, of10), setOf("c", 4, of10)}, []string{"pool-a to 5"}},
		"scaled to zero":                                          {0, rolling("1", "0"), sets{setOf("a", 6, of10), setOf("c", 4, of10)}, []string{"pool-a to 0", "pool-c to 0"}},
		"scaled up: only the new set grows":                       {14, rolling("0", "1"), sets{setOf("a", 6, of10), setOf("c", 4, of10)}, []string{"pool-c to 8"}},
	} {
		t.Run(reason, func(t *testing.T) {
			name := "c"
			if len(test.sets) == 2 && test.sets[1].Name == "pool-b" {
				name = "b"
			}
			f := gather(newDeployment(test.replicas, test.strategy, class(name)), test.sets, noon)
			if diff := cmp.Diff(test.want, brief(t, plan(f))); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestScaleDownKeepsWhatIsAvailable: whatever the sets are like, as many machines go as have
// to, and none that has to stay available.
func TestScaleDownKeepsWhatIsAvailable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, most int32) int32 { return rapid.Int32Range(0, most).Draw(t, name) }
		var all sets
		for _, name := range []string{"a", "b", "c"} {
			asks := number("asks", 20)
			available := number("available", asks)
			all = append(all, setOf(name, asks, reports(asks, available), preserved(number("preserved", asks-available)), scaledFor(int(number("for", 60)), int(number("of", 60)))))
		}
		deployment := newDeployment(number("replicas", 40), class("c"), rolling(strconv.Itoa(int(number("surge", 5))), strconv.Itoa(int(number("unavailable", 5)))))
		f := gather(deployment, all, noon)
		if excess(f) == 0 {
			return
		}
		before := map[string]int32{}
		left := map[string]int32{}
		var rest, available int32
		for _, set := range all {
			before[set.Name], left[set.Name] = asked(set), asked(set)
		}
		for _, op := range planScaleDown(f) {
			left[op.set.Name] = op.replicas
			if op.replicas >= before[op.set.Name] || op.replicas < 0 {
				t.Fatalf("%s from %d to %d", op.set.Name, before[op.set.Name], op.replicas)
			}
		}
		for _, set := range all {
			rest += left[set.Name]
			available += share{set, left[set.Name]}.left()
		}
		if most := deployment.Spec.Replicas + f.surge; rest > most {
			t.Fatalf("%d are left, at most %d may be", rest, most)
		}
		least := int32(min(int64(deployment.Spec.Replicas-f.unavailable)-total(all, kept), total(all, usable)))
		if available < least {
			t.Fatalf("%d stay available, at least %d have to", available, least)
		}
	})
}

// TestAPausedDeploymentRecordsItsSize: for which size its sets are scaled, which is less than
// what is wanted as long as machines have to wait for others to be gone.
func TestAPausedDeploymentRecordsItsSize(t *testing.T) {
	for reason, test := range map[string]struct {
		sets sets
		want map[string][]string
	}{
		"there is nothing to scale":   {sets{setOf("a", 5, scaledFor(7, 8)), setOf("b", 3, scaledFor(7, 8))}, map[string][]string{"pool-a": {"5", "8"}, "pool-b": {"3", "8"}}},
		"all at once":                 {sets{setOf("a", 3, scaledFor(4, 5)), setOf("b", 1, scaledFor(4, 5))}, map[string][]string{"pool-a": {"6", "8"}, "pool-b": {"2", "8"}}},
		"some of it":                  {sets{setOf("a", 3, scaledFor(4, 5), reports(5, 3)), setOf("b", 1, scaledFor(4, 5))}, map[string][]string{"pool-a": {"5", "7"}, "pool-b": {"2", "7"}}},
		"nothing yet":                 {sets{setOf("a", 3, scaledFor(4, 5), reports(8, 3)), setOf("b", 1, scaledFor(4, 5))}, map[string][]string{"pool-a": {"3", "4"}, "pool-b": {"1", "4"}}},
		"the current set grows":       {sets{setOf("a", 3, scaledFor(4, 5)), setOf("c", 1, scaledFor(4, 5))}, map[string][]string{"pool-a": {"3", "8"}, "pool-c": {"6", "8"}}},
		"the current set grows a bit": {sets{setOf("a", 3, scaledFor(4, 5), reports(5, 3)), setOf("c", 1, scaledFor(4, 5))}, map[string][]string{"pool-a": {"3", "4"}, "pool-c": {"4", "8"}}},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(newDeployment(8, paused, rolling("1", "1"), class("c")), test.sets[0], test.sets[1])
			s.Target = nil
			for range 2 { // the second brings up to date what was not scaled
				before := s.all()
				s.pass(t)
				for name, set := range s.all() {
					set.Status.Replicas += set.Spec.Replicas - before[name].Spec.Replicas
					must(s.live.Status().Update(t.Context(), set))
				}
			}
			got := map[string][]string{}
			for name, set := range s.all() {
				got[name] = []string{strconv.Itoa(int(set.Spec.Replicas)), set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestRefreshed: what can be changed on Machines that exist goes into the current set, and
// nothing else does.
func TestRefreshed(t *testing.T) {
	for name, test := range templateChanges {
		if test.rolls || name == "the hash label" || name == "empty configuration" {
			continue // the former is the set's own, the latter says nothing
		}
		t.Run(name, func(t *testing.T) {
			deployment, old, current := newDeployment(3), setOf("b", 0, ofRevision("1")), setOf("a", 3, ofRevision("2"))
			test.change(&deployment.Spec.Template)
			s := newServer(deployment, old, current)
			s.Target = nil
			s.pass(t)
			want := current.DeepCopy()
			want.Spec.Template.Spec = *deployment.Spec.Template.Spec.DeepCopy()
			if diff := cmp.Diff(want.Spec, s.all()["pool-a"].Spec); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
			if diff := cmp.Diff(old.Spec, s.all()["pool-b"].Spec); diff != "" {
				t.Errorf("the old set: want - got +\n%s", diff)
			}
			s.pass(t)
			s.writes = nil
			s.pass(t)
			if len(s.writes) > 0 {
				t.Errorf("it writes again: %q", s.writes)
			}
		})
	}
}

func TestMoreThatTheCurrentSetTakesOver(t *testing.T) {
	for _, paused := range []bool{false, true} {
		s := newServer(newDeployment(3, func(d *v1alpha1.MachineDeployment) {
			d.Spec.Paused, d.Spec.MinReadySeconds, d.Spec.AutoPreserveFailedMachineMax = paused, 9, 2
			d.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "40m", v1alpha1.AnnotationKeyPreferNoSchedule: "x"}
			d.Spec.Template.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}), setOf("a", 3))
		s.Target = nil
		s.pass(t)
		set := s.only(t)
		if set.Spec.MinReadySeconds != 9 || set.Spec.AutoPreserveFailedMachineMax != 2 || len(set.Spec.Template.Spec.NodeTemplateSpec.Spec.Taints) != 1 {
			t.Errorf("paused %t: %+v", paused, set.Spec)
		}
		annotations := map[string]string{
			v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "40m", v1alpha1.AnnotationKeyRevision: "1",
			v1alpha1.AnnotationKeyDesiredReplicas: "3", v1alpha1.AnnotationKeyMaxReplicas: "3",
		}
		if diff := cmp.Diff(annotations, set.Annotations); diff != "" {
			t.Errorf("paused %t: want - got +\n%s", paused, diff)
		}
	}
}
