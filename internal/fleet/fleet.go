// Package fleet serves many clusters of a seed in one process: each namespace with a label is the control namespace of a
// cluster, and has a Secret with the kubeconfig of that cluster.
//
// A planner derives the members of the fleet from Namespaces and Secrets. A supervisor runs a manager for each of them,
// which is that of package manager with a shared cache of the seed. Replicas divide the namespaces among themselves.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
)

// Config configures a fleet.
type Config struct {
	// Seed is the cluster with the namespaces. Required.
	Seed *rest.Config
	// Namespace is the namespace of the Leases of the replicas. Required.
	Namespace string
	// Namespaces selects the namespaces that the fleet serves. Required.
	Namespaces labels.Selector
	// Targets selects the Secret with the kubeconfig of a target in its namespace. Required.
	Targets Targets
	// Configure returns the settings of a namespace from its annotations, whose keys are names of flags. An error is a
	// sentence for users about the annotations. It is called concurrently with other callbacks. Required.
	Configure func(namespace string, annotations map[string]string) (Settings, error)
	// ResyncPeriod is how often all objects are reconciled without an event. Zero means controller-runtime's default.
	ResyncPeriod time.Duration
	// RenewDeadline and RetryPeriod are those of manager.Election, for the Leases of replicas. Required.
	RenewDeadline, RetryPeriod time.Duration
	// Pages are the pages that are served over HTTP.
	Pages manager.Pages
	// Log is required.
	Log logr.Logger
}

// Settings are the settings of one cluster.
type Settings struct {
	manager.Settings
	// QPS and Burst limit the requests to the seed for this cluster, and those to its target.
	QPS   float32
	Burst int
	// Open adds the drivers to the configuration of a manager and returns a function that closes them. It is called for
	// each start of the manager. Required.
	Open func(ctx context.Context, config *manager.Config) (closed func(), err error)
}

// Targets selects Secrets by name or by labels.
type Targets struct {
	// Name is the name of the Secret. If empty, Labels are used.
	Name string
	// Labels select the Secret if Name is empty.
	Labels labels.Selector
}

// String describes the Secrets for messages.
func (t Targets) String() string {
	if t.Name != "" {
		return fmt.Sprintf("with the name %s", t.Name)
	}
	return fmt.Sprintf("with the label %s", t.Labels)
}

func (t Targets) match(secret client.Object) bool {
	if t.Name != "" {
		return secret.GetName() == t.Name
	}
	return t.Labels.Matches(labels.Set(secret.GetLabels()))
}

// targetIndex is an index of Secrets with the kubeconfigs of targets.
const targetIndex = "fleet.target"

// component is the source of the fleet's events.
const component = "millwright-fleet"

// shutdown is how long managers may take to stop when the process exits.
const shutdown = 30 * time.Second

// fleet is a running fleet.
type fleet struct {
	Config
	seed       *manager.Seed
	seedUID    string
	events     record.EventRecorder
	planner    *planner
	supervisor *supervisor
	metrics    *metrics.Fleet
	registries registries
	// fail stops the fleet with an error.
	fail context.CancelCauseFunc
	// wake has an element if the members must be planned again.
	wake chan struct{}

	mu    sync.Mutex
	alive []string // replicas; empty if they are not known yet
	self  string
	// problems are the last problems by namespace, so that each is reported once.
	problems map[string]string
}

// Run serves the namespaces until ctx is canceled. An error means that the fleet could not start, could not exit in time, or must
// be restarted because the seed was restored from an older backup.
func Run(ctx context.Context, cfg Config) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	f := &fleet{Config: cfg, wake: make(chan struct{}, 1), problems: map[string]string{}, self: identityOf(), fail: fail}
	f.supervisor = newSupervisor(ctx)
	f.supervisor.run, f.supervisor.report = f.serve, f.report
	f.metrics = metrics.NewFleet(f.states)
	f.planner = &planner{targets: cfg.Targets.String(), configure: cfg.Configure}
	own := prometheus.NewRegistry() // several fleets may run in the process of a test
	own.MustRegister(f.metrics)
	cfg.Pages.Gatherer = f.registries.gatherer(prometheus.Gatherers{ctrlmetrics.Registry, own})
	ready, stop, err := manager.Serve(ctx, cfg.Pages, "waiting for the API server of the seed")
	if err != nil {
		return err
	}
	defer stop()
	f.containPanics()
	err = f.run(ctx, ready)
	if cause := context.Cause(ctx); errors.Is(cause, manager.ErrRestored) {
		return errors.Join(cause, err)
	}
	if ctx.Err() != nil && !errors.Is(err, errSlowStop) {
		return nil // what was starting fails during the shutdown
	}
	return err
}

