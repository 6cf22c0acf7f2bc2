package virtualmachine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// servedMemory is what is remembered of the disks that a server serves. Without it only time is lost.
type servedMemory struct {
	backoff backoff
	// wanted is when tokens were first to be revoked before the next hypervisor is reserved; zero while none are.
	wanted time.Time
}

// serveDisks keeps the server of the disks while it is needed, and has it serve them to who has the VM. It never ends the pass
// but for an error: the VM's own life goes on.
func (c *Controller) serveDisks(ctx context.Context, p *pass) flow.Result {
	if !podspec.Served(p.vm) || p.vm.Status.VolumeClaimName == "" {
		return flow.Continue() // the first one is begun when the claims are there
	}
	if err := c.keepServer(ctx, p, p.vm.Status.VolumeClaimName); err != nil {
		return flow.Fail(err)
	}
	want := disks.Wanted(p.vm)
	if c.holder(p) == nil {
		want.Open = nil
	} else {
		p.memory.served.wanted = time.Time{}
	}
	return flow.Fail(c.askServer(ctx, p, want))
}

// keepServer observes the Pods that serve the disks, and brings the one that does a step further.
func (c *Controller) keepServer(ctx context.Context, p *pass, claim string) error {
	facts, err := c.serverFacts(ctx, p)
	if err != nil {
		return err
	}
	if err := c.removeOtherServers(ctx, p, facts); err != nil {
		return err
	}
	p.server = facts.Pod
	switch disks.Next(facts) {
	case disks.Reserve:
		err = c.reserveServer(ctx, p, claim)
	case disks.Create:
		err = c.createServer(ctx, p)
	case disks.Record:
		err = c.recordServer(ctx, p, facts.Pod)
	}
	if err != nil {
		return err
	}
	p.serves = c.serverOf(p, facts)
	if key := client.ObjectKeyFromObject(p.vm); p.serves == nil && c.disks.Forget(key) {
		c.hypervisors.Recheck(key)
	}
	return nil
}

func (c *Controller) serverFacts(ctx context.Context, p *pass) (disks.Facts, error) {
	facts := disks.Facts{Stored: p.vm.Status.DiskServer}
	for _, pod := range p.servers {
		if authority.IsServer(&p.vm.Status, pod.Name) {
			facts.Pod = pod
		} else {
			facts.Others = append(facts.Others, pod)
		}
	}
	if facts.Pod != nil || facts.Stored == nil || facts.Stored.PodName == "" {
		return facts, nil
	}
	pod := &corev1.Pod{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: facts.Stored.PodName}, pod)
	if client.IgnoreNotFound(err) != nil {
		return facts, fmt.Errorf("reading pod %s: %w", facts.Stored.PodName, err)
	}
	if err == nil && podstate.Owns(p.vm, pod) && podspec.IsDiskServer(pod) {
		facts.Pod = pod
		p.servers = append(p.servers, pod)
	}
	return facts, nil
}

// removeOtherServers deletes the Pods that served the disks before, or that nobody knows.
func (c *Controller) removeOtherServers(ctx context.Context, p *pass, facts disks.Facts) error {
	if !slices.ContainsFunc(facts.Others, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp.IsZero() }) {
		return nil
	}
	live, err := c.confirm(ctx, p)
	if err != nil {
		return err
	}
	return c.delete(ctx, slices.DeleteFunc(slices.Clone(facts.Others), func(pod *corev1.Pod) bool {
		return authority.IsServer(&live.Status, pod.Name)
	}))
}

// holder returns the Pod of the hypervisor that may have the disks attached; nil if there is none.
func (c *Controller) holder(p *pass) *corev1.Pod {
	if !podstate.Alive(p.active) || c.overdue(p) {
		return nil
	}
	return p.active
}

// reserveServer stores the name of the next server before its Pod exists, and what disks it has.
func (c *Controller) reserveServer(ctx context.Context, p *pass, claim string) error {
	if c.awaitServerAttempt(p) {
		return nil
	}
	holder := c.holder(p)
	err := c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) {
		if holder == nil {
			if status.VolumeClaimName != claim || podspec.ReplacesDisk(p.vm) {
				status.ImagePrepared = false // another disk, and an empty one
			}
			status.DataDisks = podspec.NextDataDisks(p.vm)
		}
		next := v1alpha1.DiskServerStatus{PodName: p.vm.Name + "-disks-" + utilrand.String(8)}
		if last := status.DiskServer; last != nil && status.VolumeClaimName == claim {
			next.RevokedToken = last.RevokedToken
		}
		status.VolumeClaimName, status.DiskServer = claim, &next
	})
	if err != nil {
		return err
	}
	p.memory.served.backoff.startedAt = p.now
	return c.createServer(ctx, p)
}

// awaitServerAttempt reports whether the next server waits for the back-off after one that ended.
func (c *Controller) awaitServerAttempt(p *pass) bool {
	last := p.vm.Status.DiskServer
	if last == nil || last.PodUID == "" {
		return false
	}
	ended := attempt{pod: last.PodUID, generation: p.vm.Generation, replaced: podspec.ReplacesDisk(p.vm)}
	if p.server != nil {
		ended.permanent = podstate.EndOf(p.server).Permanent()
	}
	wait := p.memory.served.backoff.wait(ended, p.now)
	if wait > 0 {
		c.enqueue(client.ObjectKeyFromObject(p.vm), wait)
	}
	return wait > 0
}

