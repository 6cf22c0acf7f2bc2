package virtualmachine

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/rotation"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

func TestMain(m *testing.M) {
	env.AtATime(6)
	env.Main(m)
}

var testNetwork = netip.MustParsePrefix("10.77.0.0/16")

// testEnv is a namespace with the controller, which has the permissions of the shipped role. The test acts as the
// scheduler, the kubelet and the hypervisors.
type testEnv struct {
	*testing.T
	client    client.Client
	clients   *kubernetes.Clientset
	access    *rest.Config
	used      env.Used     // permissions that the controller has used
	writes    atomic.Int64 // number of writes by the controller, without conflicts
	uncounted atomic.Value // name of a VM whose writes are not counted
	namespace string
	authority *identity.Authority
	rotation  *rotation.Rotation             // the test calls its steps
	clock     *clocktesting.FakePassiveClock // of the rotation
	endpoint  string
	events    *record.FakeRecorder
	stop      func()
	// waitTimeout limits every wait.
	waitTimeout time.Duration
	// perHost is the limit of concurrent migrations per host.
	perHost int
	// disks are fake disk servers. If nil, the controller connects to disk servers over the network.
	disks *diskFake
	// installation is the controller's Options.Installation.
	installation string
	// oneMachine is the controller's Options.OneMachine, and renewals its Options.Renewals.
	oneMachine bool
	renewals   float64
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func testScheme() *runtime.Scheme {
	scheme := env.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		panic(err) // the scheme is fixed
	}
	return scheme
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	return newTestEnvUnder(t, nil)
}

// newTestEnvUnder returns a testEnv whose API server injects faults for the controller. If fault is nil, it has none.
func newTestEnvUnder(t *testing.T, fault *serverfault.Fault) *testEnv {
	t.Helper()
	return newTestEnvIn(t, env.New(t), fault)
}

// newTestEnvIn is like newTestEnvUnder, in an existing namespace.
func newTestEnvIn(t *testing.T, e *env.Env, fault *serverfault.Fault) *testEnv {
	t.Helper()
	w := &testEnv{T: t, namespace: e.Namespace, installation: e.Namespace + "/vm-controller", clients: kubernetes.NewForConfigOrDie(e.Admin), events: record.NewFakeRecorder(1000), waitTimeout: env.WaitTimeout, perHost: 1, disks: newDiskFake()}
	var err error
	w.client, err = client.New(e.Admin, client.Options{Scheme: testScheme()})
	w.must(err)
	w.access = e.UserWith(t, "config/rbac/vm-controller-role.yaml")
	if fault != nil {
		// A hypervisor connects with several requests, and its delay grows with each failure.
		w.access = fault.Before(t, w.access)
	}
	w.used.Record(w.access)
	w.countWrites()
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// countWrites counts the writes of the controller.
func (w *testEnv) countWrites() {
	w.access.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			conflicts := err == nil && response.StatusCode == http.StatusConflict
			vm, _ := w.uncounted.Load().(string)
			excluded := vm != "" && strings.Contains(request.URL.Path+"/", "/virtualmachines/"+vm+"/")
			if request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "tokenreviews") && !conflicts && !excluded {
				w.writes.Add(1)
			}
			return response, err
		})
	})
}

// start runs a controller. Its service has a new address each time.
func (w *testEnv) start() {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background()) // the test's context is canceled before its cleanup
	live, err := client.New(w.access, client.Options{Scheme: testScheme()})
	w.must(err)
	w.eventually("the authority", func() bool {
		w.authority, err = rotation.Load(ctx, live, w.namespace)
		return err == nil
	})
	mgr, err := ctrl.NewManager(w.access, ctrl.Options{
		Scheme:                 testScheme(),
		Cache:                  cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}, ByObject: CacheByObject()},
		Controller:             config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)}, // each test has its own controller
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	w.must(err)
	w.clock = clocktesting.NewFakePassiveClock(time.Now())
	w.rotation = rotation.New(rotation.Options{
		Client: live, Pods: mgr.GetClient(), Namespace: w.namespace, Authority: w.authority, Events: w.events, Clock: w.clock,
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.endpoint = listener.Addr().String()
	var connect func(disks.Server) (storage.Volume, func(), error)
	if w.disks != nil {
		connect = w.disks.connect
	}
	c := New(Options{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Events: w.events, Authority: w.authority, Installation: w.installation,
		Image: "hypervisor:test", Images: []string{"none:1", "good:1"}, Endpoint: w.endpoint, Networks: []netip.Prefix{testNetwork}, Concurrency: 4, MigrationsPerHost: w.perHost,
		volume:     connect,
		OneMachine: w.oneMachine, Renewals: w.renewals, RenewalClient: live,
	})
	w.must(c.SetupWithManager(mgr))
	w.must(mgr.Add(c.Server(listener)))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("the manager returned %v", err)
		}
		w.stop = func() {}
	}
}

