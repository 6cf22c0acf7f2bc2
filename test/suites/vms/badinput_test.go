package vms

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// trial does something invalid, and returns a check of the expected outcome.
type trial func(c *cluster) (outcome func(c *cluster))

// TestVirtualMachine_InvalidInputDisturbsNoOthers checks that problems are reported where users look, that correcting them is
// sufficient, and that another VM is not affected.
func TestVirtualMachine_InvalidInputDisturbsNoOthers(t *testing.T) {
	tier.All(t)
	c := prepare(t)
	c.environment = slowClocks(t)
	c.start()
	c.endByForce()
	images := startImageServer(t)
	healthy := images.vm("healthy", images.good)
	// As after copying the object of a Machine's VM.
	healthy.Labels = map[string]string{vmdriver.LabelMachine: "never-joins"}
	c.create(healthy)
	c.awaitRunning("healthy")
	before := c.sight("healthy")

	type named struct {
		name string
		trial
	}
	trials := []named{{"the disk is held by another hypervisor", secondHypervisor}}
	for _, bad := range images.bad() {
		trials = append(trials, named{"image: " + bad.name, bad.trial(images)})
	}
	for _, bad := range badGuests() {
		trials = append(trials, named{"guest: " + bad.name, bad.trial})
	}
	trials = append(trials, []named{
		{"the guest never joins", neverJoins},
		{"no host is large enough for the VM", tooLargeVM},
		{"no host is large enough for the Machine", tooLargeMachine},
		{"an address of another VM", takenAddress},
		{"an address outside of the network", strangeAddress},
		{"two addresses of one IP version", twoAddresses},
		{"a spec that no hypervisor understands", malformedSpec},
		{"a pod of no virtual machine", podWithoutOwner},
		{"no space for the image", noSpace(images)},
	}...)
	// Most of the time is waiting, so all trials start before the first outcome is checked. The slowest trials
	// start first.
	outcomes := make([]func(*cluster), len(trials))
	for i, trial := range trials {
		outcomes[i] = trial.trial(c)
	}
	for i, trial := range slices.Backward(trials) {
		t.Run(trial.name, func(t *testing.T) { outcomes[i](c.in(t)) })
	}
	c.wantUndisturbed("healthy", before)
}

// tooLargeVM requests more memory than any host has.
func tooLargeVM(c *cluster) func(*cluster) {
	vm := blankVM("too-large")
	vm.Spec.Memory = ptr.To(resource.MustParse("1Ti"))
	c.create(vm)
	return func(c *cluster) {
		c.awaitMessageAndEvent("too-large", vmv1alpha1.ReasonUnschedulable, "Insufficient memory")
		if scheduled := meta.FindStatusCondition(c.vm("too-large").Status.Conditions, vmv1alpha1.ConditionScheduled); scheduled == nil ||
			scheduled.Reason != vmv1alpha1.ReasonUnschedulable || !strings.Contains(scheduled.Message, "Insufficient memory") {
			c.t.Errorf("the condition Scheduled is %+v", scheduled)
		}
		c.change("too-large", func(spec *vmv1alpha1.VirtualMachineSpec) {
			spec.Memory, spec.CPUs = ptr.To(resource.MustParse("64Mi")), 200
		})
		c.awaitMessageAndEvent("too-large", vmv1alpha1.ReasonUnschedulable, "Insufficient cpu")
		c.change("too-large", func(spec *vmv1alpha1.VirtualMachineSpec) { spec.CPUs = 1 })
		c.awaitRunning("too-large")
	}
}

// tooLargeMachine requests the same in a MachineClass.
func tooLargeMachine(c *cluster) func(*cluster) {
	pool := c.pool("too-large", 1, `"memory":"1Ti",`+c.kernelBoot())
	return func(c *cluster) {
		c.eventually(joining, func(g gomega.Gomega) {
			machines := c.machinesOf(g, pool)
			g.Expect(machines).To(gomega.HaveLen(1))
			last := machines[0].Status.LastOperation
			g.Expect(last.ErrorCode).To(gomega.Equal(codes.ResourceExhausted.String()), last.Description)
			g.Expect(last.Description).To(gomega.ContainSubstring("Insufficient memory"))
			g.Expect(c.vmsOf(g, machines[0].Name)).To(gomega.BeEmpty(), "a VM that no host can run is deleted")
		})
		c.delete(pool)
	}
}

