package virtualmachine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
)

// cluster gives the parts of the controller access to the objects of VMs and to their hypervisors.
type cluster struct {
	client       client.Client // reads from the cache
	live         client.Reader // reads from the API server
	events       record.EventRecorder
	clock        clock.PassiveClock
	installation installation
	settings     func() podspec.Settings
	signer       podstate.Signer
	registry     *authority.Registry
	hypervisors  *service.Service
	queue        queue
}

// queue requests reconcile passes.
type queue struct {
	current atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]] // nil until the controller starts
}

// add requests a pass for a VM after a delay, which may be 0. Before the controller has started, add does nothing.
func (q *queue) add(vm types.NamespacedName, after time.Duration) {
	if current := q.current.Load(); current != nil {
		(*current).AddAfter(reconcile.Request{NamespacedName: vm}, after)
	}
}

// patch writes the metadata and the spec of a VM if they differ from those before.
func (c *cluster) patch(ctx context.Context, vm, before *v1alpha1.VirtualMachine) error {
	if equality.Semantic.DeepEqual(vm, before) {
		return nil
	}
	err := c.client.Patch(ctx, vm, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing virtual machine %s: %w", before.Name, err)
	}
	return nil
}

// orStale returns the error of a read. If the read found no object, or succeeded but found a different one, it
// returns edge.ErrStale.
func orStale(err error) error {
	if client.IgnoreNotFound(err) == nil {
		return edge.ErrStale
	}
	return err
}

// confirm reads the VM from the API server. It returns edge.ErrStale if the VM was replaced, or if its authority, its
// running migration, its deletion or its controller differs from what this pass has seen.
func (c *cluster) confirm(ctx context.Context, s *scope) (*v1alpha1.VirtualMachine, error) {
	live := &v1alpha1.VirtualMachine{}
	err := c.live.Get(ctx, client.ObjectKeyFromObject(s.vm), live)
	if apierrors.IsNotFound(err) {
		return nil, edge.ErrStale
	}
	if err != nil {
		return nil, fmt.Errorf("reading virtual machine %s: %w", s.vm.Name, err)
	}
	same := live.UID == s.vm.UID && c.installation.otherController(live) == "" && live.DeletionTimestamp.IsZero() == s.vm.DeletionTimestamp.IsZero() &&
		live.Status.VirtualMachineAuthority == s.vm.Status.VirtualMachineAuthority && migration.Same(&live.Status, &s.vm.Status)
	if !same {
		return nil, edge.ErrStale
	}
	return live, nil
}

// deletePods deletes Pods gracefully, never by force: a Pod must not disappear before its host has terminated it. The
// grace period is shorter than that of the Pod, which would leave time to migrate the guest.
func (c *cluster) deletePods(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		err := c.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(int64(podspec.GracePeriodOf(pod).Seconds())))
		if apierror.IgnoreGone(err) != nil {
			return fmt.Errorf("deleting pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// ownPod reads a Pod of a VM from the API server. It returns nil if the Pod does not exist, or if no VM controller
// created it for the VM.
func (c *cluster) ownPod(ctx context.Context, vm *v1alpha1.VirtualMachine, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.live.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: name}, pod)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading pod %s: %w", name, err)
	}
	if err != nil || !c.signer.Created(vm, pod) {
		return nil, nil
	}
	return pod, nil
}

// ownPods lists the Pods of a VM on the API server.
func (c *cluster) ownPods(ctx context.Context, vm *v1alpha1.VirtualMachine) ([]*corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := c.live.List(ctx, list, client.InNamespace(vm.Namespace), ofVM(vm)); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	return ownedPods(vm, list), nil
}

func ofVM(vm *v1alpha1.VirtualMachine) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelVM: vm.Name}
}

func ownedPods(vm *v1alpha1.VirtualMachine, list *corev1.PodList) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range list.Items {
		if podstate.Owns(vm, &list.Items[i]) {
			pods = append(pods, &list.Items[i])
		}
	}
	return pods
}

// goneCheck is the interval of checks whether an object is gone. If the cache never had the object, its deletion
// causes no event.
const goneCheck = 30 * time.Second
