package cloud

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

func TestNode_InstanceMetadata(t *testing.T) {
	internal := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.77.0.16"}
	addresses := []corev1.NodeAddress{internal, {Type: corev1.NodeHostName, Address: "a"}}
	labels := map[string]string{LabelVM: "a", LabelInfrastructure: string(namespace)}
	id := "millwright:///vms/" + uuid
	for name, test := range map[string]struct {
		vm       func(*vmv1alpha1.VirtualMachine)
		node     func(*corev1.Node)
		want     *cloudprovider.InstanceMetadata
		wantText string // of the error
	}{
		"found by name": {
			want: &cloudprovider.InstanceMetadata{ProviderID: id, NodeAddresses: addresses, AdditionalLabels: labels},
		},
		"found by the host name of the guest": {
			vm: func(vm *vmv1alpha1.VirtualMachine) {
				vm.Name, vm.Spec.UserData = "a-0123456789ab", &vmv1alpha1.UserData{HostName: "a"}
			},
			want: &cloudprovider.InstanceMetadata{
				ProviderID: id, NodeAddresses: addresses,
				AdditionalLabels: map[string]string{LabelVM: "a-0123456789ab", LabelInfrastructure: string(namespace)},
			},
		},
		"found by provider ID": {
			vm:   func(vm *vmv1alpha1.VirtualMachine) { vm.Name = "other" },
			node: func(node *corev1.Node) { node.Spec.ProviderID = id },
			want: &cloudprovider.InstanceMetadata{
				ProviderID: id, NodeAddresses: addresses,
				AdditionalLabels: map[string]string{LabelVM: "other", LabelInfrastructure: string(namespace)},
			},
		},
		"zone, region and size": {
			vm: func(vm *vmv1alpha1.VirtualMachine) {
				vm.Status.NodeName, vm.Spec.CPUs, vm.Spec.Memory = "host", 2, ptr.To(resource.MustParse("4Gi"))
			},
			want: &cloudprovider.InstanceMetadata{
				ProviderID: id, NodeAddresses: addresses, AdditionalLabels: labels, InstanceType: "2cpu-4Gi", Zone: "zone-1", Region: "region-1",
			},
		},
		"instance type from the label": {
			vm: func(vm *vmv1alpha1.VirtualMachine) {
				vm.Labels[corev1.LabelInstanceTypeStable], vm.Spec.CPUs, vm.Spec.Memory = "small", 2, ptr.To(resource.MustParse("4Gi"))
			},
			want: &cloudprovider.InstanceMetadata{ProviderID: id, NodeAddresses: addresses, AdditionalLabels: labels, InstanceType: "small"},
		},
		"unknown host": {
			vm:   func(vm *vmv1alpha1.VirtualMachine) { vm.Status.NodeName = "gone" },
			want: &cloudprovider.InstanceMetadata{ProviderID: id, NodeAddresses: addresses, AdditionalLabels: labels},
		},
		"addresses that were requested": {
			vm: func(vm *vmv1alpha1.VirtualMachine) {
				vm.Status.Addresses, vm.Spec.VMIPs = nil, []string{"10.77.0.16/32", "fd00::16"}
			},
			want: &cloudprovider.InstanceMetadata{
				ProviderID: id, AdditionalLabels: labels,
				NodeAddresses: []corev1.NodeAddress{internal, {Type: corev1.NodeInternalIP, Address: "fd00::16"}, {Type: corev1.NodeHostName, Address: "a"}},
			},
		},
		"no address yet": {
			vm:       func(vm *vmv1alpha1.VirtualMachine) { vm.Status.Addresses = nil },
			wantText: "has no address yet",
		},
		"no UUID yet": {
			vm:       func(vm *vmv1alpha1.VirtualMachine) { vm.Spec.UUID = "" },
			wantText: "has no UUID yet",
		},
		"VM of another cluster with the name": {
			vm:       func(vm *vmv1alpha1.VirtualMachine) { vm.Labels = nil },
			wantText: "no VirtualMachine in namespace vms with the label vm.metropolis.monogon.dev/cluster=demo has the host name a",
		},
		"VM of another cluster with the provider ID": {
			vm:       func(vm *vmv1alpha1.VirtualMachine) { vm.Labels[LabelCluster] = "production" },
			node:     func(node *corev1.Node) { node.Spec.ProviderID = id },
			wantText: "does not have the label vm.metropolis.monogon.dev/cluster=demo",
		},
		"earlier VM of the name": {
			vm:       func(vm *vmv1alpha1.VirtualMachine) { vm.Spec.UUID = "0b4c3f6e-2222-4222-8222-000000000002" },
			node:     func(node *corev1.Node) { node.Spec.ProviderID = id },
			wantText: "no VirtualMachine in namespace vms has the provider ID",
		},
		"node of another provider":                     {node: func(node *corev1.Node) { node.Spec.ProviderID = "other://a" }},
		"node of another namespace":                    {node: func(node *corev1.Node) { node.Spec.ProviderID = "millwright:///vms-2/" + uuid }},
		"initialized node of another provider":         {node: func(node *corev1.Node) { node.Spec.ProviderID, node.Spec.Taints = "other://a", nil }, want: &cloudprovider.InstanceMetadata{}},
		"initialized node without a provider":          {node: func(node *corev1.Node) { node.Spec.Taints = nil }, want: &cloudprovider.InstanceMetadata{}},
		"initialized node, whose labels do not change": {node: func(node *corev1.Node) { initialized(node, "a") }, want: &cloudprovider.InstanceMetadata{ProviderID: id, NodeAddresses: addresses}},
	} {
		t.Run(name, func(t *testing.T) {
			vm, node, host := newVM("a", uuid), newNode("a"), &corev1.Node{}
			host.Name, host.Labels = "host", map[string]string{corev1.LabelTopologyZone: "zone-1", corev1.LabelTopologyRegion: "region-1"}
			if test.vm != nil {
				test.vm(vm)
			}
			if test.node != nil {
				test.node(node)
			}
			got, err := instances{newClusters(t, vm, host).Provider}.InstanceMetadata(t.Context(), node)
			if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != (test.wantText != "") {
				t.Errorf("error %v, metadata (-want +got):\n%s", err, diff)
			}
			if err != nil && !strings.Contains(err.Error(), test.wantText) {
				t.Errorf("got error %q, want %q", err, test.wantText)
			}
		})
	}
}

