package vm_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// kubeconfig returns a kubeconfig for a new user.
func (w *testDriver) kubeconfig(groups ...string) []byte {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	w.must(w.ControlPlane.WriteKubeconfig(path, "visitor", groups...))
	content, err := os.ReadFile(path)
	w.must(err)
	return content
}

// parsed contains the fields of a kubeconfig that tests change.
type parsed struct {
	APIVersion     string `json:"apiVersion"`
	Kind           string `json:"kind"`
	CurrentContext string `json:"current-context"`
	Clusters       []struct {
		Name    string         `json:"name"`
		Cluster map[string]any `json:"cluster"`
	} `json:"clusters"`
	Contexts []any `json:"contexts"`
	Users    []struct {
		Name string         `json:"name"`
		User map[string]any `json:"user"`
	} `json:"users"`
}

func (w *testDriver) changed(kubeconfig []byte, change func(*parsed)) []byte {
	w.t.Helper()
	var p parsed
	w.must(yaml.Unmarshal(kubeconfig, &p))
	change(&p)
	content, err := yaml.Marshal(p)
	w.must(err)
	return content
}

func (w *testDriver) withKubeconfig(kubeconfig []byte) *testDriver {
	other := *w
	other.secret = w.secret.DeepCopy()
	other.secret.Data["kubeconfig"] = kubeconfig
	other.Driver = vm.New(vm.Options{Installation: "test"})
	return &other
}

func TestSecret_SelectsCluster(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	elsewhere := w.withKubeconfig(w.kubeconfig("system:masters"))
	id := elsewhere.mustCreate("m").ProviderID
	if list := elsewhere.list(); list[id] != "m" {
		t.Errorf("got list %v", list)
	}
	elsewhere.mustRemove("m", id)

	elsewhere.secret.Data = map[string][]byte{"userData": nil}
	_, err := elsewhere.create(t.Context(), "m")
	wantCode(t, err, codes.FailedPrecondition)
}

const (
	token  = "dG9wIHNlY3JldA-of-the-cluster"
	noFile = "no-such-file-or-program"
)

func TestSecret_RejectsInvalidKubeconfigs(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	good := w.kubeconfig()
	address := deadAddress(t)
	cases := map[string]struct {
		kubeconfig []byte
		want       codes.Code
		text       string // part of the error
	}{
		"not YAML":  {[]byte("token: [" + token), codes.InvalidArgument, "kubeconfig"},
		"other":     {[]byte("password: " + token), codes.InvalidArgument, "kubeconfig"},
		"no access": {good, codes.PermissionDenied, "visitor"},
		"context":   {w.changed(good, func(p *parsed) { p.CurrentContext = token }), codes.InvalidArgument, "current-context"},
		"certificate": {w.changed(good, func(p *parsed) {
			p.Users[0].User = map[string]any{"client-certificate-data": "AAAA", "client-key-data": "AAAA"}
		}), codes.InvalidArgument, "kubeconfig"},
		"program": {w.changed(good, func(p *parsed) {
			p.Users[0].User = map[string]any{"exec": object{"apiVersion": "client.authentication.k8s.io/v1", "command": noFile, "interactiveMode": "Never"}}
		}), codes.InvalidArgument, "program"},
		"plug-in": {w.changed(good, func(p *parsed) {
			p.Users[0].User = map[string]any{"auth-provider": object{"name": "oidc"}}
		}), codes.InvalidArgument, "program"},
		"token file": {w.changed(good, func(p *parsed) {
			p.Users[0].User = map[string]any{"tokenFile": noFile}
		}), codes.InvalidArgument, "file"},
		"key file": {w.changed(good, func(p *parsed) {
			p.Users[0].User["client-key"] = noFile
		}), codes.InvalidArgument, "file"},
		"authority file": {w.changed(good, func(p *parsed) {
			p.Clusters[0].Cluster["certificate-authority"] = noFile
		}), codes.InvalidArgument, "file"},
		"token": {w.changed(good, func(p *parsed) {
			p.Users[0].User = map[string]any{"token": token}
		}), codes.Unauthenticated, "credentials"},
		"no server": {w.changed(good, func(p *parsed) {
			p.Clusters[0].Cluster["server"] = "https://" + address
		}), codes.Unavailable, "does not respond"},
		"another authority": {w.changed(good, func(p *parsed) {
			delete(p.Clusters[0].Cluster, "certificate-authority-data")
		}), codes.Unavailable, "does not respond"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := w.withKubeconfig(tc.kubeconfig)
			_, createErr := w.create(t.Context(), "m")
			_, statusErr := w.status("m", "")
			for _, err := range []error{createErr, statusErr, w.remove("m", "")} {
				wantCode(t, err, tc.want)
				if err != nil && !strings.Contains(err.Error(), tc.text) {
					t.Errorf("%q does not contain %q", err, tc.text)
				}
				if err != nil && (strings.Contains(err.Error(), token) || strings.Contains(err.Error(), userData)) {
					t.Errorf("%q contains a secret", err)
				}
			}
		})
	}
}

