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

// ErrRestored is the error of a process that stopped because the cluster of its objects was restored from an older backup.
var ErrRestored = errors.New("the control cluster was restored from an older backup than this process has read; start the process again")

// unlessRestored returns a newInformer whose informers call restored, and keep what they have, if a list is older than that.
//
// Informers list one after another. If they accepted an older list, a pass could combine objects from before and after a
// restore, such as a MachineSet with fewer replicas and Machines that no longer exist, and delete Machines that the set
// needs. The next process lists all kinds before it acts.
func unlessRestored(made newInformer, restored func()) newInformer {
	return func(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if lists, ok := from.(*toolscache.ListWatch); ok {
			h := &history{restored: restored, inner: *lists}
			lists.ListWithContextFunc, lists.WatchFuncWithContext = h.list, h.watch
		}
		return made(from, object, resync, indexers)
	}
}

// history knows how far an informer has followed the history of its cluster.
type history struct {
	restored func()
	inner    toolscache.ListWatch
	// known is the last version that the informer requested. It requests the version that it has before it accepts any other.
	known string
}

func (h *history) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	h.request(options)
	list, err := h.inner.ListWithContextFunc(ctx, options)
	if err != nil {
		return nil, err
	}
	if h.isOlder(list) {
		return nil, ErrRestored
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
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		return event, event.Type != watch.Bookmark || !h.isOlder(event.Object)
	}), nil
}

func (h *history) request(options metav1.ListOptions) {
	if options.ResourceVersion != "" && options.ResourceVersion != "0" {
		h.known = options.ResourceVersion
	}
}

// isOlder reports whether an object or a list is older than what the informer has.
func (h *history) isOlder(object runtime.Object) bool {
	version := ""
	if list, err := meta.ListAccessor(object); err == nil {
		version = list.GetResourceVersion()
	} else if one, err := meta.Accessor(object); err == nil {
		version = one.GetResourceVersion()
	}
	order, err := resourceversion.CompareResourceVersion(version, h.known)
	if err != nil || order >= 0 {
		return false
	}
	h.restored()
	return true
}
