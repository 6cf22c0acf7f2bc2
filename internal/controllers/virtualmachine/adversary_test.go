package virtualmachine

import (
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// calls makes every call in the name of a process, and returns the codes of the responses.
func (h *hypervisor) calls(us, them *vmpb.HypervisorID) map[string]codes.Code {
	h.Helper()
	_, report := h.ReportState(h.Context(), &vmpb.ReportStateRequest{Us: us, State: vmpb.ReportStateRequest_STATE_PAUSED, ImagePrepared: true})
	_, incoming := h.ReportState(h.Context(), &vmpb.ReportStateRequest{Us: us, State: vmpb.ReportStateRequest_STATE_INCOMING})
	_, target := h.EnsureMigrationTarget(h.Context(), &vmpb.EnsureMigrationTargetRequest{Us: us})
	_, switchover := h.MigrationSwitchover(h.Context(), &vmpb.MigrationSwitchoverRequest{Us: us, Them: them})
	stream, lease := h.RunLease(h.Context(), &vmpb.RunLeaseRequest{Us: us})
	if lease == nil {
		_, lease = stream.Recv()
	}
	return map[string]codes.Code{
		"report": status.Code(report), "incoming": status.Code(incoming), "target": status.Code(target), "switchover": status.Code(switchover), "lease": status.Code(lease),
	}
}

// malformedReports returns reports of a hypervisor about its own VM with invalid contents.
func malformedReports(us *vmpb.HypervisorID) []*vmpb.ReportStateRequest {
	long := strings.Repeat("\x1b[2Jä", 1000)
	migration := &vmpb.ReportStateRequest_Migration{
		Phase: vmpb.ReportStateRequest_Migration_PHASE_FAILED, TargetPod: long, Message: long, DoneBytes: math.MaxUint64, TotalBytes: 1,
		Downtime: &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32},
	}
	all := []*vmpb.ReportStateRequest{}
	for state := range vmpb.ReportStateRequest_State(9) {
		all = append(all, &vmpb.ReportStateRequest{
			Us: us, State: state, Message: long, Endpoint: long, Cause: vmpb.ReportStateRequest_Cause(99 - state), DoneBytes: math.MaxUint64, TotalBytes: math.MaxUint64,
			Migration: migration, CanMigrate: true,
		})
	}
	return append(all, &vmpb.ReportStateRequest{Us: us, State: math.MaxInt32, Sequence: math.MaxUint64})
}

// stateOf returns the parts of a VM that must not change, whatever another hypervisor does.
func (w *testEnv) stateOf(name string) (*v1alpha1.VirtualMachine, types.UID, types.UID) {
	w.Helper()
	vm, pod, claim := w.vm(name), &corev1.Pod{}, &corev1.PersistentVolumeClaim{}
	if w.gone(pod, vm.Status.ActivePodName) || w.gone(claim, vm.Status.VolumeClaimName) || pod.DeletionTimestamp != nil || claim.DeletionTimestamp != nil {
		w.Fatalf("the pod or the disk is being deleted\n%s", w.describe())
	}
	return vm, pod.UID, claim.UID
}

// TestHypervisor_CompromisedCannotChangeOtherVMs checks that a compromised hypervisor cannot change another VM, whatever it calls and
// reports, that condition messages stay printable and short, and that its own VM can be deleted.
func TestHypervisor_CompromisedCannotChangeOtherVMs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, compromised, _ := w.running("taken")
	otherPod, other, otherLease := w.running("other")
	vm, podUID, claimUID := w.stateOf("other")

	refused := map[string]codes.Code{
		"report": codes.PermissionDenied, "incoming": codes.PermissionDenied, "target": codes.PermissionDenied,
		"switchover": codes.PermissionDenied, "lease": codes.PermissionDenied,
	}
	for what, us := range map[string]*vmpb.HypervisorID{
		"the other hypervisor": other.us,
		"the other's pod":      {VmName: "taken", Namespace: w.namespace, PodName: otherPod.Name, RunId: 1},
		"the other's VM":       {VmName: "other", Namespace: w.namespace, PodName: pod.Name, RunId: math.MaxUint64},
		"another namespace":    {VmName: "taken", Namespace: "kube-system", PodName: pod.Name, RunId: 1},
	} {
		if diff := cmp.Diff(refused, compromised.calls(us, other.us)); diff != "" {
			t.Errorf("in the name of %s (-want +got):\n%s", what, diff)
		}
	}
	for _, them := range []*vmpb.HypervisorID{other.us, {VmName: "taken", Namespace: w.namespace, PodName: otherPod.Name, RunId: 1}} {
		if err := compromised.switchOver(them); status.Code(err) == codes.Unavailable {
			t.Errorf("a switchover from %v gets %v", them, err)
		}
	}
	compromised.sendMalformedReports()
	afterVM, afterPod, afterClaim := w.stateOf("other")
	if diff := cmp.Diff(vm, afterVM); diff != "" || podUID != afterPod || claimUID != afterClaim {
		t.Errorf("another VM changed (-was +is):\n%s", diff)
	}
	w.change("other", func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause })
	if update := otherLease(); update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || !update.GetPaused() {
		t.Errorf("the lease of the other VM has %v", update)
	}
	w.must(w.client.Delete(t.Context(), w.vm("taken")))
	w.remove(pod)
	w.claimGone("taken")
	w.eventually("its VM is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "taken") })
}

