package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	k8swebsocket "k8s.io/client-go/transport/websocket"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/subresources"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	"github.com/millwright-dev/millwright/test/support/env"
)

// waitTimeout limits operations that take seconds.
const waitTimeout = env.WaitTimeout

// world is a cluster with one VM, whose hypervisor is real except for QEMU.
type world struct {
	*env.Env
	t      *testing.T
	client client.Client
	vm     *vmv1alpha1.VirtualMachine
	// serial is QEMU's side of the serial port.
	serial net.Conn
	resets atomic.Int32
	// dials counts connections to the hypervisor.
	dials atomic.Int32
	// programs are the addresses of the programs that stand for those in the guest, by its TCP port.
	programs map[uint16]string
	// screen handles the connection of a viewer, and picture is the screenshot of the display.
	screen  func(net.Conn)
	picture []byte
	// console is the console of the VM.
	console *console.Console
	// address is the address of the server.
	address string
	// register registers the server for a Service.
	register func(types.NamespacedName) error
	used     env.Used

	listener *bufconn.Listener
}

func (w *world) Console() *console.Console { return w.console }

func (w *world) Reset(context.Context) error {
	w.resets.Add(1)
	return nil
}

// DialGuestUDP fails: no program of the guest listens for datagrams.
func (w *world) DialGuestUDP(uint16, func([]byte)) (dialer.Flow, error) {
	return nil, errors.New("no datagrams")
}

// DialGuest connects to the port of the guest on which a program listens.
func (w *world) DialGuest(ctx context.Context, port uint16) (dialer.Conn, error) {
	to := w.programs[port]
	if to == "" {
		return nil, errors.New("connection was refused")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// DialDisplay connects to screen, which acts as the VNC server.
func (w *world) DialDisplay(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		w.screen(theirs)
	}()
	return ours, nil
}

func (w *world) Screenshot(_ context.Context, out io.Writer) error {
	_, err := out.Write(w.picture)
	return err
}

// Dial implements subresources.Hypervisors.
func (w *world) Dial(*vmv1alpha1.VirtualMachine) (*grpc.ClientConn, error) {
	w.dials.Add(1)
	return grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.listener.DialContext(ctx) }))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(what string, check func() bool) {
	w.t.Helper()
	gomega.NewWithT(w.t).Eventually(check).WithTimeout(waitTimeout).WithPolling(50*time.Millisecond).Should(gomega.BeTrue(), what)
}

// newWorld serves the subresources with the shipped roles.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Env: env.New(t, changed), t: t, listener: bufconn.Listen(1 << 16), programs: map[uint16]string{}}
	w.InstallCRDs(t, "config/crd")
	c, err := client.New(w.Admin, client.Options{Scheme: manager.Scheme()})
	w.must(err)
	w.client = c
	w.runHypervisor()
	w.createVM()
	w.serve()
	return w
}

func (w *world) runHypervisor() {
	ours, serial := net.Pipe()
	w.serial, w.console = serial, console.New(ours)
	server := service.New(service.Peers{})
	server.SetGuest(w)
	server.ServeLocal(w.listener)
	w.t.Cleanup(func() {
		_ = serial.Close()
		server.Stop()
	})
}

func (w *world) createVM() {
	w.t.Helper()
	w.vm = &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "web"}}
	w.vm.Spec.Display = vmv1alpha1.DisplayVNC
	w.must(w.client.Create(w.t.Context(), w.vm))
	w.vm.Status.ActivePodName, w.vm.Status.ActivePodUID, w.vm.Status.NodeName = "web-1", "uid", "host-1"
	meta.SetStatusCondition(&w.vm.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionLiveMigratable, Status: metav1.ConditionTrue, Reason: "Migratable"})
	w.must(w.client.Status().Update(w.t.Context(), w.vm))
}

// serve serves until the end of the test, as the VM controller does.
func (w *world) serve() {
	w.t.Helper()
	name := types.NamespacedName{Namespace: w.Namespace, Name: "vm-api"}
	w.must(w.client.Create(w.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}))
	access := w.NamedUserWith(w.t, "controller", "config/rbac/vm-controller-role.yaml", "config/rbac/vm-subresources-role.yaml")
	w.AllowAggregation(w.t, "controller-of-"+w.Namespace)
	w.used.Record(access)
	own, err := client.New(access, client.Options{Scheme: manager.Scheme()})
	w.must(err)
	authority, err := identity.NewAuthority(time.Now())
	w.must(err)
	server, err := subresources.New(subresources.Options{
		Config: access, Reader: own, Writer: own, Hypervisors: w, Identity: identity.ForServer(authority, subresources.ServerName(name), nil),
	})
	w.must(err)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	w.must(err)
	w.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	certificate, _ := authority.PEM()
	w.register = func(service types.NamespacedName) error {
		return subresources.Register(w.t.Context(), own, service, int32(listener.Addr().(*net.TCPAddr).Port), certificate)
	}
	w.must(w.register(name))
	w.eventually("the API is served", func() bool {
		code, _ := w.do(w.Admin, http.MethodGet, "/apis/"+api.Group+"/"+api.Version, "")
		return code == http.StatusOK
	})
}

