package manager

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// ErrRestored means that the process must exit because the cluster of its objects was restored from an older backup.
var ErrRestored = errors.New("the control cluster was restored from a backup that is older than the objects this process has read; restart the process")

// unlessRestored returns a newInformer whose informers reject lists that are older than their objects. They then keep these
// objects, and call restored. Informers compare the version of the list and of each object in it. The version of the list is
// not sufficient: etcd can be restored with higher versions, so that they do not decrease for clients, and a restored cluster
// may already have reached the earlier version.
//
// Informers list one after another. If they accepted an older list, a pass could combine objects from before and after a
// restore, such as a MachineSet with fewer replicas and Machines that no longer exist, and delete Machines that the set
// needs. The next process lists all kinds before it acts.
func unlessRestored(made newInformer, restored func()) newInformer {
	return func(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		lists, ok := from.(*toolscache.ListWatch)
		if !ok {
			return made(from, object, resync, indexers)
		}
		h := &history{restored: restored, inner: *lists}
		lists.ListWithContextFunc, lists.WatchFuncWithContext = h.list, h.watch
		informer := made(from, object, resync, indexers)
		h.has = informer.GetStore()
		return informer
	}
}

// history records the last resource version of an informer, and detects older lists.
type history struct {
	restored func()
	inner    toolscache.ListWatch
	// known is the last version that the informer requested. After an outage, it first requests the version that it has.
	known string
	// has contains the objects of the informer.
	has toolscache.Store
}

func (h *history) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	h.request(options)
	list, err := h.inner.ListWithContextFunc(ctx, options)
	if err != nil {
		return nil, err
	}
	older := isBefore(versionOf(list), h.known)
	err = meta.EachListItem(list, func(object runtime.Object) error {
		older = older || h.hasNewer(object)
		return nil
	})
	if err == nil && older {
		h.restored()
		err = ErrRestored
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// watch also handles streams that begin with a list. The informer accepts that list when an event marks its end.
func (h *history) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	h.request(options)
	events, err := h.inner.WatchFuncWithContext(ctx, options)
	if err != nil || options.SendInitialEvents == nil || h.known == "" {
		return events, err
	}
	known, older := h.known, false
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		switch event.Type {
		case watch.Added:
			older = older || h.hasNewer(event.Object)
		case watch.Bookmark:
			older = older || isBefore(versionOf(event.Object), known)
			if older {
				h.restored()
			}
			return event, !older
		}
		return event, true
	}), nil
}

func (h *history) request(options metav1.ListOptions) {
	if options.ResourceVersion != "" && options.ResourceVersion != "0" {
		h.known = options.ResourceVersion
	}
}

// hasNewer reports whether the informer has a newer version of an object in a list.
func (h *history) hasNewer(object runtime.Object) bool {
	has, found, err := h.has.Get(object)
	return err == nil && found && isBefore(versionOf(object), versionOf(has.(runtime.Object)))
}

func versionOf(object runtime.Object) string {
	if list, err := meta.ListAccessor(object); err == nil {
		return list.GetResourceVersion()
	}
	if one, err := meta.Accessor(object); err == nil {
		return one.GetResourceVersion()
	}
	return ""
}

// isBefore reports whether a version is lower than another. It returns false if one of them is not known.
func isBefore(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order < 0
}
