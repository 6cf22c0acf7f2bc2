package orphans

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

// callTimeout ends calls that hang: other classes are waiting.
const callTimeout = 5 * time.Minute

// skipError is why a class was skipped without an error.
type skipError struct{ why string }

// Error implements error.
func (e *skipError) Error() string { return e.why }

func (c *Collector) list(ctx context.Context, class Class) ([]instance, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.Driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class.Class, Secret: class.Secret})
	if status.Is(err, codes.Unimplemented) {
		return nil, &skipError{"the driver cannot list its VMs"}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the VMs of class %s: %w", class.Class.Name, err)
	}
	var instances []instance
	for _, id := range slices.Sorted(maps.Keys(answer.MachineList)) {
		instances = append(instances, instance{providerID: id, namespace: class.Class.Namespace, machine: answer.MachineList[id]})
	}
	return instances, nil
}

// removeAll removes the orphans that are due, if the API server confirms them, and returns those
// that remain.
func (c *Collector) removeAll(ctx context.Context, class Class, v view) []orphan {
	confirmed, err := c.confirm(ctx, class, v)
	if err != nil {
		c.Log.Error(err, "keeping orphans", "class", class.Class.Name)
		return v.found
	}
	gone := map[string]bool{}
	for _, o := range confirmed {
		err := c.remove(ctx, class, o)
		if err != nil {
			c.Log.Error(err, "removing an orphan", "class", class.Class.Name, "providerID", o.providerID)
			continue
		}
		gone[o.providerID] = true
	}
	return slices.DeleteFunc(slices.Clone(v.found), func(o orphan) bool { return gone[o.providerID] })
}

// confirm returns the orphans that are due and are orphans by what the API server has.
func (c *Collector) confirm(ctx context.Context, class Class, v view) ([]orphan, error) {
	owners, err := c.owners(ctx, class, true)
	if err != nil {
		return nil, err
	}
	still := map[string]bool{}
	for _, o := range orphansAmong(v.instances, owners) {
		still[o.providerID] = true
	}
	return slices.DeleteFunc(slices.Clone(v.due), func(o orphan) bool { return !still[o.providerID] }), nil
}

// remove removes an orphan. It reads the owner of that name once more, as the removal of others
// may have taken long.
func (c *Collector) remove(ctx context.Context, class Class, o orphan) error {
	for _, api := range c.APIs {
		owner, err := api.Owner(ctx, o.key())
		switch {
		case errors.Is(err, ErrHidden): // as before, when it did not matter
		case err != nil:
			return err
		case owner != nil && (owner.Creating || slices.Contains(owner.ProviderIDs, o.providerID)):
			return fmt.Errorf("machine %s has come to own it", o.machine)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	synthetic := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.machine},
		Spec:       v1alpha1.MachineSpec{ProviderID: o.providerID},
	}
	if api := driver.APIGroup(class.Class); api != "" {
		synthetic.Annotations = map[string]string{driver.AnnotationAPIGroup: api}
	}
	_, err := c.Driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: synthetic, MachineClass: class.Class, Secret: class.Secret})
	if err != nil && !status.Is(err, codes.NotFound) {
		return fmt.Errorf("removing VM %s: %w", o.providerID, err)
	}
	c.removed.Inc()
	c.Log.Info("removed an orphan", "class", class.Class.Name, "providerID", o.providerID, "machine", o.machine, "because", o.why)
	c.Events.Eventf(class.Object, corev1.EventTypeWarning, reasonRemoved, "VM %s was removed, as nobody owns it: %s", o.providerID, o.why)
	return nil
}

func (c *Collector) explain(class Class, v view, decided decision) {
	switch {
	case len(v.found) == 0:
		delete(c.said, class.Key)
	case decided.reason != "":
		c.say(class, reasonKept, "VMs that nobody owns are kept: "+decided.reason+". They are "+enumerate(v.found))
	case !decided.remove:
		c.say(class, reasonFound, "nobody owns these VMs, which are removed if that stays so for "+c.Grace.String()+": "+enumerate(v.found))
	}
}

func (c *Collector) skip(class Class, err error) {
	var skipped *skipError
	if !errors.As(err, &skipped) && !apierrors.IsNotFound(err) {
		c.Log.Error(err, "skipping a class", "class", class.Class.Name)
	}
	c.say(class, reasonSkipped, "VMs that nobody owns are not looked for: "+err.Error())
}

func (c *Collector) say(class Class, reason, message string) {
	if c.said[class.Key] == reason+message {
		return
	}
	c.said[class.Key] = reason + message
	c.Events.Event(class.Object, corev1.EventTypeWarning, reason, message)
}

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
