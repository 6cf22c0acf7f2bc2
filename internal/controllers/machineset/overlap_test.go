package machineset

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

type setChange = func(*v1alpha1.MachineSet)

// namedSet returns another set. Without changes, it selects the Machines of the set "pool".
func namedSet(name string, changes ...setChange) *v1alpha1.MachineSet {
	return newSet(0, append([]setChange{func(set *v1alpha1.MachineSet) {
		set.Name, set.UID = name, types.UID("uid-of-"+name)
	}}, changes...)...)
}

// ofDeployment changes a set as if a deployment had created it for the template with that hash.
func ofDeployment(uid types.UID, hash string) setChange {
	return func(set *v1alpha1.MachineSet) {
		owner := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: uid}}
		set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
		marked := map[string]string{"name": pool, v1alpha1.DefaultMachineDeploymentUniqueLabelKey: hash}
		set.Spec.Selector, set.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: marked}, marked
	}
}

// selecting changes the template labels of a set and its selector.
func selecting(by *metav1.LabelSelector, template map[string]string) setChange {
	return func(set *v1alpha1.MachineSet) { set.Spec.Selector, set.Spec.Template.Labels = by, template }
}

// TestMachineSet_Overlap checks overlaps with the set "pool", whose selector is name=pool.
func TestMachineSet_Overlap(t *testing.T) {
	byLabel := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	byExpression := func(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	for reason, test := range map[string]struct {
		set, other *v1alpha1.MachineSet
		want       bool
	}{
		"the same selector":                        {newSet(1), namedSet("other"), true},
		"another selector":                         {newSet(1), namedSet("other", selecting(byLabel(map[string]string{"name": "other"}), map[string]string{"name": "other"})), false},
		"another namespace":                        {newSet(1), namedSet("other", func(set *v1alpha1.MachineSet) { set.Namespace = "elsewhere" }), false},
		"it selects the other's machines":          {newSet(1), namedSet("other", selecting(byLabel(map[string]string{"zone": "a"}), map[string]string{"name": pool, "zone": "a"})), true},
		"the other selects its machines":           {newSet(1, selecting(byLabel(map[string]string{"zone": "a"}), map[string]string{"name": pool, "zone": "a"})), namedSet("other"), true},
		"common labels that neither selects":       {newSet(1, selecting(byLabel(map[string]string{"zone": "a"}), map[string]string{"app": "x", "zone": "a"})), namedSet("other", selecting(byLabel(map[string]string{"zone": "b"}), map[string]string{"app": "x", "zone": "b"})), false},
		"by an expression":                         {newSet(1), namedSet("other", selecting(byExpression("name", metav1.LabelSelectorOpExists), map[string]string{"name": "other"})), true},
		"by its own expression":                    {newSet(1, selecting(byExpression("name", metav1.LabelSelectorOpIn, "other", pool), map[string]string{"name": pool})), namedSet("other", selecting(byLabel(map[string]string{"name": "other"}), map[string]string{"name": "other"})), true},
		"an expression that does not match":        {newSet(1), namedSet("other", selecting(byExpression("name", metav1.LabelSelectorOpNotIn, pool), map[string]string{"name": "other"})), false},
		"two sets of a deployment":                 {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("d", "2")), false},
		"two of a deployment with the same labels": {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("d", "1")), false},
		"sets of two deployments":                  {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("e", "2")), false},
		"the same template in two deployments":     {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("e", "1")), true},
		"with a deployment, and without":           {newSet(1, ofDeployment("d", "1")), namedSet("other"), true},
		"without a deployment, and with":           {newSet(1), namedSet("other", ofDeployment("d", "1")), true},
		"without a deployment any longer":          {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("d", "2"), func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }), false},
		"a set that is being deleted": {newSet(1), namedSet("other", func(set *v1alpha1.MachineSet) {
			set.DeletionTimestamp = &metav1.Time{Time: noon}
			set.Finalizers = []string{"x"}
		}), false},
		"a selector that matches everything": {newSet(1), namedSet("other", selecting(&metav1.LabelSelector{}, map[string]string{"name": pool})), false},
		"no selector":                        {newSet(1), namedSet("other", selecting(nil, map[string]string{"name": pool})), false},
		"an invalid selector":                {newSet(1), namedSet("other", selecting(byExpression("name", "Resembles", pool), map[string]string{"name": "other"})), false},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(test.set, test.other)
			c := s.newController()
			found, err := c.overlapping(t.Context(), s.set())
			if err != nil {
				t.Fatal(err)
			}
			if got := len(found) > 0; got != test.want {
				t.Errorf("overlap = %v", got)
			}
			// The overlap is symmetric, and each set enqueues the other.
			other := &v1alpha1.MachineSet{}
			must(s.live.Get(t.Context(), client.ObjectKeyFromObject(test.other), other))
			if got := len(c.overlappingSets(t.Context(), other)) > 0; got != test.want {
				t.Errorf("enqueued by the other set = %v", got)
			}
		})
	}
}

