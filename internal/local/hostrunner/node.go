package hostrunner

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1 "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"

	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// Intervals of the heartbeats, as in the kubelet.
const (
	statusInterval = 5 * time.Minute
	leaseInterval  = 10 * time.Second
	leaseDuration  = 40 * time.Second
	retryInterval  = time.Second
)

// node maintains the host's Node and its Lease.
type node struct {
	*host
	store cache.Store
}

// runNode maintains the Node until the context is done, and then sets it not ready.
func (h *host) runNode(ctx context.Context) {
	changed := make(chan struct{}, 1)
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(
			h.client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector(metav1.ObjectNameField, h.Name)),
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { notify(changed) },
			UpdateFunc: func(any, any) { notify(changed) },
			DeleteFunc: func(any) { notify(changed) },
		},
	})
	n := &node{host: h, store: store}
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	background.Go(func() { n.repeat(ctx, leaseInterval, nil, "renewing the Lease", n.renewLease) })
	n.repeat(ctx, statusInterval, changed, "updating the Node", n.update)
	n.setNotReady(ctx)
}

// notify wakes the receiver of a channel with capacity one.
func notify(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default: // a wake-up is pending
	}
}

// repeat calls do immediately, then at each interval and each event, and earlier after an error.
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

// current returns the Node, or nil if it does not exist.
func (n *node) current() *corev1.Node {
	object, found, err := n.store.GetByKey(n.Name)
	if err != nil || !found {
		return nil
	}
	return object.(*corev1.Node)
}

// renewLease renews the Lease of the Node, or creates it.
func (n *node) renewLease(ctx context.Context) error {
	owner := n.current()
	if owner == nil {
		return fmt.Errorf("node %s is not registered yet", n.Name)
	}
	lease := coordinationv1.Lease(n.Name, corev1.NamespaceNodeLease).
		WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion("v1").WithKind("Node").WithName(n.Name).WithUID(owner.UID)).
		WithSpec(coordinationv1.LeaseSpec().WithHolderIdentity(n.Name).
			WithLeaseDurationSeconds(int32(leaseDuration.Seconds())).WithRenewTime(metav1.NewMicroTime(n.Clock.Now())))
	_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).
		Apply(ctx, lease, metav1.ApplyOptions{FieldManager: component, Force: true})
	return err
}

// update creates the Node if it does not exist, and writes what differs or is outdated.
func (n *node) update(ctx context.Context) error {
	have := n.current()
	if have == nil {
		_, err := n.client.CoreV1().Nodes().Create(ctx, n.describe(), metav1.CreateOptions{})
		if err == nil {
			n.Log.Info("registered the Node", "node", n.Name)
		}
		if apierror.Taken(err) {
			return nil // the watch has not caught up
		}
		return err
	}
	want, next := n.describe(), have.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
	if err := n.patch(ctx, have, next); err != nil {
		return err
	}
	next = have.DeepCopy()
	next.Status.Capacity, next.Status.Allocatable = want.Status.Capacity, want.Status.Allocatable
	next.Status.Addresses, next.Status.NodeInfo = want.Status.Addresses, want.Status.NodeInfo
	for _, condition := range want.Status.Conditions {
		n.setCondition(&next.Status, condition)
	}
	return n.patch(ctx, have, next, "status")
}

// patch writes the differences between two states of the Node, if there are any.
func (n *node) patch(ctx context.Context, from, to *corev1.Node, subresources ...string) error {
	patch, err := client.StrategicMergeFrom(from).Data(to)
	if err != nil || string(patch) == "{}" {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, subresources...)
	return apierror.IgnoreGone(err) // the watch reports a deletion
}

// setCondition keeps the times of a condition that did not change, and its heartbeat until it is outdated.
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
		if young && have.Reason == want.Reason { // each reason has only one message
			want.LastHeartbeatTime = have.LastHeartbeatTime
		}
	}
	status.Conditions[at] = want
}

// describe returns the desired Node.
func (n *node) describe() *corev1.Node {
	var system unix.Utsname
	unix.Uname(&system) // fails only for a bad pointer
	id := readLine("/etc/machine-id")
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
			Conditions: []corev1.NodeCondition{
				n.condition(corev1.NodeReady, corev1.ConditionTrue, "HostRunnerReady", "the host runner is running"),
				n.condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "NotMeasured", "the host does not evict Pods"),
				n.condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "NotMeasured", "the host does not evict Pods"),
				n.condition(corev1.NodePIDPressure, corev1.ConditionFalse, "NotMeasured", "the host does not evict Pods"),
			},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: podAddress},
				{Type: corev1.NodeHostName, Address: n.Name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: id, SystemUUID: id, BootID: readLine("/proc/sys/kernel/random/boot_id"),
				KernelVersion: unix.ByteSliceToString(system.Release[:]),
				OSImage:       "Linux", OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
				ContainerRuntimeVersion: "millwright://1", KubeletVersion: "v0.0.0+millwright",
			},
		},
	}
}

// readLine returns the content of a file without its line ending, or "" if it cannot be read.
func readLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (n *node) condition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
	now := metav1.NewTime(n.Clock.Now())
	return corev1.NodeCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

// setNotReady sets the Node not ready, so that others do not wait for the Lease to expire.
func (n *node) setNotReady(ctx context.Context) {
	have := n.current()
	if have == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTime)
	defer cancel()
	next := have.DeepCopy()
	n.setCondition(&next.Status, n.condition(corev1.NodeReady, corev1.ConditionFalse, ReasonHostStopped, "the host runner was stopped"))
	if err := n.patch(ctx, have, next, "status"); err != nil {
		n.Log.Error(err, "setting the Node not ready; its Lease will expire")
	}
}
