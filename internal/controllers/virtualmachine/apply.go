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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// addFinalizer claims the VM, and draws its UUID if nobody did.
func (c *Controller) addFinalizer(ctx context.Context, p *pass) flow.Result {
	before := p.vm.DeepCopy()
	controllerutil.AddFinalizer(p.vm, v1alpha1.Finalizer)
	if p.vm.Spec.UUID == "" {
		p.vm.Spec.UUID = string(uuid.NewUUID())
	}
	return flow.Fail(c.patch(ctx, p.vm, before))
}

func (c *Controller) removeFinalizer(ctx context.Context, p *pass) flow.Result {
	before := p.vm.DeepCopy()
	controllerutil.RemoveFinalizer(p.vm, v1alpha1.Finalizer)
	return flow.Fail(client.IgnoreNotFound(c.patch(ctx, p.vm, before)))
}

// patch writes a VM, but for its status, if it changed.
func (c *Controller) patch(ctx context.Context, vm, before *v1alpha1.VirtualMachine) error {
	same := slices.Equal(vm.Finalizers, before.Finalizers) && vm.Spec.UUID == before.Spec.UUID &&
		vm.Annotations[v1alpha1.AnnotationAddresses] == before.Annotations[v1alpha1.AnnotationAddresses]
	if same {
		return nil
	}
	err := c.Client.Patch(ctx, vm, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing virtual machine %s: %w", before.Name, err)
	}
	return nil
}

// assignAddresses gives the VM addresses that nobody else has.
func (c *Controller) assignAddresses(ctx context.Context, p *pass) flow.Result {
	has := addressesOf(p.vm)
	if len(has) > 0 && slices.Equal(has, p.vm.Status.Addresses) {
		return flow.Continue() // checked before
	}
	addresses, refused, err := c.given.assign(p.vm, c.Networks, func() ([]v1alpha1.VirtualMachine, error) {
		all := &v1alpha1.VirtualMachineList{}
		err := c.Client.List(ctx, all, client.UnsafeDisableDeepCopy)
		return all.Items, err
	})
	if err != nil {
		return flow.Fail(fmt.Errorf("listing virtual machines: %w", err))
	}
	if refused != nil {
		return p.hold(refused)
	}
	p.addresses = textsOf(addresses)
	if len(p.vm.Spec.VMIPs) > 0 || len(addresses) == 0 {
		return flow.Continue()
	}
	before := p.vm.DeepCopy()
	if p.vm.Annotations == nil {
		p.vm.Annotations = map[string]string{}
	}
	p.vm.Annotations[v1alpha1.AnnotationAddresses] = strings.Join(p.addresses, ",")
	return flow.Fail(c.patch(ctx, p.vm, before))
}

func textsOf(addresses []netip.Addr) []string {
	var texts []string
	for _, address := range addresses {
		texts = append(texts, address.String())
	}
	return texts
}

// awaitUserData waits for the Secret that the Pod is going to mount. The read is
// uncached, so that the contents of Secrets are not kept.
func (c *Controller) awaitUserData(ctx context.Context, p *pass) flow.Result {
	from := p.vm.Spec.UserData
	if from == nil {
		return flow.Continue()
	}
	secret := &corev1.Secret{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: from.SecretRef.Name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return p.hold(problemf(reasonUserDataMissing, "spec.userData.secretRef: there is no secret %s", from.SecretRef.Name))
	case err != nil:
		return flow.Fail(fmt.Errorf("reading secret %s: %w", from.SecretRef.Name, err))
	}
	if _, found := secret.Data[userDataKey(from)]; !found {
		return p.hold(problemf(reasonUserDataMissing, "spec.userData.secretRef: secret %s has no key %s", secret.Name, userDataKey(from)))
	}
	return flow.Continue()
}

// ensureClaim sees to it that the disk's claim exists. The Pod does not wait for it to
// be bound; the scheduler does.
func (c *Controller) ensureClaim(ctx context.Context, p *pass) flow.Result {
	p.claim = p.vm.Status.VolumeClaimName
	if p.claim == "" && p.vm.Spec.VolumeClaimTemplate != nil {
		p.claim = p.vm.Name
	}
	if p.claim == "" {
		return flow.Continue()
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: p.claim}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return c.createClaim(ctx, p)
	case err != nil:
		return flow.Fail(fmt.Errorf("reading claim %s: %w", p.claim, err))
	case !owns(p.vm, claim):
		return p.hold(problemf(reasonClaimTaken, "persistent volume claim %s exists and is not of this virtual machine", p.claim))
	case !claim.DeletionTimestamp.IsZero():
		return p.hold(problemf(reasonVolumeLost, "persistent volume claim %s, the disk, is being deleted", p.claim))
	}
	return c.awaitVolume(ctx, p, claim)
}

