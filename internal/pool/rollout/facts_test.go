package rollout

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		strategy           change
		replicas           int32
		surge, unavailable int32
	}{
		{fixture.Rolling("", ""), 10, 1, 1},
		{func(*v1alpha1.MachineDeployment) {}, 10, 1, 1},
		{func(d *v1alpha1.MachineDeployment) { d.Spec.Strategy.Type = "RollingUpdate" }, 10, 1, 1},
		{fixture.Rolling("", ""), 0, 1, 0},
		{fixture.Rolling("3", ""), 10, 3, 1},
		{fixture.Rolling("", "3"), 10, 1, 3},
		{fixture.Rolling("2", "0"), 10, 2, 0},
		{fixture.Rolling("0", "2"), 10, 0, 2},
		{fixture.Rolling("0", "0"), 10, 0, 1},
		{fixture.Rolling("0%", "0%"), 10, 0, 1},
		{fixture.Rolling("0", "0"), 0, 0, 0},
		{fixture.Rolling("25%", "25%"), 10, 3, 2},
		{fixture.Rolling("10%", "10%"), 9, 1, 0},
		{fixture.Rolling("1%", "1%"), 1, 1, 0},
		{fixture.Rolling("0", "10%"), 9, 0, 1},
		{fixture.Rolling("100%", "100%"), 7, 7, 7},
		{fixture.Rolling("150%", "150%"), 4, 6, 4},
		{fixture.Rolling("50", "50"), 4, 50, 4},
		{fixture.Rolling("2147483647", "0"), 10, math.MaxInt32 - 10, 0},
		{fixture.Recreate, 10, 0, 0},
		{fixture.InPlace("0", "2"), 10, 0, 2},
		{fixture.InPlace("0", "0"), 10, 0, 1},
		{fixture.InPlace("2", "0"), 10, 2, 0},
		{fixture.InPlace("15%", "30%"), 10, 2, 3},
		{func(d *v1alpha1.MachineDeployment) { d.Spec.Strategy.Type = "InPlaceUpdate" }, 10, 1, 1},
		{fixture.InPlaceByHand("2", "1"), 10, 0, 1},
		{fixture.InPlaceByHand("2", "0"), 10, 0, 0},
	} {
		deployment := fixture.Deployment(test.replicas, test.strategy)
		t.Run(fmt.Sprintf("%s of %d", describe(deployment), test.replicas), func(t *testing.T) {
			surge, unavailable := Bounds(deployment)
			if surge != test.surge || unavailable != test.unavailable {
				t.Errorf("surge %d, unavailable %d; want %d and %d", surge, unavailable, test.surge, test.unavailable)
			}
		})
	}
}

func describe(d *v1alpha1.MachineDeployment) string {
	encoded, err := json.Marshal(d.Spec.Strategy)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// templateChanges are changes of a template. rolls is whether they start a rollout.
var templateChanges = map[string]struct {
	change func(*v1alpha1.MachineTemplateSpec)
	rolls  bool
}{
	"nothing":        {func(*v1alpha1.MachineTemplateSpec) {}, false},
	"the hash label": {func(t *v1alpha1.MachineTemplateSpec) { t.Labels["machine-template-hash"] = "5" }, false},
	"a node label": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.NodeTemplateSpec.Labels = map[string]string{"zone": "a"}
	}, false},
	"a node annotation": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.NodeTemplateSpec.Annotations = map[string]string{"zone": "a"}
	}, false},
	"a taint": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "gpu"}}
	}, false},
	"a timeout": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: time.Hour}}
	}, false},
	"empty configuration":  {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{} }, false},
	"no annotations":       {func(t *v1alpha1.MachineTemplateSpec) { t.Annotations = map[string]string{} }, false},
	"the kind of class":    {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.Class.Kind = "OtherClass" }, false},
	"the name of class":    {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.Class.Name = "b" }, true},
	"the group of class":   {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.Class.APIGroup = "machine.sapcloud.io" }, true},
	"a label":              {func(t *v1alpha1.MachineTemplateSpec) { t.Labels["zone"] = "a" }, true},
	"a label less":         {func(t *v1alpha1.MachineTemplateSpec) { delete(t.Labels, "name") }, true},
	"an annotation":        {func(t *v1alpha1.MachineTemplateSpec) { t.Annotations = map[string]string{"restart": "1"} }, true},
	"the provider ID":      {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.ProviderID = "sim:///x" }, true},
	"a template finalizer": {func(t *v1alpha1.MachineTemplateSpec) { t.Finalizers = []string{"example.com/x"} }, true},
}

