package virtualmachine

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// migratable runs a VM whose hypervisor can migrate.
func (w *testEnv) migratable(name string, change func(*v1alpha1.VirtualMachine)) (*corev1.Pod, *hypervisor, func() *vmpb.RunLeaseUpdate) {
	w.Helper()
	w.declare(name, change)
	pod := w.awaitPod(name, "")
	w.schedule(pod)
	h := w.hypervisor(name, pod, 1)
	next := h.lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.ImagePrepared, r.CanMigrate, r.Disks = true, true, w.sizesOf(pod)
	})
	w.awaitReady(name, reasonRunning)
	return pod, h, next
}

// evict deletes a Pod as a drain does: its hypervisor gets SIGTERM.
func (w *testEnv) evict(pod *corev1.Pod) {
	w.Helper()
	w.must(w.client.Delete(w.Context(), pod))
}

// answer is that of EnsureMigrationTarget.
type answer struct {
	*vmpb.EnsureMigrationTargetResponse
	err error
}

// ask asks for a target, until there is an answer but Unavailable.
func (h *hypervisor) ask() <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		for {
			response, err := h.EnsureMigrationTarget(h.Context(), &vmpb.EnsureMigrationTargetRequest{Us: h.us})
			if status.Code(err) != codes.Unavailable || h.Context().Err() != nil {
				answers <- answer{response, err}
				return
			}
		}
	}()
	return answers
}

// record returns the VM's migration.
func (w *testEnv) record(name string) *v1alpha1.VirtualMachineMigration {
	w.Helper()
	if record := w.vm(name).Status.Migration; record != nil {
		return record
	}
	return &v1alpha1.VirtualMachineMigration{}
}

// awaitTarget waits until the target's Pod exists and is recorded.
func (w *testEnv) awaitTarget(name, not string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{}
	w.eventually("a target of "+name, func() bool {
		record := w.record(name)
		return record.TargetPodUID != "" && record.TargetPodName != not && !w.gone(pod, record.TargetPodName)
	})
	return pod
}

// serve has a target's services answer, and returns their endpoint.
func (w *testEnv) serve(pod *corev1.Pod) string {
	w.Helper()
	return w.listenIn(pod, func(server *grpc.Server) {
		answers := health.NewServer()
		answers.SetServingStatus(vmpb.Hypervisor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
		healthpb.RegisterHealthServer(server, answers)
	})
}

// listenIn serves with the identity of a Pod, and returns the endpoint.
func (w *testEnv) listenIn(pod *corev1.Pod, register func(*grpc.Server)) string {
	w.Helper()
	file := filepath.Join(w.TempDir(), "token")
	w.must(os.WriteFile(file, []byte(w.token(pod, vmpb.TokenAudience)), 0o600))
	certificate, _ := w.authority.PEM()
	credentials, err := identity.ForHypervisor(identity.Options{Authority: certificate, TokenFile: file, Endpoint: w.endpoint})
	w.must(err)
	server := grpc.NewServer(credentials.ServerOptions()...)
	register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	go func() { _ = server.Serve(listener) }()
	w.Cleanup(server.Stop)
	return listener.Addr().String()
}

// target runs the hypervisor of a target until it is incoming.
func (w *testEnv) target(name string, pod *corev1.Pod, run uint64) (*hypervisor, func() *vmpb.RunLeaseUpdate) {
	w.Helper()
	if pod.Spec.NodeName == "" {
		w.scheduleOn(pod, "host-2")
	}
	h := w.hypervisor(name, pod, run)
	next := h.lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	endpoint := w.serve(pod)
	h.report(vmpb.ReportStateRequest_STATE_INCOMING, func(r *vmpb.ReportStateRequest) { r.Endpoint = endpoint })
	return h, next
}

func (w *testEnv) wantMigrate(answers <-chan answer, pod *corev1.Pod) answer {
	w.Helper()
	select {
	case got := <-answers:
		if got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE || got.GetTargetPod() != pod.Name || got.GetTargetEndpoint() == "" {
			w.Fatalf("the answer is %v, %v\n%s", got.EnsureMigrationTargetResponse, got.err, w.describe())
		}
		return got
	case <-time.After(env.WaitTimeout):
		w.Fatalf("no answer\n%s", w.describe())
	}
	return answer{}
}

func (h *hypervisor) switchOver(them *vmpb.HypervisorID) error {
	_, err := h.MigrationSwitchover(h.Context(), &vmpb.MigrationSwitchoverRequest{Us: h.us, Them: them})
	return err
}

// wantMigrating checks the condition Migrating.
func (w *testEnv) wantMigrating(name, reason string) {
	w.Helper()
	w.eventually("the migration is "+reason, func() bool {
		condition := meta.FindStatusCondition(w.vm(name).Status.Conditions, v1alpha1.ConditionMigrating)
		return condition != nil && condition.Reason == reason
	})
}

// claimGone completes the deletion of a claim as the volume controller, once it is being deleted.
func (w *testEnv) claimGone(name string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	w.eventually("claim "+name+" is being deleted", func() bool { return w.gone(claim, name) || claim.DeletionTimestamp != nil })
	claim.Finalizers = nil
	w.must(client.IgnoreNotFound(w.client.Update(w.Context(), claim)))
}

// withLogs gives a VM the data disk logs.
func (w *testEnv) withLogs(vm *v1alpha1.VirtualMachine) {
	vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("logs", "1Gi", w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer))}
	vm.Spec.DataDisks[0].InitialImage = &v1alpha1.InitialImage{URL: "http://images.example/logs.raw"}
}

