package virtualmachine

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// await waits until a disk server serves the disks of the spec and no earlier hypervisor can change them. Only then
// may the VM get its next hypervisor.
func (d *diskServers) await(ctx context.Context, s *scope) flow.Result {
	if !podspec.Served(s.vm) || d.isReserved(s) {
		return flow.Continue()
	}
	// A server that was refused in this pass may be permitted now that all claims exist.
	if s.vm.Status.VolumeClaimName == "" || s.vm.Status.VolumeClaimName != s.claim || s.served.refused != nil {
		if err := d.ensure(ctx, s, s.claim); err != nil {
			return flow.Fail(err)
		}
	}
	if s.served.process == nil {
		return s.blocked(d.cause(s))
	}
	same, err := podspec.Serves(s.vm, s.served.pod, d.settings())
	if err != nil {
		return flow.Fail(err)
	}
	if !same {
		if err := d.deletePods(ctx, []*corev1.Pod{s.served.pod}); err != nil {
			return flow.Fail(err)
		}
		return s.blocked(causef(v1alpha1.ReasonDiskServerStarting, "Pod %s serves outdated disks and is being replaced.", s.served.pod.Name))
	}
	return d.awaitRevoked(ctx, s)
}

// isReserved reports whether the Pod of the next hypervisor is reserved but not yet created.
func (d *diskServers) isReserved(s *scope) bool {
	return s.vm.Status.ActivePodName != "" && s.vm.Status.ActivePodUID == "" && !s.nameTaken && authority.AccessOf(s.vm) == authority.AccessOpen
}

// awaitRevoked waits until the status records that all earlier fencing tokens are revoked. If the status was lost and
// no token is known, all tokens from before the first request are revoked.
func (d *diskServers) awaitRevoked(ctx context.Context, s *scope) flow.Result {
	requested := &s.memory.served.revokeRequested
	if requested.IsZero() {
		*requested = s.now
	}
	upTo := max(authority.HighestToken(&s.vm.Status), requested.UnixMilli()-1)
	s.served.revoking = true
	live, err := d.confirm(ctx, s)
	if err == nil && !equality.Semantic.DeepEqual(live.Status.Lease, s.vm.Status.Lease) {
		err = edge.ErrStale // an outdated pass must not revoke the disks of the hypervisor that just got them
	}
	if err != nil {
		return flow.Fail(err)
	}
	if err := d.request(ctx, s, disks.Desired{Revoke: storage.Token(upTo)}); err != nil {
		return flow.Fail(err)
	}
	if s.vm.Status.DiskServer.RevokedToken < upTo {
		return s.blocked(d.cause(s))
	}
	*requested = time.Time{}
	return flow.Continue()
}

// cause returns why no hypervisor can attach the disks.
func (d *diskServers) cause(s *scope) *cause {
	condition := disksServed(s, d.hypervisors.DiskServer(s.vm))
	return &cause{Reason: condition.Reason, Message: condition.Message}
}

// deleteAll deletes the disk servers that DeletePods found, and waits until they are gone.
func (d *diskServers) deleteAll(ctx context.Context, s *scope) flow.Result {
	if len(s.servers) == 0 {
		return flow.Continue()
	}
	if err := d.deletePods(ctx, s.servers); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the disk server is terminating")
}
