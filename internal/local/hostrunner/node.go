package hostrunner

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	// statusInterval is how often the Node's status is written though nothing
	// changed; leaseInterval and leaseDuration are those of its sign of life. All
	// are the kubelet's.
	statusInterval = 5 * time.Minute
	leaseInterval  = 10 * time.Second
	leaseDuration  = 40 * time.Second

	retryInterval = time.Second

	reasonRuns    = "HostRunnerReady"
	reasonStopped = "HostStopped"
)

// node keeps the host's Node and its Lease.
type node struct {
	*host
	changed chan struct{}
}

func newNode(h *host) *node { return &node{host: h, changed: make(chan struct{}, 1)} }

// run keeps the Node until the context ends, and then says that it is not ready.
func (n *node) run(ctx context.Context) {
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(
			n.client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name)),
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { n.notify() },
			UpdateFunc: func(any, any) { n.notify() },
			DeleteFunc: func(any) { n.notify() },
		},
	})
	var watching sync.WaitGroup
	watching.Go(func() { informer.RunWithContext(ctx) })
	watching.Go(func() { n.repeat(ctx, leaseInterval, nil, "renewing the lease", n.renewLease) })
	defer watching.Wait()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	n.repeat(ctx, statusInterval, n.changed, "keeping the Node",
		func(ctx context.Context) error { return n.keep(ctx, store) })
	n.leave(ctx, store)
}

func (n *node) notify() {
	select {
	case n.changed <- struct{}{}:
	default: // somebody will look anyway
	}
}

// repeat does something at once, then at each interval and each event, and sooner
// after an error.
func (n *node) repeat(
	ctx context.Context, interval time.Duration, event <-chan struct{}, what string, do func(context.Context) error,
) {
	for ctx.Err() == nil {
		next := interval
		if err := do(ctx); err != nil && ctx.Err() == nil {
			n.Log.Error(err, what)
			next = retryInterval
		}
		timer := n.Clock.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-event:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// keep creates the Node if there is none, and writes what differs or has grown old.
func (n *node) keep(ctx context.Context, store cache.Store) error {
	current, found, err := store.GetByKey(n.Name)
	if err != nil {
		return err
	}
	want, err := n.describe()
	if err != nil {
		return err
	}
	if !found {
		_, err := n.client.CoreV1().Nodes().Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the watch is about to tell
		}
		if err == nil {
			n.Log.Info("registered the Node", "node", n.Name)
		}
		return err
	}
	have := current.(*corev1.Node)
	if err := n.keepLabels(ctx, have, want); err != nil {
		return err
	}
	return n.keepStatus(ctx, have, want.Status)
}

func (n *node) keepLabels(ctx context.Context, have, want *corev1.Node) error {
	labeled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(have.Labels)}}
	if labeled.Labels == nil {
		labeled.Labels = map[string]string{}
	}
	maps.Copy(labeled.Labels, want.Labels)
	patch, err := differences(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: have.Labels}}, labeled, corev1.Node{})
	if err != nil || patch == nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.Name, patchType, patch, metav1.PatchOptions{})
	return ignoreGone(err)
}

// keepStatus leaves alone what others write into the status.
func (n *node) keepStatus(ctx context.Context, have *corev1.Node, want corev1.NodeStatus) error {
	status := have.Status.DeepCopy()
	status.Capacity, status.Allocatable = want.Capacity, want.Allocatable
	status.Addresses, status.NodeInfo = want.Addresses, want.NodeInfo
	for _, condition := range want.Conditions {
		n.setCondition(status, condition)
	}
	patch, err := differences(&corev1.Node{Status: have.Status}, &corev1.Node{Status: *status}, corev1.Node{})
	if err != nil || patch == nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.Name, patchType, patch, metav1.PatchOptions{}, "status")
	return ignoreGone(err)
}

// ignoreGone absorbs that the Node was deleted: the watch tells of it.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// setCondition keeps the times of a condition that is as it was, and its heartbeat
// while that is young.
func (n *node) setCondition(status *corev1.NodeStatus, want corev1.NodeCondition) {
	at := slices.IndexFunc(status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == want.Type })
	if at < 0 {
		status.Conditions = append(status.Conditions, want)
		return
	}
	have := status.Conditions[at]
	if have.Status == want.Status {
		want.LastTransitionTime = have.LastTransitionTime
		young := n.Clock.Now().Before(have.LastHeartbeatTime.Add(statusInterval))
		if young && have.Reason == want.Reason { // which has one message
			want.LastHeartbeatTime = have.LastHeartbeatTime
		}
	}
	status.Conditions[at] = want
}

// describe is the Node as it shall be.
func (n *node) describe() (*corev1.Node, error) {
	this, err := measure(n.Dir)
	if err != nil {
		return nil, err
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name,
			Labels: map[string]string{
				corev1.LabelHostname:   n.Name,
				corev1.LabelOSStable:   runtime.GOOS,
				corev1.LabelArchStable: runtime.GOARCH,
				vmv1alpha1.HostKey:     "",
			},
		},
		Spec: corev1.NodeSpec{
			ProviderID: "millwright-host://" + n.Name,
			Taints:     []corev1.Taint{{Key: vmv1alpha1.HostKey, Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity:    n.Capacity,
			Allocatable: n.Capacity,
			Conditions:  n.conditions(corev1.ConditionTrue, reasonRuns, "the host runner runs"),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: podAddress},
				{Type: corev1.NodeHostName, Address: n.Name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: this.id, SystemUUID: this.id, BootID: this.boot, KernelVersion: this.kernel,
				OSImage: "Linux", OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
				ContainerRuntimeVersion: "millwright://1", KubeletVersion: "v0.0.0+millwright",
			},
		},
	}, nil
}

func (n *node) conditions(ready corev1.ConditionStatus, reason, message string) []corev1.NodeCondition {
	now := metav1.NewTime(n.Clock.Now())
	conditions := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: reason, Message: message}}
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		conditions = append(conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionFalse, Reason: "NotMeasured", Message: "a host does not evict Pods",
		})
	}
	for i := range conditions {
		conditions[i].LastHeartbeatTime, conditions[i].LastTransitionTime = now, now
	}
	return conditions
}

// leave says that the host is not ready, so that nobody need wait for the lease to run out.
func (n *node) leave(ctx context.Context, store cache.Store) {
	current, found, err := store.GetByKey(n.Name)
	if err != nil || !found {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	status := corev1.NodeStatus{Conditions: n.conditions(corev1.ConditionFalse, reasonStopped, "the host runner was stopped")[:1]}
	have := current.(*corev1.Node)
	status.Capacity, status.Allocatable = have.Status.Capacity, have.Status.Allocatable
	status.Addresses, status.NodeInfo = have.Status.Addresses, have.Status.NodeInfo
	if err := n.keepStatus(ctx, have, status); err != nil {
		n.Log.Error(fmt.Errorf("saying that the host is not ready: %w", err), "the lease will tell")
	}
}
