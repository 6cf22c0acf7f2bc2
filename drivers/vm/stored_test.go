package vm

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// storedVM returns an object of testdata/stored, which has what each version of the driver wrote. Files must not be
// changed: add one when the format changes.
func storedVM(t *testing.T, file string) *vmv1alpha1.VirtualMachine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "stored", file))
	if err != nil {
		t.Fatal(err)
	}
	vm := &vmv1alpha1.VirtualMachine{}
	if err := yaml.UnmarshalStrict(text, vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

// callFor returns a call for the machine of the stored VMs in a cluster that contains vm.
func callFor(t *testing.T, group string, vm *vmv1alpha1.VirtualMachine) *call {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &call{
		cluster:  &infrastructure{WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(vm).Build()},
		identity: identity{Installation: "east", APIGroup: group, Namespace: "shop", Machine: "pool-1"},
		spec:     &providerSpec{Tags: map[string]string{"kubernetes.io/cluster/shoot": "", "kubernetes.io/role/worker": ""}},
		tagged:   "shoot",
	}
	c.key = client.ObjectKey{Namespace: "farm", Name: c.identity.name()}
	return c
}

// TestStored_EveryVersionIsFound checks that the driver finds and lists the VMs that each version of it created, and
// that it uses their names. Otherwise it would create second ones, and leave the first ones running forever.
func TestStored_EveryVersionIsFound(t *testing.T) {
	for file, group := range map[string]string{
		"version0.yaml": v1alpha1.GroupName, "version0-capi.yaml": driver.APIGroupClusterAPI,
		"version1.yaml": v1alpha1.GroupName, "version2.yaml": v1alpha1.GroupName,
	} {
		t.Run(file, func(t *testing.T) {
			stored := storedVM(t, file)
			c := callFor(t, group, stored)
			vm, err := c.get(t.Context())
			if err != nil || vm == nil || !c.owns(vm) {
				t.Fatalf("found %v, %v; want the machine's VM", vm, err)
			}
			if c.key.Name != stored.Name || group == driver.APIGroupClusterAPI && c.nodeName() != stored.Name {
				t.Errorf("the call uses the name %s, want %s", c.key.Name, stored.Name)
			}
			list, err := c.list(t.Context())
			if diff := cmp.Diff(map[string]string{ProviderID(stored): "pool-1"}, list); err != nil || diff != "" {
				t.Errorf("list (-want +got), %v:\n%s", err, diff)
			}
			other := callFor(t, map[string]string{v1alpha1.GroupName: driver.APIGroupClusterAPI, driver.APIGroupClusterAPI: v1alpha1.GroupName}[group], stored)
			if vm, err := other.get(t.Context()); vm != nil || err != nil {
				t.Errorf("a machine of the other API group finds %v, %v", vm, err)
			}
			if list, err := other.list(t.Context()); len(list) > 0 || err != nil {
				t.Errorf("a class of the other API group lists %v, %v", list, err)
			}
		})
	}
}

// TestStored_LaterVersionIsRefused checks that VMs of a later version are not ignored.
func TestStored_LaterVersionIsRefused(t *testing.T) {
	c := callFor(t, v1alpha1.GroupName, storedVM(t, "later.yaml"))
	if _, err := c.get(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("get: %v, want FailedPrecondition", err)
	}
	if _, err := c.list(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("list: %v, want FailedPrecondition", err)
	}
}

// TestStored_CurrentVersion checks that testdata has what the driver writes now.
func TestStored_CurrentVersion(t *testing.T) {
	stored := storedVM(t, "version2.yaml")
	c := callFor(t, v1alpha1.GroupName, stored)
	labels := c.identity.labels()
	labels[LabelCluster], labels[LabelRole] = c.spec.cluster(), c.spec.role()
	if !maps.Equal(labels, stored.Labels) || c.identity.annotation() != stored.Annotations[AnnotationIdentity] || c.identity.name() != stored.Name {
		t.Errorf("the driver writes %v, %s, %s", labels, c.identity.annotation(), c.identity.name())
	}
}
