package service

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/overlay"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

const (
	// updateInterval is the minimum time between two updates to a hypervisor, so that an update contains all VMs that
	// start at about the same time. The first change after a while is sent immediately.
	updateInterval = 100 * time.Millisecond
	// maxEndpoints is the maximum number of endpoints that are stored for a VM: those of its hypervisor, of the target
	// of its migration, and of earlier ones.
	maxEndpoints = 8
	// publicKeySize is the size of a public key, in bytes.
	publicKeySize = 32
)

// overlays implements Overlay. The location of a VM follows from the authority in its status, its Pod and the endpoint
// that the hypervisor has announced.
//
// Endpoints are lost when this process exits. Hypervisors then announce them to the next one. Until then, others keep
// the location of their VMs.
type overlays struct {
	overlaypb.UnimplementedOverlayServer
	service   *Service
	directory *overlay.Directory

	// mu also serializes the decisions about locations, so that none is replaced by an earlier one.
	mu sync.Mutex
	// restarted has the authoritative process of each VM when the first hypervisor was served: those that may have
	// announced their endpoints to an earlier process of the VM controller. It is nil until then.
	restarted map[types.NamespacedName]process
	// endpoints are the announced endpoints by VM and Pod, and keys the VMs that have announced public keys.
	endpoints map[types.NamespacedName]map[string]announced
	keys      map[string]types.NamespacedName
	// moved has the last switchover of each VM until the cache contains it.
	moved map[types.NamespacedName]move
}

// announced is the endpoint of a process.
type announced struct {
	run       string
	publicKey []byte
	endpoint  netip.AddrPort // zero if the process has left
	// silent are the VMs whose hypervisors do not respond to this one.
	silent []string
}

// process identifies a process in the status of a VM.
type process struct{ pod, run string }

func processOf(id *vmpb.HypervisorID) process {
	return process{id.GetPodName(), strconv.FormatUint(id.GetRunId(), 10)}
}

// move is a switchover.
type move struct{ from, to process }

func newOverlays(s *Service) *overlays {
	return &overlays{
		service: s, directory: overlay.New(s.NetworkOf),
		endpoints: map[types.NamespacedName]map[string]announced{}, keys: map[string]types.NamespacedName{}, moved: map[types.NamespacedName]move{},
	}
}

// idOf converts the identity of a process.
func idOf(us *overlaypb.Process) *vmpb.HypervisorID {
	return &vmpb.HypervisorID{VmName: us.GetVmName(), Namespace: us.GetNamespace(), PodName: us.GetPodName(), RunId: us.GetRunId()}
}

// Join implements Overlay.
func (o *overlays) Join(request *overlaypb.JoinRequest, out grpc.ServerStreamingServer[overlaypb.Update]) error {
	ctx, us := out.Context(), idOf(request.GetUs())
	vm, err := caller(ctx, us)
	if err != nil {
		return err
	}
	endpoint, err := netip.ParseAddrPort(request.GetEndpoint())
	if err != nil || endpoint.Addr().Zone() != "" || !isAddress(request.GetEndpoint()) || len(request.GetPublicKey()) != publicKeySize {
		return status.Error(codes.InvalidArgument, "the endpoint or the public key is malformed")
	}
	rechecked, closeLease := o.service.open(vm, "") // not for a particular Pod
	defer closeLease()
	if !o.announce(vm, us, announced{publicKey: request.GetPublicKey(), endpoint: endpoint}) {
		return status.Error(codes.PermissionDenied, "the public key belongs to another virtual machine")
	}
	if err := o.load(ctx); err != nil {
		return grpcError(ctx, us, err)
	}
	o.refresh(ctx, vm)
	return o.follow(ctx, vm, us, rechecked.recheck, out.Send)
}

