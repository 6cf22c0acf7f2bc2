package cloud

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// newWorker returns a VM that opens two node ports.
func newWorker() *vmv1alpha1.VirtualMachine {
	vm := newVM("worker", uuid)
	vm.Spec.Ports = []vmv1alpha1.Port{
		{Name: "node-port-30000", Port: 30000}, {Name: "node-port-30001", Port: 30001}, {Name: "ssh", Port: 22}, {Name: "node-port-30003", Port: 30004},
		{Name: "node-udp-30001", Port: 30001, Protocol: corev1.ProtocolUDP}, {Name: "node-port-30002", Port: 30002, Protocol: corev1.ProtocolUDP},
	}
	return vm
}

// newService returns a Service of the workload cluster.
func newService() *corev1.Service {
	service := &corev1.Service{}
	service.Namespace, service.Name, service.UID = "default", "web", types.UID("5e8c0000-0000-4000-8000-000000000001")
	service.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
		LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
		Ports: []corev1.ServicePort{{
			Name: "http", Protocol: corev1.ProtocolTCP, AppProtocol: ptr.To("http"), Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30001,
		}},
	}
	return service
}

// loadBalancer returns the Service of the infrastructure cluster; nil if there is none.
func (c *clusters) loadBalancer(t *testing.T, service *corev1.Service) *corev1.Service {
	t.Helper()
	loadBalancer, err := balancer{c.Provider}.read(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	return loadBalancer
}

func (c *clusters) ensure(t *testing.T, service *corev1.Service) (*corev1.LoadBalancerStatus, error) {
	t.Helper()
	return balancer{c.Provider}.EnsureLoadBalancer(t.Context(), "", service, nil)
}

// assign assigns a node port and an address to a Service, as the infrastructure cluster does. An administrator annotates it.
func (c *clusters) assign(t *testing.T, loadBalancer *corev1.Service) {
	t.Helper()
	loadBalancer.Spec.Ports[0].NodePort = 31234
	loadBalancer.Annotations["example.com/pool"] = "public"
	if err := c.infrastructure.Update(t.Context(), loadBalancer); err != nil {
		t.Fatal(err)
	}
	loadBalancer.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	if err := c.infrastructure.Status().Update(t.Context(), loadBalancer); err != nil {
		t.Fatal(err)
	}
}

func TestService_LeadsToNodePortsOfVMs(t *testing.T) {
	c, service := newClusters(t, newWorker()), newService()
	status, err := c.ensure(t, service)
	if err != nil || len(status.Ingress) != 0 {
		t.Fatalf("got status %+v, error %v", status, err)
	}
	loadBalancer := c.loadBalancer(t, service)
	want := corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{LabelCluster: "demo"},
		LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
		Ports:                    []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, AppProtocol: ptr.To("http"), Port: 80, TargetPort: intstr.FromString("node-port-30001")}},
	}
	if diff := cmp.Diff(want, loadBalancer.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if loadBalancer.Annotations[AnnotationService] != "default/web" || !strings.HasPrefix(loadBalancer.Name, "lb-demo-") {
		t.Errorf("got name %s, annotations %v", loadBalancer.Name, loadBalancer.Annotations)
	}
	c.assign(t, loadBalancer)
	version := c.loadBalancer(t, service).ResourceVersion
	status, err = c.ensure(t, service)
	if diff := cmp.Diff(loadBalancer.Status.LoadBalancer, *status); diff != "" || err != nil {
		t.Errorf("error %v, status (-want +got):\n%s", err, diff)
	}
	if got := c.loadBalancer(t, service).ResourceVersion; got != version {
		t.Error("wrote a Service that had not changed")
	}
	service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, NodePort: 30000})
	if _, err := c.ensure(t, service); err != nil {
		t.Fatal(err)
	}
	changed := c.loadBalancer(t, service)
	if ports := changed.Spec.Ports; len(ports) != 2 || ports[0].NodePort != 31234 || ports[1].TargetPort.StrVal != "node-port-30000" {
		t.Errorf("got ports %+v", ports)
	}
	if changed.Annotations["example.com/pool"] != "public" {
		t.Error("an annotation of an administrator was removed")
	}
}

