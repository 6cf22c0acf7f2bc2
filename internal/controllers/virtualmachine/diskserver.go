package virtualmachine

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// diskServers runs a disk server for each VM whose spec requests one.
type diskServers struct {
	*cluster
	caller *disks.Caller
}

// servedMemory is what the controller remembers about served disks. If it is lost, some steps take longer.
type servedMemory struct {
	backoff backoff
	// revokeRequested is when the controller first requested the revocation of tokens for the next hypervisor; zero
	// if it has not.
	revokeRequested time.Time
}

// serve keeps the disk server running while it is needed, and opens the disks to the VM's hypervisor. Only an error
// makes it stop the pass.
func (d *diskServers) serve(ctx context.Context, s *scope) flow.Result {
	if !podspec.Served(s.vm) || s.vm.Status.VolumeClaimName == "" {
		return flow.Continue() // await starts the first server when the claims exist
	}
	if err := d.ensure(ctx, s, s.vm.Status.VolumeClaimName); err != nil {
		return flow.Fail(err)
	}
	desired := disks.DesiredFor(s.vm)
	if s.holder() == nil {
		desired.Open = nil
	} else {
		s.memory.served.revokeRequested = time.Time{}
	}
	return flow.Fail(d.request(ctx, s, desired))
}

// ensure observes the disk server Pods and takes the next step for the current one.
func (d *diskServers) ensure(ctx context.Context, s *scope, claim string) error {
	facts, err := d.facts(ctx, s)
	if err != nil {
		return err
	}
	if err := d.removeOthers(ctx, s, facts); err != nil {
		return err
	}
	s.served.pod = facts.Pod
	s.served.refused = nil
	switch disks.Next(facts) {
	case disks.Reserve:
		err = d.reserve(ctx, s, claim)
	case disks.Create:
		err = d.create(ctx, s)
	case disks.Record:
		err = d.record(ctx, s, facts.Pod)
	}
	if err != nil {
		return err
	}
	s.served.process = d.process(s, facts)
	if key := client.ObjectKeyFromObject(s.vm); s.served.process == nil && d.caller.Forget(key) {
		d.hypervisors.Recheck(key)
	}
	return nil
}

func (d *diskServers) facts(ctx context.Context, s *scope) (disks.Facts, error) {
	facts := disks.Facts{Stored: s.vm.Status.DiskServer}
	for _, pod := range s.servers {
		if authority.IsServer(&s.vm.Status, pod.Name) {
			facts.Pod = pod
		} else {
			facts.Others = append(facts.Others, pod)
		}
	}
	if facts.Pod != nil || facts.Stored == nil || facts.Stored.PodName == "" {
		return facts, nil
	}
	pod, err := d.ownPod(ctx, s.vm, facts.Stored.PodName)
	if pod != nil && podspec.IsDiskServer(pod) {
		facts.Pod = pod
		s.servers = append(s.servers, pod)
	}
	return facts, err
}

// removeOthers deletes earlier disk server Pods and those that the status does not record.
func (d *diskServers) removeOthers(ctx context.Context, s *scope, facts disks.Facts) error {
	if !slices.ContainsFunc(facts.Others, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp.IsZero() }) {
		return nil
	}
	live, err := d.confirm(ctx, s)
	if err != nil {
		return err
	}
	return d.deletePods(ctx, slices.DeleteFunc(slices.Clone(facts.Others), func(pod *corev1.Pod) bool {
		return authority.IsServer(&live.Status, pod.Name)
	}))
}

// reserve stores the name of the next disk server before its Pod exists, and the disks that it will serve.
func (d *diskServers) reserve(ctx context.Context, s *scope, claim string) error {
	if d.awaitAttempt(s) {
		return nil
	}
	holder := s.holder()
	err := d.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) {
		if holder == nil {
			if status.VolumeClaimName != claim || podspec.ReplacesDisk(s.vm) {
				status.ImagePrepared = false // the new disk is empty
			}
			status.DataDisks = podspec.NextDataDisks(s.vm)
		}
		next := v1alpha1.DiskServerStatus{PodName: s.vm.Name + "-disks-" + utilrand.String(8)}
		if last := status.DiskServer; last != nil && status.VolumeClaimName == claim {
			next.RevokedToken = last.RevokedToken
		}
		status.VolumeClaimName, status.DiskServer = claim, &next
	})
	if err != nil {
		return err
	}
	s.memory.served.backoff.startedAt = s.now
	return d.create(ctx, s)
}

