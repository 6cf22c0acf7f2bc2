package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// validate stops the pass if the spec is invalid.
func (p *hypervisorPods) validate(_ context.Context, s *scope) flow.Result {
	if found := invalid(s.vm, p.settings()); found != nil {
		return s.blocked(found)
	}
	return flow.Continue()
}

// userDataCheck is the interval of checks for missing user data. The controller has permission to read the Secret
// that a VM names, but not to watch Secrets.
const userDataCheck = 10 * time.Second

// awaitUserData waits for the Secret that the Pod mounts.
func (p *hypervisorPods) awaitUserData(ctx context.Context, s *scope) flow.Result {
	from := s.vm.Spec.UserData
	if from == nil {
		return flow.Continue()
	}
	secret := &corev1.Secret{}
	err := p.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: from.SecretRef.Name}, secret)
	if apierrors.IsNotFound(err) {
		return s.missing(causef(reasonUserDataMissing, "spec.userData.secretRef: secret %s not found", from.SecretRef.Name))
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("reading secret %s: %w", from.SecretRef.Name, err))
	}
	if _, found := secret.Data[podspec.UserDataKey(from)]; !found {
		return s.missing(causef(reasonUserDataMissing, "spec.userData.secretRef: secret %s has no key %s", secret.Name, podspec.UserDataKey(from)))
	}
	return flow.Continue()
}

// awaitNextAttempt waits for the back-off after a hypervisor has terminated.
func (p *hypervisorPods) awaitNextAttempt(_ context.Context, s *scope) flow.Result {
	if s.vm.Status.ActivePodUID == "" {
		return flow.Continue() // this is the first Pod, or the next one is already reserved
	}
	last := attempt{pod: s.vm.Status.ActivePodUID, generation: s.vm.Generation, requested: podspec.StartRequested(s.vm)}
	if s.active != nil {
		last.permanent = podstate.EndOf(s.active).Permanent()
	}
	if wait := s.memory.backoff.wait(last, s.now); wait > 0 {
		return flow.Wait(wait, "back-off before the next attempt")
	}
	return flow.Continue()
}

// reserve stores the name of the next Pod before it exists. From then on, the hypervisor in the last Pod is no longer
// authoritative.
func (p *hypervisorPods) reserve(ctx context.Context, s *scope) flow.Result {
	has := s.vm.Status.VirtualMachineAuthority
	if has.ActivePodName != "" && has.ActivePodUID == "" && !s.nameTaken {
		return flow.Continue() // already reserved and not yet created
	}
	// The random suffix ensures that no earlier Pod of the VM had this name.
	next := v1alpha1.VirtualMachineAuthority{ActivePodName: s.vm.Name + "-" + utilrand.String(8), VolumeClaimName: s.claim}
	if err := p.registry.Swap(ctx, s.vm, next); err != nil {
		return flow.Fail(err)
	}
	s.active = nil
	s.memory.backoff.startedAt = s.now
	p.hypervisors.Recheck(client.ObjectKeyFromObject(s.vm))
	return flow.Continue()
}

// create creates the Pod under the reserved name.
func (p *hypervisorPods) create(ctx context.Context, s *scope) flow.Result {
	live, pod, err := p.createPod(ctx, s, func(live *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
		if live.Generation != s.vm.Generation || !slices.Equal(ipam.Of(live), s.addresses) {
			return nil, edge.ErrStale // this pass validated another spec or other addresses, and its disks are served
		}
		pod, err := podspec.Pod(live, p.settings())
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(s.pods, podstate.Alive) {
			// The host of the last hypervisor does not respond. For up to a minute, the scheduler would still choose it, and
			// the Pod would never start there.
			podspec.KeepApart(pod)
		}
		// Two hypervisors exclude each other if their leases expire, or by locks if they are on one machine.
		return pod, podspec.SharingFor(pod, s.claims, live.Status.Lease != nil || p.oneMachine).Set(pod)
	})
	if refused, is := errors.AsType[*refusedError](err); is {
		return s.blocked(refused.cause)
	}
	if apierror.Taken(err) {
		return flow.Wait(expectations.StaleCache, "the pod was just created")
	}
	if err != nil {
		return flow.Fail(err)
	}
	p.events.Eventf(s.vm, corev1.EventTypeNormal, "Created", "Created pod %s", pod.Name)
	s.vm, s.active = live, pod
	return p.record(ctx, s)
}
