package machineclass

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/env"
)

// behind is an API server with a cache that shows the first version of a Secret until catchUp is called.
type behind struct {
	client.Client
	shown   *corev1.Secret
	patches int
	refuse  error
}

func newBehind(t *testing.T) *behind {
	t.Helper()
	b := &behind{shown: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}}}
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c"}, SecretRef: &corev1.SecretReference{Name: "s"}}
	b.Client = fake.NewClientBuilder().WithScheme(env.NewScheme()).WithObjects(b.shown, class).
		WithIndex(&v1alpha1.MachineClass{}, fieldindex.ClassBySecret, func(object client.Object) []string {
			return []string{fieldindex.SecretsOf(object.(*v1alpha1.MachineClass))[0].String()}
		}).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			b.patches++
			if b.refuse != nil {
				return b.refuse
			}
			return c.Patch(ctx, object, patch, options...)
		}}).Build()
	b.catchUp(t)
	return b
}

func (b *behind) catchUp(t *testing.T) {
	t.Helper()
	if err := b.Client.Get(t.Context(), client.ObjectKeyFromObject(b.shown), b.shown); err != nil {
		t.Fatal(err)
	}
}

func (b *behind) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	b.shown.DeepCopyInto(object.(*corev1.Secret))
	return nil
}

var secretKey = ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "n", Name: "s"}}

// TestFinalizers_OnePatchWithStaleCache checks a Secret that is created together with its class. The second event arrives
// before the cache shows the result of the first one.
func TestFinalizers_OnePatchWithStaleCache(t *testing.T) {
	b := newBehind(t)
	c := NewForSecrets(b, nil)
	pass := func() ctrl.Result {
		t.Helper()
		result, err := c.Reconcile(t.Context(), secretKey)
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	pass()
	if got := pass().RequeueAfter; got <= 0 {
		t.Error("no next pass is scheduled")
	}
	b.catchUp(t)
	if got := pass().RequeueAfter; got != 0 {
		t.Errorf("the next pass is due in %v although nothing remains to be done", got)
	}
	if b.patches != 1 || !slices.Equal(b.shown.Finalizers, []string{v1alpha1.FinalizerSecret}) {
		t.Errorf("%d patches, want 1; finalizers %v", b.patches, b.shown.Finalizers)
	}
}

// TestFinalizers_FailedPatch checks that a conflict causes another pass but no error, and that a missing object
// causes neither.
func TestFinalizers_FailedPatch(t *testing.T) {
	down := errors.New("down")
	secrets := schema.GroupResource{Resource: "secrets"}
	for name, tc := range map[string]struct {
		refuse error
		again  bool
		err    error
	}{
		"conflict": {refuse: apierrors.NewConflict(secrets, "s", nil), again: true},
		"gone":     {refuse: apierrors.NewNotFound(secrets, "s")},
		"down":     {refuse: down, err: down},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBehind(t)
			b.refuse = tc.refuse
			result, err := NewForSecrets(b, nil).Reconcile(t.Context(), secretKey)
			if again := result.RequeueAfter > 0; again != tc.again || !errors.Is(err, tc.err) {
				t.Errorf("again: %v, err %v; want %v, %v", again, err, tc.again, tc.err)
			}
		})
	}
}

// TestPredicates_SecretChanges checks that our finalizer on a class is not relevant for Secrets.
func TestPredicates_SecretChanges(t *testing.T) {
	was := &v1alpha1.MachineClass{SecretRef: &corev1.SecretReference{Namespace: "n", Name: "s"}}
	held, other := was.DeepCopy(), was.DeepCopy()
	held.Finalizers = []string{v1alpha1.FinalizerMCM}
	other.CredentialsSecretRef = &corev1.SecretReference{Namespace: "n", Name: "t"}
	for name, tc := range map[string]struct {
		is   *v1alpha1.MachineClass
		want bool
	}{"finalizer": {held, false}, "another reference": {other, true}} {
		if got := secretChanges().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: tc.is}); got != tc.want {
			t.Errorf("%s: passes = %v", name, got)
		}
	}
}
