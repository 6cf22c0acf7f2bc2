package security

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/rotation"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// vms is a cluster with a VM controller that has the shipped role.
type vms struct {
	*env.Env
	t *testing.T
	// admin has all permissions, and author all permissions on VirtualMachines.
	admin, author client.Client
}

func newVMs(t *testing.T) *vms {
	t.Helper()
	e := env.New(t)
	v := &vms{Env: e, t: t}
	scheme := env.NewScheme()
	v.must(vmv1alpha1.AddToScheme(scheme))
	var err error
	v.admin, err = client.New(e.Admin, client.Options{Scheme: scheme})
	v.must(err)
	v.author, err = client.New(e.NamedUserWith(t, "author", "test/suites/security/testdata/vms.yaml"), client.Options{Scheme: scheme})
	v.must(err)
	access := e.UserWith(t, vmRole)
	mgr, err := ctrl.NewManager(access, ctrl.Options{
		Scheme:     scheme,
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{e.Namespace: {}}, ByObject: virtualmachine.CacheByObject()},
		Controller: config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)}, // others may run in this process
		Metrics:    metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	v.must(err)
	authority, err := rotation.Load(t.Context(), v.admin, e.Namespace)
	v.must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	v.must(err)
	c := virtualmachine.New(virtualmachine.Options{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Events: record.NewFakeRecorder(1000), Authority: authority,
		Image: "hypervisor:test", Endpoint: listener.Addr().String(), Networks: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}, Concurrency: 4,
	})
	v.must(c.SetupWithManager(mgr))
	v.must(mgr.Add(c.Server(listener)))
	ctx, cancel := context.WithCancel(context.Background()) // the test's context is canceled before the cleanup
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
	return v
}

func (v *vms) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

// vm returns a VM without a disk.
func (v *vms) vm(name string) *vmv1alpha1.VirtualMachine {
	vm := fixture.In(v.Namespace, fixture.Named(name, fixture.VirtualMachine()))
	vm.Spec.UUID, vm.Spec.VolumeClaimTemplate = "", nil
	return vm
}

// settled waits until the controller has decided on a VM: it has a Pod, or the condition reports why not.
func (v *vms) settled(name string) *vmv1alpha1.VirtualMachine {
	v.t.Helper()
	vm := v.vm(name)
	gomega.NewWithT(v.t).Eventually(func() bool {
		return v.admin.Get(v.t.Context(), client.ObjectKeyFromObject(vm), vm) == nil &&
			meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady) != nil &&
			(vm.Status.ActivePodUID != "" || len(v.pods(name)) == 0)
	}).WithTimeout(waitTimeout).Should(gomega.BeTrue(), name)
	return vm
}

func (v *vms) pods(vm string) []corev1.Pod {
	v.t.Helper()
	list := &corev1.PodList{}
	v.must(v.admin.List(v.t.Context(), list, client.InNamespace(v.Namespace), client.MatchingLabels{vmv1alpha1.LabelVM: vm}))
	return list.Items
}

// claiming are the ways in which a VM might be thought to take what belongs to another one.
var claiming = map[string]func(mine, other *vmv1alpha1.VirtualMachine){
	"spec": func(mine, other *vmv1alpha1.VirtualMachine) { mine.Spec.VMIPs = other.Status.Addresses },
	"annotation": func(mine, other *vmv1alpha1.VirtualMachine) {
		mine.Annotations = map[string]string{vmv1alpha1.AnnotationAddresses: other.Status.Addresses[0]}
	},
	"both": func(mine, other *vmv1alpha1.VirtualMachine) {
		mine.Spec.VMIPs = []string{"10.77.9.9"}
		mine.Annotations = map[string]string{vmv1alpha1.AnnotationAddresses: other.Status.Addresses[0]}
	},
	"status": func(mine, other *vmv1alpha1.VirtualMachine) { mine.Status = other.Status },
	"identity": func(mine, other *vmv1alpha1.VirtualMachine) {
		mine.Spec.UUID, mine.Labels, mine.Annotations = other.Spec.UUID, other.Labels, other.Annotations
	},
}

// TestVirtualMachine_AuthorCannotAffectOthers checks that, whatever VMs a user creates and edits, another VM keeps its Pod and its address,
// and shares neither.
func TestVirtualMachine_AuthorCannotAffectOthers(t *testing.T) {
	tier.All(t)
	t.Parallel()
	v := newVMs(t)
	v.must(v.admin.Create(t.Context(), v.vm("other")))
	gomega.NewWithT(t).Eventually(func() bool {
		other := v.settled("other")
		return len(other.Status.Addresses) == 1 && other.Status.ActivePodUID != ""
	}).WithTimeout(waitTimeout).Should(gomega.BeTrue())
	other := v.settled("other")
	for how, claim := range claiming {
		v.claimed(how, claim, other)
	}
	v.must(v.author.Create(t.Context(), v.vm("witness"))) // when it has its address, the others were reconciled
	gomega.NewWithT(t).Eventually(func() int { return len(v.settled("witness").Status.Addresses) }).WithTimeout(waitTimeout).Should(gomega.Equal(1))
	v.wantAlone(other)
	after := v.settled("other")
	if diff := cmp.Diff(other.Status.VirtualMachineAuthority, after.Status.VirtualMachineAuthority); diff != "" || !cmp.Equal(other.Status.Addresses, after.Status.Addresses) {
		t.Errorf("addresses %v, and of the authority (-was +is):\n%s", after.Status.Addresses, diff)
	}
	if pods := v.pods("other"); len(pods) != 1 || pods[0].UID != other.Status.ActivePodUID || pods[0].DeletionTimestamp != nil {
		t.Errorf("its Pods are %+v", pods)
	}
}

// claimed creates two VMs that try to take what belongs to another one: one from the beginning, and one later.
func (v *vms) claimed(how string, claim func(mine, other *vmv1alpha1.VirtualMachine), other *vmv1alpha1.VirtualMachine) {
	v.t.Helper()
	mine := v.vm(how + "-made")
	claim(mine, other)
	v.must(v.author.Create(v.t.Context(), mine))
	v.settled(mine.Name)
	v.must(v.author.Create(v.t.Context(), v.vm(how+"-edited")))
	mine = v.settled(how + "-edited")
	before := mine.DeepCopy()
	claim(mine, other)
	if err := v.author.Patch(v.t.Context(), mine, client.MergeFrom(before)); err != nil {
		v.t.Logf("%s: %v", mine.Name, err) // such as the UUID, which cannot change
	}
}

// wantAlone checks that no two VMs have the same address, and that no VM has the Pod of another.
func (v *vms) wantAlone(other *vmv1alpha1.VirtualMachine) {
	v.t.Helper()
	holders := map[string][]string{}
	list := &vmv1alpha1.VirtualMachineList{}
	v.must(v.admin.List(v.t.Context(), list, client.InNamespace(v.Namespace)))
	for _, vm := range list.Items {
		for _, address := range vm.Status.Addresses {
			holders[address] = append(holders[address], vm.Name)
		}
		if vm.Name != other.Name && vm.Status.ActivePodUID == other.Status.ActivePodUID {
			v.t.Errorf("%s has the Pod of another", vm.Name)
		}
	}
	for address, names := range holders {
		if len(names) > 1 {
			v.t.Errorf("%s is the address of %q", address, names)
		}
	}
}