func (w *testEnv) restart() {
	w.Helper()
	w.stop()
	w.start()
}

func (w *testEnv) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually waits until the condition holds. If it fails, the output shows the VMs.
func (w *testEnv) eventually(what string, condition func() bool) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(condition).WithTimeout(w.waitTimeout).WithPolling(20*time.Millisecond).
		Should(gomega.BeTrue(), func() string { return what + "\n" + w.describe() })
}

func (w *testEnv) describe() string {
	vms := &v1alpha1.VirtualMachineList{}
	w.must(w.client.List(w.Context(), vms, client.InNamespace(w.namespace)))
	text := ""
	for _, vm := range vms.Items {
		text += vm.Name + ": " + string(vm.Status.Phase) + " pod " + vm.Status.ActivePodName + " run " + vm.Status.ActiveRunID
		for _, condition := range vm.Status.Conditions {
			text += " [" + condition.Type + " " + condition.Reason + ": " + condition.Message + "]"
		}
		text += "\n"
	}
	return text
}

// declare creates a VM with an image and a disk.
func (w *testEnv) declare(name string, change func(*v1alpha1.VirtualMachine)) {
	w.Helper()
	vm := fixture.In(w.namespace, fixture.Named(name, fixture.VirtualMachine()))
	vm.Spec.UUID = ""
	// There is no provisioner.
	vm.Spec.VolumeClaimTemplate.Spec.StorageClassName = ptr.To(w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer))
	if change != nil {
		change(vm)
	}
	w.must(w.client.Create(w.Context(), vm))
}

// storageClass returns the name of a class with a binding mode.
func (w *testEnv) storageClass(mode storagev1.VolumeBindingMode) string {
	w.Helper()
	name := strings.ToLower(string(mode))
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.org/none", VolumeBindingMode: &mode}
	w.must(client.IgnoreAlreadyExists(w.client.Create(w.Context(), class)))
	return name
}

func (w *testEnv) vm(name string) *v1alpha1.VirtualMachine {
	w.Helper()
	vm := &v1alpha1.VirtualMachine{}
	w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, vm))
	return vm
}

// change changes a VM in the role of a user.
func (w *testEnv) change(name string, edit func(*v1alpha1.VirtualMachine)) {
	w.Helper()
	vm := w.vm(name)
	before := vm.DeepCopy()
	edit(vm)
	w.must(w.client.Patch(w.Context(), vm, client.MergeFrom(before)))
}

func (w *testEnv) gone(object client.Object, name string) bool {
	w.Helper()
	err := w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, object)
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err != nil
}

// ready returns the reason of the VM's condition Ready.
func (w *testEnv) ready(name string) string {
	w.Helper()
	if condition := meta.FindStatusCondition(w.vm(name).Status.Conditions, v1alpha1.ConditionReady); condition != nil {
		return condition.Reason
	}
	return ""
}

func (w *testEnv) awaitReady(name, reason string) {
	w.Helper()
	w.eventually(name+" is "+reason, func() bool { return w.ready(name) == reason })
}

func (w *testEnv) pods(vm string) []corev1.Pod {
	w.Helper()
	list := &corev1.PodList{}
	w.must(w.client.List(w.Context(), list, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelVM: vm}))
	return list.Items
}

// awaitPod waits until an authoritative Pod whose name is not not exists and is recorded.
func (w *testEnv) awaitPod(vm, not string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{}
	w.eventually("a pod of "+vm, func() bool {
		status := w.vm(vm).Status
		return status.ActivePodUID != "" && status.ActivePodName != not && !w.gone(pod, status.ActivePodName)
	})
	return pod
}

// schedule binds a Pod to a node in the role of the scheduler.
func (w *testEnv) schedule(pod *corev1.Pod) {
	w.Helper()
	w.scheduleOn(pod, "host-1")
}

