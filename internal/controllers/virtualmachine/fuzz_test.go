package virtualmachine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// fakeEnv is a controller with one VM and a fake client, without an API server.
type fakeEnv struct {
	*Controller
	live  client.WithWatch
	clock *testingclock.FakeClock
	// deletes are the names of deleted objects, and writes is the number of all writes.
	deletes []string
	writes  int
}

var fakeKey = client.ObjectKeyFromObject(fixture.VirtualMachine())

type builderIndexer struct{ *fake.ClientBuilder }

func (b builderIndexer) IndexField(_ context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	b.WithIndex(object, field, extract)
	return nil
}

func newFakeEnv(t *testing.T, authority *identity.Authority, objects ...client.Object) *fakeEnv {
	t.Helper()
	w := &fakeEnv{clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	builder := fakeclient.NewBuilder(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.VirtualMachine{}, &corev1.Pod{})
	if err := addIndexes(t.Context(), builderIndexer{builder}); err != nil {
		t.Fatal(err)
	}
	w.live = builder.Build()
	counted := interceptor.NewClient(w.live, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			w.writes++
			object.SetUID(types.UID("uid-of-" + object.GetName()))
			return c.Create(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			w.writes++
			w.deletes = append(w.deletes, object.GetName())
			return c.Delete(ctx, object, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			w.writes++
			return c.Patch(ctx, object, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes++
			return c.SubResource(sub).Patch(ctx, object, patch, opts...)
		},
	})
	w.Controller = New(Options{
		Client: counted, APIReader: w.live, Events: record.NewFakeRecorder(1000), Clock: w.clock, Image: "hypervisor:test",
		Endpoint: "controller:1", Authority: authority, Networks: []netip.Prefix{testNetwork},
	})
	return w
}

// pass makes a reconcile pass. It ignores the error.
func (w *fakeEnv) pass(ctx context.Context) {
	absurd.Within("a pass", func() { _, _ = w.Reconcile(ctx, ctrl.Request{NamespacedName: fakeKey}) })
	w.clock.Step(20 * time.Second)
}

// get returns the VM as the API server has it.
func (w *fakeEnv) get(t *testing.T) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := &v1alpha1.VirtualMachine{}
	if err := w.live.Get(t.Context(), fakeKey, vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

// wantRefused checks that the VM has no Pod, and that its condition Ready has a reason and a message that begins with
// a text.
func (w *fakeEnv) wantRefused(t *testing.T, reason, message string) {
	t.Helper()
	pods := &corev1.PodList{}
	if err := w.live.List(t.Context(), pods); err != nil || len(pods.Items) > 0 {
		t.Errorf("the VM has pods %v, %v", pods.Items, err)
	}
	ready := meta.FindStatusCondition(w.get(t).Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Reason != reason || !strings.HasPrefix(ready.Message, message) {
		t.Errorf("condition %+v, want %s: %s", ready, reason, message)
	}
}

// newRunning returns the objects of a VM whose hypervisor is running. The VM is the first of all.
func newRunning(t *testing.T) (vm *v1alpha1.VirtualMachine, pod *corev1.Pod, all []client.Object) {
	t.Helper()
	vm = fixture.VirtualMachine()
	vm.Finalizers, vm.Status.ImagePrepared, vm.Status.VolumeClaimName = []string{v1alpha1.Finalizer}, true, "disk"
	vm.Status.ActiveRunID, vm.Status.ActivePodName, vm.Status.ActivePodUID = "7", "pod", "uid-of-pod"
	pod, err := podspec.Pod(vm, podspec.Settings{Image: "hypervisor:test"})
	if err != nil {
		t.Fatal(err)
	}
	pod.UID, pod.Spec.NodeName, pod.Status.Phase = vm.Status.ActivePodUID, "host-1", corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerName, Ready: true}}
	claim := podspec.Claim(vm, "", vm.Spec.VolumeClaimTemplate, vm.Status.VolumeClaimName)
	claim.UID = "uid-of-disk"
	return vm, pod, []client.Object{vm, pod, claim}
}

func newAuthority(t testing.TB) *identity.Authority {
	t.Helper()
	authority, err := identity.NewAuthority(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// FuzzReconcile checks that passes return, whatever the objects of a VM contain, and that its Pod and disk are kept
// unless the VM was deleted or the Pod has terminated.
func FuzzReconcile(f *testing.F) {
	authority := newAuthority(f)
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil))
		f.Add([]byte(nil), data)
	})
	f.Fuzz(func(t *testing.T, ofVM, ofOthers []byte) {
		vm, pod, all := newRunning(t)
		absurd.Objects(ofVM, vm)
		absurd.Objects(ofOthers, all[1:]...)
		w := newFakeEnv(t, authority, all...)
		for range 5 {
			w.pass(t.Context())
		}
		// Other changes of the VM may cause its hypervisor to be deleted, but never its disk.
		for _, name := range w.deletes {
			if vm.DeletionTimestamp == nil && name != pod.Name {
				t.Errorf("%s was deleted", name)
			}
		}
		w.checkTexts(t, vm)
	})
}

