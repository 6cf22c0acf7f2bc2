package ownership_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

const providerID = "sim:///m1"

func finding(owners ...ownership.Owner) ownership.Finder {
	return func(context.Context, string, string) ([]ownership.Owner, error) { return owners, nil }
}

// TestIndex checks which of two owners of one instance conflicts with the other.
func TestIndex(t *testing.T) {
	t.Parallel()
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	ours := ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Name: "ours"}, UID: "ours", ProviderID: providerID, Since: early}
	theirs := ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Name: "theirs"}, UID: "theirs", ProviderID: providerID, Since: late}
	for name, tc := range map[string]struct {
		ours, theirs func(*ownership.Owner)
		// conflicting, sharing and certain are true if the methods of these names find theirs.
		conflicting, sharing, certain bool
	}{
		"both have the ID":              {sharing: true},
		"the same object":               {theirs: func(o *ownership.Owner) { o.UID, o.Certain = "ours", true }},
		"theirs is older":               {ours: func(o *ownership.Owner) { o.Since = late.Add(1) }, conflicting: true, sharing: true},
		"theirs is certain":             {theirs: func(o *ownership.Owner) { o.Certain = true }, conflicting: true, sharing: true, certain: true},
		"ours is certain":               {ours: func(o *ownership.Owner) { o.Certain = true }},
		"both are certain":              {ours: func(o *ownership.Owner) { o.Certain = true }, theirs: func(o *ownership.Owner) { o.Certain = true }, sharing: true},
		"theirs is being deleted":       {theirs: func(o *ownership.Owner) { o.Deleting, o.Certain = true, true }, conflicting: true, certain: true},
		"ours has no ID":                {ours: func(o *ownership.Owner) { o.ProviderID = "" }, sharing: true},
		"ours has no ID, other kind":    {ours: func(o *ownership.Owner) { o.ProviderID = "" }, theirs: func(o *ownership.Owner) { o.Kind = "Other" }, conflicting: true, sharing: true},
		"other kind":                    {theirs: func(o *ownership.Owner) { o.Kind = "Other" }, sharing: true},
		"other kind, other namespace":   {theirs: func(o *ownership.Owner) { o.Kind, o.Key.Namespace, o.Certain = "Other", "elsewhere", true }},
		"claimed before it was created": {ours: func(o *ownership.Owner) { o.ProviderID, o.Since = "", late.Add(1) }, theirs: func(o *ownership.Owner) { o.Key.Namespace = "elsewhere" }, sharing: true},
		"certain, ours has no ID":       {ours: func(o *ownership.Owner) { o.ProviderID = "" }, theirs: func(o *ownership.Owner) { o.Key.Namespace, o.Certain = "elsewhere", true }, conflicting: true, sharing: true, certain: true},
		"other namespace":               {theirs: func(o *ownership.Owner) { o.Key.Namespace, o.Certain = "elsewhere", true }, conflicting: true, sharing: true, certain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := ours, theirs
			for owner, change := range map[*ownership.Owner]func(*ownership.Owner){&ours: tc.ours, &theirs: tc.theirs} {
				if change != nil {
					change(owner)
				}
			}
			index := ownership.Index{nil, finding(theirs)}
			for method, found := range map[string]struct {
				find func(context.Context, ownership.Owner, string) (*ownership.Owner, error)
				want bool
			}{
				"Conflicting": {index.Conflicting, tc.conflicting},
				"Sharing":     {index.Sharing, tc.sharing},
				"Certain":     {index.Certain, tc.certain},
			} {
				if got, err := found.find(t.Context(), ours, providerID); err != nil || (got != nil) != found.want {
					t.Errorf("%s returns %v, %v; want one: %t", method, got, err, found.want)
				}
				if got, err := found.find(t.Context(), ours, ""); err != nil || got != nil {
					t.Errorf("%s returns %v, %v for no instance", method, got, err)
				}
			}
		})
	}
}

// TestIndex_UnreadableAPI checks that an API whose owners cannot be read does not count as having none.
func TestIndex_UnreadableAPI(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	index := ownership.Index{finding(), func(context.Context, string, string) ([]ownership.Owner, error) { return nil, down }}
	if _, err := index.Conflicting(t.Context(), ownership.Owner{}, providerID); !errors.Is(err, down) {
		t.Errorf("error %v", err)
	}
}

func cache(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&v1alpha1.Machine{}, fieldindex.MachineByProviderID, func(o client.Object) []string { return []string{o.(*v1alpha1.Machine).Spec.ProviderID} }).
		WithIndex(&v1alpha1.Machine{}, fieldindex.MachineByNode, func(o client.Object) []string { return []string{o.GetLabels()[v1alpha1.NodeLabelKey]} }).
		WithIndex(&infrav1.MillwrightMachine{}, ownership.MillwrightMachineByProviderID, ownership.ProviderIDs).
		Build()
}

func machine(name string, created int64, providerID string) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Unix(created, 0),
			Labels: map[string]string{v1alpha1.NodeLabelKey: "node"},
		},
		Spec: v1alpha1.MachineSpec{ProviderID: providerID},
	}
}