// user returns the configuration of a user with a permission, and waits until the permission is effective.
func (w *world) user(name string, rules ...rbacv1.PolicyRule) *rest.Config {
	w.t.Helper()
	access, err := w.ControlPlane.UserConfig(name)
	w.must(err)
	if len(rules) == 0 {
		return access
	}
	w.must(w.client.Create(w.t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}, Rules: rules}))
	w.must(w.client.Create(w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}))
	return access
}

// on returns a rule for a subresource.
func on(subresource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{api.Group}, Resources: []string{"virtualmachines/" + subresource}, Verbs: verbs}
}

func (w *world) path(vm, subresource string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/virtualmachines/%s/%s", api.Group, api.Version, w.Namespace, vm, subresource)
}

// do sends a request, and returns the status and the body of the response.
func (w *world) do(access *rest.Config, method, path, body string) (int, string) {
	w.t.Helper()
	sender, err := rest.HTTPClientFor(access)
	w.must(err)
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, access.Host+path, strings.NewReader(body))
	w.must(err)
	response, err := sender.Do(request)
	w.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	w.must(err)
	return response.StatusCode, string(text)
}

// dial opens a console.
func (w *world) dial(access *rest.Config, query string) (*websocket.Conn, error) {
	w.t.Helper()
	return w.socket(access, w.path("web", "console")+query, api.ConsoleProtocol)
}

// forward connects to a TCP port of the guest.
func (w *world) forward(access *rest.Config, port string) (*websocket.Conn, error) {
	w.t.Helper()
	return w.socket(access, w.path("web", "portforward")+"?port="+port, api.PortForwardProtocol)
}

func (w *world) socket(access *rest.Config, path, protocol string) (*websocket.Conn, error) {
	w.t.Helper()
	trip, holder, err := k8swebsocket.RoundTripperFor(access)
	w.must(err)
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, access.Host+path, nil)
	w.must(err)
	return k8swebsocket.Negotiate(trip, holder, request, protocol)
}

// open opens a console until the end of the test.
func (w *world) open(access *rest.Config, query string) *websocket.Conn {
	w.t.Helper()
	conn, err := w.dial(access, query)
	w.must(err)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// print makes the guest print something.
func (w *world) print(text []byte) {
	w.t.Helper()
	w.must(w.serial.SetWriteDeadline(time.Now().Add(waitTimeout)))
	_, err := w.serial.Write(text)
	w.must(err)
}

// next reads the next message of a console.
func next(conn *websocket.Conn) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(waitTimeout)); err != nil {
		return nil, err
	}
	_, data, err := conn.ReadMessage()
	return data, err
}

// read reads the given number of bytes from a console.
func (w *world) read(conn *websocket.Conn, size int) []byte {
	w.t.Helper()
	var all bytes.Buffer
	for all.Len() < size {
		piece, err := next(conn)
		if err != nil {
			w.t.Fatalf("after %d of %d bytes: %v", all.Len(), size, err)
		}
		all.Write(piece)
	}
	return all.Bytes()
}

// untouched fails the test if the VM received anything.
func (w *world) untouched() {
	w.t.Helper()
	vm := &vmv1alpha1.VirtualMachine{}
	w.must(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vm), vm))
	if w.dials.Load() != 0 || w.resets.Load() != 0 || len(vm.Annotations) != 0 {
		w.t.Errorf("%d connections, %d resets, annotations %v", w.dials.Load(), w.resets.Load(), vm.Annotations)
	}
}

// kubeconfig writes a kubeconfig for a user.
func (w *world) kubeconfig(access *rest.Config) string {
	w.t.Helper()
	path := w.t.TempDir() + "/kubeconfig"
	env.WriteKubeconfig(w.t, path, access)
	return path
}

// direct returns a client that bypasses kube-apiserver.
func (w *world) direct(certificate *tls.Certificate) *http.Client {
	config := &tls.Config{InsecureSkipVerify: true} // the client is under test here
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: waitTimeout}
}

// stranger is a CA that kube-apiserver's front proxy does not use.
func (w *world) stranger() *identity.Authority {
	w.t.Helper()
	authority, err := identity.NewAuthority(time.Now())
	w.must(err)
	return authority
}