// disksGone is claimGone for the disk with that claim and the data disk logs beside it.
func (w *testEnv) disksGone(claim string) {
	w.Helper()
	w.claimGone(claim)
	w.claimGone(claim + "-logs")
}

// wantDisks is wantKept for both.
func (w *testEnv) wantDisks(claim string) {
	w.Helper()
	w.wantKept(claim)
	w.wantKept(claim + "-logs")
}

// wantKept checks that a claim is not being deleted.
func (w *testEnv) wantKept(name string) {
	w.Helper()
	if claim := (&corev1.PersistentVolumeClaim{}); w.gone(claim, name) || claim.DeletionTimestamp != nil {
		w.Errorf("claim %s goes\n%s", name, w.describe())
	}
}

// TestMigration: from the eviction of a Pod until only the new one and its disk are left. The controller
// is restarted in each step if restarts.
func TestMigration(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "with restarts"}[restarts], func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			pod, source, lease := w.migratable("a", w.withLogs)
			restart := func() {
				if !restarts {
					return
				}
				w.restart()
				source = w.hypervisor("a", pod, 1)
				lease = source.lease()
				w.wantStatus(lease, vmpb.RunLeaseUpdate_STATUS_OK)
				source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared, r.CanMigrate = true, true })
			}
			w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)) // it has a node
			w.evict(pod)
			restart()
			answers := source.ask()
			second := w.awaitTarget("a", "")
			w.wantTargetPod(pod, second)
			if restarts {
				restart()
				answers = source.ask()
			}
			target, _ := w.target("a", second, 2)
			w.wantMigrate(answers, second)
			if restarts {
				restart()
				target = w.hypervisor("a", second, 2)
				w.wantStatus(target.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
			}
			source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
				r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{
					Phase: vmpb.ReportStateRequest_Migration_PHASE_COPYING, TargetPod: second.Name, DoneBytes: 10 << 20, TotalBytes: 100 << 20,
				}
			})
			w.wantMigrating("a", string(v1alpha1.MigrationCopying))
			if record := w.record("a"); record.TargetNodeName != "host-2" || record.TotalBytes != 100<<20 {
				t.Errorf("the record is %+v", record)
			}
			w.must(target.switchOver(source.us))
			w.must(target.switchOver(source.us)) // the answer was lost
			wantCode(t, source.switchOver(source.us), codes.FailedPrecondition)
			w.wantStatus(lease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
			if got := w.ready("a"); got != reasonRunning {
				t.Errorf("ready %s after the switchover", got)
			}
			w.wantDisks("a")
			w.wantDisks(second.Name)
			target.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
				r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{
					Phase: vmpb.ReportStateRequest_Migration_PHASE_DONE, TargetPod: second.Name, Downtime: durationpb.New(120 * time.Millisecond),
				}
			})
			w.wantMigrating("a", string(v1alpha1.MigrationSucceeded))
			w.eventually("the end is recorded", func() bool { return w.record("a").Downtime != nil })
			w.wantDisks("a") // the old hypervisor has not ended
			w.remove(pod)
			w.disksGone("a")
			w.wantMoved("a", second)
			// The next hypervisor starts from the new disk.
			w.end(second, left(vmpb.EndQEMUFailed, "QEMU ended."))
			third := w.awaitPod("a", second.Name)
			if got, want := w.disksOf(third), logsOn(second.Name, true, "http://images.example/logs.raw"); got != want {
				t.Errorf("the next hypervisor has %s, want %s", got, want)
			}
			if podspec.ClaimName(third) != second.Name || w.specOf(third).GetMode() != vmpb.VMSpec_SM_RUN {
				t.Errorf("the next hypervisor has disk %s", podspec.ClaimName(third))
			}
			if restarts {
				w.findsDisks("a", second.Name)
			}
		})
	}
}

