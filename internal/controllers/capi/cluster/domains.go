package cluster

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// ofClass finds the MillwrightClusters for which a driver is asked with a class.
func (c *Controller) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	list := &infrav1.MillwrightClusterList{}
	if err := c.Client.List(ctx, list, client.InNamespace(object.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if from := list.Items[i].Spec.FailureDomainsFrom; from != nil && from.MachineClassRef != nil && from.MachineClassRef.Name == object.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// findFailureDomains tells those of the spec and, if it is to be asked, of the driver. It is
// nobody's condition: what a driver cannot tell now, it may tell in some minutes.
func (c *Controller) findFailureDomains(ctx context.Context, s *scope) flow.Result {
	key := client.ObjectKeyFromObject(s.infra)
	switch {
	case !c.FailureDomains && s.infra.Spec.FailureDomainsFrom != nil:
		s.domainsUnknown(infrav1.ReasonNotSupported, "Cluster API before v1.11 reads failure domains in another form")
		return flow.Continue()
	case !c.FailureDomains:
		return flow.Continue()
	case s.infra.Spec.FailureDomainsFrom == nil:
		c.Asker.Forget(key)
		meta.RemoveStatusCondition(&s.infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown)
		s.infra.Status.FailureDomains = s.infra.Spec.FailureDomains
		return flow.Continue()
	}
	asked, ok, err := c.question(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	if !ok {
		s.tell(s.infra.Status.FailureDomains)
		return flow.Continue()
	}
	last, told, wait := c.Asker.ask(asked)
	s.answered(last, told)
	return flow.Wait(wait, "the driver, or the time to ask it again")
}

// question makes what the driver is asked. If something is missing for it, that is said, and
// its coming brings an event.
func (c *Controller) question(ctx context.Context, s *scope) (q question, ok bool, err error) {
	from := s.infra.Spec.FailureDomainsFrom
	q = question{of: client.ObjectKeyFromObject(s.infra), source: from.DeepCopy()}
	if from.Driver != c.Asker.DriverName {
		s.domainsUnknown(infrav1.ReasonUnknownDriver,
			fmt.Sprintf("spec.failureDomainsFrom.driver is %q, and this manager has the driver %q only", from.Driver, c.Asker.DriverName))
		return q, false, nil
	}
	if from.MachineClassRef == nil {
		return q, true, nil
	}
	q.class = &v1alpha1.MachineClass{}
	err = c.Client.Get(ctx, types.NamespacedName{Namespace: s.infra.Namespace, Name: from.MachineClassRef.Name}, q.class)
	switch {
	case apierrors.IsNotFound(err):
		s.domainsUnknown(infrav1.ReasonMachineClassMissing,
			fmt.Sprintf("MachineClass %q of spec.failureDomainsFrom.machineClassRef does not exist", from.MachineClassRef.Name))
		return q, false, nil
	case err != nil:
		return q, false, fmt.Errorf("reading MachineClass %s: %w", from.MachineClassRef.Name, err)
	}
	return q, true, nil
}

// answered says what the driver said. Before it has told anything to this process, the status
// is all that is known of what it told before.
func (s *scope) answered(last, told *answer) {
	found := s.infra.Status.FailureDomains
	if told != nil {
		found = told.domains
	}
	surplus := s.tell(found)
	switch {
	case last == nil:
		if meta.FindStatusCondition(s.infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown) == nil {
			s.domainsUnknown(infrav1.ReasonWaitingForDriver, "The driver is being asked")
		}
	case last.reason != infrav1.ReasonFailureDomainsReported:
		s.domainsUnknown(last.reason, last.message)
	default:
		message := ""
		if surplus > 0 {
			message = fmt.Sprintf("Cluster API takes %d failure domains: %d of the driver's, the last by name, are left out", mostDomains, surplus)
		}
		s.set(infrav1.ConditionFailureDomainsKnown, metav1.ConditionTrue, last.reason, message)
	}
}

func (s *scope) domainsUnknown(reason, message string) {
	s.set(infrav1.ConditionFailureDomainsKnown, metav1.ConditionFalse, reason, message)
}

// mostDomains is how many failure domains Cluster API takes.
const mostDomains = 100

// tell writes the failure domains of the spec, and then those of others by another name. It
// answers how many of them are too many.
func (s *scope) tell(found []infrav1.FailureDomain) (surplus int) {
	declared := s.infra.Spec.FailureDomains
	var all []infrav1.FailureDomain // copies: what is read back after a write is put in there
	for i := range declared {
		all = append(all, *declared[i].DeepCopy())
	}
	for i := range found {
		if !slices.ContainsFunc(declared, func(d infrav1.FailureDomain) bool { return d.Name == found[i].Name }) {
			all = append(all, *found[i].DeepCopy())
		}
	}
	surplus = max(0, len(all)-mostDomains)
	s.infra.Status.FailureDomains = all[:len(all)-surplus]
	return surplus
}
