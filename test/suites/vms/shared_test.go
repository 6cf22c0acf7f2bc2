package vms

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVirtualMachine_SharedVolumes checks that a VM whose volumes can be attached to several hosts moves to another host and
// back with the same claims.
func TestVirtualMachine_SharedVolumes(t *testing.T) {
	tier.All(t)
	c := up(t)
	vm := blankVM("shared")
	vm.Spec.VolumeClaimTemplate.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	vm.Spec.DataDisks = []vmv1alpha1.DataDisk{{Name: "logs", VolumeClaimTemplate: *vm.Spec.VolumeClaimTemplate.DeepCopy()}}
	c.create(vm)
	c.awaitRunning("shared")
	before := c.vm("shared")
	for range 2 {
		from := c.vm("shared").Status
		text, status := program.Run(t, "vm", "migrate", "shared", "--dir", c.dir, "--timeout", "3m")
		if status != 0 || !strings.Contains(text, "migrated from "+from.NodeName+" to ") {
			t.Fatalf("vm migrate: status %d\n%s", status, text)
		}
		c.eventually(soon, func(g gomega.Gomega) { g.Expect(c.processes("-uuid " + before.Spec.UUID)).To(gomega.HaveLen(1)) })
		c.awaitRunning("shared")
		after := c.vm("shared").Status
		if after.ActivePodName == from.ActivePodName || after.VolumeClaimName != "shared" || after.Migration.TargetVolumeClaimName != "shared" {
			t.Errorf("the VM was %+v, and is %+v", from, after)
		}
	}
	claims := &corev1.PersistentVolumeClaimList{}
	if err := c.client.List(t.Context(), claims, client.InNamespace(before.Namespace)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, claim := range claims.Items {
		names = append(names, claim.Name)
	}
	if diff := cmp.Diff([]string{"shared", "shared-logs"}, slices.Sorted(slices.Values(names))); diff != "" {
		t.Errorf("the claims (-want +got):\n%s", diff)
	}
}
