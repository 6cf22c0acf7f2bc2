package virtualmachine

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got code %s, want %s (%v)", got, want, err)
	}
}

// TestIdentity_IsLimitedToOwnVMAndPod checks that processes can act only for their own VM and Pod.
func TestIdentity_IsLimitedToOwnVMAndPod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, next := w.running("a")

	other := &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: "another", RunId: 1}
	_, err := h.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: other})
	wantCode(t, err, codes.PermissionDenied)
	_, err = h.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: pod.Name}})
	wantCode(t, err, codes.InvalidArgument)
	_, err = h.MigrationSwitchover(t.Context(), &vmpb.MigrationSwitchoverRequest{Us: h.us, Them: &vmpb.HypervisorID{VmName: "b", Namespace: w.namespace, PodName: "x", RunId: 1}})
	wantCode(t, err, codes.InvalidArgument)

	// The authoritative process, a later one in the same Pod, and then the former one.
	response, err := h.EnsureMigrationTarget(t.Context(), &vmpb.EnsureMigrationTargetRequest{Us: h.us})
	if err != nil || response.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN {
		t.Errorf("migration target: %v, %v", response, err)
	}
	later := w.hypervisor("a", pod, 2)
	_, err = later.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: later.us, ImagePrepared: true})
	wantCode(t, err, codes.FailedPrecondition)
	w.wantStatus(later.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	_, err = h.EnsureMigrationTarget(t.Context(), &vmpb.EnsureMigrationTargetRequest{Us: h.us})
	wantCode(t, err, codes.FailedPrecondition)
	// A process without the authority cannot pass it on.
	_, err = later.MigrationSwitchover(t.Context(), &vmpb.MigrationSwitchoverRequest{Us: later.us, Them: h.us})
	wantCode(t, err, codes.OK) // the caller already has the authority, as after a lost response
	_, err = h.MigrationSwitchover(t.Context(), &vmpb.MigrationSwitchoverRequest{
		Us: h.us, Them: &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: pod.Name, RunId: 9}})
	wantCode(t, err, codes.FailedPrecondition)
}

// TestCertificate_RequiresTokenOfPod checks that only the token of a VM's Pod is accepted for a certificate.
func TestCertificate_RequiresTokenOfPod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	stranger := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "stranger", Labels: map[string]string{v1alpha1.LabelVM: "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "hypervisor", Image: "i"}}},
	}
	w.must(w.client.Create(t.Context(), stranger))
	tokens := service.TokenReviewer{Client: w.client, APIReader: w.client, Signer: podstate.Signer{MAC: w.authority.MAC}}
	for name, try := range map[string]struct {
		token string
		want  codes.Code
	}{
		"the VM's pod":     {w.token(pod, vmpb.TokenAudience), codes.OK},
		"garbage":          {"garbage", codes.Unauthenticated},
		"another audience": {w.token(pod, "https://kubernetes.default.svc.cluster.local"), codes.Unauthenticated},
		"no pod":           {w.token(nil, vmpb.TokenAudience), codes.Unauthenticated},
		"a stranger":       {w.token(stranger, vmpb.TokenAudience), codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			peer, err := tokens.Resolve(t.Context(), try.token)
			wantCode(t, err, try.want)
			if err == nil && (peer.VM != "a" || peer.Pod != pod.Name || peer.Namespace != w.namespace) {
				t.Errorf("peer %s", peer)
			}
		})
	}
}

func TestVirtualMachine_Pause(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	_, h, next := w.running("a")
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause })
	if update := next(); update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || !update.GetPaused() {
		t.Errorf("the run lease has %v", update)
	}
	h.report(vmpb.ReportStateRequest_STATE_PAUSED, nil)
	w.awaitReady("a", reasonPaused)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModeRun })
	if update := next(); update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || update.GetPaused() {
		t.Errorf("the run lease has %v", update)
	}
}