// overlapOf returns the message of the condition SelectorOverlap, or "".
func overlapOf(set *v1alpha1.MachineSet) string {
	if at := condition(set.Status.Conditions, v1alpha1.MachineSetSelectorOverlap); at >= 0 {
		return set.Status.Conditions[at].Message
	}
	return ""
}

// TestMachineSet_OverlapIsReportedOnce checks that an overlap is reported once in the status and in an event, that
// Machines are still created, and that the condition is removed with the overlap.
func TestMachineSet_OverlapIsReportedOnce(t *testing.T) {
	s := newServer(newSet(2), namedSet("other"))
	c := s.newController()
	for range 3 {
		pass(t, c)
		s.catchUp()
	}
	const want = "spec.selector: the same machines are selected by other. Give each set a unique label."
	if got := overlapOf(s.set()); got != want {
		t.Errorf("got %q", got)
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.events.lines), func(line string) bool { return line != "SelectorOverlap: "+want })); n != 1 {
		t.Errorf("events %q", s.events.lines)
	}
	if s.activeCount() != 2 || s.set().Status.Replicas != 2 {
		t.Errorf("%d machines, the status counts %d", s.activeCount(), s.set().Status.Replicas)
	}
	writes := len(s.writes)
	pass(t, c)
	if len(s.writes) > writes {
		t.Errorf("unexpected writes: %q", s.writes[writes:])
	}
	must(s.live.Delete(t.Context(), namedSet("other")))
	pass(t, c)
	if got := s.set().Status.Conditions; len(got) > 0 {
		t.Errorf("conditions after the other set is gone: %+v", got)
	}
}

// TestMachineSet_ManyOverlaps checks that each of many new sets enqueues only a few others, and that the messages of the
// others do not change.
func TestMachineSet_ManyOverlaps(t *testing.T) {
	s := newServer(newSet(0))
	c := s.newController()
	var message string
	for i := range 20 {
		other := namedSet(fmt.Sprintf("set-%02d", i))
		must(s.live.Create(t.Context(), other))
		woken := c.overlappingSets(t.Context(), other)
		for _, request := range woken {
			if _, err := c.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		if i > 4 && len(woken) > 6 {
			t.Errorf("%d sets were enqueued by set %d", len(woken), i)
		}
		if now := overlapOf(s.set()); i > 4 && now != message {
			t.Errorf("message changed from %q to %q", message, now)
		}
		message = overlapOf(s.set())
		if _, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(other)}); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(message, "by set-00, set-01, set-02 and others.") {
		t.Errorf("got %q", message)
	}
	// When one of a few sets is removed, all others are enqueued.
	for i := 19; i >= 3; i-- {
		gone := namedSet(fmt.Sprintf("set-%02d", i))
		must(s.live.Delete(t.Context(), gone))
		for _, request := range c.overlappingSets(t.Context(), gone) {
			if _, err := c.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := overlapOf(s.set()); !strings.Contains(got, "by set-00, set-01, set-02. Give") {
		t.Errorf("got %q", got)
	}
}

// TestPredicates_SelectionChange checks which changes may affect overlaps. Changes to the status do not.
func TestPredicates_SelectionChange(t *testing.T) {
	for reason, test := range map[string]struct {
		change setChange
		want   bool
	}{
		"status":     {func(set *v1alpha1.MachineSet) { set.Status.Replicas++ }, false},
		"labels":     {func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{"a": "b"} }, false},
		"generation": {func(set *v1alpha1.MachineSet) { set.Generation++ }, true},
		"adopted":    {ofDeployment("d", "1"), true},
	} {
		t.Run(reason, func(t *testing.T) {
			if got := selectionChange().Update(event.UpdateEvent{ObjectOld: newSet(1), ObjectNew: newSet(1, test.change)}); got != test.want {
				t.Errorf("passes = %v", got)
			}
		})
	}
}

// TestMachineSet_OverlapOnServer checks that overlapping sets report each other while the overlap lasts, also when one
// of them changes. The sets of a deployment never overlap.
func TestMachineSet_OverlapOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	run(t, e)
	sets := map[string]*v1alpha1.MachineSet{"one": namedSet("one"), "two": namedSet("two"), "old": namedSet("old", ofDeployment("d", "1")), "new": namedSet("new", ofDeployment("d", "2"))}
	for _, name := range []string{"old", "new"} {
		sets[name].Spec.Selector.MatchLabels["name"], sets[name].Spec.Template.Labels["name"] = "other", "other"
	}
	for name := range sets {
		sets[name] = env.Fresh(e, sets[name])
		g.Expect(e.Client.Create(t.Context(), sets[name])).To(gomega.Succeed())
	}
	wantOverlaps := func(want map[string]string) {
		t.Helper()
		g.Eventually(func(g gomega.Gomega) {
			got := map[string]string{}
			for name, set := range sets {
				g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
				g.Expect(set.Status.ObservedGeneration).To(gomega.Equal(set.Generation))
				if message := overlapOf(set); message != "" {
					_, message, _ = strings.Cut(message, "selected by ")
					got[name], _, _ = strings.Cut(message, ".")
				}
			}
			g.Expect(cmp.Diff(want, got)).To(gomega.BeEmpty())
		}, eventually).Should(gomega.Succeed())
	}
	wantOverlaps(map[string]string{"one": "two", "two": "one"})
	g.Eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(slices.ContainsFunc(events.Items, func(is corev1.Event) bool {
			return is.InvolvedObject.Name == "two" && is.Reason == "SelectorOverlap" && is.Type == corev1.EventTypeWarning
		})).To(gomega.BeTrue())
	}, eventually).Should(gomega.Succeed())

	to := func(name string) client.Patch {
		return client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"matchLabels":{"name":"`+name+`"}},"template":{"metadata":{"labels":{"name":"`+name+`"}}}}}`))
	}
	g.Expect(e.Client.Patch(t.Context(), sets["two"], to("other"))).To(gomega.Succeed())
	wantOverlaps(map[string]string{"two": "new, old", "new": "two", "old": "two"})

	// A new controller changes which sets overlap.
	owners := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"MachineDeployment","name":"owner","uid":"d","controller":true}]}}`))
	g.Expect(e.Client.Patch(t.Context(), sets["two"], owners)).To(gomega.Succeed())
	wantOverlaps(map[string]string{})
}

