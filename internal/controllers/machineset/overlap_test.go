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

// namedSet is another set; without changes it selects what the set "pool" makes.
func namedSet(name string, changes ...setChange) *v1alpha1.MachineSet {
	return newSet(0, append([]setChange{func(set *v1alpha1.MachineSet) {
		set.Name, set.UID = name, types.UID("uid-of-"+name)
	}}, changes...)...)
}

// ofDeployment is what a deployment makes of a set, for a template of that hash.
func ofDeployment(uid types.UID, hash string) setChange {
	return func(set *v1alpha1.MachineSet) {
		owner := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: uid}}
		set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
		marked := map[string]string{"name": pool, v1alpha1.DefaultMachineDeploymentUniqueLabelKey: hash}
		set.Spec.Selector, set.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: marked}, marked
	}
}

// selecting has a set make machines with other labels, of which it selects some.
func selecting(by *metav1.LabelSelector, template map[string]string) setChange {
	return func(set *v1alpha1.MachineSet) { set.Spec.Selector, set.Spec.Template.Labels = by, template }
}

// TestWhichSetsOverlap: as the set "pool" sees it, whose selector is name=pool.
func TestWhichSetsOverlap(t *testing.T) {
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
		"it takes what the other makes":            {newSet(1), namedSet("other", selecting(byLabel(map[string]string{"zone": "a"}), map[string]string{"name": pool, "zone": "a"})), true},
		"the other takes what it makes":            {newSet(1, selecting(byLabel(map[string]string{"zone": "a"}), map[string]string{"name": pool, "zone": "a"})), namedSet("other"), true},
		"labels in common that nobody selects":     {newSet(1, selecting(byLabel(map[string]string{"zone": "a"}), map[string]string{"app": "x", "zone": "a"})), namedSet("other", selecting(byLabel(map[string]string{"zone": "b"}), map[string]string{"app": "x", "zone": "b"})), false},
		"by an expression":                         {newSet(1), namedSet("other", selecting(byExpression("name", metav1.LabelSelectorOpExists), map[string]string{"name": "other"})), true},
		"by an expression of its own":              {newSet(1, selecting(byExpression("name", metav1.LabelSelectorOpIn, "other", pool), map[string]string{"name": pool})), namedSet("other", selecting(byLabel(map[string]string{"name": "other"}), map[string]string{"name": "other"})), true},
		"an expression that does not match":        {newSet(1), namedSet("other", selecting(byExpression("name", metav1.LabelSelectorOpNotIn, pool), map[string]string{"name": "other"})), false},
		"two sets of a deployment":                 {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("d", "2")), false},
		"two of a deployment with the same labels": {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("d", "1")), false},
		"sets of two deployments":                  {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("e", "2")), false},
		"the same template in two deployments":     {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("e", "1")), true},
		"one of a deployment and one without":      {newSet(1, ofDeployment("d", "1")), namedSet("other"), true},
		"one without, and one of a deployment":     {newSet(1), namedSet("other", ofDeployment("d", "1")), true},
		"one that was left by its deployment":      {newSet(1, ofDeployment("d", "1")), namedSet("other", ofDeployment("d", "2"), func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }), false},
		"one that is going": {newSet(1), namedSet("other", func(set *v1alpha1.MachineSet) {
			set.DeletionTimestamp = &metav1.Time{Time: noon}
			set.Finalizers = []string{"x"}
		}), false},
		"one that selects everything":           {newSet(1), namedSet("other", selecting(&metav1.LabelSelector{}, map[string]string{"name": pool})), false},
		"one without a selector":                {newSet(1), namedSet("other", selecting(nil, map[string]string{"name": pool})), false},
		"one whose selector nobody understands": {newSet(1), namedSet("other", selecting(byExpression("name", "Resembles", pool), map[string]string{"name": "other"})), false},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(test.set, test.other)
			c := s.newController()
			found, err := c.overlapping(t.Context(), s.set())
			if err != nil {
				t.Fatal(err)
			}
			if got := len(found) > 0; got != test.want {
				t.Errorf("it is %v that they overlap", got)
			}
			// Both agree, and each wakes the other.
			other := &v1alpha1.MachineSet{}
			must(s.live.Get(t.Context(), client.ObjectKeyFromObject(test.other), other))
			if got := len(c.overlappingSets(t.Context(), other)) > 0; got != test.want {
				t.Errorf("it is %v that the other one wakes it", got)
			}
		})
	}
}

// overlapOf is what a set says of overlapping ones, or nothing.
func overlapOf(set *v1alpha1.MachineSet) string {
	if at := condition(set.Status.Conditions, v1alpha1.MachineSetSelectorOverlap); at >= 0 {
		return set.Status.Conditions[at].Message
	}
	return ""
}