// findsDisks loses the status of a VM that has moved, with its Pods: the next one has its disks, and no new ones.
func (w *testEnv) findsDisks(name, claim string) {
	w.Helper()
	w.stop()
	pods := w.pods(name)
	for i := range pods {
		w.remove(&pods[i])
	}
	vm := w.vm(name)
	vm.Status = v1alpha1.VirtualMachineStatus{}
	w.must(w.client.Status().Update(w.Context(), vm))
	w.start()
	next := w.awaitPod(name, "")
	if got, want := w.disksOf(next), logsOn(claim, false, "http://images.example/logs.raw"); got != want || podspec.ClaimName(next) != claim {
		w.Errorf("after the loss of the status the pod has %s and %s, want %s", podspec.ClaimName(next), got, want)
	}
}

// wantMoved checks what is left of a migration that took 120 ms of the guest's time.
func (w *testEnv) wantMoved(name string, target *corev1.Pod) {
	w.Helper()
	vm := w.vm(name)
	if vm.Status.NodeName != "host-2" || vm.Status.VolumeClaimName != target.Name || vm.Status.ActivePodUID != target.UID || w.ready(name) != reasonRunning {
		w.Errorf("status %+v", vm.Status)
	}
	if record := vm.Status.Migration; record.Downtime.Duration != 120*time.Millisecond || record.EndTime == nil || record.SourceNodeName != "host-1" {
		w.Errorf("the record is %+v", record)
	}
	w.wantDisks(target.Name)
	w.eventually("one pod is left", func() bool { return len(w.pods(name)) == 1 })
}

// wantTargetPod checks the Pod of a target.
func (w *testEnv) wantTargetPod(source, target *corev1.Pod) {
	w.Helper()
	spec := w.specOf(target)
	if spec.GetMode() != vmpb.VMSpec_SM_INCOMING_MIGRATION || spec.GetMigrationSourcePod() != source.Name || spec.GetPodName() != target.Name ||
		spec.GetGrace().AsDuration() != 15*time.Minute || spec.GetInitialImage() != nil || spec.GetRootDiskShared() ||
		!slices.Equal(spec.GetAddress(), w.specOf(source).GetAddress()) {
		w.Errorf("the target's spec is %v", spec)
	}
	if podspec.ClaimName(target) != target.Name {
		w.Errorf("the target's disk is %s", podspec.ClaimName(target))
	}
	if got, want := w.disksOf(target), logsOn(target.Name, false, ""); got != want {
		w.Errorf("the target has %s, want %s", got, want)
	}
	terms := target.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if got := terms[0].MatchFields[0]; got.Operator != corev1.NodeSelectorOpNotIn || got.Values[0] != source.Spec.NodeName {
		w.Errorf("the target may be on %v", terms)
	}
}

// logsOn is what disksOf says of the disk logs beside a claim.
func logsOn(claim string, exists bool, image string) string {
	return fmt.Sprintf("logs on %s-logs, 1073741824 bytes, exists %v, image %q", claim, exists, image)
}