// TestReports_AreBatched checks that frequent reports do not cause as many writes.
func TestReports_AreBatched(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	_, h, _ := w.running("a")
	watching, err := client.NewWithWatch(w.access, client.Options{Scheme: testScheme()})
	w.must(err)
	changes, err := watching.Watch(t.Context(), &v1alpha1.VirtualMachineList{}, client.InNamespace(w.namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: w.vm("a").ResourceVersion}})
	w.must(err)
	defer changes.Stop()
	const reports = 40
	begin := time.Now()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for i := range reports {
		<-pace.C // there may be a pass between any two reports
		h.report(vmpb.ReportStateRequest_STATE_PREPARING, func(r *vmpb.ReportStateRequest) {
			r.Message = fmt.Sprintf("report %d", i+1)
		})
	}
	writes := 0
	for event := range changes.ResultChan() {
		writes++
		ready := meta.FindStatusCondition(event.Object.(*v1alpha1.VirtualMachine).Status.Conditions, v1alpha1.ConditionReady)
		if strings.Contains(ready.Message, fmt.Sprintf("report %d", reports)) {
			break
		}
	}
	if most := 6 + int(time.Since(begin)/(2*time.Second)); writes > most {
		t.Errorf("%d writes for %d reports, want at most %d", writes, reports, most)
	}
}

// awaitEvent waits for an event that contains a text.
func (w *testEnv) awaitEvent(text string) {
	w.Helper()
	w.eventually("there is an event "+text, func() bool { return strings.Contains(strings.Join(w.newEvents(), "\n"), text) })
}

// TestRunLease_OfDeletedVM checks that a hypervisor whose VM is being deleted may shut its guest down, and is ordered to
// terminate once the VM is gone.
func TestRunLease_OfDeletedVM(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.running("a")
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.eventually("the pod is being deleted", func() bool { return w.gone(pod, pod.Name) || pod.DeletionTimestamp != nil })
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	w.awaitEvent("ShuttingDown The virtual machine is being deleted; shutting down the guest in pod " + pod.Name)
	w.end(pod, left(vmpb.EndStopped, "the guest shut down as requested"))
	w.awaitEvent("ShutDown The hypervisor in pod " + pod.Name + " terminated: the guest shut down as requested")
	w.remove(pod)
	claim := &corev1.PersistentVolumeClaim{}
	w.eventually("the disk is being deleted", func() bool { return w.gone(claim, "a") || claim.DeletionTimestamp != nil })
	claim.Finalizers = nil
	w.must(w.client.Update(t.Context(), claim))
	w.eventually("the virtual machine is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "a") })
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
}

// TestRunLease_OfDeletedVMWithLongShutdown checks that the guest of a VM has the time in its spec to shut down, and its
// hypervisor has more.
func TestRunLease_OfDeletedVMWithLongShutdown(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.TerminationGracePeriodSeconds = 120 })
	pod := w.awaitPod("a", "")
	w.schedule(pod)
	h := w.hypervisor("a", pod, 1)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
	w.awaitReady("a", reasonRunning)
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.eventually("the pod is being deleted", func() bool { return w.gone(pod, pod.Name) || pod.DeletionTimestamp != nil })
	if got := ptr.Deref(pod.DeletionGracePeriodSeconds, 0); got != 130 {
		t.Errorf("the pod has %d s to terminate, want 130", got)
	}
	w.awaitEvent("terminating it if that takes more than 2m0s")
	vm := w.vm("a")
	if got := authority.ShutdownDeadline(vm).Sub(vm.DeletionTimestamp.Time); got != 130*time.Second {
		t.Errorf("the hypervisor keeps its authorization for %s, want 2m10s", got)
	}
}

