package machineclass_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineclass"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// world is a namespace in which both controllers work.
type world struct {
	*env.Env
	*testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Env: env.New(t), T: t}
	w.RunControllers(t, func(mgr ctrl.Manager, _ record.EventRecorder) error {
		return errors.Join(machineclass.New(mgr.GetClient()).SetupWithManager(mgr), machineclass.NewForSecrets(mgr.GetClient()).SetupWithManager(mgr))
	})
	return w
}

func (w *world) create(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		if err := w.Client.Create(w.Context(), object); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) delete(object client.Object) {
	w.Helper()
	if err := w.Client.Delete(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

func (w *world) class(name, secret string) *v1alpha1.MachineClass {
	class := &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		ProviderSpec: runtime.RawExtension{Raw: []byte("{}")},
	}
	if secret != "" {
		class.SecretRef = &corev1.SecretReference{Namespace: w.Namespace, Name: secret}
	}
	return class
}

func (w *world) machine(name, class string) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}},
	}
}

func (w *world) secret(namespace, name string, finalizers ...string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: finalizers}}
}

// finalizers waits until an object has exactly these.
func (w *world) finalizers(object client.Object, want ...string) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func(g gomega.Gomega) {
		g.Expect(w.Client.Get(w.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
		g.Expect(object.GetFinalizers()).To(gomega.ConsistOf(want))
	}).WithTimeout(10*time.Second).WithPolling(20*time.Millisecond).Should(gomega.Succeed(), object.GetName())
}

func (w *world) gone(object client.Object) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func() bool {
		err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(object), object)
		return err != nil && client.IgnoreNotFound(err) == nil
	}).WithTimeout(10*time.Second).WithPolling(20*time.Millisecond).Should(gomega.BeTrue(), object.GetName()+" stays")
}

// TestClassIsHeldWhileMachinesReferToIt: from the first Machine to the last.
func TestClassIsHeldWhileMachinesReferToIt(t *testing.T) {
	w := newWorld(t)
	class, unused := w.class("used", ""), w.class("unused", "")
	foreign := w.machine("foreign", "unused")
	foreign.Spec.Class.Kind = "AWSMachineClass"
	w.create(class, unused, foreign, w.machine("a", "used"))
	w.finalizers(class, v1alpha1.FinalizerMCM)
	w.finalizers(unused)

	w.create(w.machine("b", "used"))
	w.delete(w.machine("a", "used"))
	w.gone(w.machine("a", "used"))
	w.delete(class)
	// Once a class that came later is held, the first one has had its turn.
	w.create(w.class("witness", ""), w.machine("w", "witness"))
	w.finalizers(w.class("witness", ""), v1alpha1.FinalizerMCM)
	w.finalizers(class, v1alpha1.FinalizerMCM)
	if class.DeletionTimestamp.IsZero() {
		t.Fatal("the class is not being deleted")
	}
	w.delete(w.machine("b", "used"))
	w.gone(class)
}

// TestClassFollowsTheReference: a Machine may be pointed to another class, as in-place
// updates do.
func TestClassFollowsTheReference(t *testing.T) {
	w := newWorld(t)
	first, second := w.class("first", ""), w.class("second", "")
	machine := w.machine("a", "first")
	w.create(first, second, machine)
	w.finalizers(first, v1alpha1.FinalizerMCM)
	machine.Spec.Class.Name = "second"
	if err := w.Client.Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	w.finalizers(second, v1alpha1.FinalizerMCM)
	w.finalizers(first)
}

// TestClassThatComesLater: the Machine may be there before.
func TestClassThatComesLater(t *testing.T) {
	w := newWorld(t)
	w.create(w.machine("a", "late"))
	class := w.class("late", "")
	w.create(class)
	w.finalizers(class, v1alpha1.FinalizerMCM)
}

// TestSecretIsHeldWhileClassesReferToIt: by either reference, in the class's namespace
// only, and what others put on it stays.
func TestSecretIsHeldWhileClassesReferToIt(t *testing.T) {
	w := newWorld(t)
	const foreign = "example.com/backup"
	userData, credentials := w.secret(w.Namespace, "userdata", foreign), w.secret(w.Namespace, "credentials")
	stale, unused := w.secret(w.Namespace, "stale", v1alpha1.FinalizerSecret), w.secret(w.Namespace, "unused")
	class := w.class("c", "userdata")
	class.CredentialsSecretRef = &corev1.SecretReference{Name: "credentials"}
	second := w.class("second", "userdata")
	w.create(userData, credentials, stale, unused, class, second)

	w.finalizers(userData, foreign, v1alpha1.FinalizerSecret)
	w.finalizers(credentials, v1alpha1.FinalizerSecret)
	w.finalizers(stale)
	w.finalizers(unused)

	w.delete(class)
	w.finalizers(credentials)
	w.finalizers(userData, foreign, v1alpha1.FinalizerSecret) // the second class has it
	w.delete(userData)
	w.delete(second)
	w.finalizers(userData, foreign)
}