// TestOneTarget: of many calls, all get the same target.
func TestOneTarget(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", nil)
	w.evict(pod)
	var all []<-chan answer
	for range 5 {
		all = append(all, source.ask())
	}
	second := w.awaitTarget("a", "")
	w.target("a", second, 2)
	for _, answers := range all {
		w.wantMigrate(answers, second)
	}
	w.wantMigrate(source.ask(), second)
	if n := len(w.pods("a")); n != 2 {
		t.Errorf("%d pods", n)
	}
}

// TestNotMigrated: the VM is shut down where it must not be migrated, or nobody wants that.
func TestNotMigrated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	cold := func(vm *v1alpha1.VirtualMachine) { vm.Spec.MigrateStrategy = v1alpha1.MigrateCold }
	for name, given := range map[string]struct {
		change func(*v1alpha1.VirtualMachine)
		before func(w *testEnv, pod *corev1.Pod, source *hypervisor)
		reason string
	}{
		"cold":                           {cold, func(w *testEnv, pod *corev1.Pod, _ *hypervisor) { w.evict(pod) }, migration.ObstacleCold},
		"the pod stays":                  {nil, func(*testEnv, *corev1.Pod, *hypervisor) {}, migration.NoObstacle},
		"the virtual machine is deleted": {nil, func(w *testEnv, _ *corev1.Pod, _ *hypervisor) { w.must(w.client.Delete(w.Context(), w.vm("a"))) }, ""},
		"the hypervisor cannot": {nil, func(w *testEnv, pod *corev1.Pod, source *hypervisor) {
			source.report(vmpb.ReportStateRequest_STATE_RUNNING, nil)
			w.evict(pod)
		}, migration.ObstacleHypervisor},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			pod, source, _ := w.migratable("a", given.change)
			given.before(w, pod, source)
			got := <-source.ask()
			if got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN || got.GetTargetPod() != "" {
				t.Errorf("the answer is %v, %v", got.EnsureMigrationTargetResponse, got.err)
			}
			if record := w.vm("a").Status.Migration; record != nil {
				t.Errorf("there is a migration: %+v", record)
			}
			if given.reason == "" {
				return
			}
			w.eventually("the condition says "+given.reason, func() bool {
				condition := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionLiveMigratable)
				return condition != nil && condition.Reason == given.reason && (condition.Status == metav1.ConditionTrue) == (given.reason == migration.NoObstacle)
			})
		})
	}
}

// TestTargetDies: the guest goes on at its source, which gets another target, and the next one too.
func TestTargetDies(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, die := range map[string]func(w *testEnv, source *hypervisor, target *corev1.Pod){
		"it ends":     func(w *testEnv, _ *hypervisor, target *corev1.Pod) { w.end(target, left(vmpb.EndInternal, "it died")) },
		"it vanishes": func(w *testEnv, _ *hypervisor, target *corev1.Pod) { w.remove(target) },
		"it is given up": func(w *testEnv, source *hypervisor, target *corev1.Pod) {
			source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
				r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{
					Phase: vmpb.ReportStateRequest_Migration_PHASE_FAILED, TargetPod: target.Name, Message: "the connection broke",
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			pod, source, lease := w.migratable("a", w.withLogs)
			w.evict(pod)
			answers := source.ask()
			second := w.awaitTarget("a", "")
			target, targetLease := w.target("a", second, 2)
			w.wantMigrate(answers, second)
			die(w, source, second)
			w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
			wantCode(t, target.switchOver(source.us), codes.FailedPrecondition)
			answers = source.ask()
			third := w.awaitTarget("a", second.Name)
			w.remove(second)
			w.disksGone(second.Name)
			w.wantDisks("a")
			w.target("a", third, 3)
			w.wantMigrate(answers, third)
			if vm := w.vm("a"); vm.Status.ActivePodName != pod.Name || vm.Status.Migration.Failures != 1 {
				t.Errorf("the status is %+v, %+v", vm.Status.VirtualMachineAuthority, vm.Status.Migration)
			}
			_ = lease
		})
	}
}

