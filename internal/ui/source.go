package ui

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// Access describes whether the objects of a kind can be read.
type Access string

// The values of Access.
const (
	// AccessLoading means that the objects are being read for the first time.
	AccessLoading Access = "loading"
	// AccessOK means that the objects are current.
	AccessOK Access = "ok"
	// AccessForbidden means that the user has no permission to list and watch the kind.
	AccessForbidden Access = "forbidden"
	// AccessAbsent means that the cluster does not have the kind.
	AccessAbsent Access = "absent"
	// AccessLost means that the API server does not respond, so that objects may be out of date.
	AccessLost Access = "lost"
)

// Intervals at which reading a kind is retried.
const (
	retryAccess = 30 * time.Second
	retryLost   = 2 * time.Second
)

// kind is a kind of objects that the page shows.
type kind struct {
	name string
	// object and list are empty.
	object client.Object
	list   client.ObjectList
	// labels and fields select the objects. If empty, all are selected.
	labels, fields string
	// global reports whether the objects have no namespace.
	global bool
	// capi is the name of a kind of Cluster API, or empty. Such a kind has no Go type of the client: it is read in the
	// version that ClusterAPIKind returns, and convert returns what is kept of an object.
	capi    string
	convert func(*unstructured.Unstructured) any
}

// kinds are the watched kinds. Nodes are those of hosts only: the nodes of Machines are shown from the Machines' status,
// because their heartbeats would be most of the traffic. Events are those on Machines, their sets and deployments.
func kinds() []kind {
	return []kind{
		{name: "MachineDeployment", object: &v1alpha1.MachineDeployment{}, list: &v1alpha1.MachineDeploymentList{}},
		{name: "MachineSet", object: &v1alpha1.MachineSet{}, list: &v1alpha1.MachineSetList{}},
		{name: "Machine", object: &v1alpha1.Machine{}, list: &v1alpha1.MachineList{}},
		{name: "VirtualMachine", object: &vmv1alpha1.VirtualMachine{}, list: &vmv1alpha1.VirtualMachineList{}},
		{name: "Node", object: &corev1.Node{}, list: &corev1.NodeList{}, labels: vmv1alpha1.HostKey, global: true},
		{name: "Event", object: &corev1.Event{}, list: &corev1.EventList{}, fields: "involvedObject.apiVersion=" + v1alpha1.SchemeGroupVersion.String()},
		capiKind[capiDeployment](capiDeployments, "MachineDeployment"),
		capiKind[capiSet](capiSets, "MachineSet"),
		capiKind[capiMachine](capiMachines, "Machine"),
	}
}

// source keeps the objects of a kind.
type source struct {
	kind
	client client.WithWatch
	// namespace limits what is watched. If empty, all namespaces are watched, or only those of fallback if the user may
	// not list all.
	namespace, fallback string
	// notify is called with the key of each object that changed, and with "" if any may have changed.
	notify func(key string)

	mu      sync.Mutex
	state   State
	objects toolscache.Indexer
}

// State describes whether a kind can be read. KindRow has the same fields.
type State struct {
	Access Access
	// Namespace is the only namespace that is watched. It is empty if all are.
	Namespace string
	// Message explains AccessForbidden and AccessLost.
	Message string
}

// get returns the state, and the objects, which are nil before the first list.
func (s *source) get() (State, toolscache.Indexer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.objects
}

func (s *source) set(change func()) {
	s.mu.Lock()
	before := s.state
	change()
	changed := s.state != before
	s.mu.Unlock()
	if changed {
		s.notify("")
	}
}

