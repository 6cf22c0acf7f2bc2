package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	storagepb "github.com/millwright-dev/millwright/proto/storage"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// diskFake simulates the disk servers of all VMs. Revoked tokens are stored on the disk; open disks belong to one
// process.
type diskFake struct {
	mu      sync.Mutex
	revoked map[string]storage.Token            // keyed by VM
	open    map[string]map[storage.Token]string // hypervisor Pods, keyed by the server's Pod and token
	fails   func(ctx context.Context, call string) error
	calls   []string
}

func newDiskFake() *diskFake {
	return &diskFake{revoked: map[string]storage.Token{}, open: map[string]map[storage.Token]string{}}
}

func (f *diskFake) connect(server disks.Server) (storage.Volume, func(), error) {
	return diskOf{f, server}, func() {}, nil
}

// diskOf is one disk server.
type diskOf struct {
	*diskFake
	server disks.Server
}

// begin records a call and returns the error that the test has configured.
func (d diskOf) begin(ctx context.Context, call string) error {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	fails := d.fails
	d.mu.Unlock()
	if fails == nil {
		return nil
	}
	return fails(ctx, call)
}

func (d diskOf) Open(ctx context.Context, token storage.Token, pod string) (storage.Attachment, error) {
	failure := d.begin(ctx, fmt.Sprintf("open %d", token))
	d.mu.Lock()
	defer d.mu.Unlock()
	if token <= d.revoked[d.server.VM.Name] {
		return storage.Attachment{}, storage.ErrRevoked
	}
	if failure != nil {
		return storage.Attachment{}, failure
	}
	if d.open[d.server.Pod] == nil {
		d.open[d.server.Pod] = map[storage.Token]string{}
	}
	if has := d.open[d.server.Pod][token]; has != "" && has != pod {
		return storage.Attachment{}, storage.ErrOtherHolder
	}
	d.open[d.server.Pod][token] = pod
	return storage.Attachment{Address: "10.0.0.1:" + strings.TrimPrefix(d.server.Endpoint, "127.0.0.1:"), Pod: d.server.Pod}, nil
}

// errLost is the error of a call whose response is lost.
var errLost = status.Error(codes.DeadlineExceeded, "no response")

func (d diskOf) Revoke(ctx context.Context, upTo storage.Token) error {
	failure := d.begin(ctx, fmt.Sprintf("revoke %d", upTo))
	if failure != nil && !errors.Is(failure, errLost) {
		return failure
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revoked[d.server.VM.Name] = max(d.revoked[d.server.VM.Name], upTo)
	for _, open := range d.open {
		for token := range open {
			if token <= upTo {
				delete(open, token)
			}
		}
	}
	return failure
}

// failing makes calls with a prefix fail.
func (f *diskFake) failing(prefix string, how func(ctx context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = func(ctx context.Context, call string) error {
		if how == nil || !strings.HasPrefix(call, prefix) {
			return nil
		}
		return how(ctx)
	}
}

// holders returns the Pods that can change the disks, at all servers.
func (f *diskFake) holders() (pods []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, open := range f.open {
		for _, pod := range open {
			pods = append(pods, pod)
		}
	}
	slices.Sort(pods)
	return pods
}

func (f *diskFake) countCalls(prefix string) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if strings.HasPrefix(call, prefix) {
			count++
		}
	}
	return count
}

func withServedDisks(vm *v1alpha1.VirtualMachine) {
	vm.Spec.DiskAccess, vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.DiskAccessServed, v1alpha1.LeaseFullLeases, int32(lease.MaxDuration/time.Second)
}

// awaitServer waits until a disk server Pod whose name is not not exists and is recorded.
func (w *testEnv) awaitServer(vm, not string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{}
	w.eventually("a disk server of "+vm, func() bool {
		has := w.vm(vm).Status.DiskServer
		return has != nil && has.PodUID != "" && has.PodName != not && !w.gone(pod, has.PodName)
	})
	return pod
}

// serveDisksIn reports as the disk server in a Pod that it serves the disks.
func (w *testEnv) serveDisksIn(vm string, pod *corev1.Pod) *hypervisor {
	w.Helper()
	if pod.Spec.NodeName == "" {
		w.schedule(pod)
	}
	server := w.hypervisor(vm, pod, 1)
	server.reportServing()
	return server
}

