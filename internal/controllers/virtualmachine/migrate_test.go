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

// migratable runs a VM whose hypervisor supports migration.
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

// evict deletes a Pod as a drain does, so that its hypervisor gets SIGTERM.
func (w *testEnv) evict(pod *corev1.Pod) {
	w.Helper()
	w.must(w.client.Delete(w.Context(), pod))
}

// targetResponse is the response of EnsureMigrationTarget.
type targetResponse struct {
	*vmpb.EnsureMigrationTargetResponse
	err error
}

// requestTarget requests a target until the response is not Unavailable.
func (h *hypervisor) requestTarget() <-chan targetResponse {
	responses := make(chan targetResponse, 1)
	go func() {
		for {
			response, err := h.EnsureMigrationTarget(h.Context(), &vmpb.EnsureMigrationTargetRequest{Us: h.us})
			if status.Code(err) != codes.Unavailable || h.Context().Err() != nil {
				responses <- targetResponse{response, err}
				return
			}
		}
	}()
	return responses
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

// serve runs the services of a target and returns their endpoint.
func (w *testEnv) serve(pod *corev1.Pod) string {
	w.Helper()
	return w.listenIn(pod, func(server *grpc.Server) {
		healthServer := health.NewServer()
		healthServer.SetServingStatus(vmpb.Hypervisor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
		healthpb.RegisterHealthServer(server, healthServer)
	})
}

// listenIn runs a server with the identity of a Pod, and returns its endpoint.
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

// target runs the hypervisor of a migration target until it can receive the guest.
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

func (w *testEnv) wantMigrate(responses <-chan targetResponse, pod *corev1.Pod) targetResponse {
	w.Helper()
	select {
	case got := <-responses:
		if got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE || got.GetTargetPod() != pod.Name || got.GetTargetEndpoint() == "" {
			w.Fatalf("the response is %v, %v\n%s", got.EnsureMigrationTargetResponse, got.err, w.describe())
		}
		return got
	case <-time.After(env.WaitTimeout):
		w.Fatalf("no response\n%s", w.describe())
	}
	return targetResponse{}
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

// claimGone waits until a claim is being deleted, and completes its deletion in the role of the volume controller.
func (w *testEnv) claimGone(name string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	w.eventually("claim "+name+" is being deleted", func() bool { return w.gone(claim, name) || claim.DeletionTimestamp != nil })
	claim.Finalizers = nil
	w.must(client.IgnoreNotFound(w.client.Update(w.Context(), claim)))
}

// withLogs gives a VM the data disk "logs".
func (w *testEnv) withLogs(vm *v1alpha1.VirtualMachine) {
	vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("logs", "1Gi", w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer))}
	vm.Spec.DataDisks[0].InitialImage = &v1alpha1.InitialImage{URL: "http://images.example/logs.raw"}
}

// disksGone calls claimGone for the claim of a root disk and that of the data disk "logs" that belongs to it.
func (w *testEnv) disksGone(claim string) {
	w.Helper()
	w.claimGone(claim)
	w.claimGone(claim + "-logs")
}

// wantDisks calls wantKept for both claims.
func (w *testEnv) wantDisks(claim string) {
	w.Helper()
	w.wantKept(claim)
	w.wantKept(claim + "-logs")
}

// wantKept checks that a claim is not being deleted.
func (w *testEnv) wantKept(name string) {
	w.Helper()
	if claim := (&corev1.PersistentVolumeClaim{}); w.gone(claim, name) || claim.DeletionTimestamp != nil {
		w.Errorf("claim %s is being deleted\n%s", name, w.describe())
	}
}

// TestMigration_MovesVM checks a migration from the eviction of a Pod until only the new Pod and its disk are left, with and
// without a restart of the controller in each step.
func TestMigration_MovesVM(t *testing.T) {
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
			w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)) // to get its node
			w.evict(pod)
			restart()
			responses := source.requestTarget()
			second := w.awaitTarget("a", "")
			w.wantTargetPod(pod, second)
			if restarts {
				restart()
				responses = source.requestTarget()
			}
			target, _ := w.target("a", second, 2)
			w.wantMigrate(responses, second)
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
			w.must(target.switchOver(source.us)) // repeated because the response was lost
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
			w.eventually("the downtime is recorded", func() bool { return w.record("a").Downtime != nil })
			w.wantDisks("a") // the old hypervisor has not terminated
			w.remove(pod)
			w.disksGone("a")
			w.wantMoved("a", second)
			// The next hypervisor starts from the new disk.
			w.end(second, left(vmpb.EndQEMUFailed, "QEMU terminated."))
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

// findsDisks deletes the status and the Pods of a VM that has migrated, and checks that its next Pod has the existing
// disks.
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

// wantMoved checks the state after a migration with a downtime of 120 ms.
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
		w.Errorf("the target may be scheduled to %v", terms)
	}
}

// logsOn returns the text that disksOf returns for the data disk "logs" that belongs to a claim.
func logsOn(claim string, exists bool, image string) string {
	return fmt.Sprintf("logs on %s-logs, 1073741824 bytes, exists %v, image %q", claim, exists, image)
}

