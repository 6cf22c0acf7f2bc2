package cluster

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/observe/follow"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
)

// demoWith returns a demo of a cluster with some objects, all of which are in the cache.
func demoWith(objects ...client.Object) *demo {
	c := fakeclient.NewBuilder(manager.Scheme()).WithObjects(objects...).WithStatusSubresource(&appsv1.Deployment{}).Build()
	d := &demo{client: c, follower: &follow.Follower{Reader: c}, stdout: &bytes.Buffer{}}
	d.display.out = d.stdout
	return d
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: localNamespace, Name: name}
}

func web() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: localNamespace, Name: "web", Generation: 2},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 2, AvailableReplicas: 3},
	}
}

func theService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: named("web"),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	}
}

// TestDemo_WaitsForReplicas checks that the demo waits until all replicas, at least one, run the latest specification.
func TestDemo_WaitsForReplicas(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"all":                    {func(*appsv1.Deployment) {}, true},
		"one is missing":         {func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 }, false},
		"of what was before":     {func(d *appsv1.Deployment) { d.Status.ObservedGeneration = 1 }, false},
		"one is desired, and is": {func(d *appsv1.Deployment) { d.Spec.Replicas, d.Status.AvailableReplicas = nil, 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := web()
			tc.change(deployment)
			if got, err := demoWith(deployment).servesAll(t.Context()); got != tc.want || err != nil {
				t.Errorf("%t, %v", got, err)
			}
		})
	}
	if got, err := demoWith().servesAll(t.Context()); got || err != nil {
		t.Errorf("without a Deployment: %t, %v", got, err)
	}
}

// TestDemo_NodePortOfService checks that requests use the node port of the Service, and that examples without a node
// port are an error.
func TestDemo_NodePortOfService(t *testing.T) {
	if port, err := demoWith(theService()).nodePort(t.Context()); port != 30080 || err != nil {
		t.Errorf("%d, %v", port, err)
	}
	inside := theService()
	inside.Spec.Ports[0].NodePort = 0
	if _, err := demoWith(inside).nodePort(t.Context()); !errors.Is(err, errNoService) {
		t.Errorf("got %v, want %v", err, errNoService)
	}
}

// TestDemo_IgnoresHosts checks that no requests are sent to hosts.
func TestDemo_IgnoresHosts(t *testing.T) {
	d := demoWith(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-1", Labels: map[string]string{vmv1alpha1.HostKey: "true"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pool-1"}},
	)
	nodes, err := d.nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Name != "pool-1" {
		t.Errorf("%v, %v", nodes, err)
	}
}

// TestDemo_OrphanedPods checks that a pending system Pod is not reported as orphaned.
func TestDemo_OrphanedPods(t *testing.T) {
	pod := func(namespace, name, node string) client.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	}
	d := demoWith(pod(metav1.NamespaceSystem, "waits", ""), pod(metav1.NamespaceSystem, "ran", "pool-1"), pod(localNamespace, "web", ""))
	left, err := d.leftObjects(t.Context())
	if want := []string{"Pod web", "Pod ran"}; err != nil || !cmp.Equal(want, left) {
		t.Errorf("left: %q, %v, want %q", left, err, want)
	}
}

// TestDemo_NextClass checks that the next class is a copy of the current one with another name.
func TestDemo_NextClass(t *testing.T) {
	class := &v1alpha1.MachineClass{
		ObjectMeta: named("pool-v1"), Provider: "vm", ProviderSpec: runtime.RawExtension{Raw: []byte(`{"vmPool":"default"}`)},
		SecretRef: &corev1.SecretReference{Namespace: localNamespace, Name: "pool"},
	}
	class.Finalizers = []string{"example.org/kept"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: named("pool")}
	deployment.Spec.Template.Spec.Class.Name = "pool-v1"
	d := demoWith(class)
	name, err := d.copyClass(t.Context(), deployment)
	if err != nil {
		t.Fatal(err)
	}
	next := &v1alpha1.MachineClass{}
	if err := d.client.Get(t.Context(), client.ObjectKey{Namespace: localNamespace, Name: name}, next); err != nil {
		t.Fatal(err)
	}
	if name == "pool-v1" || len(next.Finalizers) > 0 {
		t.Errorf("it is %s, with finalizers %v", name, next.Finalizers)
	}
	next.ObjectMeta, class.ObjectMeta = metav1.ObjectMeta{}, metav1.ObjectMeta{}
	if diff := cmp.Diff(class, next); diff != "" {
		t.Errorf("it is another one (-want +got)\n%s", diff)
	}
}

// TestDemo_DeletesPodsFirst checks that Pods are deleted with their controllers and Services, except the cluster's
// own Service.
func TestDemo_DeletesPodsFirst(t *testing.T) {
	d := demoWith(web(), theService(), &corev1.Service{ObjectMeta: named("kubernetes")}, &policyv1.PodDisruptionBudget{ObjectMeta: named("web")})
	if err := d.deletePods(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct {
		list client.ObjectList
		want int
	}{{&appsv1.DeploymentList{}, 0}, {&policyv1.PodDisruptionBudgetList{}, 0}, {&corev1.ServiceList{}, 1}} {
		if err := d.client.List(t.Context(), kind.list); err != nil {
			t.Fatal(err)
		}
		if got := meta.LenList(kind.list); got != kind.want {
			t.Errorf("%d of %T are left, want %d", got, kind.list, kind.want)
		}
	}
}
