package rollout

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// patience is how long the API server may take to answer before anything is followed.
const patience = 10 * time.Second

// Follower follows one deployment.
type Follower struct {
	// Client reads and watches.
	Client client.WithWatch
	// Link is that of the client.
	Link *Link
	// Pace is how much time at least passes between two looks. What happens meanwhile is
	// seen at once.
	Pace time.Duration
	// Beat is after what time to look again though nothing has changed; 0 is never.
	Beat time.Duration
	// Around is how old what is around may be when it is looked at; 0 leaves it out.
	Around time.Duration
}

// Follow shows what is known of a deployment, at once and whenever it has changed, until
// it is said to be enough. An API server that goes away meanwhile is waited for. That the
// deployment does not exist, or is deleted, is an error.
func (f *Follower) Follow(ctx context.Context, key types.NamespacedName, see func(Facts) (enough bool, err error)) error {
	first, err := f.try(ctx, key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan struct{}, 1) // holds one token when something has changed
	note := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	f.Link.onChange(note)
	defer f.Link.onChange(nil)
	stores, end, err := f.start(ctx, key, note)
	defer end()
	defer cancel()
	if err != nil {
		return err
	}
	return f.look(ctx, stores, first, changed, see)
}

// try finds out whether there is such a deployment, and whether all can be read that will
// be followed: informers would try it for ever.
func (f *Follower) try(ctx context.Context, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	deployment, err := get(ctx, f.Client, key)
	if err != nil {
		return nil, err
	}
	for what, list := range map[string]client.ObjectList{"machine sets": &v1alpha1.MachineSetList{}, "machines": &v1alpha1.MachineList{}} {
		if err := f.Client.List(ctx, list, client.InNamespace(key.Namespace), client.Limit(1)); err != nil {
			return nil, fmt.Errorf("listing %s: %w", what, err)
		}
	}
	return deployment, nil
}

// stores hold what is followed.
type stores struct{ deployments, sets, machines cache.SharedIndexInformer }

// start follows the deployment and what is in its namespace until the context ends, which
// the returned function waits for.
func (f *Follower) start(ctx context.Context, key types.NamespacedName, note func()) (s stores, end func(), err error) {
	only := &client.ListOptions{Namespace: key.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name)}
	all := &client.ListOptions{Namespace: key.Namespace}
	s.deployments = f.informer(&v1alpha1.MachineDeployment{}, func() client.ObjectList { return &v1alpha1.MachineDeploymentList{} }, only)
	s.sets = f.informer(&v1alpha1.MachineSet{}, func() client.ObjectList { return &v1alpha1.MachineSetList{} }, all)
	s.machines = f.informer(&v1alpha1.Machine{}, func() client.ObjectList { return &v1alpha1.MachineList{} }, all)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { note() }, UpdateFunc: func(_, _ any) { note() }, DeleteFunc: func(any) { note() },
	}
	// What goes wrong is shown; log lines would be drawn over.
	quiet := klog.NewContext(ctx, logr.Discard())
	var group sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{s.deployments, s.sets, s.machines} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return s, group.Wait, fmt.Errorf("following %s: %w", key, err)
		}
		if err := informer.SetTransform(slim); err != nil {
			return s, group.Wait, fmt.Errorf("following %s: %w", key, err)
		}
		group.Go(func() { informer.RunWithContext(quiet) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), s.deployments.HasSynced, s.sets.HasSynced, s.machines.HasSynced) {
		return s, group.Wait, ctx.Err()
	}
	return s, group.Wait, nil
}

func (f *Follower) informer(of client.Object, list func() client.ObjectList, options *client.ListOptions) cache.SharedIndexInformer {
	with := func(raw metav1.ListOptions) *client.ListOptions {
		with := *options
		with.Raw = &raw
		return &with
	}
	return cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			found := list()
			err := f.Client.List(ctx, found, with(raw))
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			return f.Client.Watch(ctx, list(), with(raw))
		},
	}, of, cache.SharedIndexInformerOptions{})
}

// slim leaves out what nobody looks at.
func slim(object any) (any, error) {
	if of, ok := object.(client.Object); ok {
		of.SetManagedFields(nil)
	}
	return object, nil
}

// look shows each state that is not older than the first.
func (f *Follower) look(ctx context.Context, s stores, first *v1alpha1.MachineDeployment, changed <-chan struct{}, see func(Facts) (bool, error)) error {
	var beat <-chan time.Time
	if f.Beat > 0 {
		ticker := time.NewTicker(f.Beat)
		defer ticker.Stop()
		beat = ticker.C
	}
	pace := time.NewTimer(0)
	defer pace.Stop()
	around, read := Around{}, time.Time{}
	for {
		if f.Around > 0 && time.Since(read) >= f.Around {
			around, read = readAround(ctx, f.Client, first.Namespace), time.Now()
		}
		facts, err := s.facts(first)
		if err != nil {
			return err
		}
		// What a follower gets first may be older than what was read before.
		if facts.Deployment.Generation >= first.Generation {
			facts.Around, facts.Problem = around, f.Link.Problem()
			if enough, err := see(facts); enough || err != nil {
				return err
			}
		}
		for _, next := range []func() error{
			func() error { return await(ctx, pace.C, nil) },
			func() error { return await(ctx, beat, changed) },
		} {
			if err := next(); err != nil {
				return err
			}
		}
		pace.Reset(f.Pace)
	}
}

// await waits for one of two channels.
func await(ctx context.Context, a <-chan time.Time, b <-chan struct{}) error {
	select {
	case <-a:
	case <-b:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// facts are what the stores hold.
func (s stores) facts(first *v1alpha1.MachineDeployment) (Facts, error) {
	deployments := held[*v1alpha1.MachineDeployment](s.deployments)
	if len(deployments) == 0 || deployments[0].UID != first.UID {
		return Facts{}, fmt.Errorf("machine deployment %s/%s was deleted", first.Namespace, first.Name)
	}
	return sortOut(deployments[0], held[*v1alpha1.MachineSet](s.sets), held[*v1alpha1.Machine](s.machines)), nil
}

func held[T any](informer cache.SharedIndexInformer) []T {
	var items []T
	for _, item := range informer.GetStore().List() {
		if of, ok := item.(T); ok {
			items = append(items, of)
		}
	}
	return items
}