var errSlowStop = errors.New("their leases will expire")

// identityOf returns the name of the Lease of this replica.
func identityOf() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	const longest = 40
	name := strings.ToLower(host)
	if len(name) > longest {
		name = name[:longest]
	}
	return "fleet-" + strings.Trim(name, "-.") + "-" + rand.String(5)
}

// containPanics ensures that panics in goroutines of client-go, such as those of event handlers of a target, do not
// terminate the process. Others are contained by the manager.
func (f *fleet) containPanics() {
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) {
		f.metrics.Panic("")
	})
}

// run starts the fleet and follows the seed until ctx is canceled.
func (f *fleet) run(ctx context.Context, ready func()) (err error) {
	f.seed, err = manager.NewSeed(ctx, manager.Config{Control: f.Seed, Log: f.Log, Settings: manager.Settings{ResyncPeriod: f.ResyncPeriod}}, f.Namespaces, func() { f.fail(manager.ErrRestored) })
	if err != nil {
		return err
	}
	f.events = f.seed.Recorder(component)
	leases, err := f.seed.Leases()
	if err != nil {
		return err
	}
	if err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		f.seedUID, err = uidOf(ctx, leases)
		return err == nil, nil
	}); err != nil {
		return fmt.Errorf("reading the identity of the seed: %w", err)
	}
	// The managers need the cache and events while they stop.
	caches, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := f.seed.Start(caches); err != nil {
			f.Log.Error(err, "the cache of the seed stopped")
		}
	}()
	defer func() { stop(); <-stopped }()
	if err := f.follow(ctx); err != nil {
		return err
	}
	others := &replicas{leases: leases.CoordinationV1().Leases(f.Namespace), self: f.self, fleet: f.name(), period: f.RetryPeriod, timeout: f.RenewDeadline, log: f.Log.WithName("replicas")}
	following := make(chan struct{})
	go func() { defer close(following); others.follow(ctx, f.divided) }()
	ready()
	f.plan(ctx)
	<-following
	leaving, cancel := context.WithTimeout(caches, shutdown)
	defer cancel()
	others.leave(leaving)
	return f.stop(leaving)
}

// name returns a name of the fleet that depends on what it serves.
func (f *fleet) name() string {
	digest := sha256.Sum256([]byte(f.Namespaces.String() + "\n" + f.Targets.String()))
	return hex.EncodeToString(digest[:8])
}

// follow fills the cache, and wakes the fleet when Namespaces or Secrets with kubeconfigs change.
func (f *fleet) follow(ctx context.Context) error {
	all := f.seed.Cache()
	err := all.IndexField(ctx, &corev1.Secret{}, targetIndex, func(secret client.Object) []string {
		if f.Targets.match(secret) {
			return []string{"yes"}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing Secrets: %w", err)
	}
	for _, kind := range []client.Object{&corev1.Namespace{}, &corev1.Secret{}} {
		informer, err := all.GetInformer(ctx, kind)
		if err != nil {
			return fmt.Errorf("following %T: %w", kind, err)
		}
		relevant := func(object any) {
			if secret, is := object.(*corev1.Secret); !is || f.Targets.match(secret) {
				f.again()
			}
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    relevant,
			UpdateFunc: func(before, now any) { relevant(before); relevant(now) },
			DeleteFunc: func(any) { f.again() },
		})
		if err != nil {
			return fmt.Errorf("following %T: %w", kind, err)
		}
	}
	if !all.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	return nil
}

// again requests another plan.
func (f *fleet) again() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// divided is called when the replicas that are alive have changed.
func (f *fleet) divided(alive []string) {
	f.Log.Info("the namespaces are divided among the replicas", "replicas", alive)
	f.metrics.Replicas(len(alive))
	f.mu.Lock()
	f.alive = alive
	f.mu.Unlock()
	f.again()
}

// planPause is the time between two plans, because many objects change together when the fleet starts.
const planPause = 200 * time.Millisecond

// plan keeps the supervisor up to date until ctx is canceled.
func (f *fleet) plan(ctx context.Context) {
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		}
		if err := f.planOnce(ctx); err != nil && ctx.Err() == nil {
			f.Log.Error(err, "cannot read the cache of the seed")
			f.again()
		}
		select {
		case <-time.After(planPause):
		case <-ctx.Done():
			return
		}
	}
}