func TestTemplate_ChangesThatStartRollout(t *testing.T) {
	t.Parallel()
	for name, test := range templateChanges {
		t.Run(name, func(t *testing.T) {
			given, changed := fixture.Deployment(1).Spec.Template, fixture.Deployment(1).Spec.Template
			test.change(&changed)
			before := changed.DeepCopy()
			if got := !revision.Same(&given, &changed); got != test.rolls {
				t.Errorf("rolls: %t, want %t", got, test.rolls)
			}
			one := revision.Hash(&given, 0)
			two := revision.Hash(&changed, 0)
			if differ := one != two; differ != test.rolls {
				t.Errorf("hashes %s and %s", one, two)
			}
			if !revision.Same(before, &changed) || changed.Spec.Class != before.Spec.Class {
				t.Error("the comparison changed the template")
			}
		})
	}
}

// TestTemplate_MigratedClassStartsNoRollout checks that a set whose class was migrated does not get the legacy kind again from an old
// version of its deployment.
func TestTemplate_MigratedClassStartsNoRollout(t *testing.T) {
	t.Parallel()
	deployment, current := fixture.Deployment(3), fixture.Set("a", 3, fixture.OfRevision("1"))
	for _, kind := range legacy.Kinds() {
		deployment.Spec.Template.Spec.Class.Kind = kind
		for _, op := range Plan(New(NewFacts(deployment, sets{current}, fixture.Noon))) {
			if got := op.Next.Spec.Template.Spec.Class.Kind; got != v1alpha1.MachineClassKind {
				t.Errorf("%s sets the kind %s", op.Action, got)
			}
		}
	}
}

// TestRefreshed checks that only the fields that can change on existing Machines are copied to the current set.
func TestRefreshed(t *testing.T) {
	t.Parallel()
	for name, test := range templateChanges {
		if test.rolls || name == "the hash label" || name == "empty configuration" {
			continue // the label belongs to the set, and an empty configuration has no effect
		}
		t.Run(name, func(t *testing.T) {
			deployment, old, current := fixture.Deployment(3), fixture.Set("b", 0, fixture.OfRevision("1")), fixture.Set("a", 3, fixture.OfRevision("2"))
			test.change(&deployment.Spec.Template)
			want := current.DeepCopy()
			want.Spec.Template.Spec = *deployment.Spec.Template.Spec.DeepCopy()
			for range 2 {
				for _, op := range Plan(New(NewFacts(deployment, sets{old, current}, fixture.Noon))) {
					if op.Action != Refresh || op.Set != current {
						t.Fatalf("%s of %s", op.Action, op.Set.Name)
					}
					current = op.Next
				}
				if diff := cmp.Diff(want.Spec, current.Spec); diff != "" {
					t.Errorf("want - got +\n%s", diff)
				}
			}
			if again := Plan(New(NewFacts(deployment, sets{old, current}, fixture.Noon))); len(again) > 0 {
				t.Errorf("it is refreshed again: %+v", again)
			}
		})
	}
}

// TestHash_IsStable checks the hash of a template. If the hash changed between versions, a set that is created
// twice would become two sets.
func TestHash_IsStable(t *testing.T) {
	t.Parallel()
	hash := revision.Hash(&fixture.Deployment(1).Spec.Template, 0)
	const want = "2512589421"
	if hash != want {
		t.Errorf("the hash is %s, was %s", hash, want)
	}
	seen := map[string]int32{}
	for collisions := range int32(20) {
		hash := revision.Hash(&fixture.Deployment(1).Spec.Template, collisions)
		if other, ok := seen[hash]; ok {
			t.Errorf("collision counts %d and %d give the same hash", other, collisions)
		}
		seen[hash] = collisions
	}
}

func TestSetName_IsDNSName(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		template := fixture.Deployment(1, fixture.OfClass(rapid.String().Draw(t, "class"))).Spec.Template
		hash := revision.Hash(&template, rapid.Int32Min(0).Draw(t, "collisions"))
		name := revision.SetName(fixture.Pool, hash)
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("%q: %v", name, problems)
		}
		if problems := validation.IsValidLabelValue(hash); len(problems) > 0 {
			t.Errorf("%q: %v", hash, problems)
		}
		if want := min(5, len(hash)); len(name) != len(fixture.Pool)+1+want || !strings.HasPrefix(name, fixture.Pool+"-") {
			t.Errorf("%q is not the deployment's name with %d more characters", name, want)
		}
	})
}

