package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// addFinalizer adds the finalizer and the mark of this controller, and a UUID if the VM has none. A new VM gets its
// addresses with the same write; if there are none, a later step says so.
func (c *Controller) addFinalizer(ctx context.Context, p *pass) flow.Result {
	before := p.vm.DeepCopy()
	isNew := controllerutil.AddFinalizer(p.vm, v1alpha1.Finalizer)
	c.mark(p.vm)
	if p.vm.Spec.UUID == "" {
		p.vm.Spec.UUID = string(uuid.NewUUID())
	}
	if isNew && len(ipam.Of(p.vm)) == 0 && conditions.Invalid(p.vm, c.settings) == nil {
		if addresses, err := c.addresses.Allocate(p.vm, c.holders(ctx)); err == nil {
			annotateAddresses(p.vm, addresses)
		}
	}
	return flow.Fail(c.patch(ctx, p.vm, before))
}

func (c *Controller) removeFinalizer(ctx context.Context, p *pass) flow.Result {
	before := p.vm.DeepCopy()
	controllerutil.RemoveFinalizer(p.vm, v1alpha1.Finalizer)
	return flow.Fail(client.IgnoreNotFound(c.patch(ctx, p.vm, before)))
}

// patch writes metadata and spec of a VM, if they changed.
func (c *Controller) patch(ctx context.Context, vm, before *v1alpha1.VirtualMachine) error {
	if equality.Semantic.DeepEqual(vm, before) {
		return nil
	}
	err := c.Client.Patch(ctx, vm, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing virtual machine %s: %w", before.Name, err)
	}
	return nil
}

// assignAddresses gives the VM addresses that no other VM has.
func (c *Controller) assignAddresses(ctx context.Context, p *pass) flow.Result {
	has := ipam.Of(p.vm)
	if len(has) > 0 && slices.Equal(has, p.vm.Status.Addresses) {
		p.addresses = has
		return flow.Continue() // checked before
	}
	addresses, err := c.addresses.Allocate(p.vm, c.holders(ctx))
	if unavailable, is := errors.AsType[*ipam.UnavailableError](err); is {
		return p.blocked(conditions.Causef(conditions.ReasonAddress, "%v", unavailable))
	}
	if err != nil {
		return flow.Fail(err)
	}
	p.addresses = addresses
	before := p.vm.DeepCopy()
	annotateAddresses(p.vm, addresses)
	return flow.Fail(c.patch(ctx, p.vm, before))
}

// annotateAddresses stores addresses that a VM did not choose.
func annotateAddresses(vm *v1alpha1.VirtualMachine, addresses []string) {
	if len(vm.Spec.VMIPs) == 0 && len(addresses) > 0 {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationAddresses, strings.Join(addresses, ","))
	}
}

// holders finds the VMs of this controller with an address in the cache: networks of guests are behind their hypervisors,
// so that those of another controller may have the same.
func (c *Controller) holders(ctx context.Context) ipam.Holders {
	return func(address netip.Addr) ([]v1alpha1.VirtualMachine, error) {
		list := &v1alpha1.VirtualMachineList{}
		if err := c.Client.List(ctx, list, client.MatchingFields{indexAddress: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing virtual machines with address %s: %w", address, err)
		}
		return slices.DeleteFunc(list.Items, func(vm v1alpha1.VirtualMachine) bool { return c.otherController(&vm) != "" }), nil
	}
}

// userDataCheck is the interval of checks whether user data are there. The controller may read
// a Secret that a VM names, but not watch Secrets.
const userDataCheck = 10 * time.Second

// awaitUserData waits for the Secret that the Pod will mount.
func (c *Controller) awaitUserData(ctx context.Context, p *pass) flow.Result {
	from := p.vm.Spec.UserData
	if from == nil {
		return flow.Continue()
	}
	if from.SecretRef.Name == service.AuthoritySecret {
		return p.blocked(conditions.Causef(conditions.ReasonUserDataMissing, "spec.userData.secretRef: secret %s is the VM controller's own", from.SecretRef.Name))
	}
	secret := &corev1.Secret{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: from.SecretRef.Name}, secret)
	if apierrors.IsNotFound(err) {
		return p.missing(conditions.Causef(conditions.ReasonUserDataMissing, "spec.userData.secretRef: there is no secret %s", from.SecretRef.Name))
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("reading secret %s: %w", from.SecretRef.Name, err))
	}
	if _, found := secret.Data[podspec.UserDataKey(from)]; !found {
		return p.missing(conditions.Causef(conditions.ReasonUserDataMissing, "spec.userData.secretRef: secret %s has no key %s", secret.Name, podspec.UserDataKey(from)))
	}
	return flow.Continue()
}