// createServer creates the Pod whose name is reserved, from the API server's object.
func (c *Controller) createServer(ctx context.Context, p *pass) error {
	live, err := c.confirm(ctx, p)
	if err != nil {
		return err
	}
	if !authority.IsServer(&live.Status, p.vm.Status.DiskServer.PodName) || live.Status.DiskServer.PodUID != "" {
		return errStale // no two Pods have the same name
	}
	pod, err := podspec.DiskServer(live, c.holder(p), c.settings)
	if err != nil {
		return err
	}
	err = c.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return errStale // of an earlier pass
	}
	if err != nil {
		return fmt.Errorf("creating pod %s: %w", pod.Name, err)
	}
	c.Events.Eventf(p.vm, corev1.EventTypeNormal, "Created", "Created pod %s, which serves the disks", pod.Name)
	p.vm, p.server, p.servers = live, pod, append(p.servers, pod)
	return c.recordServer(ctx, p, pod)
}

func (c *Controller) recordServer(ctx context.Context, p *pass, pod *corev1.Pod) error {
	return c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) { status.DiskServer.PodUID = pod.UID })
}

// serverOf returns the process that serves the disks; nil if none does yet.
func (c *Controller) serverOf(p *pass, facts disks.Facts) *disks.Server {
	pod, report := facts.Served(), c.hypervisors.DiskServer(p.vm)
	if pod == nil || report.GetState() != vmpb.ReportStateRequest_STATE_RUNNING {
		return nil
	}
	return &disks.Server{
		VM: client.ObjectKeyFromObject(p.vm), Pod: pod.Name, Run: report.GetUs().GetRunId(), Endpoint: report.GetEndpoint(),
	}
}

// askServer has the server do what is wanted, if there is one, and stores what it has confirmed.
func (c *Controller) askServer(ctx context.Context, p *pass, want disks.Want) error {
	if p.serves == nil {
		return nil
	}
	p.asked = c.disks.Ask(*p.serves, want)
	if p.asked.Err != nil {
		log.FromContext(ctx).Info("The server of the disks has not done what it was asked for", "pod", p.serves.Pod, "err", p.asked.Err.Error())
	}
	report := c.hypervisors.DiskServer(p.vm)
	next := p.vm.Status.DeepCopy()
	podspec.KnowServedDisks(p.vm, next, report)
	next.DiskServer.RevokedToken = max(next.DiskServer.RevokedToken, disks.Confirmed(p.vm, p.asked))
	if next.ImagePrepared == p.vm.Status.ImagePrepared && *next.DiskServer == *p.vm.Status.DiskServer && slices.Equal(next.DataDisks, p.vm.Status.DataDisks) {
		return nil
	}
	err := c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) {
		status.ImagePrepared, status.DataDisks, status.DiskServer = next.ImagePrepared, next.DataDisks, next.DiskServer
	})
	c.hypervisors.Recheck(client.ObjectKeyFromObject(p.vm))
	return err
}

// awaitDisks waits until the disks of the spec are served, and until nobody who had them can change them any more. Then the VM
// may get another hypervisor.
func (c *Controller) awaitDisks(ctx context.Context, p *pass) flow.Result {
	if !podspec.Served(p.vm) || c.isReserved(p) {
		return flow.Continue()
	}
	if p.vm.Status.VolumeClaimName == "" || p.vm.Status.VolumeClaimName != p.claim {
		if err := c.keepServer(ctx, p, p.claim); err != nil {
			return flow.Fail(err)
		}
	}
	if p.serves == nil {
		return p.blocked(c.serverCause(p))
	}
	same, err := podspec.Serves(p.vm, p.server, c.settings)
	if err != nil {
		return flow.Fail(err)
	}
	if !same {
		if err := c.delete(ctx, []*corev1.Pod{p.server}); err != nil {
			return flow.Fail(err)
		}
		return p.blocked(conditions.Causef(v1alpha1.ReasonDiskServerStarting, "Pod %s is replaced by one that serves the disks of the spec.", p.server.Name))
	}
	return c.awaitRevoked(ctx, p)
}

// isReserved reports whether the next hypervisor is reserved already, and not yet created.
func (c *Controller) isReserved(p *pass) bool {
	return p.vm.Status.ActivePodName != "" && p.vm.Status.ActivePodUID == "" && !p.nameTaken && authority.AccessOf(p.vm) == authority.AccessOpen
}

// awaitRevoked waits until all tokens of before are revoked, and that is stored. If none is known, as when the status was lost,
// those of the past are.
func (c *Controller) awaitRevoked(ctx context.Context, p *pass) flow.Result {
	wanted := &p.memory.served.wanted
	if wanted.IsZero() {
		*wanted = p.now
	}
	upTo := max(authority.HighestToken(&p.vm.Status), wanted.UnixMilli()-1)
	p.revoking = true
	live, err := c.confirm(ctx, p)
	if err == nil && !equality.Semantic.DeepEqual(live.Status.Lease, p.vm.Status.Lease) {
		err = errStale // an old pass must not take the disks from who has just got them
	}
	if err != nil {
		return flow.Fail(err)
	}
	if err := c.askServer(ctx, p, disks.Want{Revoke: storage.Token(upTo)}); err != nil {
		return flow.Fail(err)
	}
	if p.vm.Status.DiskServer.RevokedToken < upTo {
		return p.blocked(c.serverCause(p))
	}
	*wanted = time.Time{}
	return flow.Continue()
}

func (p *pass) observedServer(report *vmpb.ReportStateRequest) conditions.Server {
	return conditions.Server{Pod: p.server, Report: report, Serves: p.serves != nil, Asked: p.asked, Next: p.revoking}
}

// serverCause returns why no hypervisor can have the disks.
func (c *Controller) serverCause(p *pass) *conditions.Cause {
	condition := conditions.DisksServed(p.vm, p.observedServer(c.hypervisors.DiskServer(p.vm)))
	return &conditions.Cause{Reason: condition.Reason, Message: condition.Message}
}