// createClaim makes the claim, unless the VM had one with something on it: a guest must
// not silently find an empty disk.
func (c *Controller) createClaim(ctx context.Context, p *pass) flow.Result {
	template := p.vm.Spec.VolumeClaimTemplate
	used := p.vm.Status.VolumeClaimName != "" && (p.vm.Status.ImagePrepared || p.vm.Spec.InitialImage == nil)
	if used || template == nil {
		return p.hold(problemf(reasonVolumeLost, "persistent volume claim %s, the disk, is gone", p.claim))
	}
	claim := claimFor(p.vm, p.claim)
	err := c.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return flow.Wait(staleCache, "the claim was just made")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating claim %s: %w", p.claim, err))
	}
	return c.awaitVolume(ctx, p, claim)
}

// createPod makes the Pod whose name is reserved. What it is told comes from the API
// server: a disk must not be written again because a cache is behind.
func (c *Controller) createPod(ctx context.Context, p *pass) flow.Result {
	live, err := c.confirm(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	pod, err := podFor(live, setting{
		image: c.Image, endpoint: c.Endpoint, authority: c.certificate, accelerator: c.Accelerator, networks: c.Networks,
	})
	if err != nil {
		return flow.Fail(err)
	}
	err = c.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return flow.Wait(staleCache, "the pod was just made")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating pod %s: %w", pod.Name, err))
	}
	c.Events.Eventf(p.vm, corev1.EventTypeNormal, "Created", "Created pod %s", pod.Name)
	p.vm, p.active = live, pod
	return c.recordPod(ctx, p)
}

// errStale says that the cache is behind what was written.
var errStale = errors.New("the virtual machine changed meanwhile")

// outdated reports whether a pass failed only because it worked with what is no longer so.
func outdated(err error) bool { return apierrors.IsConflict(err) || errors.Is(err, errStale) }

// confirm reads the VM from the API server. If its authority is not what this pass
// believes, that is errStale.
func (c *Controller) confirm(ctx context.Context, p *pass) (*v1alpha1.VirtualMachine, error) {
	live := &v1alpha1.VirtualMachine{}
	err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(p.vm), live)
	if apierrors.IsNotFound(err) {
		return nil, errStale
	}
	if err != nil {
		return nil, fmt.Errorf("reading virtual machine %s: %w", p.vm.Name, err)
	}
	same := live.UID == p.vm.UID && live.DeletionTimestamp.IsZero() == p.vm.DeletionTimestamp.IsZero() &&
		live.Status.VirtualMachineAuthority == p.vm.Status.VirtualMachineAuthority
	if !same {
		return nil, errStale
	}
	return live, nil
}

// removeOtherPods deletes the Pods that have no authority: ended ones, and ones that
// lost it. Their hypervisors are told by their run leases too.
func (c *Controller) removeOtherPods(ctx context.Context, p *pass) flow.Result {
	var others []*corev1.Pod
	for _, pod := range p.pods {
		if pod != p.active && pod.DeletionTimestamp.IsZero() {
			others = append(others, pod)
		}
	}
	if len(others) == 0 {
		return flow.Continue()
	}
	if _, err := c.confirm(ctx, p); err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(c.delete(ctx, others))
}

// withdraw deletes a Pod that no host has room for. One that gets a host in this moment
// has another version, and stays.
func (c *Controller) withdraw(ctx context.Context, pod *corev1.Pod) flow.Result {
	err := c.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("deleting pod %s: %w", pod.Name, err))
	}
	return flow.Stop("the pod gives way to one of the changed spec")
}

// delete asks for the end of Pods, within their grace period. Never are they removed by
// force: that a Pod is gone is to mean that its host said so.
func (c *Controller) delete(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		err := c.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
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
		pods = ours(p.vm, list)
	}
	if len(pods) == 0 {
		return flow.Continue()
	}
	if err := c.delete(ctx, pods); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the end of the hypervisor")
}

// goneCheck is how often to look whether something is gone, should its event be missed
// since it had not been seen to exist.
const goneCheck = 30 * time.Second

// deleteClaims waits until the disks of a VM that is being deleted are gone.
func (c *Controller) deleteClaims(ctx context.Context, p *pass) flow.Result {
	list := &corev1.PersistentVolumeClaimList{}
	if err := c.APIReader.List(ctx, list, client.InNamespace(p.vm.Namespace), ofVM(p.vm)); err != nil {
		return flow.Fail(fmt.Errorf("listing claims: %w", err))
	}
	waiting := false
	for i := range list.Items {
		claim := &list.Items[i]
		if !owns(p.vm, claim) {
			continue
		}
		waiting = true
		if !claim.DeletionTimestamp.IsZero() {
			continue
		}
		if err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			return flow.Fail(fmt.Errorf("deleting claim %s: %w", claim.Name, err))
		}
	}
	if waiting {
		return flow.Wait(goneCheck, "the end of the disk")
	}
	return flow.Continue()
}

func ofVM(vm *v1alpha1.VirtualMachine) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelVM: vm.Name}
}

func ours(vm *v1alpha1.VirtualMachine, list *corev1.PodList) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range list.Items {
		if owns(vm, &list.Items[i]) {
			pods = append(pods, &list.Items[i])
		}
	}
	return pods
}
