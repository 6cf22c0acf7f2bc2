package virtualmachine

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// Maximum number of object writes per VM, without events.
const (
	writesOfCreation  = 12
	writesOfMigration = 10
)

// fleet is a namespace with many VMs, whose hosts and hypervisors the test simulates.
type fleet struct {
	*testEnv
	hosts      int
	eventCount atomic.Int64
	scaled     sync.WaitGroup

	mu      sync.Mutex
	members map[string]*member // by the Pod's name
}

// member is a simulated hypervisor process in a Pod, with a certificate that outlives its connections.
type member struct {
	*fleet
	pod     *corev1.Pod
	us      *vmpb.HypervisorID
	config  *tls.Config
	address *net.TCPAddr // of its host
	calls   atomic.Pointer[connection]
}

// connection is the connection of a member to a VM controller.
type connection struct {
	vmpb.VMControllerClient
	conn *grpc.ClientConn
	// updates receives the updates of the run lease, and is closed with the lease.
	updates chan *vmpb.RunLeaseUpdate
}

func vmCount(t *testing.T) int {
	t.Helper()
	text := os.Getenv("MILLWRIGHT_VMS")
	if text == "" {
		return 60
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 10 {
		t.Fatalf("MILLWRIGHT_VMS: invalid value %q; must be a number of at least 10", text)
	}
	return count
}

// TestManyVMs checks the cost of creations, a failover and migrations for the API server, per VM. A tenth of the VMs
// migrate at the same time.
func TestManyVMs(t *testing.T) {
	tier.All(t)
	count := vmCount(t)
	f := newFleet(t, count)
	f.phase("creation", count, writesOfCreation, func() { f.create(count) })
	versions := f.versions()
	f.phase("reconnect", count, 0, f.failOver)
	if diff := cmp.Diff(versions, f.versions()); diff != "" {
		t.Errorf("objects have changed (-before +after):\n%s", diff)
	}
	f.phase("migration", count/10, writesOfMigration, func() { f.migrateSome(count / 10) })
}

func newFleet(t *testing.T, count int) *fleet {
	t.Helper()
	w := newTestEnv(t)
	w.stop()
	w.perHost, w.waitTimeout = count, env.WaitTimeout+time.Duration(count)*time.Second
	w.access.QPS = -1
	f := &fleet{testEnv: w, hosts: 20, members: map[string]*member{}}
	ctx, cancel := context.WithCancel(context.Background())
	f.simulate(ctx)
	t.Cleanup(func() {
		cancel()
		f.scaled.Wait()
	})
	f.start()
	return f
}

func name(number int) string { return fmt.Sprintf("vm-%d", number) }

// create creates VMs and waits until they are running.
func (f *fleet) create(count int) {
	f.Helper()
	for i := range count {
		f.declare(name(i), nil)
	}
	f.await("all VMs are running", func(vm *v1alpha1.VirtualMachine) bool {
		ready := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Reason == reasonRunning && meta.IsStatusConditionTrue(vm.Status.Conditions, v1alpha1.ConditionLiveMigratable)
	})
}

// await waits until all VMs meet a condition.
func (f *fleet) await(what string, met func(*v1alpha1.VirtualMachine) bool) {
	f.Helper()
	left := 0
	gomega.NewWithT(f.T).Eventually(func() int {
		left = 0
		for _, vm := range f.vms() {
			if !met(&vm) {
				left++
			}
		}
		return left
	}).WithTimeout(f.waitTimeout).WithPolling(200*time.Millisecond).Should(gomega.BeZero(), func() string { return what + "\n" + f.describe() })
}

func (f *fleet) vms() []v1alpha1.VirtualMachine {
	f.Helper()
	list := &v1alpha1.VirtualMachineList{}
	f.must(f.client.List(f.Context(), list, client.InNamespace(f.namespace)))
	return list.Items
}

// sentinel is the VM whose passes show that all earlier passes have begun.
const sentinel = 0

// versions returns the resource versions of the objects of all VMs, except for the sentinel.
func (f *fleet) versions() map[string]string {
	f.Helper()
	versions := map[string]string{}
	for _, list := range []client.ObjectList{&v1alpha1.VirtualMachineList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}} {
		f.must(f.client.List(f.Context(), list, client.InNamespace(f.namespace)))
		f.must(meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			if object.GetName() != name(sentinel) {
				versions[fmt.Sprintf("%T %s", object, object.GetName())] = object.GetResourceVersion()
			}
			return nil
		}))
	}
	return versions
}

