package machineclass_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineclass"
	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// harness is a namespace with both controllers.
type harness struct {
	*env.Env
	*testing.T
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{Env: env.New(t), T: t}
	h.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		return errors.Join(machineclass.New(mgr.GetClient(), events).SetupWithManager(mgr), machineclass.NewForSecrets(mgr.GetClient(), events).SetupWithManager(mgr))
	})
	return h
}

func (h *harness) create(objects ...client.Object) {
	h.Helper()
	for _, object := range objects {
		if err := h.Client.Create(h.Context(), object); err != nil {
			h.Fatal(err)
		}
	}
}

func (h *harness) delete(object client.Object) {
	h.Helper()
	if err := h.Client.Delete(h.Context(), object); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) class(name, secret string) *v1alpha1.MachineClass {
	class := &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: h.Namespace, Name: name},
		ProviderSpec: runtime.RawExtension{Raw: []byte("{}")},
	}
	if secret != "" {
		class.SecretRef = &corev1.SecretReference{Namespace: h.Namespace, Name: secret}
	}
	return class
}

func (h *harness) machine(name, class string) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}},
	}
}

func (h *harness) secret(namespace, name string, finalizers ...string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: finalizers}}
}

// finalizers waits until an object has exactly these finalizers.
func (h *harness) finalizers(object client.Object, want ...string) {
	h.Helper()
	gomega.NewWithT(h.T).Eventually(func(g gomega.Gomega) {
		g.Expect(h.Client.Get(h.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
		g.Expect(object.GetFinalizers()).To(gomega.ConsistOf(want))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed(), object.GetName())
}

func (h *harness) gone(object client.Object) {
	h.Helper()
	gomega.NewWithT(h.T).Eventually(func() bool {
		err := h.Client.Get(h.Context(), client.ObjectKeyFromObject(object), object)
		return err != nil && client.IgnoreNotFound(err) == nil
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue(), object.GetName()+" stays")
}

// TestMachineClass_FinalizerWhileInUse checks the finalizer from the first Machine to the last.
func TestMachineClass_FinalizerWhileInUse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	class, unused := h.class("used", ""), h.class("unused", "")
	foreign := h.machine("foreign", "unused")
	foreign.Spec.Class.Kind = "AWSMachineClass"
	h.create(class, unused, foreign, h.machine("a", "used"))
	h.finalizers(class, v1alpha1.FinalizerMCM)
	h.finalizers(unused)

	h.create(h.machine("b", "used"))
	h.delete(h.machine("a", "used"))
	h.gone(h.machine("a", "used"))
	h.delete(class)
	// When a class that was created later has the finalizer, the first class has been reconciled.
	h.create(h.class("witness", ""), h.machine("w", "witness"))
	h.finalizers(h.class("witness", ""), v1alpha1.FinalizerMCM)
	h.finalizers(class, v1alpha1.FinalizerMCM)
	if class.DeletionTimestamp.IsZero() {
		t.Fatal("the class is not being deleted")
	}
	h.delete(h.machine("b", "used"))
	h.gone(class)
}

// TestMachineClass_FollowsReference checks that a Machine may change its class, as in an in-place update.
func TestMachineClass_FollowsReference(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	first, second := h.class("first", ""), h.class("second", "")
	machine := h.machine("a", "first")
	h.create(first, second, machine)
	h.finalizers(first, v1alpha1.FinalizerMCM)
	machine.Spec.Class.Name = "second"
	if err := h.Client.Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	h.finalizers(second, v1alpha1.FinalizerMCM)
	h.finalizers(first)
}

// TestMachineClass_CreatedAfterMachine checks that a Machine may exist before its class.
func TestMachineClass_CreatedAfterMachine(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.create(h.machine("a", "late"))
	class := h.class("late", "")
	h.create(class)
	h.finalizers(class, v1alpha1.FinalizerMCM)
}

// TestSecret_FinalizerWhileInUse checks both references, which are effective only in the class's namespace,
// and that other finalizers remain.
func TestSecret_FinalizerWhileInUse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const foreign = "example.com/backup"
	userData, credentials := h.secret(h.Namespace, "userdata", foreign), h.secret(h.Namespace, "credentials")
	stale, unused := h.secret(h.Namespace, "stale", v1alpha1.FinalizerSecret), h.secret(h.Namespace, "unused")
	class := h.class("c", "userdata")
	class.CredentialsSecretRef = &corev1.SecretReference{Name: "credentials"}
	second := h.class("second", "userdata")
	h.create(userData, credentials, stale, unused, class, second)

	h.finalizers(userData, foreign, v1alpha1.FinalizerSecret)
	h.finalizers(credentials, v1alpha1.FinalizerSecret)
	h.finalizers(stale)
	h.finalizers(unused)

	h.delete(class)
	h.finalizers(credentials)
	h.finalizers(userData, foreign, v1alpha1.FinalizerSecret) // the second class refers to it
	h.delete(userData)
	h.delete(second)
	h.finalizers(userData, foreign)
}

// TestSecret_FollowsReference checks that the first Secret is released if a class refers to another one.
func TestSecret_FollowsReference(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	first, second, class := h.secret(h.Namespace, "first"), h.secret(h.Namespace, "second"), h.class("c", "first")
	h.create(first, second, class)
	h.finalizers(first, v1alpha1.FinalizerSecret)
	class.SecretRef.Name = "second"
	if err := h.Client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	h.finalizers(second, v1alpha1.FinalizerSecret)
	h.finalizers(first)
}

// TestSecret_FinalizerIsRestored checks that a removed finalizer is restored while the Secret is in use.
func TestSecret_FinalizerIsRestored(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	secret := h.secret(h.Namespace, "s")
	h.create(secret, h.class("c", "s"))
	h.finalizers(secret, v1alpha1.FinalizerSecret)
	secret.Finalizers = nil
	if err := h.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	h.finalizers(secret, v1alpha1.FinalizerSecret)
}

// TestSecret_ReplacedFinalizerIsCorrected checks that the finalizer is restored even if another one is added in the
// same write, and that it is removed from an unused Secret even if it replaced another one.
func TestSecret_ReplacedFinalizerIsCorrected(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const foreign = "example.com/backup"
	used, unused := h.secret(h.Namespace, "used"), h.secret(h.Namespace, "unused", foreign)
	h.create(used, unused, h.class("c", "used"))
	h.finalizers(used, v1alpha1.FinalizerSecret)
	used.Finalizers, unused.Finalizers = []string{foreign}, []string{v1alpha1.FinalizerSecret}
	for _, secret := range []*corev1.Secret{used, unused} {
		if err := h.Client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	h.finalizers(used, foreign, v1alpha1.FinalizerSecret)
	h.finalizers(unused)
}

// TestMachineClass_FinalizerIsRestored checks that a removed finalizer is restored while a Machine refers to the class.
func TestMachineClass_FinalizerIsRestored(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	class := h.class("c", "")
	h.create(class, h.machine("m", "c"))
	h.finalizers(class, v1alpha1.FinalizerMCM)
	class.Finalizers = nil
	if err := h.Client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	h.finalizers(class, v1alpha1.FinalizerMCM)
}

// TestSecret_OtherNamespaceIsIgnored checks that a reference to another namespace does not keep the Secret of that
// name in the class's namespace.
func TestSecret_OtherNamespaceIsIgnored(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	alike, here := h.secret(h.Namespace, "alike"), h.secret(h.Namespace, "here")
	class := h.class("c", "alike")
	class.SecretRef.Namespace = metav1.NamespaceDefault
	class.CredentialsSecretRef = &corev1.SecretReference{Name: "here"}
	h.create(alike, here, class)
	h.finalizers(here, v1alpha1.FinalizerSecret)
	h.finalizers(alike)
}

// TestFinalizers_WritesOnce checks that one patch adds the finalizer and one removes it.
func TestFinalizers_WritesOnce(t *testing.T) {
	h := newHarness(t)
	class, secret := h.class("c", "s"), h.secret(h.Namespace, "s")
	h.create(secret, class, h.machine("a", "c"))
	h.finalizers(class, v1alpha1.FinalizerMCM)
	h.finalizers(secret, v1alpha1.FinalizerSecret)
	before := []string{class.ResourceVersion, secret.ResourceVersion}
	for _, name := range []string{"b", "d", "e"} {
		h.create(h.machine(name, "c"))
	}
	h.create(h.class("witness", "s"), h.machine("w", "witness"))
	h.finalizers(h.class("witness", ""), v1alpha1.FinalizerMCM)
	h.finalizers(class, v1alpha1.FinalizerMCM)
	h.finalizers(secret, v1alpha1.FinalizerSecret)
	if after := []string{class.ResourceVersion, secret.ResourceVersion}; !slices.Equal(before, after) {
		t.Errorf("resource versions changed from %v to %v without a change", before, after)
	}
}

func (h *harness) deployment(name, class string) *v1alpha1.MachineDeployment {
	return &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name},
		Spec:       v1alpha1.MachineDeploymentSpec{Template: h.template(class)},
	}
}

func (h *harness) set(name, class string, replicas int32, owner *v1alpha1.MachineDeployment) *v1alpha1.MachineSet {
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name},
		Spec:       v1alpha1.MachineSetSpec{Replicas: replicas, Template: h.template(class)},
	}
	if owner != nil {
		set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
	}
	return set
}