// TestMigration_SwitchoverRace checks that exactly one of several concurrent calls succeeds in each round, and that its caller
// may repeat the call.
func TestMigration_SwitchoverRace(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, source, _ := w.running("a")
	w.stop() // the test sets the target
	second := w.secondPod("a", "a-second")
	registry := &authority.Registry{Client: w.client, APIReader: w.client, Clock: clock.RealClock{}}
	target := &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: second.Name, RunId: 5}
	again := &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: pod.Name, RunId: 2}
	contenders := []*vmpb.HypervisorID{target, again}
	holder := source.us
	want := func(t *testing.T, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
	for round := range 10 {
		vm := w.vm("a")
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
			Phase: v1alpha1.MigrationPreparing, SourcePodName: holder.PodName, TargetPodName: target.PodName, StartTime: metav1.Now(),
		}
		if holder.PodName == target.PodName {
			vm.Status.Migration.TargetPodName = again.PodName
		}
		w.must(w.client.Status().Update(t.Context(), vm))
		results := make([]error, len(contenders))
		var group sync.WaitGroup
		for i, us := range contenders {
			us.RunId += 10
			group.Go(func() {
				results[i] = registry.SwitchOver(t.Context(), us, holder)
			})
		}
		group.Wait()
		winner := 0
		if results[0] != nil {
			winner = 1
		}
		want(t, results[winner], nil)
		want(t, results[1-winner], authority.ErrNotAuthoritative)
		if vm := w.vm("a"); !authority.Holds(vm, contenders[winner]) || vm.Status.VolumeClaimName != "a" {
			t.Fatalf("round %d: authority %+v", round, vm.Status.VirtualMachineAuthority)
		}
		want(t, registry.SwitchOver(t.Context(), contenders[winner], holder), nil)                             // repeated because the response was lost
		want(t, registry.SwitchOver(t.Context(), contenders[1-winner], holder), authority.ErrNotAuthoritative) // too late
		holder = &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: contenders[winner].PodName, RunId: contenders[winner].RunId}
	}
}

// TestMigration_SwitchoverToEarlierRunIsRefused checks that the authority is not given to a process if a process with a higher run ID
// in the same Pod has it, because that one would take it back with its next request for a lease.
func TestMigration_SwitchoverToEarlierRunIsRefused(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, first, _ := w.running("a")
	later := w.hypervisor("a", pod, 7)
	w.wantStatus(later.lease(), vmpb.RunLeaseUpdate_STATUS_OK)

	for _, run := range []uint64{first.us.RunId, 6} {
		us := &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: pod.Name, RunId: run}
		_, err := first.MigrationSwitchover(t.Context(), &vmpb.MigrationSwitchoverRequest{Us: us, Them: later.us})
		wantCode(t, err, codes.FailedPrecondition)
		if vm := w.vm("a"); !authority.Holds(vm, later.us) {
			t.Fatalf("authority %+v after a switchover to run %d", vm.Status.VirtualMachineAuthority, run)
		}
	}
	us := &vmpb.HypervisorID{VmName: "a", Namespace: w.namespace, PodName: pod.Name, RunId: 8}
	_, err := first.MigrationSwitchover(t.Context(), &vmpb.MigrationSwitchoverRequest{Us: us, Them: later.us})
	wantCode(t, err, codes.OK)
}

// TestAddress_IsUnique checks the addresses of twenty concurrent VMs, of a VM that requests an address, and of VMs
// that request an unavailable one.
func TestAddress_IsUnique(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("own", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs = []string{"10.77.0.17/32"} })
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() { w.declare(fmt.Sprintf("vm-%d", i), nil) })
	}
	group.Wait()
	seen := map[string]string{}
	for i := range 20 {
		name := fmt.Sprintf("vm-%d", i)
		w.awaitPod(name, "")
		w.eventually("the address of "+name, func() bool { return len(w.vm(name).Status.Addresses) == 1 })
		address := w.vm(name).Status.Addresses[0]
		if other := seen[address]; other != "" || !testNetwork.Contains(netip.MustParseAddr(address)) {
			t.Errorf("%s has address %s, which %q also has", name, address, other)
		}
		seen[address] = name
	}
	w.declare("late", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs = []string{"10.77.0.17"} })
	w.declare("outside", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs = []string{"192.0.2.1"} })
	w.awaitReady("late", reasonAddress)
	w.awaitReady("outside", reasonAddress)
	if n := len(w.pods("late")) + len(w.pods("outside")); n != 0 || seen["10.77.0.17"] != "" {
		t.Errorf("%d pods without an address; %q also has 10.77.0.17", n, seen["10.77.0.17"])
	}
}
