package vm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func (w *testDriver) domains() ([]driver.FailureDomain, error) {
	resp, err := w.ListFailureDomains(w.t.Context(), &driver.ListFailureDomainsRequest{MachineClass: w.class, Secret: w.secret})
	if err != nil {
		return nil, err
	}
	return resp.FailureDomains, nil
}

// node creates a Node.
func (w *testDriver) node(name string, labels map[string]string) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	w.must(w.admin.Create(w.t.Context(), node))
	return node
}

// TestListFailureDomains_OfNodes reads the failure domains of real Nodes with the role that is shipped for this purpose.
func TestListFailureDomains_OfNodes(t *testing.T) {
	tier.All(t)
	w := newTestDriverWithout(t)
	_, err := w.domains()
	wantCode(t, err, codes.PermissionDenied)
	if err == nil || !strings.Contains(err.Error(), "nodes") {
		t.Errorf("got error %v", err)
	}

	w.UserWith(t, "config/rbac/driver-vm-hosts-role.yaml")
	if got, err := w.domains(); err != nil || len(got) != 0 {
		t.Errorf("without hosts, got %v, %v", got, err)
	}

	host := map[string]string{vmv1alpha1.HostKey: "", corev1.LabelHostname: "host-1"}
	w.node("host-1", host)
	w.node("no-host", map[string]string{corev1.LabelHostname: "no-host", corev1.LabelTopologyZone: "nowhere"})
	w.class.ProviderSpec.Raw = []byte(`{}`) // ListFailureDomains ignores it
	got, err := w.domains()
	want := []driver.FailureDomain{{Name: "host-1", Attributes: map[string]string{vm.AttributeLabel: corev1.LabelHostname}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("failure domains (-want +got):\n%s%v", diff, err)
	}
}

// newTestDriverWithout returns a driver that is not allowed to list Nodes.
func newTestDriverWithout(t *testing.T) *testDriver {
	t.Helper()
	e := env.New(t, env.WithOwn())
	w := &testDriver{t: t, Env: e, secret: &corev1.Secret{}, admin: newClient(t, e)}
	cluster, err := vm.NewClient(e.UserWith(t, "config/rbac/driver-vm-role.yaml"))
	w.must(err)
	w.cluster, w.class = cluster, w.newClass(nil)
	return w.with(vm.Options{Installation: "test"})
}

// TestFailureDomain_OfVM: the failure domain is set by the class, or by the VM's host. Without permission to read
// hosts, it is unknown, but the VM is found.
func TestFailureDomain_OfVM(t *testing.T) {
	w := newTestDriverWithout(t)
	w.hosts()
	w.node("zoned", map[string]string{vmv1alpha1.HostKey: "", corev1.LabelHostname: "zoned", corev1.LabelTopologyZone: "zone-1"})
	id := w.mustCreate("m").ProviderID
	wants := func(domain string) {
		t.Helper()
		if got, err := w.status("m", id); err != nil || got.FailureDomain != domain {
			t.Errorf("got failure domain %+v, %v; want %q", got, err, domain)
		}
	}
	wants("")
	w.changeStatus(w.theVM(), func(s *vmv1alpha1.VirtualMachineStatus) { s.NodeName = "zoned" })
	wants("")
	w.UserWith(t, "config/rbac/driver-vm-hosts-role.yaml")
	wants("zone-1")
	w.changeStatus(w.theVM(), func(s *vmv1alpha1.VirtualMachineStatus) { s.NodeName = "away" })
	wants("")

	class := w.newClass(object{"failureDomain": "chosen"})
	w.class = class
	if got := w.mustCreate("n"); got.FailureDomain != "chosen" {
		t.Errorf("got failure domain %q, want that of the class", got.FailureDomain)
	}
}

// TestListFailureDomains_OfClusterInSecret: the hosts are those of the cluster in the kubeconfig.
func TestListFailureDomains_OfClusterInSecret(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	name := "host-" + w.Namespace
	w.node(name, map[string]string{vmv1alpha1.HostKey: "", corev1.LabelTopologyZone: name})
	got, err := w.withKubeconfig(w.kubeconfig("system:masters")).domains()
	want := driver.FailureDomain{Name: name, Attributes: map[string]string{vm.AttributeLabel: corev1.LabelTopologyZone}}
	if err != nil || len(got) != 1 || !cmp.Equal(got[0], want) {
		t.Errorf("got failure domains %v, %v; want %v", got, err, want)
	}
	_, err = w.withKubeconfig([]byte("no kubeconfig")).domains()
	wantCode(t, err, codes.InvalidArgument)
	_, err = w.withKubeconfig(nil).domains()
	wantCode(t, err, codes.FailedPrecondition)
}

func TestPlaceMachine_SelectsFailureDomain(t *testing.T) {
	d := vm.New(vm.Options{})
	for name, tc := range map[string]struct {
		spec, domain, want string
		code               codes.Code
	}{
		"zone":           {spec: `{"size":"small"}`, domain: "rack-7", want: `{"failureDomain":"rack-7","size":"small"}`},
		"another before": {spec: `{"failureDomain":"a"}`, domain: "b", want: `{"failureDomain":"b"}`},
		"no name":        {spec: `{}`, code: codes.NotFound},
		"invalid label":  {spec: `{}`, domain: "a/b", code: codes.NotFound},
		"not an object":  {spec: `[]`, domain: "a", code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			class := classOf([]byte(tc.spec))
			resp, err := d.PlaceMachine(t.Context(), &driver.PlaceMachineRequest{MachineClass: class, FailureDomain: tc.domain})
			if status.Code(err) != tc.code {
				t.Fatalf("got %v, want %v", err, tc.code)
			}
			if err == nil && string(resp.ProviderSpec.Raw) != tc.want {
				t.Errorf("got %s, want %s", resp.ProviderSpec.Raw, tc.want)
			}
			if string(class.ProviderSpec.Raw) != tc.spec {
				t.Error("the request was changed")
			}
		})
	}
}