func (h *hypervisor) reportServing() {
	h.Helper()
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.ImagePrepared, r.Endpoint = true, "127.0.0.1:4711"
	})
}

// served runs a VM with served disks.
func (w *testEnv) served(name string) (server, pod *corev1.Pod, h *hypervisor) {
	w.Helper()
	w.declare(name, withServedDisks)
	server = w.awaitServer(name, "")
	w.serveDisksIn(name, server)
	pod = w.awaitPod(name, "")
	w.schedule(pod)
	h = w.hypervisor(name, pod, 1)
	w.wantServed(h.lease(), server)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared, r.CanMigrate = true, true })
	w.awaitReady(name, reasonRunning)
	return server, pod, h
}

// wantServed reads updates until one has the address of the disks. All updates must have a lease.
func (w *testEnv) wantServed(next func() *vmpb.RunLeaseUpdate, server *corev1.Pod) *vmpb.RunLeaseUpdate {
	w.Helper()
	for {
		update := next()
		w.wantLeaseFor(update, lease.MaxDuration)
		if at := update.GetDiskServer(); at != nil {
			if at.GetAddress() != "10.0.0.1:4711" || at.GetPod() != server.Name {
				w.Fatalf("the disks are at %v", at)
			}
			return update
		}
	}
}

func (h *hypervisor) release() {
	h.Helper()
	stream, err := h.RunLease(h.Context(), &vmpb.RunLeaseRequest{Us: h.us, Release: true})
	h.must(err)
	_, _ = stream.Recv()
}

// wantServing checks the condition DisksServed.
func (w *testEnv) wantServing(name, reason string) {
	w.Helper()
	w.eventually("the reason of DisksServed is "+reason, func() bool {
		condition := meta.FindStatusCondition(w.vm(name).Status.Conditions, v1alpha1.ConditionDisksServed)
		return condition != nil && condition.Reason == reason
	})
}

// TestServedDisks_Lifecycle checks the lifecycle of a VM with served disks.
func TestServedDisks_Lifecycle(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", withServedDisks)
	server := w.awaitServer("a", "")
	w.awaitReady("a", v1alpha1.ReasonDiskServerStarting)
	if pods := w.pods("a"); len(pods) != 1 || podspec.ClaimName(server) != "a" || server.Spec.Containers[0].Command[1] != "disk-server" {
		t.Fatalf("there are %d pods, and pod %s has claim %q", len(pods), server.Name, podspec.ClaimName(server))
	}
	w.serveDisksIn("a", server)
	pod := w.awaitPod("a", "")
	if claims := podspec.Claims(pod); len(claims) > 0 || !w.specOf(pod).GetDisksServed() || w.specOf(pod).GetInitialImage() != nil {
		t.Errorf("the hypervisor mounts %q, with the spec %v", claims, w.specOf(pod))
	}
	if vm := w.vm("a"); !vm.Status.ImagePrepared || vm.Status.VolumeClaimName != "a" || vm.Status.DiskServer.RevokedToken != vm.Status.Lease.FencingToken-1 {
		t.Errorf("the status is %+v", vm.Status)
	}
	w.schedule(pod)
	h := w.hypervisor("a", pod, 1)
	update := w.wantServed(h.lease(), server)
	if got := w.disks.holders(); !slices.Equal(got, []string{pod.Name}) {
		t.Errorf("the disks are open to %q", got)
	}
	if first := w.disks.calls[0]; first != fmt.Sprintf("revoke %d", update.GetFencingToken()-1) {
		t.Errorf("the first call was %q, and the token is %d", first, update.GetFencingToken())
	}
	w.wantServing("a", "Served")
	w.deletesServed("a", server, pod)
}

