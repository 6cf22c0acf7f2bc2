package manager

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
)

// vmTest is a VM controller with the shipped roles.
type vmTest struct {
	*env.Env
	t     *testing.T
	cfg   VMConfig
	pages string
	used  env.Used
}

func newVMTest(t *testing.T) *vmTest {
	t.Helper()
	t.Parallel()
	v := &vmTest{Env: env.New(t), t: t}
	port, err := v.ControlPlane.PortFor(v.Namespace, 0)
	if err != nil {
		t.Fatal(err)
	}
	access := v.UserWith(t, "config/rbac/vm-controller-role.yaml", "config/rbac/vm-leader-role.yaml")
	v.used.Record(access)
	v.pages = "http://" + netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)).String()
	v.cfg = VMConfig{
		Infrastructure: access, Namespace: v.Namespace, Namespaces: []string{v.Namespace}, ConcurrentSyncs: 1,
		Service: VMService{
			Listen:   func(context.Context) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
			Endpoint: "vms.example.com:10270", Name: VMLease, Address: netip.MustParseAddr("192.0.2.7"),
		},
		Election: Election{Enabled: true, LeaseDuration: time.Hour, RenewDeadline: 50 * time.Minute, RetryPeriod: 200 * time.Millisecond},
		Pages:    Pages{Address: "127.0.0.1", Port: port}, Log: testr.New(t),
	}
	return v
}

// createService creates the Service that routes to the leader.
func (v *vmTest) createService(selector map[string]string) *corev1.Service {
	v.t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: VMLease}}
	service.Spec.Ports, service.Spec.Selector = []corev1.ServicePort{{Name: "hypervisors", Port: 10270}}, selector
	if err := v.Client.Create(v.t.Context(), service); err != nil {
		v.t.Fatal(err)
	}
	return service
}

// start runs the controller until the test is over.
func (v *vmTest) start() {
	v.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- RunVMs(ctx, v.cfg) }()
	v.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			v.t.Errorf("the VM controller returned %v", err)
		}
	})
}

func (v *vmTest) eventually(check func(gomega.Gomega)) {
	v.t.Helper()
	gomega.NewWithT(v.t).Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// readiness checks the response to a kubelet's probe.
func (v *vmTest) readiness(g gomega.Gomega, want int) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, v.pages+"/readyz", nil)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	response, err := http.DefaultClient.Do(request)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(response.Body.Close()).To(gomega.Succeed())
	g.Expect(response.StatusCode).To(gomega.Equal(want))
}

// TestService_RoutesToLeader checks that the Service routes to the leader, also after its EndpointSlice was
// changed or deleted. The test uses every permission of the role.
func TestService_RoutesToLeader(t *testing.T) {
	v := newVMTest(t)
	service := v.createService(nil)
	v.start()
	slice := &discoveryv1.EndpointSlice{}
	leadsHere := func(g gomega.Gomega) {
		g.Expect(v.Client.Get(t.Context(), client.ObjectKeyFromObject(service), slice)).To(gomega.Succeed())
		g.Expect(slice.DeletionTimestamp).To(gomega.BeNil())
		g.Expect(slice.Endpoints).To(gomega.HaveLen(1))
		g.Expect(slice.Endpoints[0].Addresses).To(gomega.Equal([]string{"192.0.2.7"}))
		g.Expect(slice.Labels).To(gomega.HaveKeyWithValue(discoveryv1.LabelServiceName, service.Name))
		g.Expect(slice.OwnerReferences).To(gomega.HaveLen(1))
		g.Expect(slice.OwnerReferences[0].UID).To(gomega.Equal(service.UID))
		connection, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(*slice.Ports[0].Port))))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(connection.Close()).To(gomega.Succeed())
	}
	v.eventually(leadsHere)
	v.eventually(func(g gomega.Gomega) { v.readiness(g, http.StatusOK) })
	slice.Endpoints[0].Addresses = []string{"192.0.2.8"}
	if err := v.Client.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	v.eventually(leadsHere)
	if err := v.Client.Delete(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	v.eventually(leadsHere)
	v.used.Check(t, map[string]string{
		"create endpointslices.discovery.k8s.io": "required by the patch that creates it",
	}, "config/rbac/vm-leader-role.yaml")
}

// TestVMController_NotReadyWithoutService checks that a leader that hypervisors cannot reach is not ready and logs the
// reason.
func TestVMController_NotReadyWithoutService(t *testing.T) {
	v := newVMTest(t)
	v.createService(map[string]string{"role": "vm-controller"}) // Kubernetes routes it to all replicas
	logged := make(chan struct{})
	var once sync.Once
	v.cfg.Log = funcr.New(func(_, line string) {
		if strings.Contains(line, "and no selector") {
			once.Do(func() { close(logged) })
		}
	}, funcr.Options{})
	v.start()
	v.eventually(func(g gomega.Gomega) { g.Expect(logged).To(gomega.BeClosed()) })
	v.readiness(gomega.NewWithT(t), http.StatusServiceUnavailable)
}
