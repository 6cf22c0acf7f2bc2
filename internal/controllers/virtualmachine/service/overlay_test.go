package service

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// overlayed is a service with an overlay. It has the VM vm, which migrates from the Pod vm-1 to vm-2, and the VM other
// in the Pod other-1.
type overlayed struct {
	*migrating
	other types.NamespacedName
}

func newOverlayed(t *testing.T) *overlayed {
	t.Helper()
	o := &overlayed{migrating: newMigrating(t)}
	o.NetworkOf = func(namespace string) string { return namespace }
	o.restart()
	vm := o.vm()
	o.pod("vm-1", "10.0.0.1", "10.77.0.16")
	o.create(fixture.OwnedBy(vm, fixture.Named("vm-2", fixture.Pod())))
	o.pod("vm-2", "10.0.0.2", "10.77.0.16")
	other := fixture.Named("other", fixture.VirtualMachine())
	other.UID = "uid-of-other"
	o.other = client.ObjectKeyFromObject(other)
	o.create(other)
	other.Status.VirtualMachineAuthority = v1alpha1.VirtualMachineAuthority{ActivePodName: "other-1", ActivePodUID: "uid", ActiveRunID: "1"}
	if err := o.Registry.Client.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	o.create(fixture.OwnedBy(other, fixture.Named("other-1", fixture.Pod())))
	o.pod("other-1", "10.0.0.3", "10.77.0.17")
	return o
}

// restart replaces the memory of the controller by that of a new process.
func (o *overlayed) restart() { o.overlays = newOverlays(o.Service) }

func (o *overlayed) create(object client.Object) {
	o.Helper()
	if err := o.Registry.Client.Create(o.Context(), object); err != nil {
		o.Fatal(err)
	}
}

// pod sets the addresses of a Pod and of its guest. Without an address of the Pod, it sets that the Pod has terminated.
func (o *overlayed) pod(name, address, guest string) {
	o.Helper()
	pod := &corev1.Pod{}
	if err := o.Registry.Client.Get(o.Context(), types.NamespacedName{Namespace: o.key.Namespace, Name: name}, pod); err != nil {
		o.Fatal(err)
	}
	pod.Annotations = map[string]string{v1alpha1.AnnotationAddresses: guest}
	pod.Spec.Containers = []corev1.Container{{Name: podspec.ContainerName, Env: []corev1.EnvVar{{Name: vmpb.EnvSpec, Value: `{"address":["` + guest + `"]}`}}}}
	if err := o.Registry.Client.Update(o.Context(), pod); err != nil {
		o.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}}}
	if address == "" {
		pod.Status.Phase = corev1.PodSucceeded
	}
	if err := o.Registry.Client.Status().Update(o.Context(), pod); err != nil {
		o.Fatal(err)
	}
}

// updates is the server's side of a stream.
type updates struct {
	grpc.ServerStreamingServer[overlaypb.Update]
	ctx  context.Context
	sent chan *overlaypb.Update
}

func (u updates) Context() context.Context { return u.ctx }

func (u updates) Send(update *overlaypb.Update) error {
	u.sent <- update
	return nil
}

// joined is an open stream.
type joined struct {
	*overlayed
	sent  chan *overlaypb.Update
	leave context.CancelFunc
	ended chan error
}

// join joins as the process in a Pod.
func (o *overlayed) join(vm, pod, address string) *joined {
	o.Helper()
	ctx, cancel := context.WithCancel(as(o.T, vm, pod))
	o.Cleanup(cancel)
	j := &joined{overlayed: o, sent: make(chan *overlaypb.Update), leave: cancel, ended: make(chan error, 1)}
	go func() {
		j.ended <- o.overlays.Join(&overlaypb.JoinRequest{Us: o.us(vm, pod), PublicKey: keyOf(address), Endpoint: address + ":8462"}, updates{ctx: ctx, sent: j.sent})
	}()
	return j
}

func (o *overlayed) us(vm, pod string) *overlaypb.Process {
	return &overlaypb.Process{Namespace: o.key.Namespace, VmName: vm, PodName: pod, RunId: 1}
}

func keyOf(address string) []byte { return []byte(fmt.Sprintf("%-32s", address)) }

