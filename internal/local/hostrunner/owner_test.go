package hostrunner

import (
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// wantRefused waits until the host has rejected the Pod, and checks that it never ran.
func (b *testHost) wantRefused(pod *corev1.Pod) {
	b.t.Helper()
	refused := b.await(pod.Name, corev1.PodFailed)
	if refused.Status.Reason != ReasonUnsupported || len(refused.Status.ContainerStatuses) != 0 {
		b.t.Errorf("the Pod is %s: %s; containers %+v", refused.Status.Reason, refused.Status.Message, refused.Status.ContainerStatuses)
	}
}

// TestPod_WithoutVirtualMachineIsNotRun checks that a Pod runs only if an existing VirtualMachine controls it. Mirror Pods
// are rejected as well, even those of the host itself, which API servers accept from nodes.
func TestPod_WithoutVirtualMachineIsNotRun(t *testing.T) {
	b := newTestHost(t)
	b.start()
	vm := b.vm("real")
	gone := vm.DeepCopy()
	gone.UID = "another"
	elsewhere := vm.DeepCopy()
	elsewhere.Name = "nowhere"
	for name, owner := range map[string]func(*corev1.Pod){
		"none":        func(*corev1.Pod) {},
		"another-uid": ownedBy(gone),
		"missing":     ownedBy(elsewhere),
		"another-kind": func(pod *corev1.Pod) {
			ownedBy(vm)(pod)
			pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind = "apps/v1", "ReplicaSet"
		},
		"another-group": func(pod *corev1.Pod) {
			ownedBy(vm)(pod)
			pod.OwnerReferences[0].APIVersion = "example.com/v1"
		},
		"not-controlled": func(pod *corev1.Pod) {
			ownedBy(vm)(pod)
			pod.OwnerReferences[0].Controller = nil
		},
		"mirror": func(pod *corev1.Pod) {
			ownedBy(vm)(pod)
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.t = t
			b.wantRefused(b.handmade(b.client, name, "run", owner))
		})
	}

	host, err := kubernetes.NewForConfig(b.config.REST)
	if err != nil {
		t.Fatal(err)
	}
	b.eventually("the host", b.nodeReady)
	node, err := b.client.CoreV1().Nodes().Get(t.Context(), b.config.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own := metav1.NewControllerRef(node, corev1.SchemeGroupVersion.WithKind("Node"))
	own.BlockOwnerDeletion = nil
	b.wantRefused(b.handmade(host, "own-mirror", "run", func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*own}
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	}))
	b.pod("right", "run")
	b.awaitReady("right")
}