// TestService_UDPAndTCPOnSamePort checks that a port number has a node port for each protocol, as for DNS, and that the node
// ports of the infrastructure cluster stay.
func TestService_UDPAndTCPOnSamePort(t *testing.T) {
	c, service := newClusters(t, newWorker()), newService()
	service.Spec.Ports = []corev1.ServicePort{
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30001}, {Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, NodePort: 30000},
	}
	if _, err := c.ensure(t, service); err != nil {
		t.Fatal(err)
	}
	loadBalancer := c.loadBalancer(t, service)
	want := []corev1.ServicePort{
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromString("node-udp-30001")},
		{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromString("node-port-30000")},
	}
	if diff := cmp.Diff(want, loadBalancer.Spec.Ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	want[0].NodePort, want[1].NodePort = 31234, 31235
	loadBalancer.Spec.Ports = want
	if err := c.infrastructure.Update(t.Context(), loadBalancer); err != nil {
		t.Fatal(err)
	}
	service.Spec.LoadBalancerSourceRanges = nil
	if _, err := c.ensure(t, service); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.loadBalancer(t, service).Spec.Ports); diff != "" {
		t.Errorf("ports after a change (-want +got):\n%s", diff)
	}
}

func TestService_UnsupportedFieldsAreRejected(t *testing.T) {
	for want, change := range map[string]func(*corev1.Service){
		"externalTrafficPolicy Local is not supported": func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
		"loadBalancerIP is not supported":              func(s *corev1.Service) { s.Spec.LoadBalancerIP = "198.51.100.1" },
		"port 80 has protocol SCTP":                    func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP },
		"UDP node port 30000 of port 80 is not open, because no VirtualMachine of the cluster has a port node-udp-30000; set nodePort to one of [30001]": func(s *corev1.Service) {
			s.Spec.Ports[0].Protocol, s.Spec.Ports[0].NodePort = corev1.ProtocolUDP, 30000
		},
		"port 80 has no node port":             func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 },
		"set nodePort to one of [30000 30001]": func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 32000 },
	} {
		c, service := newClusters(t, newWorker()), newService()
		change(service)
		if _, err := c.ensure(t, service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
		if c.loadBalancer(t, service) != nil {
			t.Errorf("%s: created a Service", want)
		}
	}
}

// TestService_PortsOfOtherClustersAreNotOpen checks that the ports of a VM of another cluster do not count.
func TestService_PortsOfOtherClustersAreNotOpen(t *testing.T) {
	other := newWorker()
	other.Labels[LabelCluster] = "production"
	if _, err := newClusters(t, other).ensure(t, newService()); err == nil || !strings.Contains(err.Error(), "no VirtualMachine of the cluster has TCP ports") {
		t.Errorf("got error %v", err)
	}
}

