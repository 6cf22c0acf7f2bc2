package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

const (
	// listInterval is the time between two calls to the driver.
	listInterval = 5 * time.Minute
	// listRetryInterval is the time until the next call after a temporary failure.
	listRetryInterval = time.Minute
	// maxMessage and maxName limit lengths, in bytes. Strings from drivers may have any length.
	maxMessage, maxName = 4096, 256
	// maxDomains is the number of failure domains that Cluster API allows.
	maxDomains = 100
)

// memory is what the controller remembers about a MillwrightCluster between passes. If it is lost, the driver is
// called once more. It is safe for concurrent use. A nil memory is empty.
type memory struct {
	mu   sync.Mutex
	call *call
	// written reports whether this process has written the status, so that its format is known.
	written bool
}

func (m *memory) isWritten() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.written
}

func (m *memory) setWritten() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written = true
}

// call is the request to the driver, with its last result.
type call struct {
	// request identifies the request.
	request string
	// cancel cancels the running call; nil if there is none.
	cancel context.CancelFunc
	// due is when the driver is called next.
	due time.Time
	// last is the last result; nil before the first one.
	last *result
}

// result is the result of a call, for the status.
type result struct {
	reason, message string
	// domains are the failure domains that the driver last returned. They are valid only if listed is true.
	domains []infrav1.FailureDomain
	listed  bool
	// retry is the time until the next call.
	retry time.Duration
}

// ofClass returns the MillwrightClusters whose failureDomainsFrom refers to a class.
func (c *Controller) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	refers := func(cluster client.Object) bool {
		from := cluster.(*infrav1.MillwrightCluster).Spec.FailureDomainsFrom
		return from != nil && from.MachineClassRef != nil && from.MachineClassRef.Name == object.GetName()
	}
	return core.Requests(ctx, c.Client, &infrav1.MillwrightClusterList{}, refers, client.InNamespace(object.GetNamespace()))
}

// findFailureDomains writes the failure domains of the spec and of the driver to the status. It does not wait for the
// driver. If the driver cannot list them now, the call is repeated after some minutes.
func (c *Controller) findFailureDomains(ctx context.Context, s *scope) flow.Result {
	if s.infra.Spec.FailureDomainsFrom == nil {
		c.cancelCall(client.ObjectKeyFromObject(s.infra))
		meta.RemoveStatusCondition(&s.infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown)
		s.infra.Status.FailureDomains = s.infra.Spec.FailureDomains
		return flow.Continue()
	}
	request, err := c.request(ctx, s)
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) { // the creation of the missing object causes an event
		s.domainsUnknown(missing.Reason, missing.Message)
		s.setDomains(s.infra.Status.FailureDomains)
		return flow.Continue()
	}
	if err != nil {
		return flow.Fail(err)
	}
	last, remaining := c.list(request, standIn(s.infra))
	s.report(last)
	return flow.Wait(remaining, "the driver has not responded, or the next call is not due")
}

// request returns a string that identifies the request to the driver. It differs if the reference or the class
// differs.
func (c *Controller) request(ctx context.Context, s *scope) (string, error) {
	from := s.infra.Spec.FailureDomainsFrom
	if !c.Drivers.Has(from.Driver) {
		return "", &inputs.Error{Reason: infrav1.ReasonUnknownDriver, Message: fmt.Sprintf(
			"spec.failureDomainsFrom.driver is %q, but this manager has only %s", from.Driver, c.Drivers)}
	}
	text, err := json.Marshal(from)
	if err != nil || from.MachineClassRef == nil {
		return string(text), err
	}
	class, err := c.inputs.Class(ctx, s.infra.Namespace, from.MachineClassRef)
	return fmt.Sprintf("%s %s %d", text, class.UID, class.Generation), err
}

// standIn returns a machine that represents the machines for which the failure domains are listed.
func standIn(infra *infrav1.MillwrightCluster) *infrav1.MillwrightMachine {
	from := infra.Spec.FailureDomainsFrom.DeepCopy()
	return &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: infra.Namespace, Name: infra.Name},
		Spec: infrav1.MillwrightMachineSpec{
			Driver: from.Driver, ProviderSpec: from.ProviderSpec,
			MachineClassRef: from.MachineClassRef, CredentialsSecretRef: from.CredentialsSecretRef,
		},
	}
}