// follow sends updates while a process is entitled to them.
func (o *overlays) follow(ctx context.Context, vm types.NamespacedName, us *vmpb.HypervisorID, recheck <-chan struct{}, send func(*overlaypb.Update) error) error {
	follower, entitled := o.directory.Follow(vm), false
	for {
		is, err := o.entitled(ctx, vm, us)
		switch {
		case err != nil:
			return grpcError(ctx, us, err)
		case entitled && !is:
			return grpcError(ctx, us, authority.ErrNotAuthoritative)
		}
		entitled = is
		var changed <-chan struct{}
		if entitled {
			var update *overlaypb.Update
			if update, changed = follower.Next(); update != nil {
				if err := send(update); err != nil {
					return err
				}
				if err := pause(ctx, updateInterval); err != nil {
					return err
				}
			}
		}
		select {
		case <-changed:
		case <-recheck:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func pause(ctx context.Context, interval time.Duration) error {
	select {
	case <-time.After(interval):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// maxSilent is the maximum number of VMs that do not respond that are stored for a process.
const maxSilent = 32

// silentDelay is how long a report of ReportSilent waits for the status to be written.
const silentDelay = 5 * time.Second

// ReportSilent implements Overlay.
func (o *overlays) ReportSilent(ctx context.Context, request *overlaypb.ReportSilentRequest) (*overlaypb.ReportSilentResponse, error) {
	us := idOf(request.GetUs())
	vm, err := caller(ctx, us)
	if err != nil {
		return nil, err
	}
	if len(request.GetVms()) > maxSilent {
		return nil, status.Errorf(codes.InvalidArgument, "%d virtual machines, at most %d are supported", len(request.GetVms()), maxSilent)
	}
	o.mu.Lock()
	has, found := o.endpoints[vm][us.GetPodName()]
	changed := !slices.Equal(has.silent, request.GetVms())
	if found = found && has.run == processOf(us).run; found {
		has.silent = request.GetVms()
		o.endpoints[vm][us.GetPodName()] = has
	}
	o.mu.Unlock()
	if !found {
		return nil, grpcError(ctx, us, authority.ErrNotAuthoritative)
	}
	if changed {
		o.service.Enqueue(vm, silentDelay) // one pass for all reports until then
	}
	return &overlaypb.ReportSilentResponse{}, nil
}

// Silence describes other hypervisors that do not respond to that of a VM.
type Silence struct {
	// From is the UDP endpoint of the VM's hypervisor.
	From netip.AddrPort
	// To are the endpoints of the others, by VM.
	To map[string]string
}

// Silence returns which hypervisors do not respond to that of a VM; nil if all do. It contains only VMs that the
// hypervisor may know.
func (s *Service) Silence(vm *v1alpha1.VirtualMachine) *Silence {
	if s.overlays == nil {
		return nil
	}
	return s.overlays.silence(vm)
}

func (o *overlays) silence(vm *v1alpha1.VirtualMachine) *Silence {
	o.mu.Lock()
	defer o.mu.Unlock()
	key, active := client.ObjectKeyFromObject(vm), o.active(vm)
	has := o.endpoints[key][active.pod]
	if has.run != active.run || !has.endpoint.IsValid() {
		return nil
	}
	silence := &Silence{From: has.endpoint, To: map[string]string{}}
	for _, name := range has.silent {
		if peer := o.directory.Peer(key, name); peer.GetState() == overlaypb.Peer_STATE_PRESENT {
			silence.To[name] = peer.GetEndpoint()
		}
	}
	if len(silence.To) == 0 {
		return nil
	}
	return silence
}

// Leave implements Overlay.
func (o *overlays) Leave(ctx context.Context, request *overlaypb.LeaveRequest) (*overlaypb.LeaveResponse, error) {
	us := idOf(request.GetUs())
	vm, err := caller(ctx, us)
	if err != nil {
		return nil, err
	}
	o.announce(vm, us, announced{})
	o.refresh(ctx, vm)
	return &overlaypb.LeaveResponse{}, nil
}

// announce stores the endpoint of a process. The endpoint of an earlier process in the Pod does not replace that of a
// later one. It returns false if another VM has announced the public key: keys are no secret, and a hypervisor has only one
// peer for each, so a process that announces the key of another would cut that one off.
func (o *overlays) announce(vm types.NamespacedName, us *vmpb.HypervisorID, endpoint announced) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner, taken := o.keys[string(endpoint.publicKey)]; taken && owner != vm {
		return false
	}
	of := o.endpoints[vm]
	if of == nil {
		of = map[string]announced{}
		o.endpoints[vm] = of
	}
	endpoint.run = processOf(us).run
	last, has := of[us.GetPodName()]
	if run, err := strconv.ParseUint(last.run, 10, 64); has && err == nil && run > us.GetRunId() {
		return true
	}
	if endpoint.run == last.run {
		endpoint.silent = last.silent
	}
	if !has && len(of) >= maxEndpoints {
		o.evict(vm)
	}
	o.drop(vm, us.GetPodName())
	of[us.GetPodName()] = endpoint
	if endpoint.publicKey != nil {
		o.keys[string(endpoint.publicKey)] = vm
	}
	return true
}

// drop forgets the endpoint of a Pod. The caller must hold the lock.
func (o *overlays) drop(vm types.NamespacedName, pod string) {
	delete(o.keys, string(o.endpoints[vm][pod].publicKey))
	delete(o.endpoints[vm], pod)
}

// evict forgets the endpoints of Pods that have no authority. The caller must hold the lock.
func (o *overlays) evict(vm types.NamespacedName) {
	current, err := o.read(context.Background(), vm)
	if err != nil {
		return
	}
	for pod := range o.endpoints[vm] {
		if current == nil || pod != o.active(current).pod && !migration.IsTarget(&current.Status, pod) {
			o.drop(vm, pod)
		}
	}
}

// load loads the locations of all VMs when this process serves the first hypervisor.
func (o *overlays) load(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.restarted != nil {
		return nil
	}
	all := &v1alpha1.VirtualMachineList{}
	if err := o.service.Registry.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	o.restarted = map[types.NamespacedName]process{}
	for i := range all.Items {
		key := client.ObjectKeyFromObject(&all.Items[i])
		o.restarted[key] = o.active(&all.Items[i])
		if err := o.locate(ctx, key); err != nil {
			o.restarted = nil
			return err
		}
	}
	return nil
}

// refresh determines the location of a VM again after its object, its Pod or an endpoint may have changed. If the cache
// cannot be read, the location stays the same until the next change.
func (o *overlays) refresh(ctx context.Context, vm types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.locate(ctx, vm); err != nil {
		log.FromContext(ctx).Error(err, "Failed to determine the location of a virtual machine", "vm", vm)
	}
}

// switched records a switchover, which the cache may not contain yet.
func (o *overlays) switched(ctx context.Context, vm types.NamespacedName, us, them *vmpb.HypervisorID) {
	o.mu.Lock()
	o.moved[vm] = move{from: processOf(them), to: processOf(us)}
	o.mu.Unlock()
	o.refresh(ctx, vm)
}

// forget drops the location of a deleted VM.
func (o *overlays) forget(vm types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pod := range o.endpoints[vm] {
		o.drop(vm, pod)
	}
	delete(o.endpoints, vm)
	delete(o.moved, vm)
	delete(o.restarted, vm)
	o.directory.Set(vm, nil)
}

// read returns a VM from the cache; nil if it does not exist.
func (o *overlays) read(ctx context.Context, key types.NamespacedName) (*v1alpha1.VirtualMachine, error) {
	vm := &v1alpha1.VirtualMachine{}
	if err := o.service.Registry.Client.Get(ctx, key, vm); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if foreign := o.service.Registry.Foreign; foreign != nil && foreign(vm) {
		return nil, nil
	}
	return vm, nil
}

// active returns the authoritative process of a VM. The caller must hold the lock.
func (o *overlays) active(vm *v1alpha1.VirtualMachine) process {
	key, stored := client.ObjectKeyFromObject(vm), process{vm.Status.ActivePodName, vm.Status.ActiveRunID}
	last, found := o.moved[key]
	switch {
	case found && last.from == stored:
		return last.to
	case found:
		delete(o.moved, key) // a run never becomes authoritative again
	}
	return stored
}

// entitled reports whether a process may know where other VMs are.
func (o *overlays) entitled(ctx context.Context, key types.NamespacedName, us *vmpb.HypervisorID) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	vm, err := o.read(ctx, key)
	if err != nil || vm == nil {
		return false, err
	}
	return o.active(vm) == processOf(us) || migration.IsTarget(&vm.Status, us.GetPodName()), nil
}

// locate stores the location of a VM. The caller must hold the lock.
func (o *overlays) locate(ctx context.Context, key types.NamespacedName) error {
	peer, err := o.find(ctx, key)
	if err == nil {
		o.directory.Set(key, peer)
	}
	return err
}

// find returns the location of a VM; nil if it has none.
func (o *overlays) find(ctx context.Context, key types.NamespacedName) (*overlaypb.Peer, error) {
	vm, err := o.read(ctx, key)
	if err != nil || vm == nil {
		return nil, err
	}
	active := o.active(vm)
	if active.pod == "" {
		return nil, nil
	}
	pod := &corev1.Pod{}
	err = o.service.Registry.Client.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: active.pod}, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	// The Pod has the addresses with which the guest was started, even if those of the VM have been edited.
	addresses := podspec.Addresses(pod)
	if err != nil || !podstate.Owns(vm, pod) || !podstate.Alive(pod) || len(addresses) == 0 {
		return nil, err
	}
	has, announced := o.endpoints[key][active.pod]
	switch {
	case !announced && o.restarted[key] == active:
		return &overlaypb.Peer{State: overlaypb.Peer_STATE_UNCHANGED}, nil
	// A hypervisor that announces the address of another Pod or host could direct the packets of all others to it.
	case has.run != active.run || !hasPodAddress(pod, has.endpoint.Addr()):
		return nil, nil
	}
	return &overlaypb.Peer{
		State: overlaypb.Peer_STATE_PRESENT, PublicKey: has.publicKey, Endpoint: has.endpoint.String(), Addresses: addresses,
	}, nil
}