// sendMalformedReports sends malformed reports, and checks the responses and the conditions that result.
func (h *hypervisor) sendMalformedReports() {
	w := h.testEnv
	for _, report := range malformedReports(h.us) {
		_, err := h.ReportState(w.Context(), report)
		w.eventually("the call is not rate-limited", func() bool {
			if status.Code(err) == codes.ResourceExhausted {
				_, err = h.ReportState(w.Context(), report)
			}
			return status.Code(err) != codes.ResourceExhausted
		})
		if code := status.Code(err); code == codes.Unavailable || code == codes.Internal {
			w.Errorf("state %d gets %v", report.GetState(), err)
		}
	}
	name := h.us.GetVmName()
	w.change(name, func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause }) // causes a pass
	w.eventually("its status is written", func() bool { return w.vm(name).Status.ObservedGeneration == w.vm(name).Generation })
	for _, condition := range w.vm(name).Status.Conditions {
		if strings.ContainsAny(condition.Message, "\x1b\x00") || len(condition.Message) > 1024 {
			w.Errorf("condition %s has %d bytes: %.80q", condition.Type, len(condition.Message), condition.Message)
		}
	}
}

// TestMigration_CompromisedTargetAddressIsRefused checks that a compromised migration target cannot make the VM controller connect to anything
// but an IP address, such as a socket on its host or the address of a host name.
func TestMigration_CompromisedTargetAddressIsRefused(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	w.must(err)
	t.Cleanup(func() { listener.Close() }) // errors do not matter at the end of the test
	var reached atomic.Bool
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reached.Store(true)
			_ = conn.Close()
		}
	}()
	pod, source, _ := w.migratable("a", nil)
	w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	w.evict(pod)
	responses := source.requestTarget()
	second := w.awaitTarget("a", "")
	w.scheduleOn(second, "host-2")
	target := w.hypervisor("a", second, 2)
	w.wantStatus(target.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	for _, endpoint := range []string{"unix://" + path, "unix:" + path, "passthrough:///unix:" + path, "dns://127.0.0.1:53/metadata", "localhost:22", "169.254.169.254:80", "[fd00:ec2::254]:80", "x", ":1", "\x1b"} {
		_, err := target.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: target.us, State: vmpb.ReportStateRequest_STATE_INCOMING, Endpoint: endpoint})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("endpoint %q gets %v", endpoint, err)
		}
	}
	endpoint := w.serve(second)
	target.report(vmpb.ReportStateRequest_STATE_INCOMING, func(r *vmpb.ReportStateRequest) { r.Endpoint = endpoint })
	if got := w.wantMigrate(responses, second); got.GetTargetEndpoint() != endpoint {
		t.Errorf("the source is sent to %s", got.GetTargetEndpoint())
	}
	if reached.Load() {
		t.Error("the VM controller connected to a socket of its host")
	}
}

