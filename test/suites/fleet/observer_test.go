package fleet

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// observer watches the Machines and leases of clusters, and checks each of their states.
type observer struct {
	*world
	clusters map[string]*cluster
	client   client.WithWatch
	// rule returns why a state of the Machines of a cluster must not occur after a change of the given kind, or an empty string
	// if it may occur. It is called with the lock held.
	rule func(of *cluster, known map[string]*v1alpha1.Machine, change watch.EventType) string
	// restarts permits restarts of the seed's API server, which terminate watches. The observer misses changes until a watch
	// begins again.
	restarts bool

	mu sync.Mutex
	// holdings are the holders of the lease machine-controller of each namespace, oldest first, and secondary those of the other
	// lease.
	holdings, secondary map[string][]holding
	machines            map[string]map[string]*v1alpha1.Machine
	// updates counts the updates that keepUpdating has begun in each namespace.
	updates map[string]int
	// violations are states that must not occur.
	violations []string
}

// holding is the time for which a manager holds a lease.
type holding struct {
	holder            string
	acquired, renewed time.Time
}

// observe starts to observe clusters whose pools are complete. By default, their Machines must be updated one by one; changes can
// set another rule.
func (w *world) observe(clusters []*cluster, changes ...func(*observer)) *observer {
	w.Helper()
	o := &observer{
		world: w, clusters: map[string]*cluster{}, holdings: map[string][]holding{}, secondary: map[string][]holding{},
		machines: map[string]map[string]*v1alpha1.Machine{}, updates: map[string]int{}, rule: isOneByOne,
	}
	for _, c := range clusters {
		o.clusters[c.namespace] = c
	}
	o.forget()
	for _, change := range changes {
		change(o)
	}
	var err error
	if o.client, err = client.NewWithWatch(w.Admin, client.Options{Scheme: env.NewScheme()}); err != nil {
		w.Fatal(err)
	}
	o.follow(&v1alpha1.MachineList{}, o.seeMachine)
	o.follow(&coordinationv1.LeaseList{}, o.seeLease)
	return o
}

// load updates the pools continuously until the returned function is called.
func (o *observer) load() (stop func()) {
	ctx, cancel := context.WithCancel(o.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); o.keepUpdating(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-stopped })
	o.Cleanup(stop)
	return stop
}

// follow passes all objects of a kind, and then all events, to a function, which is called with the lock held.
func (o *observer) follow(list client.ObjectList, see func(event watch.EventType, object any)) {
	o.Helper()
	events, err := o.client.Watch(o.Context(), list) // begins with the existing objects
	if err != nil {
		o.Fatal(err)
	}
	go func() {
		for events != nil {
			for event := range events.ResultChan() {
				o.mu.Lock()
				see(event.Type, event.Object)
				o.mu.Unlock()
			}
			if o.Context().Err() == nil && !o.restarts {
				o.Errorf("the watch of %T ended", list)
			}
			events = o.resume(list)
		}
	}()
}

// resume begins a watch again. It returns nil if that is not permitted, or if the test completes.
func (o *observer) resume(list client.ObjectList) watch.Interface {
	for o.restarts && o.Context().Err() == nil {
		if _, machines := list.(*v1alpha1.MachineList); machines {
			o.mu.Lock()
			o.forget() // they may have been deleted
			o.mu.Unlock()
		}
		if events, err := o.client.Watch(o.Context(), list); err == nil {
			return events
		}
		select {
		case <-time.After(resumePeriod):
		case <-o.Context().Done():
		}
	}
	return nil
}

// resumePeriod is the time between two attempts to begin a watch again.
const resumePeriod = 50 * time.Millisecond

// forget forgets all Machines. Its caller holds the lock.
func (o *observer) forget() {
	for namespace := range o.clusters {
		o.machines[namespace] = map[string]*v1alpha1.Machine{}
	}
}

// seeMachine applies the rule to a change of a Machine.
func (o *observer) seeMachine(event watch.EventType, object any) {
	machine, ok := object.(*v1alpha1.Machine)
	if !ok && event == watch.Error && o.restarts {
		return
	}
	if !ok {
		o.violations = append(o.violations, fmt.Sprintf("the watch of Machines returned %v", object))
		return
	}
	known := o.machines[machine.Namespace]
	if known == nil {
		return // of another test
	}
	if event == watch.Deleted {
		delete(known, machine.Name)
	} else {
		known[machine.Name] = machine
	}
	if violation := o.rule(o.clusters[machine.Namespace], known, event); violation != "" {
		o.violations = append(o.violations, machine.Namespace+" "+violation)
	}
}