// TestMigration_ConcurrentCallsGetSameTarget checks that concurrent calls all get the same target.
func TestMigration_ConcurrentCallsGetSameTarget(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", nil)
	w.evict(pod)
	var all []<-chan targetResponse
	for range 5 {
		all = append(all, source.requestTarget())
	}
	second := w.awaitTarget("a", "")
	w.target("a", second, 2)
	for _, responses := range all {
		w.wantMigrate(responses, second)
	}
	w.wantMigrate(source.requestTarget(), second)
	if n := len(w.pods("a")); n != 2 {
		t.Errorf("%d pods", n)
	}
}

// TestMigration_ShutsDownVMIfNotRequested checks that the VM is shut down if it must not be migrated, or if no migration was requested.
func TestMigration_ShutsDownVMIfNotRequested(t *testing.T) {
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
			got := <-source.requestTarget()
			if got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN || got.GetTargetPod() != "" {
				t.Errorf("the response is %v, %v", got.EnsureMigrationTargetResponse, got.err)
			}
			if record := w.vm("a").Status.Migration; record != nil {
				t.Errorf("there is a migration: %+v", record)
			}
			if given.reason == "" {
				return
			}
			w.eventually("the reason of the condition is "+given.reason, func() bool {
				condition := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionLiveMigratable)
				return condition != nil && condition.Reason == given.reason && (condition.Status == metav1.ConditionTrue) == (given.reason == migration.NoObstacle)
			})
		})
	}
}

// TestMigration_TargetFails checks that the guest keeps running at its source if the target fails, and that the source gets
// another target.
func TestMigration_TargetFails(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, fail := range map[string]func(w *testEnv, source *hypervisor, target *corev1.Pod){
		"terminates": func(w *testEnv, _ *hypervisor, target *corev1.Pod) {
			w.end(target, left(vmpb.EndInternal, "it crashed"))
		},
		"disappears": func(w *testEnv, _ *hypervisor, target *corev1.Pod) { w.remove(target) },
		"is given up": func(w *testEnv, source *hypervisor, target *corev1.Pod) {
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
			responses := source.requestTarget()
			second := w.awaitTarget("a", "")
			target, targetLease := w.target("a", second, 2)
			w.wantMigrate(responses, second)
			fail(w, source, second)
			w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
			wantCode(t, target.switchOver(source.us), codes.FailedPrecondition)
			responses = source.requestTarget()
			third := w.awaitTarget("a", second.Name)
			w.remove(second)
			w.disksGone(second.Name)
			w.wantDisks("a")
			w.target("a", third, 3)
			w.wantMigrate(responses, third)
			if vm := w.vm("a"); vm.Status.ActivePodName != pod.Name || vm.Status.Migration.Failures != 1 {
				t.Errorf("the status is %+v, %+v", vm.Status.VirtualMachineAuthority, vm.Status.Migration)
			}
			_ = lease
		})
	}
}

// TestMigration_SourceFails checks that a VM whose source fails before the switchover starts again from its old disk, and that
// the target is deleted.
func TestMigration_SourceFails(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	target, targetLease := w.target("a", second, 2)
	w.wantMigrate(responses, second)
	w.end(pod, left(vmpb.EndQEMUFailed, "QEMU terminated."))
	third := w.awaitPod("a", pod.Name)
	if podspec.ClaimName(third) != "a" || third.Name == second.Name {
		t.Errorf("pod %s has disk %s", third.Name, podspec.ClaimName(third))
	}
	w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	wantCode(t, target.switchOver(source.us), codes.FailedPrecondition)
	w.wantMigrating("a", migration.ReasonSourceEnded)
	w.eventually("the target is deleted", func() bool { return w.gone(second, second.Name) || second.DeletionTimestamp != nil })
	w.remove(second)
	w.disksGone(second.Name)
	w.wantDisks("a")
}

// TestMigration_VMDeletedDuringMigration checks that both Pods and then both disks are deleted.
func TestMigration_VMDeletedDuringMigration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	target, targetLease := w.target("a", second, 2)
	w.wantMigrate(responses, second)
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.wantStatus(targetLease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	w.wantStatus(source.lease(), vmpb.RunLeaseUpdate_STATUS_OK) // its guest shuts down
	wantCode(t, target.switchOver(source.us), codes.FailedPrecondition)
	w.wantDisks("a")
	w.wantDisks(second.Name)
	w.remove(pod)
	w.remove(second)
	w.disksGone("a")
	w.disksGone(second.Name)
	w.eventually("the virtual machine is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "a") })
}

// TestMigration_IgnoresOtherHypervisors checks that hypervisors that are not part of a migration cannot affect it.
func TestMigration_IgnoresOtherHypervisors(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", nil)
	_, stranger, _ := w.migratable("b", nil)
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	target, _ := w.target("a", second, 2)
	w.wantMigrate(responses, second)
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

// TestMigration_NoCapacityShutsDownGuest checks that the guest is shut down if no host has capacity, and only then.
func TestMigration_NoCapacityShutsDownGuest(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", nil)
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	vm := w.vm("a") // simulate that time has passed
	vm.Status.Migration.StartTime = metav1.NewTime(time.Now().Add(-time.Minute))
	w.must(w.client.Status().Update(t.Context(), vm))
	w.kubelet(second, func(status *corev1.PodStatus) {
		status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available",
		}}
	})
	got := <-responses
	if got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN {
		t.Errorf("the response is %v, %v", got.EnsureMigrationTargetResponse, got.err)
	}
	w.wantMigrating("a", migration.ReasonUnschedulable)
	w.eventually("an event contains the reason", func() bool { return w.hasEvent("NotMigrated", "0/1 nodes are available") })
}