// deadAddress returns an address without a listener.
func deadAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// A cluster without the VirtualMachine kind also returns NotFound, but this does not mean that the VM is gone.
func TestCluster_WithoutVirtualMachineKind(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	cluster, err := vm.NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	w := (&testDriver{t: t, secret: &corev1.Secret{}}).with(vm.Options{Client: cluster}).withClass(object{"vmPool": "pool"})
	_, err = w.status("m", "")
	wantCode(t, err, codes.FailedPrecondition)
	_, err = w.create(t.Context(), "m")
	wantCode(t, err, codes.FailedPrecondition)
	wantCode(t, w.remove("m", ""), codes.FailedPrecondition)
}

func TestCluster_RejectsRequests(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	as := w.with(vm.Options{Client: w.admin})
	cases := map[string]struct {
		given func()
		w     *testDriver
		want  codes.Code
		text  string // part of the error
	}{
		"no namespace":  {func() {}, as.withClass(object{"vmPool": w.Namespace + "-no"}), codes.FailedPrecondition, "vmPool"},
		"no permission": {func() {}, w.withClass(object{"vmPool": "default"}), codes.PermissionDenied, "forbidden"},
		"no quota":      {w.exhaustQuota, as, codes.ResourceExhausted, "exceeded quota"},
		"too much user data": {func() {}, func() *testDriver {
			large := *as
			large.secret = &corev1.Secret{Data: map[string][]byte{"userData": []byte(strings.Repeat("x", 1<<20+1))}}
			return &large
		}(), codes.FailedPrecondition, "data"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.given()
			_, err := tc.w.create(t.Context(), "m")
			wantCode(t, err, tc.want)
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%q does not contain %q", err, tc.text)
			}
		})
	}
	// Without a controller manager, a deleted namespace keeps terminating, which this test needs.
	w.must(w.admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}}))
	eventually(t, func() bool {
		_, err := as.create(t.Context(), "m")
		return err != nil && strings.Contains(err.Error(), "[FailedPrecondition]") && strings.Contains(err.Error(), "vmPool is being deleted")
	})
}

// exhaustQuota forbids further VMs. Without a controller manager, the test has to write the status of the quota.
func (w *testDriver) exhaustQuota() {
	w.t.Helper()
	hard := corev1.ResourceList{"count/virtualmachines.vm.metropolis.monogon.dev": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: w.Namespace}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	w.must(w.admin.Create(w.t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
	w.must(w.admin.Status().Update(w.t.Context(), quota))
	w.t.Cleanup(func() { w.must(w.admin.Delete(context.Background(), quota)) })
	// The API server detects quotas with a delay.
	eventually(w.t, func() bool {
		err := w.admin.Create(w.t.Context(), w.anyVM(), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "exceeded quota")
	})
}