// isOneByOne checks the bounds of a rolling update of one Machine at a time.
func isOneByOne(c *cluster, known map[string]*v1alpha1.Machine, change watch.EventType) string {
	_, available := countsOf(known)
	if change != watch.Added && available < c.machines || len(known) > c.machines+1 {
		return fmt.Sprintf("has %d Machines, of which %d are available", len(known), available)
	}
	return ""
}

// countsOf returns the number of Machines that are not being deleted, and how many of these are Running.
func countsOf(known map[string]*v1alpha1.Machine) (active, available int) {
	for _, one := range known {
		if !one.DeletionTimestamp.IsZero() {
			continue
		}
		active++
		if one.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			available++
		}
	}
	return active, available
}

// seeLease records who holds the leases of a namespace.
func (o *observer) seeLease(_ watch.EventType, object any) {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok || o.clusters[lease.Namespace] == nil {
		return
	}
	all := o.holdings
	if lease.Name == v1alpha1.LeaseMachineControllerManager {
		all = o.secondary
	}
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	if holder == "" {
		return
	}
	known := all[lease.Namespace]
	if len(known) == 0 || known[len(known)-1].holder != holder {
		known = append(known, holding{holder: holder, acquired: timeOf(lease.Spec.AcquireTime)})
	}
	known[len(known)-1].renewed = timeOf(lease.Spec.RenewTime)
	all[lease.Namespace] = known
}

func timeOf(at *metav1.MicroTime) time.Time { return ptr.Deref(at, metav1.MicroTime{}).Time }

// updatePeriod is the time between two reads of the pools.
const updatePeriod = 200 * time.Millisecond

// keepUpdating begins a rolling update of each pool whose last update is complete, until ctx is canceled. It repeats failed
// requests. If none succeeds, the test fails because it waits for updates.
func (o *observer) keepUpdating(ctx context.Context) {
	for version := 1; ctx.Err() == nil; version++ {
		deployments := &v1alpha1.MachineDeploymentList{}
		_ = o.client.List(ctx, deployments)
		for i := range deployments.Items {
			deployment := &deployments.Items[i]
			if o.clusters[deployment.Namespace] == nil || !complete(deployment) {
				continue
			}
			merge := `{"spec":{"template":{"metadata":{"annotations":{"version":"` + strconv.Itoa(version) + `"}}}}}`
			if o.client.Patch(ctx, deployment, client.RawPatch("application/merge-patch+json", []byte(merge))) == nil {
				o.mu.Lock()
				o.updates[deployment.Namespace]++
				o.mu.Unlock()
			}
		}
		select {
		case <-time.After(updatePeriod):
		case <-ctx.Done():
		}
	}
}

// count returns how many holders the leases of a namespace have had. It returns an error if the observer does not know the
// current holders, or if the two leases had different holders.
func (o *observer) count(namespace string) (int, error) {
	var present [2]string
	for i, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
		lease := &coordinationv1.Lease{}
		if err := o.Client.Get(o.Context(), client.ObjectKey{Namespace: namespace, Name: name}, lease); err != nil {
			return 0, err
		}
		present[i] = ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	one, other := o.holdings[namespace], o.secondary[namespace]
	if len(one) != len(other) || len(one) == 0 || one[len(one)-1].holder != present[0] || present[0] != present[1] {
		return 0, fmt.Errorf("the leases of %s are held by %v; the observer knows %d and %d holders", namespace, present, len(one), len(other))
	}
	for i := range one {
		if one[i].holder != other[i].holder {
			return 0, fmt.Errorf("holder %d of the leases of %s was %s and %s", i, namespace, one[i].holder, other[i].holder)
		}
	}
	return len(one), nil
}

// last returns the last two holders of the leases of a namespace.
func (o *observer) last(namespace string) (before, now holding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.holdings[namespace]
	return all[len(all)-2], all[len(all)-1]
}

// wantNoViolations fails the test if a state occurred that must not occur.
func (o *observer) wantNoViolations() {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	const most = 10
	for i, violation := range o.violations {
		if i < most {
			o.Error(violation)
		}
	}
	if len(o.violations) > most {
		o.Errorf("and %d more violations", len(o.violations)-most)
	}
}