// awaitAttempt reports whether the next disk server must wait for the back-off after the last one has terminated.
func (d *diskServers) awaitAttempt(s *scope) bool {
	last := s.vm.Status.DiskServer
	if last == nil || last.PodUID == "" {
		return false
	}
	ended := attempt{pod: last.PodUID, generation: s.vm.Generation, requested: podspec.StartRequested(s.vm)}
	if s.served.pod != nil {
		ended.permanent = podstate.EndOf(s.served.pod).Permanent()
	}
	wait := s.memory.served.backoff.wait(ended, s.now)
	if wait > 0 {
		d.queue.add(client.ObjectKeyFromObject(s.vm), wait)
	}
	return wait > 0
}

// create creates the disk server Pod under the reserved name. If the VM may not have one, it sets s.served.refused and
// returns nil.
func (d *diskServers) create(ctx context.Context, s *scope) error {
	live, pod, err := d.createPod(ctx, s, func(live *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
		if !authority.IsServer(&live.Status, s.vm.Status.DiskServer.PodName) || live.Status.DiskServer.PodUID != "" {
			return nil, edge.ErrStale // a name is used for one Pod only
		}
		return podspec.DiskServer(live, s.holder(), d.settings())
	})
	if refused, is := errors.AsType[*refusedError](err); is {
		s.served.refused = refused.cause
		return nil
	}
	if apierror.Taken(err) {
		return edge.ErrStale // an earlier pass created it
	}
	if err != nil {
		return err
	}
	d.events.Eventf(s.vm, corev1.EventTypeNormal, "Created", "Created disk server pod %s", pod.Name)
	s.vm, s.served.pod, s.servers = live, pod, append(s.servers, pod)
	return d.record(ctx, s, pod)
}

func (d *diskServers) record(ctx context.Context, s *scope, pod *corev1.Pod) error {
	return d.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) { status.DiskServer.PodUID = pod.UID })
}

// process returns the process that serves the disks, or nil if none serves them yet.
func (d *diskServers) process(s *scope, facts disks.Facts) *disks.Server {
	pod, report := facts.Served(), d.hypervisors.DiskServer(s.vm)
	if pod == nil || report.GetState() != vmpb.ReportStateRequest_STATE_RUNNING {
		return nil
	}
	return &disks.Server{
		VM: client.ObjectKeyFromObject(s.vm), Pod: pod.Name, Run: report.GetUs().GetRunId(), Endpoint: report.GetEndpoint(),
	}
}

// request sends the desired state to the disk server, if there is one, and stores what the server has confirmed.
func (d *diskServers) request(ctx context.Context, s *scope, desired disks.Desired) error {
	if s.served.process == nil {
		return nil
	}
	s.served.state = d.caller.Ensure(*s.served.process, desired)
	if s.served.state.Err != nil {
		log.FromContext(ctx).Info("Request to the disk server failed", "pod", s.served.process.Pod, "err", s.served.state.Err.Error())
	}
	report := d.hypervisors.DiskServer(s.vm)
	next := s.vm.Status.DeepCopy()
	podspec.RecordServedDisks(s.vm, next, report)
	next.DiskServer.RevokedToken = max(next.DiskServer.RevokedToken, disks.Confirmed(s.vm, s.served.state))
	if next.ImagePrepared == s.vm.Status.ImagePrepared && *next.DiskServer == *s.vm.Status.DiskServer && slices.Equal(next.DataDisks, s.vm.Status.DataDisks) {
		return nil
	}
	err := d.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) {
		status.ImagePrepared, status.DataDisks, status.DiskServer = next.ImagePrepared, next.DataDisks, next.DiskServer
	})
	d.hypervisors.Recheck(client.ObjectKeyFromObject(s.vm))
	return err
}
