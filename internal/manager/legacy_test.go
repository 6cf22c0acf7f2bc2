package manager

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

// legacyPool is a deployment of two machines of an AWSMachineClass.
func legacyPool(namespace string) (class *unstructured.Unstructured, pool []client.Object) {
	objects := onePool(namespace)
	deployment := objects[3].(*v1alpha1.MachineDeployment)
	deployment.Spec.Template.Spec.Class.Kind = legacy.AWS
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{Type: v1alpha1.RecreateMachineDeploymentStrategyType}
	class = &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": namespace, "name": "one", "finalizers": []any{v1alpha1.FinalizerMCM, v1alpha1.FinalizerLegacy}},
		"spec": map[string]any{
			"ami": "ami-1", "machineType": "m5.large", "tags": map[string]any{"kubernetes.io/cluster/c": "1"},
			"secretRef": map[string]any{"name": "one", "namespace": namespace},
		},
	}}
	class.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(legacy.AWS))
	return class, []client.Object{objects[0], deployment}
}

// TestLegacyClass_ForbiddenKindsAreAskedTogether checks that a manager that may read only some legacy kinds waits for roles once,
// instead of for each forbidden kind, and migrates the kinds that it may read.
func TestLegacyClass_ForbiddenKindsAreAskedTogether(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/"+legacy.SchemeGroupVersion.String() {
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: legacy.SchemeGroupVersion.String()}
			for _, kind := range legacy.Kinds() {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: legacy.Resource(kind)})
			}
			_ = json.NewEncoder(w).Encode(list) // the client sees the failure
			return
		}
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, path.Base(r.URL.Path))
		if path.Base(r.URL.Path) != legacy.Resource(legacy.GCP) {
			reply{status: http.StatusForbidden}.write(w)
			return
		}
		_ = json.NewEncoder(w).Encode(metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}})
	}))
	defer server.Close()
	found, err := servedKinds(t.Context(), Config{Control: &rest.Config{Host: server.URL}, Log: testr.New(t), Settings: Settings{Namespace: "default"}})
	if err != nil || !slices.Equal(found, []string{legacy.GCP}) {
		t.Errorf("found %v, %v", found, err)
	}
	if first := asked[:min(len(asked), len(legacy.Kinds()))]; len(slices.Compact(slices.Sorted(slices.Values(first)))) != len(legacy.Kinds()) {
		t.Errorf("the first requests are for %v", first)
	}
}

// TestLegacyClass_MachinesGetVMsAfterMigration checks that the machines of a class of a legacy kind get their VMs once the class is
// migrated, that no machine is replaced, and that later references to the old kind are converted too.
func TestLegacyClass_MachinesGetVMsAfterMigration(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	e.InstallCRDs(t, "config/crd/legacy")
	class, pool := legacyPool(e.Namespace)
	for _, object := range append(pool, class) {
		g.Expect(e.Client.Create(t.Context(), object)).To(gomega.Succeed())
	}
	var forbidden refusals
	cfg := Config{
		Control: forbidden.on(e.UserWith(t, "config/rbac/control-role.yaml")),
		Drivers: registry.Only("sim", sim.New(sim.Config{})),
		Log:     testr.New(t),
		Settings: Settings{
			Namespace:       e.Namespace,
			ConcurrentSyncs: 5,
			MachineSettings: MachineSettings{CreationTimeout: time.Minute},
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager returned %v", err)
		}
	})
	available := func(replicas int) (names []string) {
		t.Helper()
		g.Eventually(func(g gomega.Gomega) {
			names = nil
			machines := &v1alpha1.MachineList{}
			g.Expect(e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace))).To(gomega.Succeed())
			g.Expect(machines.Items).To(gomega.HaveLen(replicas))
			for _, machine := range machines.Items {
				g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineAvailable), machine.Status.LastOperation.Description)
				g.Expect(machine.Spec.Class.Kind).To(gomega.Equal(v1alpha1.MachineClassKind))
				names = append(names, machine.Name)
			}
		}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
		return names
	}
	first := available(2)
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(class), class)).To(gomega.Succeed())
		g.Expect(class.GetAnnotations()).To(gomega.HaveKey(legacy.AnnotationMigrated))
		g.Expect(class.GetFinalizers()).To(gomega.BeEmpty())
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())

	deployment := pool[1].(*v1alpha1.MachineDeployment)
	old := `{"spec":{"replicas":3,"template":{"spec":{"class":{"kind":"AWSMachineClass"}}}}}` // as if an old manifest were applied again
	g.Expect(e.Client.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json", []byte(old)))).To(gomega.Succeed())
	second := available(3)
	for _, name := range first {
		if !slices.Contains(second, name) {
			t.Errorf("%s was replaced: %v, then %v", name, first, second)
		}
	}
	sets := &v1alpha1.MachineSetList{}
	g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
	g.Expect(sets.Items).To(gomega.HaveLen(1))
	inTheWay(t, e, class)
	forbidden.want(t)
}

// inTheWay checks that a class is migrated once a conflicting MachineClass with its name was corrected.
func inTheWay(t *testing.T, e *env.Env, migrated *unstructured.Unstructured) {
	t.Helper()
	g, ctx := gomega.NewWithT(t), t.Context()
	made := &v1alpha1.MachineClass{}
	g.Expect(e.Client.Get(ctx, client.ObjectKeyFromObject(migrated), made)).To(gomega.Succeed())
	class := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": e.Namespace, "name": "two"}, "spec": migrated.Object["spec"],
	}}
	class.SetGroupVersionKind(migrated.GroupVersionKind())
	taken := &v1alpha1.MachineClass{Provider: made.Provider, SecretRef: made.SecretRef}
	taken.Namespace, taken.Name, taken.ProviderSpec.Raw = e.Namespace, "two", []byte(`{}`)
	machine := &v1alpha1.Machine{}
	machine.Namespace, machine.Name, machine.Spec.Class = e.Namespace, "two", v1alpha1.ClassSpec{Kind: legacy.AWS, Name: "two"}
	for _, object := range []client.Object{taken, class, machine} {
		g.Expect(e.Client.Create(ctx, object)).To(gomega.Succeed())
	}
	look := func() (*v1alpha1.Machine, error) {
		return machine, e.Client.Get(ctx, client.ObjectKeyFromObject(machine), machine)
	}
	g.Eventually(look).WithTimeout(env.WaitTimeout).Should(gomega.Satisfy(func(m *v1alpha1.Machine) bool {
		return strings.Contains(m.Status.LastOperation.Description, `there is already a different MachineClass "two"`)
	}))
	edited := taken.DeepCopy()
	edited.ProviderSpec = made.ProviderSpec
	g.Expect(e.Client.Patch(ctx, edited, client.MergeFrom(taken))).To(gomega.Succeed())
	g.Eventually(look).WithTimeout(env.WaitTimeout).Should(gomega.Satisfy(func(m *v1alpha1.Machine) bool {
		return m.Spec.Class.Kind == v1alpha1.MachineClassKind
	}))
}