// TestNode_NameOfSeveralVMsIsRejected checks that a Node does not become that of any VM with its host name.
func TestNode_NameOfSeveralVMsIsRejected(t *testing.T) {
	other := newVM("b", "0b4c3f6e-2222-4222-8222-000000000002")
	other.Spec.UserData = &vmv1alpha1.UserData{HostName: "a"}
	c := newClusters(t, newVM("a", uuid), other)
	if got, err := (instances{c.Provider}).InstanceMetadata(t.Context(), newNode("a")); err == nil {
		t.Errorf("got %+v for a name that two VMs have", got)
	}
}

// TestNode_ExistsUnlessVMIsGone checks that Nodes are deleted only if their VM is gone for certain.
func TestNode_ExistsUnlessVMIsGone(t *testing.T) {
	resources := schema.GroupResource{Group: vmv1alpha1.GroupName, Resource: "virtualmachines"}
	later := newVM("a", "0b4c3f6e-2222-4222-8222-000000000002")
	for name, test := range map[string]struct {
		vm        *vmv1alpha1.VirtualMachine // in the cache and in the API server
		node      func(*corev1.Node)
		live      func(*corev1.Node) // the Node that the API server has
		fail      error              // of all reads from the API server
		failVMs   error              // of reads of VirtualMachines
		gone      bool
		wantError bool
	}{
		"VM":                                  {vm: newVM("a", uuid)},
		"VM that is not labeled any more":     {vm: func() *vmv1alpha1.VirtualMachine { vm := newVM("a", uuid); vm.Labels = nil; return vm }()},
		"no VM":                               {gone: true},
		"another VM of the name":              {vm: later, gone: true},
		"API server away, VM in the cache":    {vm: newVM("a", uuid), fail: errors.New("connection refused")},
		"API server away":                     {fail: errors.New("connection refused"), wantError: true},
		"access denied":                       {fail: apierrors.NewForbidden(resources, "a", errors.New("no role")), wantError: true},
		"access to VMs denied":                {failVMs: apierrors.NewForbidden(resources, "a", errors.New("no role")), wantError: true},
		"response that is not of this object": {failVMs: apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resources, "a", "404 page not found", 0, true), wantError: true},
		"node of another provider":            {node: func(node *corev1.Node) { node.Spec.ProviderID = "other://a" }},
		"node without a provider ID":          {node: func(node *corev1.Node) { node.Spec.ProviderID = "" }},
		"node that was not initialized here":  {node: func(node *corev1.Node) { delete(node.Labels, LabelInfrastructure) }},
		"node of another infrastructure":      {node: func(node *corev1.Node) { node.Labels[LabelInfrastructure] = "other" }, wantError: true},
		"node that was replaced":              {live: func(node *corev1.Node) { node.UID = "new" }},
		"node that became ready": {live: func(node *corev1.Node) {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if test.vm != nil {
				objects = append(objects, test.vm.DeepCopy())
			}
			c, node := newClusters(t, objects...), initialized(newNode("a"), "a")
			if test.node != nil {
				test.node(node)
			}
			live := node.DeepCopy()
			if test.live != nil {
				test.live(live)
			}
			if err := c.workload.Tracker().Add(live); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = c.workload.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", live.Name)
			}()
			c.fail, c.failVMs = test.fail, test.failVMs
			exists, err := instances{c.Provider}.InstanceExists(t.Context(), node)
			if exists == test.gone || (err != nil) != test.wantError {
				t.Errorf("exists %t with error %v", exists, err)
			}
		})
	}
}

// TestNode_ExistsWhileCacheLags checks that a VM that only the cache lacks exists.
func TestNode_ExistsWhileCacheLags(t *testing.T) {
	c, empty := newClusters(t, newVM("a", uuid)), newClusters(t)
	c.Cache = empty.Cache
	if exists, err := (instances{c.Provider}).InstanceExists(t.Context(), initialized(newNode("a"), "a")); !exists || err != nil {
		t.Errorf("exists %t with error %v", exists, err)
	}
}

func TestNode_IsShutDownWithVM(t *testing.T) {
	for phase, want := range map[vmv1alpha1.VirtualMachinePhase]bool{
		vmv1alpha1.PhaseRunning: false, vmv1alpha1.PhaseStopped: true, vmv1alpha1.PhaseLost: false, vmv1alpha1.PhaseTerminating: false,
	} {
		vm := newVM("a", uuid)
		vm.Status.Phase = phase
		provider := instances{newClusters(t, vm).Provider}
		if got, err := provider.InstanceShutdown(t.Context(), initialized(newNode("a"), "a")); got != want || err != nil {
			t.Errorf("phase %s: shut down %t with error %v", phase, got, err)
		}
		if got, err := provider.InstanceShutdown(t.Context(), newNode("a")); got || err != nil {
			t.Errorf("phase %s: a node that was not initialized is shut down (%t) with error %v", phase, got, err)
		}
	}
}
