package vmcontroller

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVMController_AcceptsLeasesOfClasses checks that the VM controller accepts the VMs of classes with leases, and
// that their claims and Pods have what the classes set.
func TestVMController_AcceptsLeasesOfClasses(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i := newInstallation(t)
	i.leads(i.start())
	i.must(i.client.Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "storage"}, Provisioner: "example.org/none", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}))
	cluster, err := vm.NewClient(i.Admin)
	i.must(err)
	impatient := vm.New(vm.Options{Client: cluster, Timeout: time.Millisecond}) // there is no host
	for name, tc := range map[string]struct {
		class string
		// claims are the modes of each claim, and server reports whether the first Pod is a disk server.
		claims string
		server bool
	}{
		"served":  {`"diskAccess":"Served"`, "[ReadWriteOnce] Filesystem", true},
		"files":   {`"accessModes":["ReadWriteMany"]`, "[ReadWriteMany] Filesystem", false},
		"devices": {`"accessModes":["ReadWriteMany"],"volumeMode":"Block"`, "[ReadWriteMany] Block", false},
	} {
		class := fixture.MachineClass(func(class *v1alpha1.MachineClass) {
			class.ProviderSpec.Raw = fmt.Appendf(nil, `{"vmPool":%q,"size":"xsmall","image":{"url":"http://example.com/i"},"storageClassName":"storage",
				"dataDisks":[{"name":"logs","size":1}],"tags":{"kubernetes.io/cluster/test":"","kubernetes.io/role/control-plane":""},
				"leaseMode":"FullLeases","leaseDurationSeconds":20,"hostSelector":{"disk":"ssd"},"resources":{"limits":{"memory":"1Gi"}},%s}`, i.vms, tc.class)
		})
		machine := fixture.Named(name, fixture.Machine())
		machine.Spec.ProviderID = ""
		if _, err := impatient.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: &corev1.Secret{}}); !status.Is(err, codes.DeadlineExceeded) {
			t.Fatalf("%s: %v", name, err)
		}
		pod, claims := i.firstPod(name, 2)
		for claim, modes := range claims {
			if modes != tc.claims {
				t.Errorf("%s: claim %s is %s, want %s", name, claim, modes, tc.claims)
			}
		}
		if server := pod.Labels[vmv1alpha1.LabelDiskServer] == "true"; server != tc.server {
			t.Errorf("%s: the first Pod is a disk server: %v", name, server)
		}
		if diff := cmp.Diff(map[string]string{"disk": "ssd", vmv1alpha1.HostKey: ""}, pod.Spec.NodeSelector); diff != "" {
			t.Errorf("%s: the node selector (-want +got):\n%s", name, diff)
		}
		if tc.server {
			continue // the other fields are about hypervisors
		}
		if group := pod.Labels[vmv1alpha1.LabelAntiAffinityGroup]; group != "test.control-plane" {
			t.Errorf("%s: the Pod is in the anti-affinity group %q", name, group)
		}
		if limit := pod.Spec.Containers[0].Resources.Limits.Memory(); limit.String() != "1Gi" {
			t.Errorf("%s: the memory of the Pod is limited to %s", name, limit)
		}
	}
}

// firstPod waits for a Pod of a Machine's VM and for a number of claims, of which it returns the access modes and the
// volume mode.
func (i *installation) firstPod(machine string, count int) (pod *corev1.Pod, modes map[string]string) {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		vms, pods, claims := &vmv1alpha1.VirtualMachineList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}
		g.Expect(i.client.List(i.t.Context(), vms, client.InNamespace(i.vms), client.MatchingLabels{vm.LabelMachine: machine})).To(gomega.Succeed())
		g.Expect(vms.Items).To(gomega.HaveLen(1))
		ours := client.MatchingLabels{vmv1alpha1.LabelVM: vms.Items[0].Name}
		g.Expect(i.client.List(i.t.Context(), pods, client.InNamespace(i.vms), ours)).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(1), "%+v", vms.Items[0].Status.Conditions)
		g.Expect(i.client.List(i.t.Context(), claims, client.InNamespace(i.vms), ours)).To(gomega.Succeed())
		g.Expect(claims.Items).To(gomega.HaveLen(count))
		pod, modes = &pods.Items[0], map[string]string{}
		for _, claim := range claims.Items {
			modes[claim.Name] = fmt.Sprintf("%v %s", claim.Spec.AccessModes, *claim.Spec.VolumeMode)
		}
	})
	return pod, modes
}
