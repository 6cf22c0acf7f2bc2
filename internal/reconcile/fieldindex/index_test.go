package fieldindex_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// builder adds indexes to a fake client, as a cache's indexer does.
type builder struct {
	*fake.ClientBuilder
	fail error
}

func (b builder) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	if b.fail != nil {
		return b.fail
	}
	b.WithIndex(object, field, values)
	return nil
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }

func controlled(name string, uid types.UID) metav1.ObjectMeta {
	yes := true
	m := meta(name)
	m.OwnerReferences = []metav1.OwnerReference{{UID: "bystander"}, {UID: uid, Controller: &yes}}
	return m
}

func newMachine(m metav1.ObjectMeta, kind, class, node string) *v1alpha1.Machine {
	made := &v1alpha1.Machine{ObjectMeta: m}
	made.Spec.Class = v1alpha1.ClassSpec{Kind: kind, Name: class}
	if node != "" {
		made.Spec.ProviderID = "vm:///" + made.Name
		made.Labels = map[string]string{v1alpha1.NodeLabelKey: node}
	}
	return made
}

// newSet returns a set whose selector and template have these labels.
func newSet(m metav1.ObjectMeta, labels map[string]string) *v1alpha1.MachineSet {
	made := &v1alpha1.MachineSet{ObjectMeta: m}
	made.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	made.Spec.Template.Labels = labels
	return made
}