// failOver stops the controller and starts another one, to which all hypervisors connect and report at the same time.
func (f *fleet) failOver() {
	f.Helper()
	f.restart()
	f.uncounted.Store(name(sentinel))
	defer f.uncounted.Store("")
	reconnects := &errgroup.Group{}
	for _, m := range f.all() {
		reconnects.Go(func() error {
			if err := m.connect(f.Context()); err != nil {
				return err
			}
			return m.reportState(f.Context(), vmpb.ReportStateRequest_STATE_RUNNING, nil)
		})
	}
	f.must(reconnects.Wait())
	f.settle()
}

// settle waits until all passes that were due have begun.
func (f *fleet) settle() {
	f.Helper()
	f.change(name(sentinel), func(vm *v1alpha1.VirtualMachine) { vm.Spec.CPUs++ })
	f.eventually("the change is observed", func() bool {
		vm := f.vm(name(sentinel))
		return vm.Status.ObservedGeneration == vm.Generation
	})
}

// all returns all hypervisors.
func (f *fleet) all() (all []*member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		all = append(all, m)
	}
	return all
}

// migrateSome requests migrations of some VMs at the same time, and waits until all have migrated with their disks.
func (f *fleet) migrateSome(count int) {
	f.Helper()
	leaving := &errgroup.Group{}
	for i := 1; i <= count; i++ {
		vm := f.vm(name(i))
		f.mu.Lock()
		m := f.members[vm.Status.ActivePodName]
		f.mu.Unlock()
		leaving.Go(func() error { return m.leave(f.Context()) })
		f.order(vm.Name, vm.Status.ActivePodName)
	}
	f.must(leaving.Wait())
	f.await("all have migrated", func(vm *v1alpha1.VirtualMachine) bool {
		record := vm.Status.Migration
		return record == nil || record.EndTime != nil && record.Phase == v1alpha1.MigrationSucceeded
	})
	f.eventually("the old disks are gone", func() bool {
		list := &corev1.PersistentVolumeClaimList{}
		f.must(f.client.List(f.Context(), list, client.InNamespace(f.namespace)))
		return len(list.Items) == len(f.vms())
	})
}

// phase runs a part of the test, and checks and logs its cost.
func (f *fleet) phase(name string, vms, budget int, run func()) {
	f.Helper()
	writes, events, cpu, begun := f.writes.Load(), f.eventCount.Load(), cpuTime(), time.Now()
	run()
	each := float64(f.writes.Load()-writes) / float64(vms)
	f.Logf("%-10s %5d VMs  %6.1f s  %5.1f s of CPU  %5.2f writes and %.2f events per VM",
		name, vms, time.Since(begun).Seconds(), (cpuTime() - cpu).Seconds(), each, float64(f.eventCount.Load()-events)/float64(vms))
	if each > float64(budget) {
		f.Errorf("%s: %.2f writes per VM, want at most %d", name, each, budget)
	}
}