func (f *fleet) planOnce(ctx context.Context) error {
	f.mu.Lock()
	alive := f.alive
	f.mu.Unlock()
	if len(alive) == 0 {
		return nil // divided wakes the fleet
	}
	namespaces, secrets := &corev1.NamespaceList{}, &corev1.SecretList{}
	if err := f.seed.Cache().List(ctx, namespaces, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if err := f.seed.Cache().List(ctx, secrets, client.MatchingFields{targetIndex: "yes"}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	before := f.planner.last
	members := f.planner.plan(namespaces.Items, secrets.Items)
	own := map[string]member{}
	for name, one := range members {
		if ownerOf(name, alive) == f.self {
			own[name] = one
		}
	}
	f.supervisor.set(own)
	for name, was := range before {
		if _, still := members[name]; !still {
			f.left(ctx, was, ownerOf(name, alive) == f.self)
		}
	}
	return nil
}

// left reports that a namespace left the fleet.
func (f *fleet) left(ctx context.Context, was member, ours bool) {
	name := was.namespace.Name
	f.metrics.Forget(name)
	f.mu.Lock()
	delete(f.problems, name)
	f.mu.Unlock()
	if !ours || was.namespace.DeletionTimestamp != nil {
		return
	}
	machines, deleting := &v1alpha1.MachineList{}, 0
	if err := f.seed.Cache().List(ctx, machines, client.InNamespace(name), client.UnsafeDisableDeepCopy); err != nil {
		return // the process is stopping
	}
	for i := range machines.Items {
		if machines.Items[i].DeletionTimestamp != nil {
			deleting++
		}
	}
	f.event(was.namespace, corev1.EventTypeNormal, ReasonLeft, fmt.Sprintf(
		"the fleet stops serving this namespace because it no longer has the label %s; %d of %d Machines are being deleted, which another manager must continue", f.Namespaces, deleting, len(machines.Items)))
}

// event records an event about a namespace in that namespace, where its users see it.
func (f *fleet) event(namespace *corev1.Namespace, kind, reason, text string) {
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: namespace.Name, Namespace: namespace.Name, UID: namespace.UID}
	f.events.Event(about, kind, reason, text)
}

// report reports a problem of a namespace: each occurrence in a metric, and each change in an event and the log.
func (f *fleet) report(of member, found *problem) {
	name := of.namespace.Name
	f.metrics.Problem(name, found.reason)
	var panicked *manager.PanicError
	if errors.As(found.cause, &panicked) {
		f.metrics.Panic(name)
		f.Log.Error(panicked, "contained a panic", "cluster", name, "stack", string(panicked.Stack))
	}
	f.mu.Lock()
	known := f.problems[name] == found.text
	f.problems[name] = found.text
	f.mu.Unlock()
	if known {
		return
	}
	f.Log.Info("a namespace has a problem", "cluster", name, "reason", found.reason, "problem", found.text)
	f.event(of.namespace, corev1.EventTypeWarning, found.reason, found.text)
}

// states returns the states of the namespaces for metrics.
func (f *fleet) states() map[string]string {
	states := map[string]string{}
	for name, state := range f.supervisor.states() {
		states[name] = string(state)
	}
	return states
}

// stop waits until all managers have stopped and released their leases.
func (f *fleet) stop(ctx context.Context) error {
	if left := f.supervisor.wait(ctx); len(left) > 0 {
		return fmt.Errorf("%d managers did not stop within %v (%s); %w", len(left), shutdown, strings.Join(left, ", "), errSlowStop)
	}
	return nil
}