func (w *testEnv) scheduleOn(pod *corev1.Pod, node string) {
	w.Helper()
	w.must(w.client.SubResource("binding").Create(w.Context(), pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
}

// kubelet changes the status of a Pod in the role of the kubelet.
func (w *testEnv) kubelet(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	w.Helper()
	w.must(w.client.Get(w.Context(), client.ObjectKeyFromObject(pod), pod))
	before := pod.DeepCopy()
	change(&pod.Status)
	w.must(w.client.Status().Patch(w.Context(), pod, client.MergeFrom(before)))
}

// end reports that the hypervisor in a Pod has terminated.
func (w *testEnv) end(pod *corev1.Pod, termination string) {
	w.Helper()
	w.kubelet(pod, func(status *corev1.PodStatus) {
		status.Phase = corev1.PodFailed
		status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: podspec.ContainerName, Image: "i", ImageID: "i",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: termination}},
		}}
	})
}

// remove completes the deletion of a Pod in the role of the kubelet.
func (w *testEnv) remove(pod *corev1.Pod) {
	w.Helper()
	w.must(client.IgnoreNotFound(w.client.Delete(w.Context(), pod, client.GracePeriodSeconds(0))))
}

// hypervisor is the client of a simulated hypervisor process.
type hypervisor struct {
	*testEnv
	vmpb.VMControllerClient
	us *vmpb.HypervisorID
}

// hypervisor connects as a process in a Pod, with the Pod's token.
func (w *testEnv) hypervisor(vm string, pod *corev1.Pod, run uint64) *hypervisor {
	w.Helper()
	conn := w.dial(w.token(pod, vmpb.TokenAudience))
	return &hypervisor{testEnv: w, VMControllerClient: vmpb.NewVMControllerClient(conn), us: &vmpb.HypervisorID{
		VmName: vm, Namespace: w.namespace, PodName: pod.Name, RunId: run,
	}}
}

func (w *testEnv) token(pod *corev1.Pod, audience string) string {
	w.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{audience}, ExpirationSeconds: ptr.To[int64](3600),
	}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	response, err := w.clients.CoreV1().ServiceAccounts(w.namespace).CreateToken(w.Context(), "default", request, metav1.CreateOptions{})
	w.must(err)
	return response.Status.Token
}

// credentials returns those of a process with a token, which trusts the authorities of this moment.
func (w *testEnv) credentials(token string) *identity.Credentials {
	w.Helper()
	file := filepath.Join(w.TempDir(), "token")
	w.must(os.WriteFile(file, []byte(token), 0o600))
	credentials, err := identity.ForHypervisor(identity.Options{Authority: w.authority.Bundle(), TokenFile: file, Endpoint: w.endpoint})
	w.must(err)
	return credentials
}

func (w *testEnv) dial(token string) *grpc.ClientConn {
	w.Helper()
	credentials := w.credentials(token)
	conn, err := credentials.Dial(w.endpoint, identity.Controller())
	w.must(err)
	w.Cleanup(func() { conn.Close() }) // errors do not matter at the end of the test
	return conn
}

// lease opens a run lease. next returns the next update.
func (h *hypervisor) lease() (next func() *vmpb.RunLeaseUpdate) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), env.WaitTimeout)
	h.Cleanup(cancel)
	stream, err := h.RunLease(ctx, &vmpb.RunLeaseRequest{Us: h.us})
	h.must(err)
	return func() *vmpb.RunLeaseUpdate {
		h.Helper()
		update, err := stream.Recv()
		h.must(err)
		return update
	}
}

func (h *hypervisor) report(state vmpb.ReportStateRequest_State, change func(*vmpb.ReportStateRequest)) {
	h.Helper()
	request := &vmpb.ReportStateRequest{Us: h.us, State: state}
	if change != nil {
		change(request)
	}
	_, err := h.ReportState(h.Context(), request)
	h.must(err)
}

func (w *testEnv) wantStatus(next func() *vmpb.RunLeaseUpdate, want vmpb.RunLeaseUpdate_Status) {
	w.Helper()
	if got := next(); got.GetStatus() != want {
		w.Fatalf("the run lease has %s, want %s\n%s", got.GetStatus(), want, w.describe())
	}
}

// running creates a VM and waits until it is running.
func (w *testEnv) running(name string) (*corev1.Pod, *hypervisor, func() *vmpb.RunLeaseUpdate) {
	w.Helper()
	w.declare(name, nil)
	pod := w.awaitPod(name, "")
	w.schedule(pod)
	h := w.hypervisor(name, pod, 1)
	next := h.lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
	w.awaitReady(name, reasonRunning)
	return pod, h, next
}
