package vms

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/program"
)

// endByForce skips the time that guests have to shut down at the end of the test. Guests without an operating
// system would use all of it.
func (c *cluster) endByForce() {
	c.t.Cleanup(func() {
		c.kill()
		c.eventually(soon, func(g gomega.Gomega) {
			c.killAll("")
			g.Expect(c.processes("")).To(gomega.BeEmpty())
		})
	})
}

// in makes failures of the cluster fail another test than the one that started it.
func (c *cluster) in(t *testing.T) *cluster {
	inner := *c
	inner.t = t
	return &inner
}

// sighting is the state of a VM that changes if the VM is disturbed.
type sighting struct {
	UID       string
	Authority vmv1alpha1.VirtualMachineAuthority
	Ready     *metav1.Condition
	// QEMUs are the processes that run the VM.
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

func (c *cluster) pidsOf(texts string) []int {
	var pids []int
	for _, p := range c.processes(texts) {
		pids = append(pids, p.PID)
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

// change is a user's edit of a VM.
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

// awaitMessage waits until a VM is not Ready for the reason, with a message that contains the text, and "vm list"
// shows the same.
func (c *cluster) awaitMessage(name, reason string, texts ...string) {
	c.t.Helper()
	// An image that is retried for half a minute is rejected for only a second, then for two, and so on.
	c.eventually(2*joining, func(g gomega.Gomega) {
		ready := meta.FindStatusCondition(c.vm(name).Status.Conditions, vmv1alpha1.ConditionReady)
		g.Expect(ready).NotTo(gomega.BeNil())
		g.Expect(ready.Reason).To(gomega.Equal(reason), ready.Message)
		g.Expect(ready.Status).To(gomega.Equal(metav1.ConditionFalse))
		for _, text := range texts {
			g.Expect(ready.Message).To(gomega.ContainSubstring(text))
		}
		list, status := program.Run(c.t, "vm", "list", "--dir", c.dir)
		g.Expect(status).To(gomega.BeZero(), list)
		line := lineOf(list, name)
		for _, text := range append(texts, reason) {
			g.Expect(line).To(gomega.ContainSubstring(text))
		}
		c.t.Log(line)
	})
}

// awaitMessageAndEvent is like awaitMessage, and waits for an event with the text.
func (c *cluster) awaitMessageAndEvent(name, reason string, texts ...string) {
	c.t.Helper()
	c.awaitMessage(name, reason, texts...)
	c.awaitEvent(vmv1alpha1.VirtualMachineKind, name, reason, texts...)
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
func (c *cluster) awaitEvent(kind, name, reason string, texts ...string) {
	c.t.Helper()
	c.eventually(soon, func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(c.client.List(c.t.Context(), events, client.InNamespace("default"))).To(gomega.Succeed())
		var printed []string
		for _, event := range events.Items {
			about := event.InvolvedObject
			if about.Kind == kind && about.Name == name && event.Reason == reason && event.Type == corev1.EventTypeWarning {
				printed = append(printed, event.Message)
			}
		}
		matches := []gomega.OmegaMatcher{}
		for _, text := range texts {
			matches = append(matches, gomega.ContainSubstring(text))
		}
		g.Expect(printed).To(gomega.ContainElement(gomega.And(matches...)), "events about %s for the reason %s", name, reason)
	})
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