func TestAdd_Indexes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := builder{ClientBuilder: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		newMachine(controlled("m1", "set-1"), "MachineClass", "small", "node-1"),
		newMachine(controlled("m2", "set-1"), "MachineClass", "large", ""),
		newMachine(controlled("m3", "set-2"), "AWSMachineClass", "small", "node-3"),
		newMachine(meta("m4"), "MachineClass", "small", ""),
		newSet(controlled("set-1", "deployment-1"), map[string]string{"name": "pool", "machine-template-hash": "x"}),
		newSet(meta("set-2"), map[string]string{"name": "pool", "a": "zone-1"}),
		newSet(meta("set-3"), nil),
		&v1alpha1.MachineClass{ObjectMeta: meta("small"), SecretRef: &corev1.SecretReference{Namespace: "ns", Name: "both"}},
		&v1alpha1.MachineClass{ObjectMeta: meta("large"), SecretRef: &corev1.SecretReference{Name: "both"}, CredentialsSecretRef: &corev1.SecretReference{Namespace: "other", Name: "cloud"}},
	)}
	if err := fieldindex.Add(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c := b.Build()

	machines, sets, classes := func() client.ObjectList { return &v1alpha1.MachineList{} }, func() client.ObjectList { return &v1alpha1.MachineSetList{} }, func() client.ObjectList { return &v1alpha1.MachineClassList{} }
	for name, tc := range map[string]struct {
		reason       string
		list         func() client.ObjectList
		field, value string
		want         []string
	}{
		"node":                        {"", machines, fieldindex.MachineByNode, "node-1", []string{"m1"}},
		"no node":                     {"machines without a node are not indexed", machines, fieldindex.MachineByNode, "", nil},
		"VM":                          {"", machines, fieldindex.MachineByProviderID, "vm:///m3", []string{"m3"}},
		"no VM":                       {"machines without a VM are not indexed", machines, fieldindex.MachineByProviderID, "", nil},
		"class":                       {"a class of another kind is another class", machines, fieldindex.MachineByClass, "small", []string{"m1", "m4"}},
		"controller":                  {"", machines, fieldindex.ByController, "set-1", []string{"m1", "m2"}},
		"other owner":                 {"owners that are not controllers do not count", machines, fieldindex.ByController, "bystander", nil},
		"orphans":                     {"", machines, fieldindex.ByController, fieldindex.Orphan, []string{"m4"}},
		"sets":                        {"", sets, fieldindex.ByController, "deployment-1", []string{"set-1"}},
		"orphan sets":                 {"", sets, fieldindex.ByController, fieldindex.Orphan, []string{"set-2", "set-3"}},
		"hash":                        {"the hash is more specific than other labels", sets, fieldindex.MachineSetBySelector, "machine-template-hash=x", []string{"set-1"}},
		"longest value":               {"without a hash, the longest value is the most specific", sets, fieldindex.MachineSetBySelector, "a=zone-1", []string{"set-2"}},
		"other label":                 {"a selector is found by one label", sets, fieldindex.MachineSetBySelector, "name=pool", nil},
		"no label":                    {"", sets, fieldindex.MachineSetBySelector, fieldindex.NoLabel, []string{"set-3"}},
		"template":                    {"a template is found by each label", sets, fieldindex.MachineSetByTemplate, "name=pool", []string{"set-1", "set-2"}},
		"secret":                      {"no namespace means the class's own", classes, fieldindex.ClassBySecret, "ns/both", []string{"large", "small"}},
		"credentials":                 {"", classes, fieldindex.ClassBySecret, "other/cloud", []string{"large"}},
		"secret of another namespace": {"", classes, fieldindex.ClassBySecret, "other/both", nil},
	} {
		t.Run(name, func(t *testing.T) {
			list := tc.list()
			if err := c.List(t.Context(), list, client.MatchingFields{tc.field: tc.value}); err != nil {
				t.Fatal(err)
			}
			if got := names(t, list); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func names(t *testing.T, list client.ObjectList) []string {
	t.Helper()
	var found []string
	switch l := list.(type) {
	case *v1alpha1.MachineList:
		for i := range l.Items {
			found = append(found, l.Items[i].Name)
		}
	case *v1alpha1.MachineSetList:
		for i := range l.Items {
			found = append(found, l.Items[i].Name)
		}
	case *v1alpha1.MachineClassList:
		for i := range l.Items {
			found = append(found, l.Items[i].Name)
		}
	default:
		t.Fatalf("unexpected list %T", list)
	}
	slices.Sort(found)
	return found
}

func TestSecretsOf(t *testing.T) {
	class := &v1alpha1.MachineClass{
		ObjectMeta:           meta("c"),
		SecretRef:            &corev1.SecretReference{Name: "user-data"},
		CredentialsSecretRef: &corev1.SecretReference{Namespace: "other", Name: "cloud"},
	}
	want := []types.NamespacedName{{Namespace: "ns", Name: "user-data"}, {Namespace: "other", Name: "cloud"}}
	if got := fieldindex.SecretsOf(class); !slices.Equal(got, want) {
		t.Errorf("%v, want %v: later references take precedence", got, want)
	}
	class.SecretRef, class.CredentialsSecretRef = &corev1.SecretReference{Namespace: "ns"}, nil
	if got := fieldindex.SecretsOf(class); len(got) != 0 {
		t.Errorf("a reference without a name names %v", got)
	}
}

func TestAdd_ReturnsErrors(t *testing.T) {
	broken := errors.New("the cache has started")
	if err := fieldindex.Add(t.Context(), builder{ClientBuilder: fake.NewClientBuilder(), fail: broken}); !errors.Is(err, broken) {
		t.Errorf("error %v, want the indexer's", err)
	}
}

// TestSelectorLabel checks that the result does not depend on the iteration order of maps.
func TestSelectorLabel(t *testing.T) {
	for want, selector := range map[string]*metav1.LabelSelector{
		"a=long":                  {MatchLabels: map[string]string{"a": "long", "b": "long", "c": "no"}},
		"a=":                      {MatchLabels: map[string]string{"a": "", "b": ""}},
		"machine-template-hash=x": {MatchLabels: map[string]string{"machine-template-hash": "x", "a": "longer"}},
	} {
		for range 20 {
			if got := fieldindex.SelectorLabel(selector); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	}
	for _, selector := range []*metav1.LabelSelector{nil, {}, {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpExists}}}} {
		if got := fieldindex.SelectorLabel(selector); got != fieldindex.NoLabel {
			t.Errorf("%q of %v", got, selector)
		}
	}
}
