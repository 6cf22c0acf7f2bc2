package safety

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Reasons of events on a MachineClass.
const (
	reasonFound   = "OrphansFound"
	reasonRemoved = "OrphanRemoved"
	reasonKept    = "OrphansKept"
	reasonSkipped = "OrphansNotLookedFor"
)

// callTimeout ends a call that hangs: other classes are waiting.
const callTimeout = 5 * time.Minute

// skipError is why a class was not looked at, where there is nothing wrong with us.
type skipError struct{ why string }

// Error implements error.
func (e *skipError) Error() string { return e.why }

// list asks the driver for all instances of a class.
func (c *Collector) list(ctx context.Context, class *v1alpha1.MachineClass, secret *corev1.Secret) ([]instance, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.Driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class, Secret: secret})
	if status.Is(err, codes.Unimplemented) {
		return nil, &skipError{"the driver cannot list its VMs"}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the VMs of class %s: %w", class.Name, err)
	}
	var instances []instance
	for _, id := range slices.Sorted(maps.Keys(answer.MachineList)) {
		instances = append(instances, instance{providerID: id, machine: answer.MachineList[id]})
	}
	return instances, nil
}

// removeAll removes the orphans that are due and that are orphans by what the API server has,
// too. It returns those that remain.
func (c *Collector) removeAll(ctx context.Context, class *v1alpha1.MachineClass, secret *corev1.Secret, v view) []orphan {
	confirmed, err := c.confirm(ctx, v)
	if err != nil {
		c.Log.Error(err, "keeping orphans", "class", class.Name)
		return v.found
	}
	gone := map[string]bool{}
	for _, o := range confirmed {
		err := c.remove(ctx, class, secret, o)
		if err != nil {
			c.Log.Error(err, "removing an orphan", "class", class.Name, "providerID", o.providerID)
			continue
		}
		gone[o.providerID] = true
	}
	return slices.DeleteFunc(slices.Clone(v.found), func(o orphan) bool { return gone[o.providerID] })
}

// confirm reads all Machines from the API server, and returns those of the orphans that are
// due which nobody has come to own.
func (c *Collector) confirm(ctx context.Context, v view) ([]orphan, error) {
	machines := &v1alpha1.MachineList{}
	if err := c.Live.List(ctx, machines, client.InNamespace(c.Namespace)); err != nil {
		return nil, fmt.Errorf("reading the machines: %w", err)
	}
	still := map[string]bool{}
	for _, o := range orphansAmong(v.instances, machines.Items) {
		still[o.providerID] = true
	}
	return slices.DeleteFunc(slices.Clone(v.due), func(o orphan) bool { return !still[o.providerID] }), nil
}

// remove removes one orphan. Calls may have taken long since all Machines were read, so it
// looks for a Machine of that name once more.
func (c *Collector) remove(ctx context.Context, class *v1alpha1.MachineClass, secret *corev1.Secret, o orphan) error {
	machine := &v1alpha1.Machine{}
	err := c.Live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: o.machine}, machine)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading machine %s: %w", o.machine, err)
	}
	if err == nil && (creating(machine) || machine.Spec.ProviderID == o.providerID) {
		return fmt.Errorf("machine %s has come to own it", o.machine)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	synthetic := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: o.machine},
		Spec:       v1alpha1.MachineSpec{ProviderID: o.providerID},
	}
	_, err = c.Driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: synthetic, MachineClass: class, Secret: secret})
	if err != nil && !status.Is(err, codes.NotFound) {
		return fmt.Errorf("removing VM %s: %w", o.providerID, err)
	}
	c.counts.removed.Inc()
	c.Log.Info("removed an orphan", "class", class.Name, "providerID", o.providerID, "machine", o.machine, "because", o.why)
	c.Events.Eventf(class, corev1.EventTypeWarning, reasonRemoved, "VM %s was removed, as nobody owns it: %s", o.providerID, o.why)
	return nil
}

// explain says once what was found, and why it is kept.
func (c *Collector) explain(class *v1alpha1.MachineClass, v view, decided decision) {
	switch {
	case len(v.found) == 0:
		delete(c.said, class.Name)
	case decided.reason != "":
		c.say(class, reasonKept, "VMs that nobody owns are kept: "+decided.reason+". They are "+enumerate(v.found))
	case !decided.remove:
		c.say(class, reasonFound, "nobody owns these VMs, which are removed if that stays so for "+c.Grace.String()+": "+enumerate(v.found))
	}
}

// skip says once why nobody looks at the VMs of a class.
func (c *Collector) skip(class *v1alpha1.MachineClass, err error) {
	var skipped *skipError
	if !errors.As(err, &skipped) && !apierrors.IsNotFound(err) {
		c.Log.Error(err, "skipping a class", "class", class.Name)
	}
	c.say(class, reasonSkipped, "VMs that nobody owns are not looked for: "+err.Error())
}

// say writes an event, unless it was the last that was said of the class.
func (c *Collector) say(class *v1alpha1.MachineClass, reason, message string) {
	if c.said[class.Name] == reason+message {
		return
	}
	c.said[class.Name] = reason + message
	c.Events.Event(class, corev1.EventTypeWarning, reason, message)
}

// enumerate lists orphans, not all if they are many.
func enumerate(orphans []orphan) string {
	const most = 5
	var texts []string
	for _, o := range orphans[:min(most, len(orphans))] {
		texts = append(texts, o.providerID+" ("+o.why+")")
	}
	if more := len(orphans) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}
