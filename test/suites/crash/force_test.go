package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/test/support/serverfault"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	// shortDrain is the drain timeout in scenarios with forced drains. Evictions happen before it expires.
	shortDrain = 10 * time.Second
	// shortOutage is how long an API server must be unreachable for an outage, and the period of the checks.
	shortOutage = time.Second
	// away is how long both API servers are unreachable, which is longer than a drain may take.
	away = shortDrain + shortOutage
)

// guarded are Machines of one pool. The node of each has a Pod of the same name, which is never evicted.
var guarded = []string{"guarded-a", "guarded-b"}

// forced contains the scenarios with forced drains.
var forced = []scenario{
	{
		name: "forced drain after an outage", where: apart,
		drainTimeout: shortDrain, outageTimeout: shortOutage,
		given:  givenGuarded,
		act:    inTurn(deleteGuarded, awaitThat("evictions of all pods", triedEvictions), outageOfBoth, removeAll),
		want:   nothing,
		always: most(len(guarded)),
	},
}

// givenGuarded creates the running guarded Machines.
func givenGuarded(ctx context.Context, r *run) error {
	if err := declareClass(ctx, r); err != nil {
		return err
	}
	for _, name := range guarded {
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: poolLabels()}, Spec: r.scenario.template()}
		if err := r.create(ctx, machine); err != nil {
			return err
		}
	}
	if err := r.await(ctx, "what is given", running(len(guarded))); err != nil {
		return err
	}
	labels := map[string]string{"app": "guarded"}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "budget"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		},
	}
	if err := r.createIn(ctx, r.target, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, budget); err != nil {
		return err
	}
	for _, name := range guarded {
		pod := podOn(name, name, labels)
		if err := r.createIn(ctx, r.target, pod); err != nil {
			return err
		}
		if err := r.makeReady(ctx, pod); err != nil {
			return err
		}
	}
	healthy := int32(len(guarded))
	return r.count(ctx, budget, policyv1.PodDisruptionBudgetStatus{CurrentHealthy: healthy, ExpectedPods: healthy})
}

// deleteGuarded deletes the guarded Machines.
func deleteGuarded(ctx context.Context, r *run) error {
	r.forces.begin(time.Now().Truncate(time.Second)) // deletion times have a resolution of one second
	return client.IgnoreNotFound(r.control.Client.DeleteAllOf(ctx, &v1alpha1.Machine{}, client.InNamespace(r.control.Namespace)))
}

// triedEvictions checks that an eviction of each guarded Pod was attempted, and that a manager acts. A manager that starts
// while the control cluster is unavailable exits, and something else starts it again.
func triedEvictions(_ context.Context, r *run) error {
	tried := map[string]bool{}
	for _, p := range r.gate.recorded() {
		tried[p.object] = true
	}
	for _, name := range guarded {
		if !tried["pods/eviction "+name] {
			return fmt.Errorf("that of %s was not", name)
		}
	}
	if !r.gate.acts() {
		return errors.New("no manager acts")
	}
	return nil
}

// outageOfBoth makes both API servers unreachable for a while. It closes all connections, and a load balancer
// responds instead. Clients retry for seconds if there is no response at all, and would not notice the outage.
func outageOfBoth(ctx context.Context, r *run) error {
	servers := []*apiserver{r.servers.control, r.servers.target}
	for _, server := range servers {
		server.fault.Store(&serverfault.Fault{Name: "is unavailable", Every: 1, Concerns: serverfault.AnyRequest, Respond: badGateway})
	}
	r.forces.outage(time.Now())
	r.hangUp()
	r.gate.note("the API servers are away")
	select {
	case <-time.After(away):
	case <-ctx.Done():
		return ctx.Err()
	}
	r.gate.note("the API servers are back")
	r.forces.begin(time.Now())
	for _, server := range servers {
		server.fault.Store(nil)
	}
	return nil
}

func badGateway(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
	http.Error(w, "no server is available", http.StatusBadGateway)
}

// unnoticed is how long a manager may continue after the API servers became unreachable: it checks them once per
// shortOutage, and completes what it has started.
const unnoticed = 2 * shortOutage