// author returns a user with all permissions on Pods in the namespace.
func (b *testHost) author() kubernetes.Interface {
	b.t.Helper()
	access, err := b.ControlPlane.UserConfig("author-of-" + b.Namespace)
	if err != nil {
		b.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		b.t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "author", Namespace: b.Namespace}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{vmv1alpha1.GroupName}, Resources: []string{"virtualmachines"}, Verbs: []string{"*"}},
	}}
	binding := &rbacv1.RoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "author"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "author-of-" + b.Namespace}},
	}
	if _, err := b.client.RbacV1().Roles(b.Namespace).Create(b.t.Context(), role, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client.RbacV1().RoleBindings(b.Namespace).Create(b.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	gomega.NewWithT(b.t).Eventually(func() error {
		_, err := client.CoreV1().Pods(b.Namespace).List(b.t.Context(), metav1.ListOptions{})
		return err
	}).WithTimeout(timeout).Should(gomega.Succeed())
	return client
}

// TestPod_OwnerCannotBeForged checks that a user who can create, bind and change Pods cannot make a Pod belong to a
// VirtualMachine, neither at creation nor later.
func TestPod_OwnerCannotBeForged(t *testing.T) {
	b := newTestHost(t)
	b.start()
	vm, author := b.vm("real"), b.author()
	pods := author.CoreV1().Pods(b.Namespace)
	forged := b.describe("forged", "run", ownedBy(vm))
	gomega.NewWithT(t).Eventually(func() bool { // until the API server has observed the new policy
		_, err := pods.Create(t.Context(), forged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	}).WithTimeout(timeout).Should(gomega.BeTrue())
	if _, err := pods.Create(t.Context(), forged, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("creating a Pod of a VM gives %v", err)
	}
	unbound := b.describe("later", "run")
	unbound.Spec.NodeName = ""
	later, err := pods.Create(t.Context(), unbound, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"vm.metropolis.monogon.dev/v1","kind":"VirtualMachine","name":"real","uid":"` + string(vm.UID) + `","controller":true}]}}`)
	for _, subresources := range [][]string{nil, {"status"}, {"ephemeralcontainers"}, {"resize"}} {
		_, _ = pods.Patch(t.Context(), later.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...) // only the result matters
		if later, err = pods.Get(t.Context(), later.Name, metav1.GetOptions{}); err != nil || len(later.OwnerReferences) > 0 {
			t.Fatalf("after patching %v: %v, %v", subresources, later.OwnerReferences, err)
		}
	}
	target := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: later.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: b.config.Name}}
	if err := pods.Bind(t.Context(), target, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.wantRefused(later)

	// A Pod that already belongs to a VM can still be changed, except for what states to which VM controller it belongs.
	real := b.pod("vm", "run")
	for _, annotations := range []string{`{"vm.metropolis.monogon.dev/controller":"nobody"}`, `{"vm.metropolis.monogon.dev/new":""}`} {
		patch := []byte(`{"metadata":{"annotations":` + annotations + `}}`)
		if _, err := pods.Patch(t.Context(), real.Name, types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("setting the annotations %s gives %v", annotations, err)
		}
	}
	if _, err := pods.Patch(t.Context(), real.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := pods.Patch(t.Context(), real.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

// TestNode_CannotBecomeHost checks that a node, which every guest is, cannot get the label that attracts
// hypervisors.
func TestNode_CannotBecomeHost(t *testing.T) {
	b := newTestHost(t)
	name := "guest-of-" + b.Namespace
	access, err := b.ControlPlane.UserConfig("system:node:"+name, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	guest, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	nodes := guest.CoreV1().Nodes()
	host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{vmv1alpha1.HostKey: ""}}}
	gomega.NewWithT(t).Eventually(func() bool { // until the API server has observed the new policy
		_, err := nodes.Create(t.Context(), host, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	}).WithTimeout(timeout).Should(gomega.BeTrue())
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"labels":{"vm.metropolis.monogon.dev/host":""}}}`)
	for _, subresources := range [][]string{nil, {"status"}} {
		if _, err := nodes.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...); !apierrors.IsForbidden(err) {
			t.Errorf("patching %v gives %v", subresources, err)
		}
	}
	b.start()
	b.eventually("the host, which may", b.nodeReady)
}

// TestHost_CannotRenewCertificates checks that a host cannot renew its certificate. Kubernetes renews those of any
// node, so a compromised host would otherwise stay in the cluster indefinitely.
func TestHost_CannotRenewCertificates(t *testing.T) {
	b := newTestHost(t)
	name := "host-of-" + b.Namespace
	request := func(groups ...string) error {
		access, err := b.ControlPlane.UserConfig("system:node:"+name, groups...)
		if err != nil {
			t.Fatal(err)
		}
		clients, err := kubernetes.NewForConfig(access)
		if err != nil {
			t.Fatal(err)
		}
		_, err = clients.CertificatesV1().CertificateSigningRequests().Create(t.Context(), fixture.NodeRequest(t, name), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	gomega.NewWithT(t).Eventually(func() bool { // until the API server has observed the new policy
		return apierrors.IsForbidden(request("system:nodes", Group))
	}).WithTimeout(timeout).Should(gomega.BeTrue())
	if err := request("system:nodes"); err != nil {
		t.Errorf("another node gets the error %v", err)
	}
}
