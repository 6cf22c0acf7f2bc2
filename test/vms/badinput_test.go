package vms

import (
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
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/driver/codes"
)

// slowly is the limit for what begins with half a minute of tries.
const slowly = 4 * time.Minute

// trial does something wrong, and returns what is to come of it.
type trial func(c *cluster) (outcome func(c *cluster))

// TestBadInputDisturbsNobody: what is wrong is said where users look, and when it is put
// right all goes on. A VM beside it notices nothing.
func TestBadInputDisturbsNobody(t *testing.T) {
	// Orphans are looked for often, so that VMs that are nobody's would be found.
	c := up(t, "--machine-safety-orphan-vms-period", "2s")
	images := startImageServer(t)
	healthy := images.vm("healthy", images.good)
	// As somebody has it who copied the object of a Machine's VM.
	healthy.Labels = map[string]string{vmdriver.LabelMachine: "never-joins"}
	c.create(healthy)
	c.awaitRunning("healthy")
	before := c.sight("healthy")

	trials := []struct {
		name string
		trial
	}{
		{"the disk is held by another hypervisor", secondHypervisor},
		{"the guest never joins", neverJoins},
		{"no host is large enough for the VM", tooLargeVM},
		{"no host is large enough for the Machine", tooLargeMachine},
		{"an address of another VM", takenAddress},
		{"an address outside of the network", strangeAddress},
		{"two addresses of one IP version", twoAddresses},
		{"a spec that no hypervisor understands", malformedSpec},
		{"a pod with another command", otherCommand},
		{"no space for the image", noSpace(images)},
	}
	for _, bad := range images.bad() {
		trials = append(trials, struct {
			name string
			trial
		}{"image: " + bad.name, bad.trial(images)})
	}
	// All begin before the first one is looked at, for much of it is waiting.
	outcomes := make([]func(*cluster), len(trials))
	for i, trial := range trials {
		outcomes[i] = trial.trial(c)
	}
	for i, trial := range trials {
		t.Run(trial.name, func(t *testing.T) { outcomes[i](c.in(t)) })
	}

	c.wantUndisturbed("healthy", before)
}

// in makes the cluster fail another test than the one that started it.
func (c *cluster) in(t *testing.T) *cluster {
	inner := *c
	inner.t = t
	return &inner
}

// sighting is all of a VM that changes when it is disturbed.
type sighting struct {
	UID       string
	Authority vmv1alpha1.VirtualMachineAuthority
	Ready     *metav1.Condition
	// QEMUs are the processes that run it.
	QEMUs []int
}

func (c *cluster) sight(name string) sighting {
	c.t.Helper()
	vm := c.vm(name)
	return sighting{
		UID: string(vm.UID), Authority: vm.Status.VirtualMachineAuthority,
		Ready: meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady),
		QEMUs: c.pidsOf("-uuid " + vm.Spec.UUID),
	}
}

func (c *cluster) wantUndisturbed(name string, before sighting) {
	c.t.Helper()
	if diff := cmp.Diff(before, c.sight(name)); diff != "" {
		c.t.Errorf("VM %s was disturbed:\n%s", name, diff)
	}
}

func (c *cluster) pidsOf(words string) []int {
	var pids []int
	for _, p := range c.processes(words) {
		pids = append(pids, p.pid)
	}
	return pids
}

func (c *cluster) vm(name string) *vmv1alpha1.VirtualMachine {
	c.t.Helper()
	vm := &vmv1alpha1.VirtualMachine{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, vm); err != nil {
		c.t.Fatal(err)
	}
	return vm
}

// change is what a user does who edits a VM.
func (c *cluster) change(name string, edit func(spec *vmv1alpha1.VirtualMachineSpec)) {
	c.t.Helper()
	vm := c.vm(name)
	before := vm.DeepCopy()
	edit(&vm.Spec)
	if err := c.client.Patch(c.t.Context(), vm, client.MergeFrom(before)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) awaitRunning(name string) {
	c.t.Helper()
	c.eventually(joining, func(g gomega.Gomega) {
		vm := c.vm(name)
		ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
		g.Expect(ready).NotTo(gomega.BeNil())
		g.Expect(ready.Status).To(gomega.Equal(metav1.ConditionTrue), "%s: %s", ready.Reason, ready.Message)
		g.Expect(c.processes("-uuid "+vm.Spec.UUID)).To(gomega.HaveLen(1), "QEMUs of "+name)
	})
}

// awaitTold waits until a VM is not Ready for that reason, in a sentence with those words,
// and "vm list" says the same. An event said it too.
func (c *cluster) awaitTold(within time.Duration, name, reason string, words ...string) {
	c.t.Helper()
	c.eventually(within, func(g gomega.Gomega) {
		ready := meta.FindStatusCondition(c.vm(name).Status.Conditions, vmv1alpha1.ConditionReady)
		g.Expect(ready).NotTo(gomega.BeNil())
		g.Expect(ready.Reason).To(gomega.Equal(reason), ready.Message)
		g.Expect(ready.Status).To(gomega.Equal(metav1.ConditionFalse))
		list, status := run(c.t.Context(), c.t, nil, "vm", "list", "--dir", c.dir)
		g.Expect(status).To(gomega.BeZero(), list)
		line := lineOf(list, name)
		g.Expect(line).To(gomega.ContainSubstring(reason))
		for _, word := range words {
			g.Expect(ready.Message).To(gomega.ContainSubstring(word))
			g.Expect(line).To(gomega.ContainSubstring(word))
		}
	})
	c.awaitEvent(vmv1alpha1.VirtualMachineKind, name, reason, words...)
}

func lineOf(table, name string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}

// awaitEvent waits for a warning about an object.
func (c *cluster) awaitEvent(kind, name, reason string, words ...string) {
	c.t.Helper()
	c.eventually(soon, func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(c.client.List(c.t.Context(), events, client.InNamespace("default"))).To(gomega.Succeed())
		var said []string
		for _, event := range events.Items {
			about := event.InvolvedObject
			if about.Kind == kind && about.Name == name && event.Reason == reason && event.Type == corev1.EventTypeWarning {
				said = append(said, event.Message)
			}
		}
		matches := []gomega.OmegaMatcher{}
		for _, word := range words {
			matches = append(matches, gomega.ContainSubstring(word))
		}
		g.Expect(said).To(gomega.ContainElement(gomega.And(matches...)), "events about %s for the reason %s", name, reason)
	})
}