// falseStatuses are false reports of a host about the Pod of its VM. shown reports whether users see a part of the
// text.
var falseStatuses = map[string]struct {
	change func(*corev1.PodStatus)
	shown  bool
}{
	"unknown phase": {func(s *corev1.PodStatus) { s.Phase = "Exploded" }, false},
	"empty phase":   {func(s *corev1.PodStatus) { s.Phase = "" }, false},
	"long texts":    {func(s *corev1.PodStatus) { s.Phase, s.Reason, s.Message = corev1.PodFailed, longText, longText }, true},
	"lost disk": {func(s *corev1.PodStatus) {
		s.Phase, s.ContainerStatuses = corev1.PodFailed, terminatedWith(left(vmpb.EndDiskLost, longText))
	}, true},
	"invalid reason": {func(s *corev1.PodStatus) {
		s.Phase, s.ContainerStatuses = corev1.PodSucceeded, terminatedWith(left(longText, longText))
	}, true},
	"garbage": {func(s *corev1.PodStatus) {
		s.Phase, s.ContainerStatuses = corev1.PodFailed, terminatedWith(`{"reason":7}`+longText)
	}, true},
	"foreign address": {func(s *corev1.PodStatus) { s.PodIP, s.HostIP = "10.77.0.1", "127.0.0.1" }, false},
	"unschedulable": {func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: longText}}
	}, false},
}

// longText is longer than any message may be, and would clear a terminal.
var longText = strings.Repeat("\x1b[2Jä", 2000)

// TestHost_CompromisedCannotChangeOtherVMs checks that a compromised host cannot change other VMs, whatever it reports about the Pod of
// its VM. Messages stay printable and short, and no disk is deleted.
func TestHost_CompromisedCannotChangeOtherVMs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("hosted")
	_, _, _ = w.running("other")
	vm, podUID, claimUID := w.stateOf("other")
	disk := &corev1.PersistentVolumeClaim{}
	w.must(w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "hosted"}, disk))
	number := 0
	for name, status := range falseStatuses {
		number++
		w.checkFalseStatus(name, fmt.Sprintf("hosted-%d", number), status.change, status.shown)
	}
	// The host reports that the Pod is gone although it is running.
	w.remove(pod)
	next := w.awaitPod("hosted", pod.Name)
	after := &corev1.PersistentVolumeClaim{}
	w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(disk), after))
	if after.UID != disk.UID || after.DeletionTimestamp != nil || !w.specOf(next).GetRootDiskExists() {
		t.Errorf("the next hypervisor may make another disk:\n%s", w.describe())
	}
	afterVM, afterPod, afterClaim := w.stateOf("other")
	if diff := cmp.Diff(vm, afterVM); diff != "" || podUID != afterPod || claimUID != afterClaim {
		t.Errorf("another VM changed (-was +is):\n%s", diff)
	}
}

// checkFalseStatus reports a false status for the Pod of a new VM, and checks what users see.
func (w *testEnv) checkFalseStatus(name, vm string, change func(*corev1.PodStatus), shown bool) {
	w.Helper()
	pod, _, _ := w.running(vm)
	w.newEvents() // drop earlier events
	w.kubelet(pod, change)
	before := w.vm(vm)
	w.change(vm, func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause })
	w.eventually("the controller has made a pass", func() bool { return w.vm(vm).Status.ObservedGeneration > before.Status.ObservedGeneration })
	var texts []string
	w.eventually(name+" is shown if expected", func() bool {
		texts = append(texts, w.newEvents()...)
		for _, condition := range w.vm(vm).Status.Conditions {
			texts = append(texts, condition.Reason+" "+condition.Message)
		}
		return !shown || strings.Contains(strings.Join(texts, ""), "[2Jä")
	})
	for _, text := range texts {
		if strings.ContainsAny(text, "\x1b\x00") || len(text) > 2048 {
			w.Errorf("%s: users see %d bytes: %.80q", name, len(text), text)
		}
	}
	claim := &corev1.PersistentVolumeClaim{}
	if w.gone(claim, vm) || claim.DeletionTimestamp != nil {
		w.Errorf("%s: the disk is being deleted\n%s", name, w.describe())
	}
}

// newEvents returns the events since the last call.
func (w *testEnv) newEvents() (events []string) {
	for {
		select {
		case event := <-w.events.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

// terminatedWith returns the status of a hypervisor container that terminated with a message.
func terminatedWith(message string) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: podspec.ContainerName, Image: "i", ImageID: "i", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: message}},
	}}
}