// cpuTime returns the processor time of this process.
func cpuTime() time.Duration {
	usage := &syscall.Rusage{}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, usage); err != nil {
		panic(err) // the arguments are constants
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// simulate acts as the scheduler, the hosts and the volume controller, and counts events.
func (f *fleet) simulate(ctx context.Context) {
	clients := f.clients.CoreV1()
	pods, err := clients.Pods(f.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelVM})
	f.must(err)
	claims, err := clients.PersistentVolumeClaims(f.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelVM})
	f.must(err)
	workers := &errgroup.Group{}
	workers.SetLimit(16)
	f.scaled.Go(func() {
		defer func() { _ = workers.Wait() }() // they return no errors
		for event := range pods.ResultChan() {
			if pod, is := event.Object.(*corev1.Pod); is && event.Type != watch.Deleted {
				f.host(ctx, workers, pod)
			}
		}
	})
	f.scaled.Go(func() {
		for event := range claims.ResultChan() {
			if claim, is := event.Object.(*corev1.PersistentVolumeClaim); is && claim.DeletionTimestamp != nil && len(claim.Finalizers) > 0 {
				claim.Finalizers = nil
				f.expect(ctx, client.IgnoreNotFound(f.client.Update(ctx, claim)))
			}
		}
	})
	f.scaled.Go(func() {
		for {
			select {
			case <-f.events.Events:
				f.eventCount.Add(1)
			case <-ctx.Done():
				return
			}
		}
	})
}

// expect reports an error from a goroutine, unless the context is canceled.
func (f *fleet) expect(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		f.Error(err)
	}
}

// host acts as the scheduler and the kubelet of a Pod.
func (f *fleet) host(ctx context.Context, workers *errgroup.Group, pod *corev1.Pod) {
	f.mu.Lock()
	known := f.members[pod.Name]
	if known == nil {
		known = &member{fleet: f, pod: pod, us: &vmpb.HypervisorID{
			VmName: pod.Labels[v1alpha1.LabelVM], Namespace: pod.Namespace, PodName: pod.Name, RunId: uint64(len(f.members) + 1),
		}}
		f.members[pod.Name] = known
		workers.Go(func() error {
			f.expect(ctx, known.begin(ctx))
			return nil
		})
	}
	f.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		workers.Go(func() error {
			f.expect(ctx, client.IgnoreNotFound(f.client.Delete(ctx, pod, client.GracePeriodSeconds(0))))
			return nil
		})
	}
}

// begin starts the hypervisor of a Pod on a host.
func (m *member) begin(ctx context.Context) error {
	host := int(m.us.GetRunId()) % m.hosts // a target is never on the host of its source
	if podspec.IsTarget(m.pod) {
		host += m.hosts
	}
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: fmt.Sprintf("host-%d", host)}}
	if err := m.client.SubResource("binding").Create(ctx, m.pod.DeepCopy(), binding); err != nil {
		return err
	}
	pod := m.pod.DeepCopy()
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: podspec.ContainerName, Image: "i", ImageID: "i", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	if err := m.client.Status().Patch(ctx, pod, client.MergeFrom(before)); err != nil {
		return err
	}
	if err := m.certify(host); err != nil {
		return err
	}
	if err := m.connect(ctx); err != nil {
		return err
	}
	if podspec.IsTarget(m.pod) {
		return m.awaitSource(ctx)
	}
	for _, state := range []vmpb.ReportStateRequest_State{
		vmpb.ReportStateRequest_STATE_PREPARING, vmpb.ReportStateRequest_STATE_WAITING, vmpb.ReportStateRequest_STATE_RUNNING,
	} {
		if err := m.reportState(ctx, state, nil); err != nil {
			return err
		}
	}
	return nil
}

// certify issues a certificate to the member directly, because the service limits requests per address.
func (m *member) certify(host int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	peer := identity.Peer{Namespace: m.namespace, VM: m.us.GetVmName(), Pod: m.pod.Name}
	der, err := m.authority.Sign(request, peer, time.Hour, time.Now())
	if err != nil {
		return err
	}
	m.config = &tls.Config{
		InsecureSkipVerify: true, // the member trusts the test
		NextProtos:         []string{"h2"},
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
	m.address = &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(host+1))}
	return nil
}