// deletesServed deletes a VM, and checks that the hypervisor is deleted first, then the disk server, and then the
// disks.
func (w *testEnv) deletesServed(name string, server, pod *corev1.Pod) {
	w.Helper()
	w.must(w.client.Delete(w.Context(), w.vm(name)))
	w.eventually("the hypervisor is deleted", func() bool { return !w.gone(pod, pod.Name) && pod.DeletionTimestamp != nil })
	w.must(w.client.Get(w.Context(), client.ObjectKeyFromObject(server), server))
	if server.DeletionTimestamp != nil {
		w.Error("the disk server is deleted before the hypervisor")
	}
	w.remove(pod)
	w.eventually("the server is deleted", func() bool { return !w.gone(server, server.Name) && server.DeletionTimestamp != nil })
	claim := &corev1.PersistentVolumeClaim{}
	if w.gone(claim, name) || claim.DeletionTimestamp != nil {
		w.Error("the disk is deleted before its server")
	}
	w.remove(server)
	w.claimGone(name)
	w.eventually("the VM is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, name) })
}

// diskServer is a disk server on the network that records its calls.
type diskServer struct {
	storagepb.UnimplementedDiskServerServer
	pod   string
	calls chan string
}

func (d *diskServer) Open(ctx context.Context, request *storagepb.OpenRequest) (*storagepb.OpenResponse, error) {
	caller, err := identity.FromContext(ctx)
	d.calls <- fmt.Sprintf("open %s %v %v", request.GetPod(), caller.IsController(), err)
	return &storagepb.OpenResponse{Address: "10.0.0.1:4711", Pod: d.pod}, nil
}

func (d *diskServer) Revoke(ctx context.Context, _ *storagepb.RevokeRequest) (*storagepb.RevokeResponse, error) {
	caller, err := identity.FromContext(ctx)
	d.calls <- fmt.Sprintf("revoke %v %v", caller.IsController(), err)
	return &storagepb.RevokeResponse{}, nil
}

// TestDiskServer_IsCalledAtReportedAddress checks that the VM controller connects to the address that the disk server has reported,
// proves its identity, and does not call a server with the certificate of another Pod.
func TestDiskServer_IsCalledAtReportedAddress(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	w.stop()
	w.disks = nil
	w.start()
	w.declare("a", withServedDisks)
	pod := w.awaitServer("a", "")
	w.schedule(pod)
	served := &diskServer{pod: pod.Name, calls: make(chan string, 100)}
	register := func(server *grpc.Server) { storagepb.RegisterDiskServerServer(server, served) }
	report := func(sequence uint64, endpoint string) {
		w.hypervisor("a", pod, 1).report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
			r.ImagePrepared, r.Endpoint, r.Sequence = true, endpoint, sequence
		})
	}
	other, _, _ := w.running("other")
	report(1, w.listenIn(other, register))
	w.awaitReady("a", v1alpha1.ReasonStorageNotRevoked)
	if len(served.calls) > 0 {
		t.Errorf("the VM controller called another Pod: %s", <-served.calls)
	}
	report(2, w.listenIn(pod, register))
	hypervisor := w.awaitPod("a", "")
	w.schedule(hypervisor)
	w.wantServed(w.hypervisor("a", hypervisor, 1).lease(), pod)
	for _, want := range []string{"revoke true <nil>", "open " + hypervisor.Name + " true <nil>"} {
		if got := <-served.calls; got != want {
			t.Errorf("the server got call %s, want %s", got, want)
		}
	}
}

// TestServedDisks_NoHolderBeforeRevocation checks that no hypervisor gets the VM before the server has revoked the last one's
// token, and that another leader repeats the request.
func TestServedDisks_NoHolderBeforeRevocation(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, how := range map[string]func(ctx context.Context) error{
		"fails":            func(context.Context) error { return status.Error(codes.Unavailable, "a daemon does not exit") },
		"hangs":            func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"response is lost": func(context.Context) error { return errLost },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			server, pod, h := w.served("a")
			before := w.vm("a").Status
			w.disks.failing("revoke", how)
			h.release()
			w.end(pod, "")
			w.awaitReady("a", v1alpha1.ReasonStorageNotRevoked)
			w.running("b") // other VMs are not blocked

			w.stop()
			calls := w.disks.countCalls("revoke")
			w.start()
			w.hypervisor("a", server, 1).reportServing()
			w.eventually("the next leader repeats the request", func() bool { return w.disks.countCalls("revoke") > calls })
			if after := w.vm("a").Status; after.VirtualMachineAuthority != before.VirtualMachineAuthority || after.DiskServer.RevokedToken != before.DiskServer.RevokedToken {
				t.Errorf("the authority was %+v and is now %+v; the disk server is %+v", before.VirtualMachineAuthority, after.VirtualMachineAuthority, after.DiskServer)
			}
			w.disks.failing("", nil)
			next := w.awaitPod("a", pod.Name)
			after := w.vm("a").Status
			if after.Lease.FencingToken <= before.Lease.FencingToken || after.DiskServer.RevokedToken != after.Lease.FencingToken-1 {
				t.Errorf("the lease is %+v, and the disk server is %+v", after.Lease, after.DiskServer)
			}
			w.schedule(next)
			w.wantServed(w.hypervisor("a", next, 1).lease(), server)
			if got := w.disks.holders(); !slices.Equal(got, []string{next.Name}) {
				t.Errorf("the disks are open to %q", got)
			}
		})
	}
}