// TestMachineSet_OverlapCostOnServer checks that the cost of finding overlaps does not grow with the number of
// sets.
func TestMachineSet_OverlapCostOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	cached := New(Options{})
	e.RunControllers(t, func(mgr ctrl.Manager, _ record.EventRecorder) error {
		cached.Client = mgr.GetClient()
		return nil
	})
	pools := 0
	// grow creates two sets for each of several deployments, and returns how many bytes a search allocates. The
	// number of allocations is not meaningful, since a list of all sets is one allocation.
	grow := func(to int) uint64 {
		for ; pools < to; pools++ {
			for _, hash := range []string{"1", "2"} {
				name := fmt.Sprintf("pool-%d", pools)
				set := env.Fresh(e, namedSet(name+"-"+hash, ofDeployment(types.UID(name), hash+name)))
				set.Spec.Selector.MatchLabels["name"], set.Spec.Selector.MatchLabels["app"] = name, "workers"
				set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
				g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
			}
		}
		one := &v1alpha1.MachineSet{}
		g.Eventually(func(g gomega.Gomega) {
			list := &v1alpha1.MachineSetList{}
			g.Expect(cached.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
			g.Expect(list.Items).To(gomega.HaveLen(2 * to))
			*one = list.Items[0]
		}, eventually).Should(gomega.Succeed())
		const looks = 200
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range looks {
			if found, err := cached.overlapping(t.Context(), one); err != nil || len(found) > 0 {
				t.Fatalf("found %v, %v", found, err)
			}
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / looks
	}
	few, many := grow(5), grow(250)
	t.Logf("a search allocates %d bytes with 10 sets, %d bytes with 500", few, many)
	if many > 2*few { // the API server is another process; only the cache counts
		t.Errorf("a search allocates %d bytes with 500 sets, %d bytes with 10", many, few)
	}
}

// TestMachineSet_NamedOverlapTriggersPass checks that sets that name a removed set are enqueued, even if there are many.
func TestMachineSet_NamedOverlapTriggersPass(t *testing.T) {
	s := newServer(newSet(0))
	c := s.newController()
	for i := range 8 {
		must(s.live.Create(t.Context(), namedSet(fmt.Sprintf("set-%02d", i))))
	}
	pass(t, c)
	gone := namedSet("set-00")
	must(s.live.Delete(t.Context(), gone))
	if woken := c.overlappingSets(t.Context(), gone); !slices.Contains(woken, request) {
		t.Errorf("enqueued %v without the set with the message %q", woken, overlapOf(s.set()))
	}
}

// TestMachineSet_OverlapEventIsNotRepeated checks that changes of the status numbers do not repeat an event.
// Otherwise each new Machine would cause one.
func TestMachineSet_OverlapEventIsNotRepeated(t *testing.T) {
	s := newServer(newSet(0), namedSet("other"), machine("a"))
	c := s.newController()
	for range 3 {
		pass(t, c)
		s.scale(s.set().Spec.Replicas + 1)
		s.catchUp()
	}
	lines := slices.DeleteFunc(slices.Clone(s.events.lines), func(line string) bool { return !strings.HasPrefix(line, "SelectorOverlap") })
	if len(lines) != 1 {
		t.Errorf("events %q", s.events.lines)
	}
}