func (h *harness) template(class string) v1alpha1.MachineTemplateSpec {
	return v1alpha1.MachineTemplateSpec{Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}}}
}

// TestMachineClass_FinalizerForEmptyPools checks that pools without replicas keep their class, and that old sets do not.
func TestMachineClass_FinalizerForEmptyPools(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ofDeployment, ofSet, former, shrinking := h.class("of-deployment", ""), h.class("of-set", ""), h.class("former", ""), h.class("shrinking", "")
	deployment, set := h.deployment("d", "of-deployment"), h.set("s", "of-set", 0, nil)
	h.create(ofDeployment, ofSet, former, shrinking, deployment, set)
	old, last := h.set("d-1", "former", 0, deployment), h.set("d-2", "shrinking", 1, deployment)
	h.create(old, last)
	h.finalizers(ofDeployment, v1alpha1.FinalizerMCM)
	h.finalizers(ofSet, v1alpha1.FinalizerMCM)
	h.finalizers(shrinking, v1alpha1.FinalizerMCM)
	h.finalizers(former)

	last.Spec.Replicas = 0
	if err := h.Client.Update(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	h.finalizers(shrinking)
	h.delete(set)
	h.finalizers(ofSet)
	deployment.Spec.Template.Spec.Class.Name = "former"
	if err := h.Client.Update(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	h.finalizers(ofDeployment)
	h.finalizers(former, v1alpha1.FinalizerMCM)
	h.delete(former)
	h.delete(deployment)
	h.gone(former)
}
