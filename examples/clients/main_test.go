package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	applyinfra "github.com/millwright-dev/millwright/client/applyconfiguration/infrastructure/v1alpha1"
	apply "github.com/millwright-dev/millwright/client/applyconfiguration/machine/v1alpha1"
	applyvm "github.com/millwright-dev/millwright/client/applyconfiguration/vm/v1alpha1"
	"github.com/millwright-dev/millwright/client/clientset/versioned"
	"github.com/millwright-dev/millwright/client/clientset/versioned/fake"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
)

func TestMain(m *testing.M) { env.Main(m) }

// owned makes an apply fail if another manager owns one of its fields.
var owned = metav1.ApplyOptions{FieldManager: "test"}

// TestOldestFirst_WithAPIServer runs the example against an API server, with objects that were applied.
func TestOldestFirst_WithAPIServer(t *testing.T) {
	tier.All(t)
	e := env.New(t)
	clients, err := versioned.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	group, ctx := clients.MachineV1alpha1(), t.Context()
	applyPool(t, clients, e.Namespace)
	for _, name := range []string{"pool-a", "pool-b"} {
		machine := apply.Machine(name, e.Namespace).WithLabels(map[string]string{"name": "pool"}).WithSpec(machineSpec())
		if _, err := group.Machines(e.Namespace).Apply(ctx, machine, owned); err != nil {
			t.Fatal(err)
		}
	}

	var out bytes.Buffer
	if err := oldestFirst(ctx, clients, e.Namespace, "pool", &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("pool-a\t\npool-b\t\npool-a will be deleted first\n", out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{"pool-a": "1", "pool-b": ""} {
		machine, err := group.Machines(e.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]; got != want || machine.Spec.Class.Name != "small" {
			t.Errorf("%s has priority %q and class %q, want %q and small", name, got, machine.Spec.Class.Name, want)
		}
	}
}

// applyPool applies a class and a deployment, and scales the deployment.
func applyPool(t *testing.T, clients versioned.Interface, namespace string) {
	t.Helper()
	group, ctx := clients.MachineV1alpha1(), t.Context()
	class := apply.MachineClass("small", namespace).WithProvider("sim").
		WithProviderSpec(runtime.RawExtension{Raw: []byte(`{"joinDelay":"1s"}`)})
	if _, err := group.MachineClasses(namespace).Apply(ctx, class, owned); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"name": "pool"}
	pool := apply.MachineDeployment("pool", namespace).WithSpec(apply.MachineDeploymentSpec().
		WithReplicas(1).WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(apply.MachineTemplateSpec().WithLabels(labels).WithSpec(machineSpec())))
	if _, err := group.MachineDeployments(namespace).Apply(ctx, pool, owned); err != nil {
		t.Fatal(err)
	}
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: 2}}
	if _, err := group.MachineDeployments(namespace).UpdateScale(ctx, "pool", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scaled, err := group.MachineDeployments(namespace).Get(ctx, "pool", metav1.GetOptions{})
	if err != nil || scaled.Spec.Replicas != 2 {
		t.Fatalf("got %d replicas, error %v", scaled.Spec.Replicas, err)
	}
}

func machineSpec() *apply.MachineSpecApplyConfiguration {
	return apply.MachineSpec().WithClass(apply.ClassSpec().WithKind(v1alpha1.MachineClassKind).WithName("small"))
}

// TestClients_OfOtherAPIGroups: the clients of the other two groups also work with an API server.
func TestClients_OfOtherAPIGroups(t *testing.T) {
	tier.All(t)
	e := env.New(t)
	clients, err := versioned.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	ctx, infrastructure, vms := t.Context(), clients.InfrastructureV1alpha1(), clients.VMV1alpha1()
	machine := applyinfra.MillwrightMachine("m", e.Namespace).WithSpec(applyinfra.MillwrightMachineSpec().WithDriver("sim").
		WithProviderSpec(runtime.RawExtension{Raw: []byte(`{"joinDelay":"1s"}`)}))
	if _, err := infrastructure.MillwrightMachines(e.Namespace).Apply(ctx, machine, owned); err != nil {
		t.Error(err)
	}
	cluster := &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	if _, err := infrastructure.MillwrightClusters(e.Namespace).Create(ctx, cluster, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := vms.VirtualMachines(e.Namespace).Create(ctx, fixture.In(e.Namespace, fixture.VirtualMachine()), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if list, err := vms.VirtualMachines(e.Namespace).List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("got %d virtual machines, error %v", len(list.Items), err)
	}
	labelled := applyvm.VirtualMachine(fixture.VirtualMachine().Name, e.Namespace).WithLabels(map[string]string{"a": "b"})
	if vm, err := vms.VirtualMachines(e.Namespace).Apply(ctx, labelled, owned); err != nil || vm.Labels["a"] != "b" {
		t.Errorf("got labels %v, error %v", vm.GetLabels(), err)
	}
}

// TestClients_Fake shows the use of the fake clients.
func TestClients_Fake(t *testing.T) {
	deployment := fixture.MachineDeployment()
	at := func(name string, age time.Duration, changes ...func(*v1alpha1.Machine)) runtime.Object {
		return fixture.Machine(append(changes, func(m *v1alpha1.Machine) {
			m.Name, m.Namespace, m.Labels = name, deployment.Namespace, deployment.Spec.Selector.MatchLabels
			m.CreationTimestamp = metav1.NewTime(fixture.Noon.Add(-age))
		})...)
	}
	leaving := func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }
	other := at("other", 4*time.Hour)
	other.(*v1alpha1.Machine).Labels = map[string]string{"name": "other"}

	for name, tc := range map[string]struct {
		machines []runtime.Object
		first    string
		err      error
	}{
		"oldest machine, regardless of its name":  {[]runtime.Object{at("a", time.Hour), at("b", 2*time.Hour)}, "b", nil},
		"machines being deleted are ignored":      {[]runtime.Object{at("a", time.Hour), at("b", 2*time.Hour, leaving)}, "a", nil},
		"other deployments' machines are ignored": {[]runtime.Object{at("a", time.Hour), other}, "a", nil},
		"no machines": {nil, "", errNoMachines},
	} {
		t.Run(name, func(t *testing.T) {
			clients := fake.NewClientset(append(tc.machines, deployment)...)
			if err := oldestFirst(t.Context(), clients, deployment.Namespace, deployment.Name, &bytes.Buffer{}); !errors.Is(err, tc.err) {
				t.Fatalf("got %v, want %v", err, tc.err)
			}
			if first := marked(t.Context(), t, clients, deployment.Namespace); first != tc.first {
				t.Errorf("got %q, want %q", first, tc.first)
			}
		})
	}
}

// marked returns the name of the Machine that has a priority.
func marked(ctx context.Context, t *testing.T, clients versioned.Interface, namespace string) string {
	t.Helper()
	list, err := clients.MachineV1alpha1().Machines(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, machine := range list.Items {
		if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == "1" {
			return machine.Name
		}
	}
	return ""
}
