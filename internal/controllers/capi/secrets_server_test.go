package capi

import (
	"context"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
)

// secretsHarness is a namespace with MillwrightMachines that no Machine owns, so that only the controller of Secrets
// has work to do.
type secretsHarness struct {
	*testing.T
	namespace string
	client    client.Client
}

// newSecretsHarness creates the objects and starts the controllers with the permissions of their role.
func newSecretsHarness(t *testing.T, objects func(namespace string) []client.Object) *secretsHarness {
	t.Helper()
	e := env.New(t)
	coretest.Install(t, e.Admin)
	scheme := newScheme(core.V1Beta2)
	admin, err := client.New(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	h := &secretsHarness{T: t, namespace: e.Namespace, client: admin}
	for _, object := range objects(e.Namespace) {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	h.start(e, scheme)
	return h
}

func (h *secretsHarness) start(e *env.Env, scheme *runtime.Scheme) {
	h.Helper()
	mgr, err := ctrl.NewManager(e.UserWith(h.T, "config/rbac/capi-role.yaml"), ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cache.Options{DefaultNamespaces: map[string]cache.Config{e.Namespace: {}}},
		Controller:             config.Controller{SkipNameValidation: new(true), UsePriorityQueue: new(false)},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		h.Fatal(err)
	}
	waker := &tasks.Waker{}
	engine := instance.New(sim.New(sim.Config{}), instance.Options{Run: func(func(context.Context)) bool { return false }, Wake: waker.Wake})
	machines := New(Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Engine: engine, TaskEvents: waker,
		Events: record.NewFakeRecorder(100), Clock: clock.RealClock{}, Drivers: registry.Only("sim", fake.New(fake.Config{})),
	})
	for _, setup := range []func(ctrl.Manager) error{machines.SetupWithManager, machines.Secrets.SetupWithManager} {
		if err := setup(mgr); err != nil {
			h.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background()) // t.Context is canceled before the cleanup
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	h.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			h.Errorf("the manager failed: %v", err)
		}
	})
}

// wantProtected waits until the Secrets a and b have or lack the finalizer as given.
func (h *secretsHarness) wantProtected(a, b bool) {
	h.Helper()
	protected := func(g gomega.Gomega, name string) bool {
		secret := &corev1.Secret{}
		g.Expect(h.client.Get(h.Context(), client.ObjectKey{Namespace: h.namespace, Name: name}, secret)).To(gomega.Succeed())
		return controllerutil.ContainsFinalizer(secret, infrav1.SecretFinalizer)
	}
	gomega.NewWithT(h.T).Eventually(func(g gomega.Gomega) {
		g.Expect([]bool{protected(g, "a"), protected(g, "b")}).To(gomega.Equal([]bool{a, b}), "finalizers of a and b")
	}).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

func (h *secretsHarness) patch(object client.Object, patch string) {
	h.Helper()
	if err := h.client.Patch(h.Context(), object, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		h.Fatal(err)
	}
}

// newBegunMachine returns a MillwrightMachine whose creation has begun, and whose Secret may lack the finalizer. It
// was moved here, or created by a version that did not protect Secrets.
func newBegunMachine(namespace string) *infrav1.MillwrightMachine {
	return &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "m", Finalizers: []string{infrav1.Finalizer},
			Annotations: map[string]string{infrav1.AnnotationCreationBegun: ""},
		},
		Spec: infrav1.MillwrightMachineSpec{Driver: "sim"},
	}
}

// release removes the finalizer as a user might, and deletes the object.
func (h *secretsHarness) release() {
	h.Helper()
	m := newBegunMachine(h.namespace)
	h.patch(m, `{"metadata":{"finalizers":null}}`)
	if err := h.client.Delete(h.Context(), m); err != nil {
		h.Fatal(err)
	}
}

func TestSecret_FinalizerFollowsReferenceOfMachine(t *testing.T) {
	t.Parallel()
	h := newSecretsHarness(t, func(namespace string) []client.Object {
		m := newBegunMachine(namespace)
		m.Spec.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{}`)}
		m.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "a"}
		return []client.Object{secret(namespace, "a", nil), secret(namespace, "b", nil), m}
	})
	h.wantProtected(true, false)
	h.patch(newBegunMachine(h.namespace), `{"spec":{"credentialsSecretRef":{"name":"b"}}}`)
	h.wantProtected(false, true)
	h.release()
	h.wantProtected(false, false)
}

func TestSecret_FinalizerFollowsReferenceOfClass(t *testing.T) {
	t.Parallel()
	class := func(namespace, secret string) *v1alpha1.MachineClass {
		return &v1alpha1.MachineClass{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"}, ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
			SecretRef: &corev1.SecretReference{Namespace: namespace, Name: secret},
		}
	}
	h := newSecretsHarness(t, func(namespace string) []client.Object {
		m := newBegunMachine(namespace)
		m.Spec.MachineClassRef = &infrav1.LocalReference{Name: "small"}
		return []client.Object{secret(namespace, "a", nil), secret(namespace, "b", nil), class(namespace, "a"), m}
	})
	h.wantProtected(true, false)
	h.patch(class(h.namespace, ""), `{"secretRef":{"name":"b"}}`)
	h.wantProtected(false, true)
	h.release()
	h.wantProtected(false, false)
}
