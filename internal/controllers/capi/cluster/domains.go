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
	// listEvery is the time between two calls to the driver.
	listEvery = 5 * time.Minute
	// listSoon is that time after a failure that may pass by itself.
	listSoon = time.Minute
	// longestMessage and longestName are length limits, in bytes: the driver's strings may be of
	// any length.
	longestMessage, longestName = 4096, 256
	// mostDomains is how many failure domains Cluster API allows.
	mostDomains = 100
)

// memory is what is remembered of one MillwrightCluster between reconciles. Losing it costs one call. It is safe for
// concurrent use; a nil memory remembers nothing.
type memory struct {
	mu   sync.Mutex
	call *call
}

// call is the request to the driver, and its last answer.
type call struct {
	// request identifies the request.
	request string
	// cancel cancels the call that is under way; nil if there is none.
	cancel context.CancelFunc
	// due is when the driver is called next.
	due time.Time
	// last is the last answer; nil before there is one.
	last *answer
}

// answer is the result of a call, for the status.
type answer struct {
	reason, message string
	// domains are those that the driver returned last. They are valid if listed is true.
	domains []infrav1.FailureDomain
	listed  bool
	// again is the time until the next call.
	again time.Duration
}

// ofClass returns the MillwrightClusters whose failureDomainsFrom refers to a class.
func (c *Controller) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	refers := func(cluster client.Object) bool {
		from := cluster.(*infrav1.MillwrightCluster).Spec.FailureDomainsFrom
		return from != nil && from.MachineClassRef != nil && from.MachineClassRef.Name == object.GetName()
	}
	return core.Requests(ctx, c.Client, &infrav1.MillwrightClusterList{}, refers, client.InNamespace(object.GetNamespace()))
}

// findFailureDomains writes the failure domains of the spec and of the driver. Nothing waits for the
// driver: what it cannot list now, it may list in some minutes.
func (c *Controller) findFailureDomains(ctx context.Context, s *scope) flow.Result {
	from := s.infra.Spec.FailureDomainsFrom
	switch {
	case !c.FailureDomains && from != nil:
		s.domainsUnknown(infrav1.ReasonNotSupported, "Cluster API before v1.11 reads failure domains in another form")
		return flow.Continue()
	case !c.FailureDomains:
		return flow.Continue()
	case from == nil:
		c.forget(client.ObjectKeyFromObject(s.infra))
		meta.RemoveStatusCondition(&s.infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown)
		s.infra.Status.FailureDomains = s.infra.Spec.FailureDomains
		return flow.Continue()
	}
	request, err := c.request(ctx, s)
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) { // its creation brings an event
		s.domainsUnknown(missing.Reason, missing.Message)
		s.setDomains(s.infra.Status.FailureDomains)
		return flow.Continue()
	}
	if err != nil {
		return flow.Fail(err)
	}
	last, left := c.list(request, standIn(s.infra))
	s.report(last)
	return flow.Wait(left, "the driver, or the time of the next call")
}

// request identifies the request to the driver: it differs if the reference or the class does.
func (c *Controller) request(ctx context.Context, s *scope) (string, error) {
	from := s.infra.Spec.FailureDomainsFrom
	if !c.Drivers.Has(from.Driver) {
		return "", &inputs.Error{Reason: infrav1.ReasonUnknownDriver, Message: fmt.Sprintf(
			"spec.failureDomainsFrom.driver is %q, and this manager has %s only", from.Driver, c.Drivers)}
	}
	text, err := json.Marshal(from)
	if err != nil || from.MachineClassRef == nil {
		return string(text), err
	}
	class, err := c.inputs.Class(ctx, s.infra.Namespace, from.MachineClassRef)
	return fmt.Sprintf("%s %s %d", text, class.UID, class.Generation), err
}

// standIn returns a machine of those that the failure domains are for.
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

// list returns the last answer to a request, nil if there is none, and calls the driver if that is due.
// left is the time until the next call; 0 while one is under way.
func (c *Controller) list(request string, machine *infrav1.MillwrightMachine) (last *answer, left time.Duration) {
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

// finish stores an answer. The answer to a request that has changed meanwhile is not read any more.
func (m *memory) finish(of *call, got answer, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of.cancel()
	of.cancel = nil
	if !got.listed && of.last != nil {
		got.domains, got.listed = of.last.domains, of.last.listed
	}
	of.last, of.due = &got, now.Add(wait.Jitter(got.again, 0.1))
}

// retryNow repeats a failed call with the next reconcile.
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

// forget drops what is remembered of a MillwrightCluster, and cancels a call that is under way.
func (c *Controller) forget(key types.NamespacedName) {
	if m := c.memory.Find(key); m != nil {
		m.mu.Lock()
		m.call.stop()
		m.mu.Unlock()
	}
	c.memory.Forget(key)
}

// stop cancels a call that is under way.
func (k *call) stop() {
	if k != nil && k.cancel != nil {
		k.cancel()
	}
}

// call calls the driver.
func (c *Controller) call(ctx context.Context, machine *infrav1.MillwrightMachine) answer {
	notSupported := answer{reason: infrav1.ReasonNotSupported, message: "The driver knows of no failure domains", listed: true, again: listEvery}
	read, err := c.inputs.Read(ctx, machine)
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) {
		return answer{reason: missing.Reason, message: missing.Message, again: listSoon}
	}
	if err != nil {
		return answer{reason: infrav1.ReasonDriverCallFailed, message: err.Error(), again: listSoon}
	}
	resp, err := c.Drivers.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: read.Class, Secret: read.Secret})
	failed, _ := status.FromError(err)
	again := listEvery
	switch failed.Code() {
	case codes.OK:
		return answer{reason: infrav1.ReasonFailureDomainsReported, domains: domainsOf(resp), listed: true, again: listEvery}
	case codes.Unimplemented:
		return notSupported
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable:
		again = listSoon
	}
	message := fmt.Sprintf("ListFailureDomains: %s (%s)", messages.Shorten(failed.Message(), longestMessage), failed.Code())
	return answer{reason: infrav1.ReasonDriverCallFailed, message: message, again: again}
}

// domainsOf returns the driver's failure domains, sorted and without those that the API server would
// refuse.
func domainsOf(resp *driver.ListFailureDomainsResponse) []infrav1.FailureDomain {
	named := map[string]infrav1.FailureDomain{}
	for _, domain := range resp.FailureDomains {
		if domain.Name != "" && len(domain.Name) <= longestName && instance.IsPrintable(domain.Name) {
			attributes := maps.Clone(domain.Attributes)
			// JSON cannot hold all of them, so that what is stored would differ from them in every pass.
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

// report writes the last answer to the status. After a restart, the status itself has what the driver
// returned last.
func (s *scope) report(last *answer) {
	found := s.infra.Status.FailureDomains
	if last != nil && last.listed {
		found = last.domains
	}
	surplus := s.setDomains(found)
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

// setDomains writes the failure domains of the spec, and then those found with other names. It returns
// how many had to be left out.
func (s *scope) setDomains(found []infrav1.FailureDomain) (surplus int) {
	// Copies: a write decodes the API server's response into the status.
	all := s.infra.DeepCopy().Spec.FailureDomains
	for i := range found {
		if !slices.ContainsFunc(s.infra.Spec.FailureDomains, func(d infrav1.FailureDomain) bool { return d.Name == found[i].Name }) {
			all = append(all, *found[i].DeepCopy())
		}
	}
	surplus = max(0, len(all)-mostDomains)
	s.infra.Status.FailureDomains = all[:len(all)-surplus]
	return surplus
}