// checkTexts reports condition messages of the controller that are unprintable or too long.
func (w *fakeEnv) checkTexts(t *testing.T, given *v1alpha1.VirtualMachine) {
	t.Helper()
	before := map[string]bool{}
	for _, condition := range given.Status.Conditions {
		before[condition.Message] = true
	}
	vm := &v1alpha1.VirtualMachine{}
	if err := w.live.Get(t.Context(), fakeKey, vm); apierrors.IsNotFound(err) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	for _, condition := range vm.Status.Conditions {
		bad := strings.ContainsFunc(condition.Message, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) })
		if !before[condition.Message] && (bad || len(condition.Message) > 4096) {
			t.Errorf("condition %s has a message of %d bytes: %.300q", condition.Type, len(condition.Message), condition.Message)
		}
	}
}

// FuzzMessages checks that every call returns, whatever the caller sends, and that nothing is written without the
// certificate of the VM's hypervisor.
func FuzzMessages(f *testing.F) {
	authority := newAuthority(f)
	us := &vmpb.HypervisorID{VmName: "vm", Namespace: fixture.Namespace, PodName: "pod", RunId: 7}
	for i, message := range []proto.Message{
		&vmpb.RunLeaseRequest{Us: us}, &vmpb.ReportStateRequest{Us: us, State: vmpb.ReportStateRequest_STATE_RUNNING, Message: "a\x1b[2J", Endpoint: "\x00", ImagePrepared: true},
		&vmpb.MigrationSwitchoverRequest{Us: us, Them: us}, &vmpb.EnsureMigrationTargetRequest{Us: us},
	} {
		raw, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		for caller := range uint8(4) {
			f.Add(uint8(i), caller, true, raw)
			f.Add(uint8(i), caller, false, raw)
		}
	}
	f.Fuzz(func(t *testing.T, method, caller uint8, ours bool, raw []byte) {
		vm, pod, all := newRunning(t)
		w := newFakeEnv(t, authority, all...)
		ctx, known := asCaller(t, caller, pod.Name)
		var err error
		absurd.Within("a call", func() { err = w.call(ctx, method, raw, ours, pod.Name) })
		refused := status.Code(err) == codes.Unauthenticated || status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.InvalidArgument
		if !known && (w.writes > 0 || !refused) {
			t.Errorf("caller %d made %d writes, and got %v", caller%4, w.writes, err)
		}
		w.pass(t.Context())
		w.checkTexts(t, vm)
	})
}

// asCaller returns the context of one of four callers: one without a certificate, the hypervisor of another VM, one
// in another Pod of this VM, and the authoritative hypervisor. known is true for the last one.
func asCaller(t *testing.T, caller uint8, pod string) (ctx context.Context, known bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // this also closes run leases
	t.Cleanup(cancel)
	name := map[uint8]string{1: "other/" + pod, 2: "vm/other", 3: "vm/" + pod}[caller%4]
	if name == "" {
		return ctx, false
	}
	vm, in, _ := strings.Cut(name, "/")
	uri, err := url.Parse(identity.Peer{Namespace: fixture.Namespace, VM: vm, Pod: in}.String())
	if err != nil {
		t.Fatal(err)
	}
	state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{URIs: []*url.URL{uri}}}}}
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}}), caller%4 == 3
}

// leaseStream is the stream for the responses of RunLease.
type leaseStream struct {
	grpc.ServerStreamingServer[vmpb.RunLeaseUpdate]
	ctx context.Context
}

func (s leaseStream) Context() context.Context        { return s.ctx }
func (s leaseStream) Send(*vmpb.RunLeaseUpdate) error { return nil }

// call decodes a message and calls a method with it. If ours is set, it replaces the sender in the message with the
// hypervisor.
func (w *fakeEnv) call(ctx context.Context, method uint8, raw []byte, ours bool, pod string) error {
	lease, report := &vmpb.RunLeaseRequest{}, &vmpb.ReportStateRequest{}
	switchover, target := &vmpb.MigrationSwitchoverRequest{}, &vmpb.EnsureMigrationTargetRequest{}
	message := []proto.Message{lease, report, switchover, target}[method%4]
	if proto.Unmarshal(raw, message) != nil {
		return status.Error(codes.InvalidArgument, "gRPC would refuse this message")
	}
	if ours {
		us := &vmpb.HypervisorID{VmName: fakeKey.Name, Namespace: fakeKey.Namespace, PodName: pod, RunId: 7}
		lease.Us, report.Us, switchover.Us, target.Us = us, us, us, us
	}
	var err error
	switch message {
	case lease:
		err = w.cluster.hypervisors.RunLease(lease, leaseStream{ctx: ctx})
	case report:
		_, err = w.cluster.hypervisors.ReportState(ctx, report)
	case switchover:
		_, err = w.cluster.hypervisors.MigrationSwitchover(ctx, switchover)
	case target:
		_, err = w.cluster.hypervisors.EnsureMigrationTarget(ctx, target)
	}
	return err
}