// run keeps the objects current until ctx is done.
func (s *source) run(ctx context.Context) {
	s.set(func() { s.state = State{Access: AccessLoading} })
	for ctx.Err() == nil {
		namespace, err := s.probe(ctx)
		pause := retryAccess
		if err == nil {
			s.watch(ctx, namespace)
			pause = retryLost
		} else if state := stateOf(err); state.Access == AccessLost {
			pause = retryLost
			s.set(func() { s.state = State{AccessLost, s.state.Namespace, state.Message} })
		} else {
			s.set(func() { s.state, s.objects = state, nil })
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// stateOf returns what an error of the API server means.
func stateOf(err error) State {
	switch {
	case apierrors.IsForbidden(err):
		return State{Access: AccessForbidden, Message: err.Error()}
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return State{Access: AccessAbsent}
	}
	return State{Access: AccessLost, Message: err.Error()}
}

// discover determines the version in which a kind of Cluster API is read.
func (s *source) discover() error {
	if s.capi == "" {
		return nil
	}
	of, err := ClusterAPIKind(s.client.RESTMapper(), s.capi)
	if err != nil {
		return err
	}
	object, list := &unstructured.Unstructured{}, &unstructured.UnstructuredList{}
	object.SetGroupVersionKind(of)
	list.SetGroupVersionKind(of.GroupVersion().WithKind(of.Kind + "List"))
	s.object, s.list = object, list
	return nil
}

// probe returns the namespace to watch, which is empty for all.
func (s *source) probe(ctx context.Context) (string, error) {
	if err := s.discover(); err != nil {
		return "", err
	}
	namespaces := []string{s.namespace}
	if s.namespace == "" && s.fallback != "" && !s.global {
		namespaces = append(namespaces, s.fallback)
	}
	var err error
	for _, namespace := range namespaces {
		_, err = s.read(ctx, namespace, metav1.ListOptions{Limit: 1})
		if !apierrors.IsForbidden(err) {
			return namespace, err
		}
	}
	return "", err
}

func (s *source) options(namespace string, options metav1.ListOptions) *client.ListOptions {
	options.LabelSelector, options.FieldSelector = s.labels, s.fields
	return &client.ListOptions{Namespace: s.in(namespace), Raw: &options}
}

func (s *source) in(namespace string) string {
	if s.global {
		return ""
	}
	return namespace
}

func (s *source) read(ctx context.Context, namespace string, options metav1.ListOptions) (client.ObjectList, error) {
	list := s.list.DeepCopyObject().(client.ObjectList)
	err := s.client.List(ctx, list, s.options(namespace, options))
	return list, err
}

// found records that the API server responds.
func (s *source) found() {
	if s.state.Access != AccessLost {
		return
	}
	s.state.Access, s.state.Message = AccessOK, ""
	if s.objects == nil {
		s.state.Access = AccessLoading
	}
}

// watch keeps the objects of a namespace current until ctx is done or the user loses the permission.
func (s *source) watch(ctx context.Context, namespace string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The handler of watch errors does not see those that a reflector retries.
	seen := func(err error) error {
		switch {
		case err == nil:
			s.set(s.found)
		case errors.Is(err, context.Canceled), apierrors.IsResourceExpired(err), apierrors.IsGone(err): // objects are listed again
		default:
			if state := stateOf(err); state.Access == AccessLost {
				s.set(func() { s.state.Access, s.state.Message = AccessLost, state.Message })
			} else {
				cancel() // probe determines what is left
			}
		}
		return err
	}
	informer := toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := s.read(ctx, namespace, options)
			return list, seen(err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := s.client.Watch(ctx, s.list.DeepCopyObject().(client.ObjectList), s.options(namespace, options))
			return events, seen(err)
		},
	}, s.client), s.object, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	_ = informer.SetTransform(s.keep) // fails only after the start, as the next two
	_ = informer.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {})
	_, _ = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: s.changed, UpdateFunc: func(_, object any) { s.changed(object) }, DeleteFunc: s.changed,
	})
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			s.set(func() {
				s.objects, s.state = informer.GetIndexer(), State{Access: AccessOK, Namespace: s.in(namespace)}
			})
		}
	}()
	informer.RunWithContext(ctx)
}

func (s *source) changed(object any) {
	if key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
		s.notify(key)
	}
}

// keep returns what is kept of an object. It may be called again with its result.
func (s *source) keep(object any) (any, error) {
	object = strip(object)
	if read, ok := object.(*unstructured.Unstructured); ok && s.convert != nil {
		return s.convert(read), nil
	}
	return object, nil
}

// strip removes what the page does not show: at 5,000 machines, it would be half of the memory.
func strip(object any) any {
	if of, ok := object.(client.Object); ok {
		of.SetManagedFields(nil)
		annotations := of.GetAnnotations() // a copy if the object is unstructured
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		of.SetAnnotations(annotations)
	}
	return object
}

// objectsOf returns the objects of a namespace, or of all if it is empty. They must not be modified.
func objectsOf[T any](s *source, namespace string) []T {
	_, objects := s.get()
	if objects == nil {
		return nil
	}
	var found []any
	if namespace == "" {
		found = objects.List()
	} else {
		found, _ = objects.ByIndex(toolscache.NamespaceIndex, namespace) // the index exists
	}
	typed := make([]T, 0, len(found))
	for _, object := range found {
		typed = append(typed, object.(T))
	}
	return typed
}

// objectOf returns an object by its key, or nil.
func objectOf[T any](s *source, key string) (none T) {
	_, objects := s.get()
	if objects == nil {
		return none
	}
	if object, exists, err := objects.GetByKey(key); err == nil && exists {
		return object.(T)
	}
	return none
}