// TestOverlapIsSaidOnceAndWorkGoesOn: it is said in the status and in one event, by its field;
// machines are made all the same, and it goes with its cause.
func TestOverlapIsSaidOnceAndWorkGoesOn(t *testing.T) {
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
		t.Errorf("%d machines, and the status counts %d", s.activeCount(), s.set().Status.Replicas)
	}
	writes := len(s.writes)
	pass(t, c)
	if len(s.writes) > writes {
		t.Errorf("nothing has changed, but it writes %q", s.writes[writes:])
	}
	must(s.live.Delete(t.Context(), namedSet("other")))
	pass(t, c)
	if got := s.set().Status.Conditions; len(got) > 0 {
		t.Errorf("the other one is gone, and it says %+v", got)
	}
}

// TestManyOverlaps: each of many that are made wakes a few, and what is said of the others
// stays.
func TestManyOverlaps(t *testing.T) {
	s := newServer(newSet(0))
	c := s.newController()
	var said string
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
			t.Errorf("%d sets are woken by number %d", len(woken), i)
		}
		if now := overlapOf(s.set()); i > 4 && now != said {
			t.Errorf("%q became %q", said, now)
		}
		said = overlapOf(s.set())
		if _, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(other)}); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(said, "by set-00, set-01, set-02 and others.") {
		t.Errorf("got %q", said)
	}
	// Of the few that are left, all hear when one goes.
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

// TestWhatMayChangeOverlaps: a status does not.
func TestWhatMayChangeOverlaps(t *testing.T) {
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
				t.Errorf("let through: %v", got)
			}
		})
	}
}

// TestServerOverlappingSets: sets that overlap say so while it lasts, also to each other when
// one is changed, and the two of a deployment never do.
func TestServerOverlappingSets(t *testing.T) {
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
	says := func(want map[string]string) {
		t.Helper()
		g.Eventually(func(g gomega.Gomega) {
			got := map[string]string{}
			for name, set := range sets {
				g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
				g.Expect(set.Status.ObservedGeneration).To(gomega.Equal(set.Generation))
				if said := overlapOf(set); said != "" {
					_, said, _ = strings.Cut(said, "selected by ")
					got[name], _, _ = strings.Cut(said, ".")
				}
			}
			g.Expect(cmp.Diff(want, got)).To(gomega.BeEmpty())
		}, eventually).Should(gomega.Succeed())
	}
	says(map[string]string{"one": "two", "two": "one"})
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
	says(map[string]string{"two": "new, old", "new": "two", "old": "two"})

	// Its deployment's they are, and no others'.
	owners := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"MachineDeployment","name":"owner","uid":"d","controller":true}]}}`))
	g.Expect(e.Client.Patch(t.Context(), sets["two"], owners)).To(gomega.Succeed())
	says(map[string]string{})
}

// TestServerOverlapsAreFoundCheaply: what a look costs does not grow with the sets that there
// are.
func TestServerOverlapsAreFoundCheaply(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	cached := New(Options{})
	e.RunControllers(t, func(mgr ctrl.Manager, _ record.EventRecorder) error {
		cached.Client = mgr.GetClient()
		return nil
	})
	pools := 0
	// grow has two sets of each of so many deployments, and says how many bytes a look at one
	// allocates. How many times does not tell: a list of all is one piece.
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
	t.Logf("a look allocates %d bytes among 10 sets, %d among 500", few, many)
	if many > 2*few { // the server of the test is another process, the cache is not
		t.Errorf("a look allocates %d bytes among 500 sets, and %d among 10", many, few)
	}
}

// TestASetThatIsNamedIsHeardOf: many sets that overlap do not wake each other, but those do hear
// that a set goes which name it.
func TestASetThatIsNamedIsHeardOf(t *testing.T) {
	s := newServer(newSet(0))
	c := s.newController()
	for i := range 8 {
		must(s.live.Create(t.Context(), namedSet(fmt.Sprintf("set-%02d", i))))
	}
	pass(t, c)
	gone := namedSet("set-00")
	must(s.live.Delete(t.Context(), gone))
	if woken := c.overlappingSets(t.Context(), gone); !slices.Contains(woken, request) {
		t.Errorf("%v are woken, without the set that says %q", woken, overlapOf(s.set()))
	}
}

// TestAComplaintIsMadeOnceThoughNumbersChange: an event for each change of a status would be one for
// each machine that comes or goes.
func TestAComplaintIsMadeOnceThoughNumbersChange(t *testing.T) {
	s := newServer(newSet(0), namedSet("other"), machine("a"))
	c := s.newController()
	for range 3 {
		pass(t, c)
		s.scale(s.set().Spec.Replicas + 1)
		s.catchUp()
	}
	said := slices.DeleteFunc(slices.Clone(s.events.lines), func(line string) bool { return !strings.HasPrefix(line, "SelectorOverlap") })
	if len(said) != 1 {
		t.Errorf("events %q", s.events.lines)
	}
}