// list returns the last result of a request, or nil if there is none, and calls the driver if a call is due.
// remaining is the time until the next call; 0 while a call is running.
func (c *Controller) list(request string, machine *infrav1.MillwrightMachine) (last *result, remaining time.Duration) {
	key, now := client.ObjectKeyFromObject(machine), c.Clock.Now()
	m := c.memory.Of(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.call == nil || m.call.request != request {
		m.call.stop()
		m.call = &call{request: request}
	}
	current := m.call
	if current.cancel == nil && !now.Before(current.due) {
		ctx, cancel := context.WithCancel(context.Background())
		current.cancel = cancel
		accepted := c.Run(func(leading context.Context) {
			defer context.AfterFunc(leading, cancel)()
			got := c.call(ctx, machine)
			m.finish(current, got, c.Clock.Now())
			c.Wake(key)
		})
		if !accepted {
			cancel()
			current.cancel = nil
		}
	}
	return current.last, max(0, current.due.Sub(now))
}

// finish stores a result. If the request has changed in the meantime, the result is not used.
func (m *memory) finish(of *call, got result, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of.cancel()
	of.cancel = nil
	if !got.listed && of.last != nil {
		got.domains, got.listed = of.last.domains, of.last.listed
	}
	of.last, of.due = &got, now.Add(wait.Jitter(got.retry, 0.1))
}

// retryNow makes the next pass repeat a failed call.
func (m *memory) retryNow(now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.call != nil && m.call.last != nil && m.call.last.reason == infrav1.ReasonDriverCallFailed {
		m.call.due = now
	}
}

// forget drops the state of a MillwrightCluster and cancels a running call.
func (c *Controller) forget(key types.NamespacedName) {
	c.cancelCall(key)
	c.memory.Forget(key)
}

// cancelCall cancels the call to the driver if it is running, and forgets its last result.
func (c *Controller) cancelCall(key types.NamespacedName) {
	if m := c.memory.Find(key); m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.call.stop()
		m.call = nil
	}
}

// stop cancels the call if it is running.
func (k *call) stop() {
	if k != nil && k.cancel != nil {
		k.cancel()
	}
}

// call calls the driver.
func (c *Controller) call(ctx context.Context, machine *infrav1.MillwrightMachine) result {
	notSupported := result{reason: infrav1.ReasonNotSupported, message: "The driver does not support failure domains", listed: true, retry: listInterval}
	read, err := c.inputs.Read(ctx, machine)
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) {
		return result{reason: missing.Reason, message: missing.Message, retry: listRetryInterval}
	}
	if err != nil {
		return result{reason: infrav1.ReasonDriverCallFailed, message: err.Error(), retry: listRetryInterval}
	}
	resp, err := c.Drivers.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: read.Class, Secret: read.Secret})
	failed, _ := status.FromError(err)
	retry := listInterval
	switch failed.Code() {
	case codes.OK:
		return result{reason: infrav1.ReasonFailureDomainsReported, domains: domainsOf(resp), listed: true, retry: listInterval}
	case codes.Unimplemented:
		return notSupported
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable:
		retry = listRetryInterval
	}
	message := fmt.Sprintf("ListFailureDomains: %s (%s)", messages.Shorten(failed.Message(), maxMessage), failed.Code())
	return result{reason: infrav1.ReasonDriverCallFailed, message: message, retry: retry}
}

// domainsOf returns the driver's failure domains, sorted and without those that the API server would refuse.
func domainsOf(resp *driver.ListFailureDomainsResponse) []infrav1.FailureDomain {
	named := map[string]infrav1.FailureDomain{}
	for _, domain := range resp.FailureDomains {
		if domain.Name != "" && len(domain.Name) <= maxName && instance.IsPrintable(domain.Name) {
			attributes := maps.Clone(domain.Attributes)
			// JSON cannot represent unprintable attributes, so the stored value would differ from the driver's in
			// every pass.
			maps.DeleteFunc(attributes, func(key, value string) bool { return !instance.IsPrintable(key) || !instance.IsPrintable(value) })
			named[domain.Name] = infrav1.FailureDomain{Name: domain.Name, ControlPlane: new(true), Attributes: attributes}
		}
	}
	var domains []infrav1.FailureDomain
	for _, name := range slices.Sorted(maps.Keys(named)) {
		domains = append(domains, named[name])
	}
	return domains
}

// report writes the last result to the status. After a restart, the status itself has the failure domains that the
// driver last returned.
func (s *scope) report(last *result) {
	found := s.infra.Status.FailureDomains
	if last != nil && last.listed {
		found = last.domains
	}
	surplus := s.setDomains(found)
	switch {
	case last == nil:
		if meta.FindStatusCondition(s.infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown) == nil {
			s.domainsUnknown(infrav1.ReasonWaitingForDriver, "Waiting for the driver to list its failure domains")
		}
	case last.reason != infrav1.ReasonFailureDomainsReported:
		s.domainsUnknown(last.reason, last.message)
	default:
		message := ""
		if surplus > 0 {
			message = fmt.Sprintf("Cluster API allows %d failure domains; the last %d of the driver's, by name, are omitted", maxDomains, surplus)
		}
		s.set(infrav1.ConditionFailureDomainsKnown, metav1.ConditionTrue, last.reason, message)
	}
}

func (s *scope) domainsUnknown(reason, message string) {
	s.set(infrav1.ConditionFailureDomainsKnown, metav1.ConditionFalse, reason, message)
}

// setDomains sets the failure domains of the spec, followed by those of found that have other names. It returns the
// number of those that exceed the limit and are omitted.
func (s *scope) setDomains(found []infrav1.FailureDomain) (surplus int) {
	// Use copies, because a write decodes the API server's response into the status.
	all := s.infra.DeepCopy().Spec.FailureDomains
	for i := range found {
		if !slices.ContainsFunc(s.infra.Spec.FailureDomains, func(d infrav1.FailureDomain) bool { return d.Name == found[i].Name }) {
			all = append(all, *found[i].DeepCopy())
		}
	}
	surplus = max(0, len(all)-maxDomains)
	s.infra.Status.FailureDomains = all[:len(all)-surplus]
	return surplus
}