// TestService_OthersAreNotChanged checks that a Service of the infrastructure cluster that was not created for the Service
// is neither changed nor deleted, even if it has the name or belongs to another cluster.
func TestService_OthersAreNotChanged(t *testing.T) {
	for name, change := range map[string]func(loadBalancer *corev1.Service){
		"no label":        func(loadBalancer *corev1.Service) { loadBalancer.Labels = nil },
		"another cluster": func(loadBalancer *corev1.Service) { loadBalancer.Labels[LabelCluster] = "production" },
		"another service": func(loadBalancer *corev1.Service) { loadBalancer.Annotations[AnnotationServiceUID] = "other" },
		"no annotations":  func(loadBalancer *corev1.Service) { loadBalancer.Annotations = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, service := newClusters(t, newWorker()), newService()
			if _, err := c.ensure(t, service); err != nil {
				t.Fatal(err)
			}
			loadBalancer := c.loadBalancer(t, service)
			change(loadBalancer)
			if err := c.infrastructure.Update(t.Context(), loadBalancer); err != nil {
				t.Fatal(err)
			}
			service.Spec.LoadBalancerSourceRanges = nil
			if _, err := c.ensure(t, service); err == nil || !strings.Contains(err.Error(), "was not created for this service") {
				t.Errorf("got error %v", err)
			}
			if err := (balancer{c.Provider}).EnsureLoadBalancerDeleted(t.Context(), "", service); err != nil {
				t.Error(err)
			}
			if _, exists, err := (balancer{c.Provider}).GetLoadBalancer(t.Context(), "", service); exists || err != nil {
				t.Errorf("exists %t, error %v", exists, err)
			}
			if diff := cmp.Diff(loadBalancer, c.loadBalancer(t, service)); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestService_DeletionNeedsInfrastructure(t *testing.T) {
	c, service := newClusters(t, newWorker()), newService()
	if _, err := c.ensure(t, service); err != nil {
		t.Fatal(err)
	}
	provider := balancer{c.Provider}
	for _, c.fail = range []error{errors.New("connection refused"), apierrors.NewForbidden(corev1.Resource("services"), "a", errors.New("no role"))} {
		if _, _, err := provider.GetLoadBalancer(t.Context(), "", service); !errors.Is(err, c.fail) {
			t.Errorf("got error %v, want %v", err, c.fail)
		}
		if err := provider.EnsureLoadBalancerDeleted(t.Context(), "", service); !errors.Is(err, c.fail) {
			t.Errorf("got error %v, want %v", err, c.fail)
		}
	}
	c.fail = nil
	for range 2 {
		if err := provider.EnsureLoadBalancerDeleted(t.Context(), "", service); err != nil {
			t.Fatal(err)
		}
		if c.loadBalancer(t, service) != nil {
			t.Error("the Service still exists")
		}
	}
}

// TestService_ChangeInInfrastructureIsReconciled checks which changes of a Service in the infrastructure cluster let the
// controller reconcile the Service that it belongs to.
func TestService_ChangeInInfrastructureIsReconciled(t *testing.T) {
	service := newService()
	informer := informers.NewSharedInformerFactory(newClusters(t).workload, 0).Core().V1().Services()
	if err := informer.Informer().GetStore().Add(service); err != nil {
		t.Fatal(err)
	}
	services, repeated := NewServices(informer), 0
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if object.(*corev1.Service).UID == service.UID {
			repeated++
		}
	}}
	if _, err := services.Informer().AddEventHandlerWithResyncPeriod(handler, 0); err != nil {
		t.Fatal(err)
	}
	loadBalancer := &corev1.Service{}
	loadBalancer.Annotations = map[string]string{AnnotationService: client.ObjectKeyFromObject(service).String()}
	addressed := loadBalancer.DeepCopy()
	addressed.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	annotated := loadBalancer.DeepCopy()
	annotated.Annotations["other"] = "changed"
	edited := loadBalancer.DeepCopy()
	edited.Spec.Selector = map[string]string{"app": "other"}
	foreign := addressed.DeepCopy()
	foreign.Annotations = nil
	on := services.Infrastructure()
	for name, step := range map[string]struct {
		event func()
		want  int
	}{
		"created":                   {func() { on.OnAdd(loadBalancer, false) }, 0},
		"listed with an address":    {func() { on.OnAdd(addressed, true) }, 1},
		"got an address":            {func() { on.OnUpdate(loadBalancer, addressed) }, 1},
		"annotated":                 {func() { on.OnUpdate(loadBalancer, annotated) }, 0},
		"edited":                    {func() { on.OnUpdate(loadBalancer, edited) }, 1},
		"deleted":                   {func() { on.OnDelete(loadBalancer) }, 1},
		"deleted without an event":  {func() { on.OnDelete(cache.DeletedFinalStateUnknown{Obj: loadBalancer}) }, 1},
		"address of no Service":     {func() { on.OnUpdate(loadBalancer, foreign) }, 0},
		"deleted object is unknown": {func() { on.OnDelete(cache.DeletedFinalStateUnknown{}) }, 0},
	} {
		repeated = 0
		if step.event(); repeated != step.want {
			t.Errorf("%s: reconciled %d times, want %d", name, repeated, step.want)
		}
	}
	service.DeletionTimestamp = ptr.To(service.CreationTimestamp)
	repeated = 0
	if on.OnDelete(loadBalancer); repeated > 0 {
		t.Error("reconciled a Service that is being deleted anyway")
	}
}