// TestSetName_HasFormatOfMCM uses a hash and a name from a recorded fleet. A hash with few digits, which is rare,
// leads to a short name.
func TestSetName_HasFormatOfMCM(t *testing.T) {
	t.Parallel()
	for hash, want := range map[string]string{"1165378018": "pool-55b97", "3143": "pool-7587", "0": "pool-4"} {
		if got := revision.SetName("pool", hash); got != want {
			t.Errorf("hash %s: got %s, want %s", hash, got, want)
		}
	}
}

func TestFacts_Gather(t *testing.T) {
	t.Parallel()
	duplicate := fixture.Set("a", 1, func(set *v1alpha1.MachineSet) {
		set.Name = "duplicate"
		set.CreationTimestamp = metav1.NewTime(fixture.Noon.Add(time.Hour))
	})
	same := func(set *v1alpha1.MachineSet) { set.CreationTimestamp = metav1.NewTime(fixture.Noon) }
	for reason, test := range map[string]struct {
		sets    []*v1alpha1.MachineSet
		current string
		old     string
	}{
		"none":                         {},
		"only the current":             {[]*v1alpha1.MachineSet{fixture.Set("a", 1)}, "pool-a", ""},
		"only old ones":                {[]*v1alpha1.MachineSet{fixture.Set("c", 1), fixture.Set("b", 1)}, "", "pool-b pool-c"},
		"the oldest of two duplicates": {[]*v1alpha1.MachineSet{duplicate, fixture.Set("c", 1), fixture.Set("a", 1), fixture.Set("b", 1)}, "pool-a", "pool-b pool-c duplicate"},
		"a set that is being deleted is an old one": {[]*v1alpha1.MachineSet{duplicate, fixture.Set("a", 1, fixture.Leaving)}, "duplicate", "pool-a"},
		"of the same second":                        {[]*v1alpha1.MachineSet{fixture.Set("d", 1, same), fixture.Set("b", 1, same), fixture.Set("c", 1, same)}, "", "pool-b pool-c pool-d"},
	} {
		t.Run(reason, func(t *testing.T) {
			f := NewFacts(fixture.Deployment(1), test.sets, fixture.Noon)
			var current string
			if f.Current != nil {
				current = f.Current.Name
			}
			var old []string
			for _, set := range f.Old {
				old = append(old, set.Name)
			}
			if current != test.current || strings.Join(old, " ") != test.old {
				t.Errorf("current %q, old %q", current, old)
			}
			if all := f.All(); len(all) != len(test.sets) {
				t.Errorf("%d sets in total", len(all))
			}
		})
	}
}

// recorded reads the objects of a recorded MCM fleet.
func recorded(t *testing.T, file string) (deployments []*v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(content, &list); err != nil {
		t.Fatal(err)
	}
	decode := func(item json.RawMessage, into any) {
		if err := json.Unmarshal(item, into); err != nil {
			t.Fatal(err)
		}
	}
	for _, item := range list.Items {
		var kind metav1.TypeMeta
		decode(item, &kind)
		switch kind.Kind {
		case "MachineDeployment":
			deployments = append(deployments, &v1alpha1.MachineDeployment{})
			decode(item, deployments[len(deployments)-1])
		case "MachineSet":
			sets = append(sets, &v1alpha1.MachineSet{})
			decode(item, sets[len(sets)-1])
		}
	}
	return deployments, sets
}

// TestFleet_OfMCMDoesNotRoll checks that, at whatever moment MCM is replaced, the set of the current template is
// found, and no machine is created that MCM would not have created.
func TestFleet_OfMCMDoesNotRoll(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	for _, file := range files {
		deployments, sets := recorded(t, file)
		if len(deployments) == 0 {
			t.Errorf("%s has no deployment", file)
		}
		for _, deployment := range deployments {
			owned := slices.DeleteFunc(slices.Clone(sets), func(set *v1alpha1.MachineSet) bool { return !metav1.IsControlledBy(set, deployment) })
			t.Run(filepath.Base(file)+" "+deployment.Name, func(t *testing.T) { checkDoesNotRoll(t, NewFacts(deployment, owned, fixture.Noon)) })
		}
	}
}

func checkDoesNotRoll(t *testing.T, f Facts) {
	if f.Current == nil && !f.Deployment.Spec.Paused {
		t.Fatal("current set not found")
	}
	if f.Current != nil && revision.Number(f.Current) != revision.Number(f.Deployment) {
		t.Errorf("found %s, which does not have the deployment's revision", f.Current.Name)
	}
	operations := Plan(New(f))
	for _, op := range operations {
		if op.Action != Scale {
			t.Errorf("the plan would %s a set: %s", op.Action, op.Reason)
		}
	}
	if New(f).replaced && len(operations) > 0 {
		t.Errorf("no rollout is in progress, but the plan is %+v", operations)
	}
}