// TestDiskServer_Terminates checks that another disk server opens the disks for the same token, and that the hypervisor
// keeps running.
func TestDiskServer_Terminates(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	server, pod, h := w.served("a")
	stream := h.lease()
	before := w.wantServed(stream, server)
	w.kubelet(server, func(status *corev1.PodStatus) { status.Phase = corev1.PodFailed })
	next := w.awaitServer("a", server.Name)
	if update := stream(); update.GetDiskServer() != nil || update.GetValidFor() == nil {
		t.Errorf("without a server, the hypervisor gets %v", update)
	}
	if podspec.ClaimName(next) != "a" {
		t.Errorf("the next server has claim %q", podspec.ClaimName(next))
	}
	w.serveDisksIn("a", next)
	after := w.wantServed(stream, next)
	if after.GetFencingToken() != before.GetFencingToken() || w.vm("a").Status.ActivePodName != pod.Name {
		t.Errorf("the token was %d and is now %d", before.GetFencingToken(), after.GetFencingToken())
	}
	w.eventually("the last server is removed", func() bool { return w.gone(server, server.Name) || server.DeletionTimestamp != nil })
}

// TestDiskServer_HostCrashRestartsGuest checks that the guest is restarted after the host of its disk server crashed. Writes that
// were confirmed to the guest may be lost, so the next server refuses its token.
func TestDiskServer_HostCrashRestartsGuest(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	server, pod, h := w.served("a")
	stream := h.lease()
	token := w.wantServed(stream, server).GetFencingToken()
	w.disks.mu.Lock()
	w.disks.revoked["a"] = storage.Token(token)
	w.disks.mu.Unlock()
	w.kubelet(server, func(status *corev1.PodStatus) { status.Phase = corev1.PodFailed })
	w.serveDisksIn("a", w.awaitServer("a", server.Name))
	w.eventually("the hypervisor is terminated", func() bool { return stream().GetStatus() == vmpb.RunLeaseUpdate_STATUS_TERMINATE })
	h.release()
	w.end(pod, "")
	w.awaitPod("a", pod.Name)
	if after := w.vm("a").Status.Lease.FencingToken; after <= int64(token) {
		t.Errorf("the token was %d and is now %d", token, after)
	}
}

// servedMove is a migration of a VM with served disks, just before the switchover.
func (w *testEnv) servedMove() (m *move, server *corev1.Pod) {
	w.Helper()
	m = &move{testEnv: w}
	server, m.from, m.source = w.served("a")
	w.eventually("the VM can be migrated", func() bool {
		return meta.IsStatusConditionTrue(w.vm("a").Status.Conditions, v1alpha1.ConditionLiveMigratable)
	})
	w.evict(m.from)
	responses := m.source.requestTarget()
	m.to = w.awaitTarget("a", "")
	if claims := podspec.Claims(m.to); len(claims) > 0 || w.record("a").TargetVolumeClaimName != "" {
		w.Errorf("the target has claims %q", claims)
	}
	m.target, m.next = w.target("a", m.to, 2)
	m.before = *w.vm("a").Status.Lease
	early := m.target.lease()
	w.eventually("the target gets the address of the disks", func() bool {
		update := early()
		if update.GetValidFor() != nil || update.GetFencingToken() <= uint64(m.before.FencingToken) {
			w.Fatalf("the target gets %v before the switchover", update)
		}
		return update.GetDiskServer().GetPod() == server.Name
	})
	w.wantMigrate(responses, m.to)
	if got, want := w.disks.holders(), []string{m.from.Name, m.to.Name}; len(got) != 2 || !slices.Contains(got, want[0]) || !slices.Contains(got, want[1]) {
		w.Errorf("the disks are open to %q, want %q", got, want)
	}
	return m, server
}

