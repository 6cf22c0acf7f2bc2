package env_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) { env.Main(m) }

func secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// clientAs returns a client whose requests can be recognized.
func clientAs(t *testing.T, config *rest.Config, agent string) client.WithWatch {
	t.Helper()
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	c, err := client.NewWithWatch(config, client.Options{Scheme: env.NewScheme()})
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNamespace_IsIsolated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	one, two := env.New(t), env.New(t)
	if one.Namespace == two.Namespace {
		t.Fatalf("two tests share namespace %s", one.Namespace)
	}
	must(t, one.Client.Create(t.Context(), secret(one.Namespace, "mine")))
	err := two.Client.Get(t.Context(), client.ObjectKey{Namespace: two.Namespace, Name: "mine"}, &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("want the secret of one namespace to be missing in the other, got %v", err)
	}
	if one.ControlPlane != two.ControlPlane {
		t.Error("want one control plane for both")
	}
}

func TestNamespace_IsDeletedAfterTest(t *testing.T) {
	tier.All(t)
	t.Parallel()
	var namespace string
	t.Run("inner", func(t *testing.T) { namespace = env.New(t).Namespace })
	found := &corev1.Namespace{}
	err := env.New(t).Client.Get(t.Context(), client.ObjectKey{Name: namespace}, found)
	if err == nil && found.DeletionTimestamp.IsZero() {
		t.Errorf("namespace %s of a finished test is not being deleted", namespace)
	}
	must(t, client.IgnoreNotFound(err))
}

func TestEnv_CreatesMachinesAndPods(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	meta := metav1.ObjectMeta{Namespace: e.Namespace, Name: "one"}
	must(t, e.Client.Create(t.Context(), &v1alpha1.Machine{ObjectMeta: meta}))
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b"}}}}
	must(t, e.Client.Create(t.Context(), pod))
}

func TestPair_IsIsolated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.NewPair(t)
	if e.Admin.Host == e.Target.Admin.Host {
		t.Fatalf("control and target are both at %s", e.Admin.Host)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + e.Namespace}}
	must(t, e.Target.Client.Create(t.Context(), node))
	err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(node), &corev1.Node{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("want no such node in the control cluster, got %v", err)
	}
}

func TestEnv_RunsControllerManager(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithControllerManager())
	ctx, cancel := context.WithTimeout(t.Context(), env.WaitTimeout)
	defer cancel()
	accounts, err := clientAs(t, e.Admin, "watcher").Watch(ctx, &corev1.ServiceAccountList{}, client.InNamespace(e.Namespace))
	must(t, err)
	defer accounts.Stop()
	if _, ok := <-accounts.ResultChan(); !ok {
		t.Error("the default service account was not created in time")
	}
}

func TestUser_HasOnlyPermissionsOfRole(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	user := clientAs(t, e.UserWith(t, "test/support/env/testdata/roles.yaml"), "user")
	must(t, user.Create(t.Context(), secret(e.Namespace, "allowed")))
	must(t, user.List(t.Context(), &corev1.NodeList{}))
	if err := user.Delete(t.Context(), secret(e.Namespace, "allowed")); !apierrors.IsForbidden(err) {
		t.Errorf("want a delete without the right to be forbidden, got %v", err)
	}
	if err := user.Create(t.Context(), secret("default", "elsewhere")); !apierrors.IsForbidden(err) {
		t.Errorf("want a create in another namespace to be forbidden, got %v", err)
	}
	must(t, user.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system")))
}

func TestUser_ShippedRoles(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.NewPair(t)
	control := clientAs(t, e.UserWith(t, "config/rbac/control-role.yaml"), "user")
	target := clientAs(t, e.Target.UserWith(t, "config/rbac/target-role.yaml"), "user")
	must(t, control.List(t.Context(), &v1alpha1.MachineList{}, client.InNamespace(e.Namespace)))
	must(t, target.List(t.Context(), &corev1.NodeList{}))
	if err := control.List(t.Context(), &corev1.NodeList{}); !apierrors.IsForbidden(err) {
		t.Errorf("want nodes of the control cluster to be out of reach, got %v", err)
	}
}

func TestControlPlane_CanBeStopped(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e, shared := env.New(t, env.WithOwn()), env.New(t)
	if e.ControlPlane == shared.ControlPlane {
		t.Fatal("want a control plane that is not shared")
	}
	ctx, cancel := context.WithTimeout(t.Context(), env.WaitTimeout)
	defer cancel()
	must(t, e.Client.Create(ctx, secret(e.Namespace, "kept")))

	must(t, e.ControlPlane.StopComponent(ctx, controlplane.APIServer))
	if err := e.Client.List(ctx, &corev1.NodeList{}); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Errorf("want no response from a stopped API server, got %v", err)
	}
	must(t, e.ControlPlane.StartComponent(ctx, controlplane.APIServer))
	must(t, e.Client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: "kept"}, &corev1.Secret{}))
}

// TestCompact_WatchFromCompactedRevisionFails checks that a watch cannot start at a compacted revision.
func TestCompact_WatchFromCompactedRevisionFails(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithOwn(), env.WithoutWatchCache())
	before := &corev1.SecretList{}
	must(t, e.Client.List(t.Context(), before, client.InNamespace(e.Namespace)))
	for _, later := range []string{"first", "second"} { // the last revision is not compacted
		must(t, e.Client.Create(t.Context(), secret(e.Namespace, later)))
	}
	watcher, err := client.NewWithWatch(e.Admin, client.Options{Scheme: env.NewScheme()})
	must(t, err)
	first := func() watch.Event {
		from := &client.ListOptions{Namespace: e.Namespace, Raw: &metav1.ListOptions{ResourceVersion: before.ResourceVersion}}
		events, err := watcher.Watch(t.Context(), &corev1.SecretList{}, from)
		must(t, err)
		defer events.Stop()
		return <-events.ResultChan()
	}
	if event := first(); event.Type != watch.Added {
		t.Errorf("before, the watch begins with %s %v", event.Type, event.Object)
	}
	revision, err := e.Compact(t.Context())
	must(t, err)
	t.Logf("compacted revision %d", revision)
	if event := first(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("after the compaction, the watch begins with %s %v", event.Type, event.Object)
	}
}

// TestNamespace_IsFinalizedAfterTest checks that finalizers are removed when their controllers have stopped.
func TestNamespace_IsFinalizedAfterTest(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithControllerManager())
	var namespace string
	t.Run("inner", func(t *testing.T) {
		inner := env.New(t, env.WithControllerManager())
		namespace = inner.Namespace
		meta := metav1.ObjectMeta{Namespace: namespace, Name: "held", Finalizers: []string{"example.com/held"}}
		must(t, inner.Client.Create(t.Context(), &v1alpha1.MachineClass{ObjectMeta: meta, ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)}}))
		must(t, inner.Client.Create(t.Context(), &corev1.Secret{ObjectMeta: meta}))
	})
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, env.WaitTimeout, true, func(ctx context.Context) (bool, error) {
		err := e.Client.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Errorf("waiting for the namespace of a finished test to go: %v", err)
	}
}