// TestSourceDies: without a switchover the VM starts again from its old disk, and the target goes.
func TestSourceDies(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	w.evict(pod)
	answers := source.ask()
	second := w.awaitTarget("a", "")
	target, targetLease := w.target("a", second, 2)
	w.wantMigrate(answers, second)
	w.end(pod, left(vmpb.EndQEMUFailed, "QEMU ended."))
	third := w.awaitPod("a", pod.Name)
	if podspec.ClaimName(third) != "a" || third.Name == second.Name {
		t.Errorf("pod %s has disk %s", third.Name, podspec.ClaimName(third))
	}
	w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	wantCode(t, target.switchOver(source.us), codes.FailedPrecondition)
	w.wantMigrating("a", migration.ReasonSourceEnded)
	w.eventually("the target goes", func() bool { return w.gone(second, second.Name) || second.DeletionTimestamp != nil })
	w.remove(second)
	w.disksGone(second.Name)
	w.wantDisks("a")
}

// TestDeletedAmidMigration: both Pods end, then both disks.
func TestDeletedAmidMigration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, lease := w.migratable("a", w.withLogs)
	w.evict(pod)
	answers := source.ask()
	second := w.awaitTarget("a", "")
	target, targetLease := w.target("a", second, 2)
	w.wantMigrate(answers, second)
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.wantStatus(lease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	wantCode(t, target.switchOver(source.us), codes.FailedPrecondition)
	w.wantDisks("a")
	w.wantDisks(second.Name)
	w.remove(pod)
	w.remove(second)
	w.disksGone("a")
	w.disksGone(second.Name)
	w.eventually("the virtual machine is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "a") })
}

// TestNeitherSourceNorTarget: others get nothing of a migration.
func TestNeitherSourceNorTarget(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", nil)
	_, stranger, _ := w.migratable("b", nil)
	w.evict(pod)
	answers := source.ask()
	second := w.awaitTarget("a", "")
	target, _ := w.target("a", second, 2)
	w.wantMigrate(answers, second)
	_, err := stranger.EnsureMigrationTarget(t.Context(), &vmpb.EnsureMigrationTargetRequest{Us: source.us})
	wantCode(t, err, codes.PermissionDenied)
	_, err = target.EnsureMigrationTarget(t.Context(), &vmpb.EnsureMigrationTargetRequest{Us: target.us})
	wantCode(t, err, codes.FailedPrecondition)
	wantCode(t, stranger.switchOver(source.us), codes.InvalidArgument)
	_, err = stranger.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: stranger.us, State: vmpb.ReportStateRequest_STATE_INCOMING, Endpoint: "127.0.0.1:1"})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = source.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: source.us, State: vmpb.ReportStateRequest_STATE_INCOMING, Endpoint: "127.0.0.1:1"})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = target.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: target.us, State: vmpb.ReportStateRequest_STATE_RUNNING})
	wantCode(t, err, codes.FailedPrecondition)
}

// TestNoRoom: where no host has room the guest is shut down, and only then.
func TestNoRoom(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", nil)
	w.evict(pod)
	answers := source.ask()
	second := w.awaitTarget("a", "")
	vm := w.vm("a") // half a minute passes
	vm.Status.Migration.StartTime = metav1.NewTime(time.Now().Add(-time.Minute))
	w.must(w.client.Status().Update(t.Context(), vm))
	w.kubelet(second, func(status *corev1.PodStatus) {
		status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available",
		}}
	})
	got := <-answers
	if got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN {
		t.Errorf("the answer is %v, %v", got.EnsureMigrationTargetResponse, got.err)
	}
	w.wantMigrating("a", migration.ReasonUnschedulable)
	w.eventually("an event says why", func() bool { return w.said("NotMigrated", "0/1 nodes are available") })
}

// said reports whether there was an event.
func (w *testEnv) said(reason, text string) bool {
	for len(w.events.Events) > 0 {
		if event := <-w.events.Events; strings.Contains(event, reason) && strings.Contains(event, text) {
			return true
		}
	}
	return false
}

// order orders a migration as a user.
func (w *testEnv) order(name, value string) {
	w.Helper()
	w.change(name, func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationMigrate, value)
	})
}