// TestServedDisks_MigrationRevokesSourceFirst checks that the target gets no lease before the source has lost access to the disks.
func TestServedDisks_MigrationRevokesSourceFirst(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	m, server := w.servedMove()
	w.disks.failing("revoke", func(context.Context) error { return errLost })
	w.must(m.target.switchOver(m.source.us))
	w.awaitReady("a", v1alpha1.ReasonStorageNotRevoked)
	if update := m.target.lease()(); update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || update.GetValidFor() != nil {
		t.Errorf("the target gets %v", update)
	}
	w.disks.failing("", nil)
	stream := m.next
	w.eventually("the target has its lease", func() bool { return stream().GetValidFor() != nil })
	update := w.wantServed(m.target.lease(), server)
	if got := w.disks.holders(); !slices.Equal(got, []string{m.to.Name}) {
		t.Errorf("the disks are open to %q", got)
	}
	after := w.vm("a").Status
	if after.VolumeClaimName != "a" || after.Lease.FencingToken != w.record("a").TargetFencingToken || update.GetFencingToken() != uint64(after.Lease.FencingToken) {
		t.Errorf("the status is %+v, with the lease %+v", after.VirtualMachineAuthority, after.Lease)
	}
	if w.record("a").Phase != v1alpha1.MigrationSucceeded {
		t.Errorf("the migration is %+v", w.record("a"))
	}
	w.wantStatus(m.source.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
}

// TestServedDisks_SourceTakesVMBack checks that a source that takes its VM back gets another token, and that the target
// loses access to the disks.
func TestServedDisks_SourceTakesVMBack(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	m, server := w.servedMove()
	again := w.hypervisor("a", m.from, 9)
	w.must(again.switchOver(m.source.us))
	stream := again.lease()
	for update := stream(); update.GetValidFor() == nil || update.GetDiskServer() == nil; update = stream() {
		if update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK {
			t.Fatalf("the source gets %v", update)
		}
	}
	update := w.wantServed(again.lease(), server)
	if update.GetFencingToken() <= uint64(w.record("a").TargetFencingToken) {
		t.Errorf("the token is %d, and the target's token is %d", update.GetFencingToken(), w.record("a").TargetFencingToken)
	}
	if got := w.disks.holders(); !slices.Equal(got, []string{m.from.Name}) {
		t.Errorf("the disks are open to %q", got)
	}
	w.wantStatus(m.source.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
}

// TestServedDisks_LostStatusRevokesAllTokens checks that after the status was lost, with all tokens, the hypervisor is terminated
// and all earlier tokens are revoked.
func TestServedDisks_LostStatusRevokesAllTokens(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	server, pod, _ := w.served("a")
	token := w.vm("a").Status.Lease.FencingToken
	w.stop()
	vm := w.vm("a")
	vm.Status = v1alpha1.VirtualMachineStatus{}
	w.must(w.client.Status().Update(t.Context(), vm))
	w.remove(pod) // other tests wait for the lease
	w.start()
	w.eventually("the unrecorded server is deleted", func() bool { return w.gone(server, server.Name) || server.DeletionTimestamp != nil })
	w.remove(server)
	w.serveDisksIn("a", w.awaitServer("a", server.Name))
	w.awaitPod("a", pod.Name)
	if after := w.vm("a").Status; after.Lease.FencingToken <= token || after.VolumeClaimName != "a" || w.disks.revoked["a"] < storage.Token(token) {
		t.Errorf("the token was %d, the lease is %+v, and the claim %q", token, after.Lease, after.VolumeClaimName)
	}
}

// TestServedDisks_SpecChangeAppliesToNextHypervisor checks that the next hypervisor and its disk server have the disks of a changed spec, and
// that the current ones keep theirs.
func TestServedDisks_SpecChangeAppliesToNextHypervisor(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	server, pod, h := w.served("a")
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		w.withLogs(vm)
		vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	})
	w.eventually("the condition is set", func() bool {
		condition := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionRestartNeeded)
		return condition != nil && condition.Reason == reasonCannotGrow
	})
	h.release()
	w.end(pod, "")
	w.eventually("the server is deleted", func() bool { return w.gone(server, server.Name) || server.DeletionTimestamp != nil })
	w.remove(server)
	next := w.awaitServer("a", server.Name)
	if has := podspec.DataClaims(next); len(has) != 1 || w.specOf(next).GetRootDiskBytes() != 2<<30 {
		t.Errorf("the next server has data disks %v", has)
	}
	w.serveDisksIn("a", next)
	if has := w.specOf(w.awaitPod("a", pod.Name)).GetDataDisks(); len(has) != 1 {
		t.Errorf("the next hypervisor has data disks %v", has)
	}
}