// hangUp closes all connections of managers.
func (r *run) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.managers {
		p.hangUp()
	}
}

// forces checks forced deletions by managers against the rules of forced drains: no drain is forced before its
// timeout, and after an outage each manager forces one drain at a time. Pods have the names of their Machines.
type forces struct {
	timeout time.Duration
	// exists reports whether a Machine exists.
	exists func(machine string) (bool, error)

	mu sync.Mutex
	// since is when the drains started or restarted; away is when the API servers became unreachable, or zero
	// while they are reachable.
	since, away time.Time
	// back is set when the API servers were unreachable, and are reachable again.
	back bool
	// first is the first manager. Other managers can read from a Machine when its drain was restarted, with a
	// resolution of one second.
	first int
	// asked contains the managers that checked whether an API server responds.
	asked map[int]bool
	// forced contains the Machines whose Pods each manager deleted by force.
	forced map[int][]string
	wrong  []error
}

// newForces returns the checker of a scenario with forced drains, and nil for others.
func (r *run) newForces(ctx context.Context) *forces {
	if r.scenario.drainTimeout == 0 {
		return nil
	}
	return &forces{timeout: r.scenario.drainTimeout, asked: map[int]bool{}, forced: map[int][]string{}, exists: func(name string) (bool, error) {
		err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: name}, &v1alpha1.Machine{})
		return err == nil, client.IgnoreNotFound(err)
	}}
}

// begin records that the drains start or restart, and clears the forced drains.
func (f *forces) begin(since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since, f.away, f.back = since, time.Time{}, !f.away.IsZero()
	clear(f.forced)
}

// outage records that the API servers are unreachable until the drains restart.
func (f *forces) outage(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.back = at, false
}

// work records that a manager starts.
func (f *forces) work(manager int) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first = cmp.Or(f.first, manager)
}

// request records a request of a manager, including one without a response: a health check of the API server, or
// the deletion of a Pod.
func (f *forces) request(manager int, r *http.Request, at time.Time) {
	if f == nil {
		return
	}
	resource, name := serverfault.ObjectOf(r.URL.Path, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case name == outage.ProbeName:
		f.asked[manager] = true
	case resource == "pods" && r.Method == http.MethodDelete:
		f.deletion(manager, name, at)
	}
}

// deletion records that a manager deletes a Pod.
func (f *forces) deletion(manager int, name string, at time.Time) {
	may := f.since.Add(f.timeout)
	if manager != f.first {
		may = may.Add(-time.Second)
	}
	switch {
	case !f.asked[manager]:
		f.wrong = append(f.wrong, fmt.Errorf("%w: %s, without a check of the API servers", errForcedSoon, name))
	case !f.away.IsZero() && at.After(f.away.Add(unnoticed)):
		f.wrong = append(f.wrong, fmt.Errorf("%w: %s, while the API servers are away", errForcedSoon, name))
	case at.Before(may):
		f.wrong = append(f.wrong, fmt.Errorf("%w: %s, %v too soon", errForcedSoon, name, may.Sub(at)))
	}
	if f.back { // both drains may have timed out before a manager observed the outage
		f.recordOverlap(f.forced[manager], name)
	}
	f.forced[manager] = append(f.forced[manager], name)
}

// recordOverlap records that a manager deletes a Pod before other Machines whose Pods it deleted are gone.
func (f *forces) recordOverlap(others []string, name string) {
	for _, other := range others {
		exists, err := f.exists(other)
		if err != nil {
			f.wrong = append(f.wrong, err)
		}
		if exists && other != name {
			f.wrong = append(f.wrong, fmt.Errorf("%w: %s next to %s", errForcedTogether, name, other))
		}
	}
}

// judge reports violations, and whether no drain was forced.
func (f *forces) judge() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.forced) == 0 {
		return errNotForced
	}
	return errors.Join(f.wrong...)
}

var (
	errForcedSoon     = errors.New("a drain is forced before its time is over")
	errForcedTogether = errors.New("drains are forced together")
	errNotForced      = errors.New("no drain was forced")
)