// tooLargeVM asks for more memory than any host has.
func tooLargeVM(c *cluster) func(*cluster) {
	vm := blankVM("too-large")
	vm.Spec.Memory = ptr.To(resource.MustParse("1Ti"))
	c.create(vm)
	return func(c *cluster) {
		c.awaitTold(soon, "too-large", vmv1alpha1.ReasonUnschedulable, "Insufficient memory")
		if scheduled := meta.FindStatusCondition(c.vm("too-large").Status.Conditions, vmv1alpha1.ConditionScheduled); scheduled == nil ||
			scheduled.Reason != vmv1alpha1.ReasonUnschedulable || !strings.Contains(scheduled.Message, "Insufficient memory") {
			c.t.Errorf("the condition Scheduled is %+v", scheduled)
		}
		c.change("too-large", func(spec *vmv1alpha1.VirtualMachineSpec) {
			spec.Memory, spec.CPUs = ptr.To(resource.MustParse("64Mi")), 200
		})
		c.awaitTold(soon, "too-large", vmv1alpha1.ReasonUnschedulable, "Insufficient cpu")
		c.change("too-large", func(spec *vmv1alpha1.VirtualMachineSpec) { spec.CPUs = 1 })
		c.awaitRunning("too-large")
	}
}

// tooLargeMachine asks for the same by a MachineClass.
func tooLargeMachine(c *cluster) func(*cluster) {
	pool := c.pool("too-large", 1, `"memory":"1Ti",`+c.kernelBoot())
	return func(c *cluster) {
		c.eventually(joining, func(g gomega.Gomega) {
			machines := c.machinesOf(g, pool)
			g.Expect(machines).To(gomega.HaveLen(1))
			last := machines[0].Status.LastOperation
			g.Expect(last.ErrorCode).To(gomega.Equal(codes.ResourceExhausted.String()), last.Description)
			g.Expect(last.Description).To(gomega.ContainSubstring("Insufficient memory"))
			g.Expect(c.vmsOf(g, machines[0].Name)).To(gomega.BeEmpty(), "what nobody can run is taken away again")
		})
		c.delete(pool)
	}
}

func (c *cluster) machinesOf(g gomega.Gomega, of *v1alpha1.MachineDeployment) []v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	g.Expect(c.client.List(c.t.Context(), list, client.MatchingLabels{"name": of.Name})).To(gomega.Succeed())
	return list.Items
}

func (c *cluster) vmsOf(g gomega.Gomega, machine string) []vmv1alpha1.VirtualMachine {
	list := &vmv1alpha1.VirtualMachineList{}
	g.Expect(c.client.List(c.t.Context(), list, client.MatchingLabels{vmdriver.LabelMachine: machine})).To(gomega.Succeed())
	return list.Items
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

// twoAddresses is refused before there is an object.
func twoAddresses(*cluster) func(*cluster) {
	return func(c *cluster) {
		vm := blankVM("two-addresses")
		vm.Spec.VMIPs = []string{"10.77.1.1", "10.77.1.2/32"}
		err := c.client.Create(c.t.Context(), vm)
		var refused apierrors.APIStatus
		if !apierrors.IsInvalid(err) || !asStatus(err, &refused) {
			c.t.Fatalf("the API server answers %v, want Invalid", err)
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

// strangeAddress asks for an address that no guest can have.
func strangeAddress(c *cluster) func(*cluster) {
	vm := blankVM("strange-address")
	vm.Spec.VMIPs = []string{"192.0.2.7/32"}
	c.create(vm)
	return func(c *cluster) {
		c.awaitTold(soon, "strange-address", "AddressUnavailable", "spec.vmIPs", "192.0.2.7", "10.77.0.0/16")
		c.change("strange-address", func(spec *vmv1alpha1.VirtualMachineSpec) { spec.VMIPs = []string{"10.77.1.7/32"} })
		c.awaitRunning("strange-address")
	}
}

// takenAddress asks for the address of another VM, until that one is gone.
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
		c.awaitTold(soon, "address-taker", "AddressUnavailable", "spec.vmIPs", "10.77.1.8", "default/address-owner")
		if err := c.client.Delete(c.t.Context(), c.vm("address-owner")); err != nil {
			c.t.Fatal(err)
		}
		c.awaitRunning("address-taker")
	}
}