// TestDiskServer_CompromisedCannotRunVM checks that a compromised disk server cannot run the VM, and that the VM controller connects
// only to IP addresses.
func TestDiskServer_CompromisedCannotRunVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	server, pod, h := w.served("a")
	compromised := w.hypervisor("a", server, 2)
	w.wantStatus(compromised.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	wantCode(t, compromised.switchOver(h.us), codes.FailedPrecondition)
	for _, endpoint := range []string{"unix:/x", "localhost:22", "", "\x1b"} {
		_, err := compromised.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: compromised.us, State: vmpb.ReportStateRequest_STATE_RUNNING, Endpoint: endpoint})
		wantCode(t, err, codes.InvalidArgument)
	}
	if has := w.vm("a").Status.ActivePodName; has != pod.Name {
		t.Errorf("pod %s has the VM", has)
	}
}

// TestServedDisks_InvalidSpecIsRefused checks which specs with served disks the API server refuses.
func TestServedDisks_InvalidSpecIsRefused(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.stop()
	for name, test := range map[string]struct {
		change  func(*v1alpha1.VirtualMachine)
		refused bool
	}{
		"served":            {func(*v1alpha1.VirtualMachine) {}, false},
		"with data disks":   {w.withLogs, false},
		"storage locking":   {func(vm *v1alpha1.VirtualMachine) { vm.Spec.LeaseMode = v1alpha1.LeaseStorageLocking }, true},
		"no lease mode":     {func(vm *v1alpha1.VirtualMachine) { vm.Spec.LeaseMode = "" }, true},
		"an ephemeral disk": {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate = nil }, true},
		"a block device": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, true},
		"a data disk on a block device": {func(vm *v1alpha1.VirtualMachine) {
			w.withLogs(vm)
			vm.Spec.DataDisks[0].VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, true},
		"unknown access": {func(vm *v1alpha1.VirtualMachine) { vm.Spec.DiskAccess = "Perhaps" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			vm := fixture.In(w.namespace, fixture.VirtualMachine())
			vm.Name, vm.GenerateName = "", "a-"
			withServedDisks(vm)
			test.change(vm)
			err := w.client.Create(t.Context(), vm)
			if apierrors.IsInvalid(err) != test.refused || !test.refused && err != nil {
				t.Errorf("the error is %v", err)
			}
		})
	}
	for _, change := range [][2]v1alpha1.DiskAccess{{v1alpha1.DiskAccessServed, ""}, {"", v1alpha1.DiskAccessServed}, {v1alpha1.DiskAccessDirect, v1alpha1.DiskAccessServed}} {
		vm := fixture.In(w.namespace, fixture.VirtualMachine())
		vm.Name, vm.GenerateName = "", "a-"
		withServedDisks(vm)
		vm.Spec.DiskAccess = change[0]
		w.must(w.client.Create(t.Context(), vm))
		before := vm.DeepCopy()
		vm.Spec.DiskAccess = change[1]
		if err := w.client.Patch(t.Context(), vm, client.MergeFrom(before)); !apierrors.IsInvalid(err) {
			t.Errorf("%q to %q: %v", change[0], change[1], err)
		}
	}
}