// next returns the next update as a text.
func (j *joined) next() string {
	j.Helper()
	select {
	case update := <-j.sent:
		var text []string
		if update.GetSnapshot() {
			text = append(text, "snapshot")
		}
		for _, peer := range update.GetPeers() {
			if key := string(peer.GetPublicKey()); key != "" && key != string(keyOf(strings.TrimSuffix(peer.GetEndpoint(), ":8462"))) {
				j.Errorf("%v has the key %q", peer, key)
			}
			state := strings.TrimPrefix(peer.GetState().String(), "STATE_")
			text = append(text, strings.TrimSpace(fmt.Sprintf("%s %s %s", peer.GetVm(), state, strings.Join(append([]string{peer.GetEndpoint()}, peer.GetAddresses()...), " "))))
		}
		return strings.Join(text, ", ")
	case err := <-j.ended:
		return status.Code(err).String()
	case <-time.After(time.Minute):
		return "nothing"
	}
}

func (j *joined) wants(what, want string) {
	j.Helper()
	if got := j.next(); got != want {
		j.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestOverlay_GuestMoves(t *testing.T) {
	o := newOverlayed(t)
	ns := o.key.Namespace
	other := o.join("other", "other-1", "10.0.0.3")
	other.wants("before the hypervisor has joined", "snapshot, "+ns+"/vm UNCHANGED")
	source := o.join("vm", "vm-1", "10.0.0.1")
	other.wants("a hypervisor joins", ns+"/vm PRESENT 10.0.0.1:8462 10.77.0.16")
	source.wants("the first update", "snapshot, "+ns+"/other PRESENT 10.0.0.3:8462 10.77.0.17")
	target := o.join("vm", "vm-2", "10.0.0.2")
	target.wants("a target", "snapshot, "+ns+"/other PRESENT 10.0.0.3:8462 10.77.0.17")
	if _, err := o.MigrationSwitchover(as(t, "vm", "vm-2"), &vmpb.MigrationSwitchoverRequest{Us: o.process("vm-2"), Them: o.process("vm-1")}); err != nil {
		t.Fatal(err)
	}
	other.wants("the switchover", ns+"/vm PRESENT 10.0.0.2:8462 10.77.0.16")
	source.wants("the source of the migration", codes.FailedPrecondition.String())
	if _, err := o.overlays.Leave(as(t, "vm", "vm-2"), &overlaypb.LeaveRequest{Us: o.us("vm", "vm-2")}); err != nil {
		t.Fatal(err)
	}
	other.wants("the guest terminates", ns+"/vm ABSENT")
}

// TestOverlay_SwitchoverBeforeTheCache checks that a switchover has an effect before the cache contains it, and that the
// cache is authoritative later.
func TestOverlay_SwitchoverBeforeTheCache(t *testing.T) {
	o := newOverlayed(t)
	ns := o.key.Namespace
	o.join("vm", "vm-1", "10.0.0.1").next()
	o.join("vm", "vm-2", "10.0.0.2").next()
	other := o.join("other", "other-1", "10.0.0.3")
	other.wants("the first update", "snapshot, "+ns+"/vm PRESENT 10.0.0.1:8462 10.77.0.16")
	o.overlays.switched(t.Context(), o.key, o.process("vm-2"), o.process("vm-1"))
	other.wants("the switchover", ns+"/vm PRESENT 10.0.0.2:8462 10.77.0.16")
	o.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-2" })
	o.Recheck(o.key)
	o.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-1" })
	o.Recheck(o.key)
	other.wants("another authority", ns+"/vm PRESENT 10.0.0.1:8462 10.77.0.16")
}

// TestOverlay_ControllerRestarts checks that others keep the location of a VM until its hypervisor has joined again, but
// not that of an earlier hypervisor.
func TestOverlay_ControllerRestarts(t *testing.T) {
	o := newOverlayed(t)
	ns := o.key.Namespace
	o.join("vm", "vm-2", "10.0.0.2").next() // a target does not stand in for the source
	other := o.join("other", "other-1", "10.0.0.3")
	other.wants("the first update", "snapshot, "+ns+"/vm UNCHANGED")
	o.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-2"; vm.Status.ActiveRunID = "7" })
	o.Recheck(o.key)
	other.wants("another process", ns+"/vm ABSENT")
}

func TestOverlay_PodTerminates(t *testing.T) {
	o := newOverlayed(t)
	ns := o.key.Namespace
	source := o.join("vm", "vm-1", "10.0.0.1")
	source.next()
	other := o.join("other", "other-1", "10.0.0.3")
	other.wants("the first update", "snapshot, "+ns+"/vm PRESENT 10.0.0.1:8462 10.77.0.16")
	source.leave() // the connection is lost, but the guest may be running
	<-source.ended
	o.Recheck(o.key)
	o.pod("vm-1", "", "10.77.0.16")
	o.Recheck(o.key)
	other.wants("the Pod has terminated", ns+"/vm ABSENT")
	o.Forget(o.key)
	if len(o.overlays.endpoints) != 1 {
		t.Errorf("endpoints of %d VMs", len(o.overlays.endpoints))
	}
}

// TestOverlay_ForeignEndpoint checks that a hypervisor cannot direct the packets of others to another address.
func TestOverlay_ForeignEndpoint(t *testing.T) {
	o := newOverlayed(t)
	o.join("vm", "vm-1", "10.0.0.9").next()
	o.join("other", "other-1", "10.0.0.3").wants("the first update", "snapshot")
}

// TestOverlay_KeyOfOther checks that a hypervisor cannot announce the key of another one, while that has it, and that keys are
// forgotten with their processes.
func TestOverlay_KeyOfOther(t *testing.T) {
	o := newOverlayed(t)
	stolen := keyOf("10.0.0.3")
	joins := func() codes.Code {
		ctx, leave := context.WithCancel(as(t, "vm", "vm-1"))
		leave()
		request := &overlaypb.JoinRequest{Us: o.us("vm", "vm-1"), PublicKey: stolen, Endpoint: "10.0.0.1:8462"}
		return status.Code(o.overlays.Join(request, updates{ctx: ctx, sent: make(chan *overlaypb.Update, 1)}))
	}
	other := o.join("other", "other-1", "10.0.0.3")
	other.next()
	if got := joins(); got != codes.PermissionDenied {
		t.Errorf("the key of another hypervisor: %s", got)
	}
	if _, err := o.overlays.Leave(as(t, "other", "other-1"), &overlaypb.LeaveRequest{Us: o.us("other", "other-1")}); err != nil {
		t.Fatal(err)
	}
	if got := joins(); got != codes.Canceled {
		t.Errorf("the key of a process that has left: %s", got)
	}
	o.Forget(o.key)
	if len(o.overlays.keys) != 0 {
		t.Errorf("the keys %v are left", o.overlays.keys)
	}
}

// TestOverlay_EditedPod checks that a user who edits the Pod of a VM cannot take the addresses of other VMs.
func TestOverlay_EditedPod(t *testing.T) {
	o := newOverlayed(t)
	pod := &corev1.Pod{}
	if err := o.Registry.Client.Get(t.Context(), types.NamespacedName{Namespace: o.key.Namespace, Name: "vm-1"}, pod); err != nil {
		t.Fatal(err)
	}
	pod.Annotations[v1alpha1.AnnotationAddresses] = "10.77.0.17,10.77.0.18"
	if err := o.Registry.Client.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	o.join("vm", "vm-1", "10.0.0.1").next()
	o.join("other", "other-1", "10.0.0.3").wants("the first update", "snapshot, "+o.key.Namespace+"/vm PRESENT 10.0.0.1:8462 10.77.0.16")
}

func TestOverlay_OtherNetwork(t *testing.T) {
	for name, test := range map[string]struct {
		network func(string) string
		want    string
	}{
		"by namespace": {func(namespace string) string { return namespace }, "snapshot"},
		"one network":  {func(string) string { return "" }, "snapshot, " + fixture.Namespace + "/other UNCHANGED, " + fixture.Namespace + "/vm UNCHANGED"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOverlayed(t)
			o.NetworkOf = test.network
			o.restart()
			if err := o.overlays.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			update, _ := o.overlays.directory.Follow(types.NamespacedName{Namespace: "elsewhere", Name: "vm"}).Next()
			j := &joined{overlayed: o, sent: make(chan *overlaypb.Update, 1)}
			j.sent <- update
			j.wants("a VM in another namespace", test.want)
		})
	}
}

func TestOverlay_RefusesInvalidRequests(t *testing.T) {
	o := newOverlayed(t)
	for name, test := range map[string]struct {
		change func(*overlaypb.JoinRequest)
		want   codes.Code
	}{
		"another VM":         {func(r *overlaypb.JoinRequest) { r.Us = o.us("other", "other-1") }, codes.PermissionDenied},
		"another Pod":        {func(r *overlaypb.JoinRequest) { r.Us = o.us("vm", "vm-2") }, codes.PermissionDenied},
		"no run":             {func(r *overlaypb.JoinRequest) { r.Us.RunId = 0 }, codes.InvalidArgument},
		"a short key":        {func(r *overlaypb.JoinRequest) { r.PublicKey = r.PublicKey[1:] }, codes.InvalidArgument},
		"a name":             {func(r *overlaypb.JoinRequest) { r.Endpoint = "example.com:1" }, codes.InvalidArgument},
		"a metadata service": {func(r *overlaypb.JoinRequest) { r.Endpoint = "169.254.169.254:80" }, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			request := &overlaypb.JoinRequest{Us: o.us("vm", "vm-1"), PublicKey: keyOf("10.0.0.1"), Endpoint: "10.0.0.1:8462"}
			test.change(request)
			if err := o.overlays.Join(request, updates{ctx: as(t, "vm", "vm-1")}); status.Code(err) != test.want {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
	if _, err := o.overlays.Leave(as(t, "vm", "vm-1"), &overlaypb.LeaveRequest{Us: o.us("vm", "vm-2")}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the leave of another Pod: %v", err)
	}
}

// TestOverlay_ManyProcesses checks that a hypervisor cannot use the controller's memory with many endpoints, or replace
// the endpoint of a later process.
func TestOverlay_ManyProcesses(t *testing.T) {
	o := newOverlayed(t)
	later := o.process("vm-1")
	later.RunId = 5
	o.overlays.announce(o.key, later, announced{publicKey: keyOf("later")})
	for i := range 100 {
		o.overlays.announce(o.key, o.process(fmt.Sprintf("vm-%d", i)), announced{})
	}
	of := o.overlays.endpoints[o.key]
	if len(of) > maxEndpoints {
		t.Errorf("%d endpoints are stored", len(of))
	}
	if got := of["vm-1"]; string(got.publicKey) != string(keyOf("later")) {
		t.Errorf("the endpoint of vm-1 is %v", got)
	}
}

func TestOverlay_ReportsSilence(t *testing.T) {
	o := newOverlayed(t)
	passes := 0
	o.Enqueue = func(types.NamespacedName, time.Duration) { passes++ }
	o.join("vm", "vm-1", "10.0.0.1").next()
	o.join("other", "other-1", "10.0.0.3").next()
	other := o.other.String()
	report := func(pod string, vms ...string) codes.Code {
		_, err := o.overlays.ReportSilent(as(t, "vm", pod), &overlaypb.ReportSilentRequest{Us: o.us("vm", pod), Vms: vms})
		return status.Code(err)
	}
	if got := report("vm-1", other, "unknown/vm", "not a name\n"); got != codes.OK || passes != 1 {
		t.Errorf("%s, %d passes", got, passes)
	}
	want := &Silence{From: netip.MustParseAddrPort("10.0.0.1:8462"), To: map[string]string{other: "10.0.0.3:8462"}}
	if got := o.Silence(o.vm()); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := report("vm-2", other); got != codes.FailedPrecondition {
		t.Errorf("a process that has not joined: %s", got)
	}
	if got := report("vm-1", make([]string, maxSilent+1)...); got != codes.InvalidArgument {
		t.Errorf("a long report: %s", got)
	}
	if got := report("vm-1"); got != codes.OK || o.Silence(o.vm()) != nil {
		t.Errorf("%s; %v is silent after all have responded", got, o.Silence(o.vm()))
	}
}