// TestSecretFollowsTheReference: a class that is pointed to another Secret lets the first
// one go.
func TestSecretFollowsTheReference(t *testing.T) {
	w := newWorld(t)
	first, second, class := w.secret(w.Namespace, "first"), w.secret(w.Namespace, "second"), w.class("c", "first")
	w.create(first, second, class)
	w.finalizers(first, v1alpha1.FinalizerSecret)
	class.SecretRef.Name = "second"
	if err := w.Client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.finalizers(second, v1alpha1.FinalizerSecret)
	w.finalizers(first)
}

// TestSecretFinalizerIsPutBack: who takes it off while the Secret is needed, gets it back.
func TestSecretFinalizerIsPutBack(t *testing.T) {
	w := newWorld(t)
	secret := w.secret(w.Namespace, "s")
	w.create(secret, w.class("c", "s"))
	w.finalizers(secret, v1alpha1.FinalizerSecret)
	secret.Finalizers = nil
	if err := w.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.finalizers(secret, v1alpha1.FinalizerSecret)
}

// TestNamespaceOfTheSecretCounts: a reference to another namespace holds nothing in the
// class's, and troubles nobody.
func TestNamespaceOfTheSecretCounts(t *testing.T) {
	w := newWorld(t)
	alike, here := w.secret(w.Namespace, "alike"), w.secret(w.Namespace, "here")
	class := w.class("c", "alike")
	class.SecretRef.Namespace = metav1.NamespaceDefault
	class.CredentialsSecretRef = &corev1.SecretReference{Name: "here"}
	w.create(alike, here, class)
	w.finalizers(here, v1alpha1.FinalizerSecret)
	w.finalizers(alike)
}

// TestNoMoreWritesThanNeeded: one patch puts a finalizer on and one takes it off.
func TestNoMoreWritesThanNeeded(t *testing.T) {
	w := newWorld(t)
	class, secret := w.class("c", "s"), w.secret(w.Namespace, "s")
	w.create(secret, class, w.machine("a", "c"))
	w.finalizers(class, v1alpha1.FinalizerMCM)
	w.finalizers(secret, v1alpha1.FinalizerSecret)
	before := []string{class.ResourceVersion, secret.ResourceVersion}
	for _, name := range []string{"b", "d", "e"} {
		w.create(w.machine(name, "c"))
	}
	w.create(w.class("witness", "s"), w.machine("w", "witness"))
	w.finalizers(w.class("witness", ""), v1alpha1.FinalizerMCM)
	w.finalizers(class, v1alpha1.FinalizerMCM)
	w.finalizers(secret, v1alpha1.FinalizerSecret)
	if after := []string{class.ResourceVersion, secret.ResourceVersion}; !slices.Equal(before, after) {
		t.Errorf("resource versions were %v and are %v although nothing changed", before, after)
	}
}

func (w *world) deployment(name, class string) *v1alpha1.MachineDeployment {
	return &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec:       v1alpha1.MachineDeploymentSpec{Template: w.template(class)},
	}
}

func (w *world) set(name, class string, replicas int32, owner *v1alpha1.MachineDeployment) *v1alpha1.MachineSet {
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec:       v1alpha1.MachineSetSpec{Replicas: replicas, Template: w.template(class)},
	}
	if owner != nil {
		set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
	}
	return set
}

func (w *world) template(class string) v1alpha1.MachineTemplateSpec {
	return v1alpha1.MachineTemplateSpec{Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}}}
}

// TestClassIsHeldForMachinesToCome: a pool of size 0 needs its class as soon as it grows.
// The classes that rollouts left behind go.
func TestClassIsHeldForMachinesToCome(t *testing.T) {
	w := newWorld(t)
	ofDeployment, ofSet, former, shrinking := w.class("of-deployment", ""), w.class("of-set", ""), w.class("former", ""), w.class("shrinking", "")
	deployment, set := w.deployment("d", "of-deployment"), w.set("s", "of-set", 0, nil)
	w.create(ofDeployment, ofSet, former, shrinking, deployment, set)
	old, last := w.set("d-1", "former", 0, deployment), w.set("d-2", "shrinking", 1, deployment)
	w.create(old, last)
	w.finalizers(ofDeployment, v1alpha1.FinalizerMCM)
	w.finalizers(ofSet, v1alpha1.FinalizerMCM)
	w.finalizers(shrinking, v1alpha1.FinalizerMCM)
	w.finalizers(former)

	last.Spec.Replicas = 0
	if err := w.Client.Update(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	w.finalizers(shrinking)
	w.delete(set)
	w.finalizers(ofSet)
	deployment.Spec.Template.Spec.Class.Name = "former"
	if err := w.Client.Update(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	w.finalizers(ofDeployment)
	w.finalizers(former, v1alpha1.FinalizerMCM)
	w.delete(former)
	w.delete(deployment)
	w.gone(former)
}