// neverJoins gives a guest a token that the cluster does not know.
func neverJoins(c *cluster) func(*cluster) {
	const timeout = 15 * time.Second
	pool := c.pool("never-joins", 0, c.kernelBoot(), func(d *v1alpha1.MachineDeployment) {
		d.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{
			MachineCreationTimeout: &metav1.Duration{Duration: timeout},
		}
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pool.Name}}
	wrong := strings.ReplaceAll(c.userData(), "<<BOOTSTRAP_TOKEN>>", "abcdef.0123456789abcdef")
	secret.Data = map[string][]byte{"userData": []byte(wrong)}
	if err := c.client.Update(c.t.Context(), secret); err != nil {
		c.t.Fatal(err)
	}
	watch, err := c.client.Watch(c.t.Context(), &v1alpha1.MachineList{}, client.MatchingLabels{"name": pool.Name})
	if err != nil {
		c.t.Fatal(err)
	}
	c.scale(pool, 1)
	return func(c *cluster) {
		defer watch.Stop()
		failed, late := "", time.After(joining)
		for failed == "" {
			select {
			case event := <-watch.ResultChan():
				if machine, ok := event.Object.(*v1alpha1.Machine); ok && machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
					failed = machine.Name
				}
			case <-late:
				c.t.Fatal("no Machine is Failed, and no guest joins")
			}
		}
		c.eventually(joining, func(g gomega.Gomega) {
			machines := c.machinesOf(g, pool)
			g.Expect(machines).To(gomega.HaveLen(1))
			g.Expect(machines[0].Name).NotTo(gomega.Equal(failed), "the set replaces what failed")
			g.Expect(c.vmsOf(g, machines[0].Name)).To(gomega.HaveLen(1))
			g.Expect(c.vmsOf(g, failed)).To(gomega.BeEmpty())
		})
		c.delete(pool)
	}
}

// twoAddresses is rejected on creation.
func twoAddresses(*cluster) func(*cluster) {
	return func(c *cluster) {
		vm := blankVM("two-addresses")
		vm.Spec.VMIPs = []string{"10.77.1.1", "10.77.1.2/32"}
		err := c.client.Create(c.t.Context(), vm)
		var refused apierrors.APIStatus
		if !apierrors.IsInvalid(err) || !asStatus(err, &refused) {
			c.t.Fatalf("the API server returned %v, want Invalid", err)
		}
		var fields []string
		for _, cause := range refused.Status().Details.Causes {
			fields = append(fields, cause.Field)
		}
		if diff := cmp.Diff([]string{"spec.vmIPs"}, fields); diff != "" {
			c.t.Errorf("fields that are wrong:\n%s", diff)
		}
	}
}

// strangeAddress requests an address that no guest can have.
func strangeAddress(c *cluster) func(*cluster) {
	vm := blankVM("strange-address")
	vm.Spec.VMIPs = []string{"192.0.2.7/32"}
	c.create(vm)
	return func(c *cluster) {
		c.awaitMessageAndEvent("strange-address", "AddressUnavailable", "spec.vmIPs", "192.0.2.7", "10.77.0.0/16")
		c.change("strange-address", func(spec *vmv1alpha1.VirtualMachineSpec) { spec.VMIPs = []string{"10.77.1.7/32"} })
		c.awaitRunning("strange-address")
	}
}

// takenAddress requests the address of another VM, until that VM is deleted.
func takenAddress(c *cluster) func(*cluster) {
	for _, name := range []string{"address-owner", "address-taker"} {
		vm := blankVM(name)
		vm.Spec.VMIPs = []string{"10.77.1.8"}
		c.create(vm)
		if name == "address-owner" {
			c.awaitRunning(name)
		}
	}
	return func(c *cluster) {
		c.awaitMessageAndEvent("address-taker", "AddressUnavailable", "spec.vmIPs", "10.77.1.8", "default/address-owner")
		owner := c.vm("address-owner")
		if err := c.client.Delete(c.t.Context(), owner); err != nil {
			c.t.Fatal(err)
		}
		c.killAll("-uuid " + owner.Spec.UUID) // it would not shut down
		c.awaitRunning("address-taker")
	}
}