// createPod creates the Pod whose name is reserved, from the API server's object: with an old
// one from the cache a disk could be written again.
func (c *Controller) createPod(ctx context.Context, p *pass) flow.Result {
	live, err := c.confirm(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	if live.Generation != p.vm.Generation || !slices.Equal(ipam.Of(live), p.addresses) {
		return flow.Fail(errStale) // this pass checked another spec, or other addresses, and had its disks served
	}
	pod, err := podspec.Pod(live, c.settings)
	if err == nil {
		// Leases that expire exclude, and so do locks on one machine.
		err = podspec.SharingFor(pod, p.claims, live.Status.Lease != nil || c.OneMachine).Set(pod)
	}
	if err != nil {
		return flow.Fail(err)
	}
	err = c.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return flow.Wait(expectations.StaleCache, "the pod was just created")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating pod %s: %w", pod.Name, err))
	}
	c.Events.Eventf(p.vm, corev1.EventTypeNormal, "Created", "Created pod %s", pod.Name)
	p.vm, p.active = live, pod
	return c.recordPod(ctx, p)
}

// errStale means that the cache is older than what the API server has.
var errStale = errors.New("the virtual machine has changed")

// outdated reports whether a pass failed because it worked with old data.
func outdated(err error) bool { return apierrors.IsConflict(err) || errors.Is(err, errStale) }

// confirm reads the VM from the API server. It returns errStale if the authority, the target of a migration
// under way, or the controller that works for the VM, is not that of this pass.
func (c *Controller) confirm(ctx context.Context, p *pass) (*v1alpha1.VirtualMachine, error) {
	live := &v1alpha1.VirtualMachine{}
	err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(p.vm), live)
	if apierrors.IsNotFound(err) {
		return nil, errStale
	}
	if err != nil {
		return nil, fmt.Errorf("reading virtual machine %s: %w", p.vm.Name, err)
	}
	same := live.UID == p.vm.UID && c.otherController(live) == "" && live.DeletionTimestamp.IsZero() == p.vm.DeletionTimestamp.IsZero() &&
		live.Status.VirtualMachineAuthority == p.vm.Status.VirtualMachineAuthority && migration.Same(&live.Status, &p.vm.Status)
	if !same {
		return nil, errStale
	}
	return live, nil
}

// removeOtherPods deletes the Pods without authority that are no target. Run leases end their
// hypervisors, too.
func (c *Controller) removeOtherPods(ctx context.Context, p *pass) flow.Result {
	others := slices.DeleteFunc(slices.Clone(p.pods), func(pod *corev1.Pod) bool {
		return pod == p.active || !pod.DeletionTimestamp.IsZero() || migration.IsTarget(&p.vm.Status, pod.Name)
	})
	if len(others) == 0 {
		return flow.Continue()
	}
	if _, err := c.confirm(ctx, p); err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(c.delete(ctx, others))
}

// deleteUnschedulable deletes a Pod that no host has room for. It stays if it gets a host at
// this moment: its resource version differs then.
func (c *Controller) deleteUnschedulable(ctx context.Context, pod *corev1.Pod) flow.Result {
	err := c.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("deleting pod %s: %w", pod.Name, err))
	}
	return flow.Stop("the pod is replaced by one of the changed spec")
}

// delete deletes Pods with a grace period, never by force: a Pod may only be gone when its host has
// ended it. It is shorter than that of the Pod, in which the guest could migrate.
func (c *Controller) delete(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		err := c.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(podspec.GracePeriod))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// deletePods waits until all Pods of a VM that is being deleted are gone.
func (c *Controller) deletePods(ctx context.Context, p *pass) flow.Result {
	pods := p.pods
	if len(pods) == 0 {
		list := &corev1.PodList{}
		if err := c.APIReader.List(ctx, list, client.InNamespace(p.vm.Namespace), ofVM(p.vm)); err != nil {
			return flow.Fail(fmt.Errorf("listing pods: %w", err))
		}
		pods, p.servers = podspec.HypervisorsAndServers(ownedPods(p.vm, list))
	}
	if len(pods) == 0 {
		return flow.Continue()
	}
	if err := c.delete(ctx, pods); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the end of the hypervisor")
}

// deleteServers waits until the Pods that served the disks are gone, which DeletePods has found.
func (c *Controller) deleteServers(ctx context.Context, p *pass) flow.Result {
	if len(p.servers) == 0 {
		return flow.Continue()
	}
	if err := c.delete(ctx, p.servers); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the end of the server of the disks")
}

// goneCheck is the interval of checks whether an object is gone: there is no event if the
// cache never had it.
const goneCheck = 30 * time.Second

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