// TestForces_WronglyForcedDrainsAreFound checks that a build that misses an outage, and one that forces drains
// concurrently, are found without a crash.
func TestForces_WronglyForcedDrainsAreFound(t *testing.T) {
	tier.All(t)
	fleet := newFleet(t)
	for broken, want := range map[fault]error{sightless: errForcedSoon, hasty: errForcedTogether} {
		t.Run(string(broken), func(t *testing.T) {
			t.Parallel()
			if result := fleet.play(t, called("forced drain after an outage"), nil, broken); !errors.Is(result.err, want) {
				t.Errorf("the run finds %v, want %v\n%s", result.err, want, result.transcript)
			}
		})
	}
}

const (
	// sightless considers all API servers reachable.
	sightless fault = "sightless"
	// hasty forces two drains of a pool concurrently. Neither completes before the other is forced; otherwise the
	// second could start after the first was complete, which is correct.
	hasty fault = "hasty"
)

// replacements is how many Machines of a pool a build replaces, or drains by force, concurrently.
func (f fault) replacements() intstr.IntOrString {
	if f == hasty {
		return intstr.FromInt32(2)
	}
	return intstr.FromInt32(1)
}

// meeting blocks the deletion of a Pod until another deletion is requested, too.
type meeting struct {
	next  http.RoundTripper
	asked *atomic.Int32
	both  chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (m meeting) RoundTrip(r *http.Request) (*http.Response, error) {
	if resource, _ := serverfault.ObjectOf(r.URL.Path, nil); resource == "pods" && r.Method == http.MethodDelete {
		if m.asked.Add(1) == 2 {
			close(m.both)
		}
		select {
		case <-m.both:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return m.next.RoundTrip(r)
}

// answering implements sightless.
type answering struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	resource, name := serverfault.ObjectOf(r.URL.Path, nil)
	if name != outage.ProbeName {
		return a.next.RoundTrip(r)
	}
	return respondWith(r, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name).Status())
}

// TestForces checks how the rules of forced drains apply to requests.
func TestForces(t *testing.T) {
	const timeout = 10 * time.Second
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	type deletion struct {
		manager int
		pod     string
		at      time.Time
	}
	for name, tc := range map[string]struct {
		gone string
		done []deletion
		want error
		away bool
	}{
		"none":                                 {"", nil, errNotForced, false},
		"one, in time":                         {"", []deletion{{1, "a", at(10)}}, nil, false},
		"one, too soon":                        {"", []deletion{{1, "a", at(9)}}, errForcedSoon, false},
		"by another manager, to the second":    {"", []deletion{{2, "a", at(9)}}, nil, false},
		"by another manager, too soon":         {"", []deletion{{2, "a", at(8)}}, errForcedSoon, false},
		"one after another":                    {"a", []deletion{{1, "a", at(10)}, {1, "b", at(11)}}, nil, false},
		"together":                             {"", []deletion{{1, "a", at(10)}, {1, "b", at(11)}}, errForcedTogether, false},
		"the same again":                       {"", []deletion{{1, "a", at(10)}, {1, "a", at(11)}}, nil, false},
		"before an outage is seen":             {"", []deletion{{1, "a", at(20)}}, nil, true},
		"together, before an outage is seen":   {"", []deletion{{1, "a", at(20)}, {1, "b", at(21)}}, nil, true},
		"while the servers are away":           {"", []deletion{{1, "a", at(23)}}, errForcedSoon, true},
		"by a manager that did not ask":        {"", []deletion{{3, "a", at(20)}}, errForcedSoon, false},
		"together, by two that do not know it": {"", []deletion{{1, "a", at(10)}, {2, "b", at(11)}}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &forces{timeout: timeout, asked: map[int]bool{1: true, 2: true}, forced: map[int][]string{}, exists: func(machine string) (bool, error) { return machine != tc.gone, nil }}
			f.outage(began)
			f.begin(began)
			f.work(1)
			f.work(2)
			if tc.away {
				f.outage(at(20))
			}
			for _, d := range tc.done {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v1/namespaces/x/pods/"+d.pod, strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				f.request(d.manager, r, d.at)
			}
			if err := f.judge(); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("the rules find %v, want %v", err, tc.want)
			}
		})
	}
}