// TestOrder: a user orders a migration to a host, cancels it, and orders one that cannot be.
func TestOrder(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, lease := w.migratable("a", nil)
	w.order("a", "another-pod")
	w.order("a", pod.Name+"/host-7")
	if update := lease(); !update.GetMigrate() || update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK {
		t.Fatalf("the lease has %v", update)
	}
	answers := source.ask()
	second := w.awaitTarget("a", "")
	terms := second.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) != 2 || terms[0].MatchFields[1].Values[0] != "host-7" {
		t.Errorf("the target may be on %v", terms)
	}
	_, targetLease := w.target("a", second, 2)
	w.wantMigrate(answers, second)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Annotations = nil })
	if update := lease(); update.GetMigrate() || update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK {
		t.Fatalf("the lease has %v", update)
	}
	source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{Phase: vmpb.ReportStateRequest_Migration_PHASE_FAILED, TargetPod: second.Name}
	})
	w.wantMigrating("a", migration.ReasonCancelled)
	w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)

	w.order("a", pod.Name+"/host-1")
	w.eventually("the order is refused", func() bool { return w.said("MigrationRefused", "host-1") })
	if _, found := w.vm("a").Annotations[v1alpha1.AnnotationMigrate]; found {
		t.Error("the order stays")
	}
}

// TestWritesOfMigration: a migration is few writes of the controller's, two of them for a data disk.
func TestWritesOfMigration(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	before := w.writes.Load()
	w.evict(pod)
	answers := source.ask()
	second := w.awaitTarget("a", "")
	target, _ := w.target("a", second, 2)
	w.wantMigrate(answers, second)
	source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{Phase: vmpb.ReportStateRequest_Migration_PHASE_COPYING, TargetPod: second.Name}
	})
	w.wantMigrating("a", string(v1alpha1.MigrationCopying))
	w.must(target.switchOver(source.us))
	target.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{
			Phase: vmpb.ReportStateRequest_Migration_PHASE_DONE, TargetPod: second.Name, Downtime: durationpb.New(time.Second),
		}
	})
	w.eventually("the end is recorded", func() bool { return w.record("a").Downtime != nil })
	w.remove(pod)
	w.disksGone("a")
	if writes := w.writes.Load() - before; writes > 12 {
		t.Errorf("%d writes", writes)
	} else {
		t.Logf("%d writes", writes)
	}
}

// TestStatusLostAmidMigration: only the status knew whether the target's disk has the data, so a user has to say.
func TestStatusLostAmidMigration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	w.evict(pod)
	answers := source.ask()
	second := w.awaitTarget("a", "")
	w.target("a", second, 2)
	w.wantMigrate(answers, second)
	w.stop()
	w.remove(pod) // only the target is left
	vm := w.vm("a")
	vm.Status = v1alpha1.VirtualMachineStatus{}
	w.must(w.client.Status().Update(t.Context(), vm))
	w.start()
	w.awaitReady("a", reasonDiskUnknown)
	w.remove(second)
	w.eventually("nothing is created", func() bool { return len(w.pods("a")) == 0 && w.ready("a") == reasonDiskUnknown })
	if got := w.vm("a").Status.VirtualMachineAuthority; got != (v1alpha1.VirtualMachineAuthority{}) {
		t.Errorf("authority %+v", got)
	}
	// The other way round: the copy is the disk.
	w.must(w.client.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a"}}))
	w.claimGone("a")
	w.eventually("which data disk it is", func() bool {
		ready := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionReady)
		return ready.Reason == reasonDiskUnknown && strings.Contains(ready.Message, " a-logs ") && strings.Contains(ready.Message, second.Name+"-logs ") && len(w.pods("a")) == 0
	})
	w.must(w.client.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a-logs"}}))
	w.claimGone("a-logs")
	next := w.awaitPod("a", "")
	if podspec.ClaimName(next) != second.Name {
		t.Errorf("the next hypervisor has disk %s", podspec.ClaimName(next))
	}
	if got, want := w.disksOf(next), logsOn(second.Name, false, "http://images.example/logs.raw"); got != want {
		t.Errorf("the next hypervisor has %s, want %s", got, want)
	}
}