// hasEvent reports whether there was an event with a reason and a text. It drops events up to that one.
func (w *testEnv) hasEvent(reason, text string) bool {
	for len(w.events.Events) > 0 {
		if event := <-w.events.Events; strings.Contains(event, reason) && strings.Contains(event, text) {
			return true
		}
	}
	return false
}

// order requests a migration in the role of a user.
func (w *testEnv) order(name, value string) {
	w.Helper()
	w.change(name, func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationMigrate, value)
	})
}

// TestMigration_RequestAndCancel checks that a user can request a migration to a host and cancel it, and that an impossible request is
// refused.
func TestMigration_RequestAndCancel(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, lease := w.migratable("a", nil)
	w.order("a", "another-pod")
	w.order("a", pod.Name+"/host-7")
	if update := lease(); !update.GetMigrate() || update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK {
		t.Fatalf("the lease has %v", update)
	}
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	terms := second.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) != 2 || terms[0].MatchFields[1].Values[0] != "host-7" {
		t.Errorf("the target may be scheduled to %v", terms)
	}
	_, targetLease := w.target("a", second, 2)
	w.wantMigrate(responses, second)
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
	w.eventually("the request is refused", func() bool { return w.hasEvent("MigrationRefused", "host-1") })
	if _, found := w.vm("a").Annotations[v1alpha1.AnnotationMigrate]; found {
		t.Error("the request was not removed")
	}
}

// TestMigration_DoesNotConverge checks that the status reports a copy that does not converge, and that a migration that
// timed out is not retried.
func TestMigration_DoesNotConverge(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.Migration = &v1alpha1.MigrationSettings{CompletionTimeoutPolicy: v1alpha1.CompletionTimeoutCancel, DowntimeLimitMilliseconds: 7}
	})
	w.order("a", pod.Name)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	w.target("a", second, 2)
	if limits := w.wantMigrate(responses, second).GetLimits(); limits.GetTimeoutPolicy() != vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL || limits.GetDowntime().AsDuration() != 7*time.Millisecond {
		t.Errorf("the limits are %v", limits)
	}
	reports := func(phase vmpb.ReportStateRequest_Migration_Phase, timedOut bool) {
		source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
			r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{
				Phase: phase, TargetPod: second.Name, Convergence: vmpb.ReportStateRequest_Migration_CONVERGENCE_FAILING, TimedOut: timedOut,
			}
		})
	}
	reports(vmpb.ReportStateRequest_Migration_PHASE_COPYING, false)
	w.eventually("the event", func() bool { return w.hasEvent("MigrationNotConverging", second.Name) })
	if record := w.record("a"); record.Convergence != v1alpha1.MigrationNotConverging {
		t.Errorf("the record is %+v", record)
	}
	reports(vmpb.ReportStateRequest_Migration_PHASE_FAILED, true)
	w.wantMigrating("a", migration.ReasonTimedOut)
	if vm := w.vm("a"); vm.Annotations[v1alpha1.AnnotationMigrate] != "" || vm.Status.ActivePodName != pod.Name {
		t.Errorf("the request is %v, authoritative is %s", vm.Annotations, vm.Status.ActivePodName)
	}
}

// TestMigration_MakesFewWrites checks that a migration takes the controller only a few writes, two of them for a data disk.
func TestMigration_MakesFewWrites(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	before := w.writes.Load()
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	target, _ := w.target("a", second, 2)
	w.wantMigrate(responses, second)
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
	w.eventually("the downtime is recorded", func() bool { return w.record("a").Downtime != nil })
	w.remove(pod)
	w.disksGone("a")
	if writes := w.writes.Load() - before; writes > 12 {
		t.Errorf("%d writes", writes)
	} else {
		t.Logf("%d writes", writes)
	}
}

// TestMigration_StatusLostDuringMigration checks that a user must delete a disk if the status was lost during a migration,
// because only the status recorded which disk has the data.
func TestMigration_StatusLostDuringMigration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.migratable("a", w.withLogs)
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	w.target("a", second, 2)
	w.wantMigrate(responses, second)
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
	// In this case the copy is the disk.
	w.must(w.client.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a"}}))
	w.claimGone("a")
	w.eventually("the message names the data disks", func() bool {
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