// connect opens the member's run lease and waits until it is granted.
func (m *member) connect(ctx context.Context) error {
	dialer := &net.Dialer{LocalAddr: m.address}
	// The service limits new connections per address; the other ones are retried.
	conn, err := grpc.NewClient("passthrough:///"+m.endpoint, grpc.WithTransportCredentials(credentials.NewTLS(m.config)),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	next := &connection{VMControllerClient: vmpb.NewVMControllerClient(conn), conn: conn, updates: make(chan *vmpb.RunLeaseUpdate, 16)}
	if last := m.calls.Swap(next); last != nil {
		_ = last.conn.Close()
	}
	m.Cleanup(func() { _ = conn.Close() })
	stream, err := next.RunLease(ctx, &vmpb.RunLeaseRequest{Us: m.us})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK {
		return fmt.Errorf("%s has %v", m.pod.Name, first)
	}
	go func() {
		defer close(next.updates)
		for {
			update, err := stream.Recv()
			if err != nil {
				return
			}
			next.updates <- update
		}
	}()
	return nil
}

// reportState reports a state.
func (m *member) reportState(ctx context.Context, state vmpb.ReportStateRequest_State, change func(*vmpb.ReportStateRequest)) error {
	request := &vmpb.ReportStateRequest{Us: m.us, State: state, CanMigrate: true, ImagePrepared: state >= vmpb.ReportStateRequest_STATE_WAITING}
	if change != nil {
		change(request)
	}
	_, err := m.calls.Load().ReportState(ctx, request)
	return err
}

func inMigration(phase vmpb.ReportStateRequest_Migration_Phase, target string) func(*vmpb.ReportStateRequest) {
	return func(r *vmpb.ReportStateRequest) {
		r.Migration = &vmpb.ReportStateRequest_Migration{Phase: phase, TargetPod: target, DoneBytes: 1 << 20, TotalBytes: 1 << 20}
	}
}

// awaitSource runs the services of a migration target.
func (m *member) awaitSource(ctx context.Context) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: m.config.Certificates})))
	healthServer := health.NewServer()
	healthServer.SetServingStatus(vmpb.Hypervisor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthServer)
	go func() { _ = server.Serve(listener) }()
	m.Cleanup(server.Stop)
	return m.reportState(ctx, vmpb.ReportStateRequest_STATE_INCOMING, func(r *vmpb.ReportStateRequest) { r.Endpoint = listener.Addr().String() })
}

// leave migrates the member's VM when the controller requests it, and returns when the member must terminate.
func (m *member) leave(ctx context.Context) error {
	calls := m.calls.Load()
	for update := range calls.updates {
		if update.GetMigrate() {
			break
		}
	}
	var target string
	for target == "" {
		response, err := calls.EnsureMigrationTarget(ctx, &vmpb.EnsureMigrationTargetRequest{Us: m.us})
		if err != nil && status.Code(err) != codes.Unavailable {
			return err
		}
		target = response.GetTargetPod()
	}
	m.mu.Lock()
	other := m.members[target]
	m.mu.Unlock()
	for _, phase := range []vmpb.ReportStateRequest_Migration_Phase{
		vmpb.ReportStateRequest_Migration_PHASE_COPYING, vmpb.ReportStateRequest_Migration_PHASE_STOPPED,
	} {
		if err := m.reportState(ctx, vmpb.ReportStateRequest_STATE_RUNNING, inMigration(phase, target)); err != nil {
			return err
		}
	}
	if _, err := other.calls.Load().MigrationSwitchover(ctx, &vmpb.MigrationSwitchoverRequest{Us: other.us, Them: m.us}); err != nil {
		return err
	}
	if err := other.reportState(ctx, vmpb.ReportStateRequest_STATE_RUNNING, inMigration(vmpb.ReportStateRequest_Migration_PHASE_DONE, target)); err != nil {
		return err
	}
	for update := range calls.updates {
		if update.GetStatus() == vmpb.RunLeaseUpdate_STATUS_TERMINATE {
			return nil
		}
	}
	return fmt.Errorf("%s was not terminated", m.pod.Name)
}