// TestFinder_BothAPIs checks that the owners in both APIs are found by the IDs that they contain, and that they are
// certain if the instance was created for them.
func TestFinder_BothAPIs(t *testing.T) {
	t.Parallel()
	running, named, elsewhere := machine("running", 1, providerID), machine("named", 1, providerID), machine("elsewhere", 1, providerID)
	running.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	elsewhere.Namespace = "elsewhere"
	got := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "got"}}
	got.Status.ProviderID = providerID
	wrote := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "wrote"}}
	wrote.Spec.ProviderID = providerID
	reader := cache(t, running, named, elsewhere, got, wrote, machine("other", 1, "sim:///m2"))
	for _, tc := range []struct {
		find ownership.Finder
		want map[string]bool
	}{
		{ownership.Machines(reader), map[string]bool{"Machine ns/running": true, "Machine ns/named": false}},
		{ownership.MillwrightMachines(reader), map[string]bool{"MillwrightMachine elsewhere/got": true, "MillwrightMachine ns/wrote": false}},
	} {
		owners, err := tc.find(t.Context(), "ns", providerID)
		if err != nil || len(owners) != len(tc.want) {
			t.Errorf("%v, %v; want %v", owners, err, tc.want)
		}
		for _, owner := range owners {
			if certain, found := tc.want[owner.String()]; !found || certain != owner.Certain {
				t.Errorf("%s, certain: %t; want %v", owner, owner.Certain, tc.want)
			}
		}
	}
}

// TestConflictingNode checks that a node belongs to the Machine whose VM its provider ID names, and otherwise
// to the oldest Machine.
func TestConflictingNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ours, theirs *v1alpha1.Machine
		node         string
		want         bool
	}{
		"theirs is older":                               {machine("ours", 2, ""), machine("theirs", 1, ""), "", true},
		"ours is older":                                 {machine("ours", 1, ""), machine("theirs", 2, ""), "", false},
		"equally old, by name":                          {machine("ours", 1, ""), machine("a", 1, ""), "", true},
		"the node has our provider ID":                  {machine("ours", 2, providerID), machine("theirs", 1, ""), providerID, false},
		"the node has their provider ID":                {machine("ours", 1, ""), machine("theirs", 2, providerID), providerID, true},
		"neither the node nor theirs has a provider ID": {machine("ours", 1, providerID), machine("theirs", 2, ""), "", false},
		"the node has another provider ID":              {machine("ours", 1, providerID), machine("theirs", 2, providerID), "sim:///m2", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: corev1.NodeSpec{ProviderID: tc.node}}
			got, err := ownership.ConflictingNode(t.Context(), cache(t, tc.ours, tc.theirs), tc.ours, node)
			if err != nil || (got != nil) != tc.want {
				t.Errorf("got %v, %v; want a conflict: %t", got, err, tc.want)
			}
		})
	}
}

// TestConflictingNode_ItselfInTheCache checks that a Machine does not conflict with the newer version of itself that
// the cache has.
func TestConflictingNode_ItselfInTheCache(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	got, err := ownership.ConflictingNode(t.Context(), cache(t, machine("ours", 1, providerID)), machine("ours", 1, ""), node)
	if err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOwners_UnreadableCache checks that owners that cannot be listed are not reported as absent.
func TestOwners_UnreadableCache(t *testing.T) {
	t.Parallel()
	down := unreadable(t)
	for name, find := range map[string]ownership.Finder{"Machines": ownership.Machines(down), "MillwrightMachines": ownership.MillwrightMachines(down)} {
		if owners, err := find(t.Context(), "ns", providerID); !errors.Is(err, errUnreadable) {
			t.Errorf("%s: %v, %v", name, owners, err)
		}
	}
	if got, err := ownership.ConflictingNode(t.Context(), down, machine("ours", 1, ""), &corev1.Node{}); !errors.Is(err, errUnreadable) {
		t.Errorf("ConflictingNode: %v, %v", got, err)
	}
}

func TestProviderIDs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec, status string
		want         []string
	}{
		"none":      {"", "", nil},
		"spec":      {"a", "", []string{"a"}},
		"status":    {"", "a", []string{"a"}},
		"the same":  {"a", "a", []string{"a"}},
		"different": {"a", "b", []string{"a", "b"}},
	} {
		object := &infrav1.MillwrightMachine{}
		object.Spec.ProviderID, object.Status.ProviderID = tc.spec, tc.status
		if got := ownership.ProviderIDs(object); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestOwner_WithoutProviderID checks that an object without an instance is not certain to own one.
func TestOwner_WithoutProviderID(t *testing.T) {
	t.Parallel()
	running := machine("running", 1, "")
	running.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	if ownership.OfMachine(running).Certain {
		t.Error("a Machine without a provider ID is certain")
	}
	if ownership.OfMillwrightMachine(&infrav1.MillwrightMachine{}, "").Certain {
		t.Error("a MillwrightMachine without a provider ID is certain")
	}
}
