package machineclass

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

type builderIndexer struct{ *fakeclient.ClientBuilder }

func (b builderIndexer) IndexField(_ context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	b.WithIndex(object, field, extract)
	return nil
}

func newFakeClient(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	builder := fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
	if err := fieldindex.Add(t.Context(), builderIndexer{builder}); err != nil {
		t.Fatal(err)
	}
	return builder.Build()
}

// FuzzReconcile checks that for any objects, passes terminate and settle, that only finalizers are written, and
// that objects in use have the finalizer.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil))
		f.Add([]byte(nil), data)
	})
	f.Fuzz(func(t *testing.T, ofHeld, ofUsers []byte) {
		class, secret := fixture.MachineClass(), fixture.Secret()
		set := fixture.MachineSet()
		users := []client.Object{fixture.Machine(), set, fixture.MachineDeployment()}
		absurd.Objects(ofHeld, class, secret)
		absurd.Objects(ofUsers, users...)
		c := newFakeClient(t, append(users, class, secret)...)
		held := map[client.Object]string{class: v1alpha1.FinalizerMCM, secret: v1alpha1.FinalizerSecret}
		for object, finalizer := range held {
			before := object.DeepCopyObject().(client.Object)
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), before); err != nil {
				t.Fatal(err)
			}
			found, gone := passes(t, c, object)
			if gone {
				if object.GetDeletionTimestamp().IsZero() {
					t.Errorf("%T was removed without being deleted", object)
				}
				continue
			}
			has := slices.Contains(found.GetFinalizers(), finalizer)
			if could := has || found.GetDeletionTimestamp().IsZero(); could && has != inUse(object, class, users) {
				t.Errorf("%T has the finalizer: %t, is in use: %t", object, has, !has)
			}
			if diff := cmp.Diff(withoutFinalizer(t, before, finalizer), withoutFinalizer(t, found, finalizer)); diff != "" {
				t.Errorf("unexpected changes of %T (-before +after):\n%s", object, diff)
			}
		}
		for _, user := range users {
			absurd.Within("an event", func() { classOf(t.Context(), user); isOldSet(user) })
		}
		absurd.Within("an event", func() { secretsOf(t.Context(), class) })
	})
}

// passes runs passes over an object, and fails the test if the last one writes. It reports whether the object was
// removed.
func passes(t *testing.T, c client.Client, object client.Object) (found client.Object, gone bool) {
	t.Helper()
	controllers := map[bool]interface {
		Reconcile(context.Context, ctrl.Request) (ctrl.Result, error)
	}{true: New(c, nil), false: NewForSecrets(c, nil)}
	_, isClass := object.(*v1alpha1.MachineClass)
	key := client.ObjectKeyFromObject(object)
	found = object.DeepCopyObject().(client.Object)
	last := ""
	for range 3 {
		last = found.GetResourceVersion()
		absurd.Within("a pass", func() {
			if _, err := controllers[isClass].Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
				t.Error(err)
			}
		})
		if err := c.Get(t.Context(), key, found); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		} else if err != nil {
			return nil, true
		}
	}
	if found.GetResourceVersion() != last {
		t.Errorf("the passes over %T do not settle", object)
	}
	return found, false
}

// inUse is an independent implementation of the rule that the controllers follow.
func inUse(object client.Object, class *v1alpha1.MachineClass, users []client.Object) bool {
	if secret, is := object.(*corev1.Secret); is {
		names := func(ref *corev1.SecretReference) bool {
			return ref != nil && ref.Name == secret.Name && (ref.Namespace == secret.Namespace || ref.Namespace == "")
		}
		return names(class.SecretRef) || names(class.CredentialsSecretRef)
	}
	machine, set, deployment := users[0].(*v1alpha1.Machine), users[1].(*v1alpha1.MachineSet), users[2].(*v1alpha1.MachineDeployment)
	want := v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class.Name}
	return machine.Spec.Class == want || deployment.Spec.Template.Spec.Class == want ||
		set.Spec.Template.Spec.Class == want && (set.Spec.Replicas != 0 || metav1.GetControllerOf(set) == nil)
}

// withoutFinalizer returns the stored fields of an object without a finalizer.
func withoutFinalizer(t *testing.T, object client.Object, finalizer string) map[string]any {
	t.Helper()
	object = object.DeepCopyObject().(client.Object)
	object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(name string) bool { return name == finalizer }))
	object.SetResourceVersion("")
	stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}
