package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// binaries returns the directory of the control plane binaries; see FindBinaries.
func binaries(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this test needs a kube-apiserver")
	}
	if dir := os.Getenv("KUBERNETES_BINARIES"); dir != "" {
		return dir
	}
	cache := os.Getenv("MILLWRIGHT_CACHE")
	if cache == "" {
		cache = filepath.Join(value[string](t)(os.UserCacheDir()), "millwright")
	}
	return value[string](t)(FindBinaries(cache))
}

// journal collects log lines.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) config(t *testing.T, dir string) Config {
	log := funcr.New(func(_, args string) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.lines = append(j.lines, args)
	}, funcr.Options{Verbosity: 1})
	return Config{Dir: dir, Binaries: binaries(t), Logger: log, UnsafeNoFsync: true}
}

func (j *journal) contains(parts ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		found := true
		for _, part := range parts {
			found = found && strings.Contains(line, part)
		}
		if found {
			return true
		}
	}
	return false
}

func startForTest(t *testing.T, config Config) *ControlPlane {
	t.Helper()
	cp, err := Start(t.Context(), config)
	must(t, err)
	t.Cleanup(func() { must(t, cp.Stop(context.Background())) })
	return cp
}

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	return value[*kubernetes.Clientset](t)(kubernetes.NewForConfig(config))
}

// awaitReady waits until all running components are ready, including after restarts.
func awaitReady(t *testing.T, cp *ControlPlane) {
	t.Helper()
	for _, c := range cp.all() {
		if c.Started() {
			must(t, c.AwaitReady(t.Context(), false))
		}
	}
}

// waitTimeout limits operations that take seconds.
const waitTimeout = 5 * time.Minute

// eventually polls another process.
func eventually(t *testing.T, what string, done func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, waitTimeout, true, func(ctx context.Context) (bool, error) {
		last = done(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting until %s: %v (last: %v)", what, err, last)
	}
}

// TestControlPlane uses all components of a complete control plane.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	var log journal
	config := log.config(t, t.TempDir())
	cp := startForTest(t, config)
	admin := clientset(t, cp.RESTConfig())

	t.Run("Version", func(t *testing.T) {
		version, err := admin.Discovery().ServerVersion()
		must(t, err)
		if !strings.HasPrefix(version.GitVersion, "v1.") || version.Major != "1" {
			t.Errorf("got %+v", version)
		}
	})
	t.Run("Kubeconfig", func(t *testing.T) {
		checkUser(t, value[*rest.Config](t)(clientcmd.BuildConfigFromFlags("", cp.Kubeconfig())), "admin")
		path := filepath.Join(t.TempDir(), "kubeconfig")
		must(t, cp.WriteKubeconfig(path, "jane", "people"))
		checkUser(t, value[*rest.Config](t)(clientcmd.BuildConfigFromFlags("", path)), "jane")
		if mode := value[os.FileInfo](t)(os.Stat(path)).Mode().Perm(); mode != 0o600 {
			t.Errorf("the kubeconfig has mode %o", mode)
		}
	})
	t.Run("KeptKubeconfig", func(t *testing.T) { testKeptKubeconfig(t, cp) })
	t.Run("NodesAreAuthorisedApart", func(t *testing.T) { testNodeRestriction(t, cp, admin) })
	t.Run("NoBlanketApproval", func(t *testing.T) { testNoBlanketApproval(t, cp, admin) })
	t.Run("BootstrapTokens", func(t *testing.T) { testBootstrap(t, cp, admin) })
	t.Run("FrontProxy", func(t *testing.T) { testFrontProxy(t, cp) })
	t.Run("EtcdIsClosed", func(t *testing.T) { testEtcdIsClosed(t, cp) })
	t.Run("Scheduler", func(t *testing.T) { testScheduling(t, admin) })
}

func checkUser(t *testing.T, config *rest.Config, want string) {
	t.Helper()
	review, err := clientset(t, config).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(t, err)
	if got := review.Status.UserInfo.Username; got != want {
		t.Errorf("authenticated as %s, want %s", got, want)
	}
}

func testNodeRestriction(t *testing.T, cp *ControlPlane, admin kubernetes.Interface) {
	const mine = "mine"
	kubelet := clientset(t, value[*rest.Config](t)(cp.UserConfig("system:node:"+mine, "system:nodes")))
	_, err := kubelet.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: mine}}, metav1.CreateOptions{})
	must(t, err)
	_, err = kubelet.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("want a node to be kept from making another, got %v", err)
	}
	must(t, admin.CoreV1().Nodes().Delete(t.Context(), mine, metav1.DeleteOptions{}))
}

// testNoBlanketApproval checks that no one can join as an arbitrary node, even where an earlier version permitted
// it.
func testNoBlanketApproval(t *testing.T, cp *ControlPlane, admin kubernetes.Interface) {
	const role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	_, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "millwright:approve-node-certificates"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:bootstrappers"}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, cp.AllowJoining(t.Context()))
	must(t, cp.AllowJoining(t.Context()))
	bindings, err := admin.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, binding := range bindings.Items {
		if binding.RoleRef.Name == role {
			t.Errorf("%s is bound to %v", role, binding.Subjects)
		}
	}
}

// testBootstrap acts as a new node: token, signing request, certificate.
func testBootstrap(t *testing.T, cp *ControlPlane, admin kubernetes.Interface) {
	_, err := admin.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	must(t, err)
	asNewcomer := &rest.Config{Host: cp.URL(), BearerToken: "abcdef.0123456789abcdef", TLSClientConfig: rest.TLSClientConfig{CAData: cp.CAData()}}
	eventually(t, "the token counts", func(ctx context.Context) error {
		_, err := clientset(t, asNewcomer).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	})
	checkUser(t, asNewcomer, "system:bootstrap:abcdef")

	key := value[*ecdsa.PrivateKey](t)(ca.NewKey())
	subject := pkix.Name{CommonName: "system:node:fresh", Organization: []string{"system:nodes"}}
	der := value[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key))
	requests := admin.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "fresh"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	// The controller manager writes this object too, and the Node below as well.
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		request, err = requests.Get(t.Context(), "fresh", metav1.GetOptions{})
		if err != nil {
			return err
		}
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
		}}
		_, err = requests.UpdateApproval(t.Context(), request.Name, request, metav1.UpdateOptions{})
		return err
	}))
	eventually(t, "the certificate is signed", func(ctx context.Context) error {
		request, err = requests.Get(ctx, "fresh", metav1.GetOptions{})
		if err == nil && len(request.Status.Certificate) == 0 {
			return fmt.Errorf("conditions %v", request.Status.Conditions)
		}
		return err
	})
	checkUser(t, &rest.Config{Host: cp.URL(), TLSClientConfig: rest.TLSClientConfig{
		CAData: cp.CAData(), CertData: request.Status.Certificate, KeyData: ca.EncodeKey(key),
	}}, "system:node:fresh")
}

// testFrontProxy checks that only the front proxy can set the user by headers.
func testFrontProxy(t *testing.T, cp *ControlPlane) {
	for name, want := range map[string]string{frontProxyCert: "jane", adminCert: "admin"} {
		config := cp.restConfig(cp.pki[name])
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return impersonation{next} })
		checkUser(t, config, want)
	}
}

type impersonation struct{ next http.RoundTripper }

func (a impersonation) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("X-Remote-User", "jane")
	return a.next.RoundTrip(request)
}

// testEtcdIsClosed checks that etcd requires the certificate of the API server.
func testEtcdIsClosed(t *testing.T, cp *ControlPlane) {
	for _, port := range []int{cp.ports.Etcd, cp.ports.EtcdPeer} {
		for name, certificates := range map[string][]tls.Certificate{
			"anonymous": nil,
			"admin":     {{Certificate: [][]byte{cp.pki[adminCert].Cert.Raw}, PrivateKey: cp.pki[adminCert].Key}},
		} {
			client := &http.Client{Transport: &http.Transport{
				DisableKeepAlives: true,
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: certificates},
			}}
			if response, err := client.Get(loopbackURL(port) + "/health"); err == nil {
				response.Body.Close() // the body is not needed
				t.Errorf("port %d of etcd: request with %s returned %s", port, name, response.Status)
			}
		}
	}
}

// testScheduling checks that the controller manager and the scheduler work.
func testScheduling(t *testing.T, admin kubernetes.Interface) {
	nodes := admin.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host"}}, metav1.CreateOptions{})
	must(t, err)
	ready := func(ctx context.Context) error { // repeatedly, because a node without updates for 50 seconds gets a taint
		_, err := nodes.PatchStatus(ctx, "host", fmt.Appendf(nil, `{"status":{"allocatable":{"pods":"10"},"capacity":{"pods":"10"},
			"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339)))
		return err
	}
	must(t, ready(t.Context()))
	pods := admin.CoreV1().Pods(metav1.NamespaceDefault)
	eventually(t, "the default service account is there", func(ctx context.Context) error {
		_, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		return err
	})
	eventually(t, "the pod is placed", func(ctx context.Context) error {
		if err := ready(ctx); err != nil {
			return err
		}
		pod, err := pods.Get(ctx, "pod", metav1.GetOptions{})
		if err == nil && pod.Spec.NodeName == "" {
			return fmt.Errorf("conditions %v", pod.Status.Conditions)
		}
		return err
	})
}

// TestControlPlane_StartsAfterComponentsWereKilled kills each component and starts the control plane again.
func TestControlPlane_StartsAfterComponentsWereKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	var log journal
	dir := t.TempDir()
	cp := startForTest(t, log.config(t, dir))
	admin := clientset(t, cp.RESTConfig())
	maps := admin.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	must(t, err)

	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler} {
		must(t, cp.Kill(name))
		awaitReady(t, cp)
		if !log.contains(`"component"="`+name+`"`, "signal: killed", "lastLines") {
			t.Errorf("want the end of %s in the log, got\n%s", name, strings.Join(log.lines, "\n"))
		}
		_, err := maps.Get(t.Context(), "kept", metav1.GetOptions{})
		must(t, err)
	}

	must(t, cp.StopComponent(t.Context(), Scheduler))
	if err := cp.Kill(Scheduler); err == nil {
		t.Error("want nothing to kill in a stopped component")
	}
	must(t, cp.StartComponent(t.Context(), Scheduler))

	var graces time.Duration
	for _, c := range components() {
		graces += c.grace
	}
	if graces > 10*time.Second {
		t.Errorf("stopping may take %v", graces)
	}
	began := time.Now()
	must(t, cp.Stop(t.Context()))
	if took := time.Since(began); took > waitTimeout {
		t.Errorf("stopping took %v", took)
	}
	if err := cp.StartComponent(t.Context(), Etcd); err == nil {
		t.Error("want a stopped control plane to stay stopped")
	}
	again := startForTest(t, log.config(t, dir))
	if again.URL() != cp.URL() || string(again.CAData()) != string(cp.CAData()) {
		t.Error("want the same address and authority after a restart")
	}
	_, err = maps.Get(t.Context(), "kept", metav1.GetOptions{}) // with the old client
	must(t, err)
}

func TestControlPlane_TwoRunConcurrently(t *testing.T) {
	tier.All(t)
	t.Parallel()
	var log journal
	planes := make([]*ControlPlane, 2)
	dir := t.TempDir()
	var group sync.WaitGroup
	for i := range planes {
		config := log.config(t, filepath.Join(dir, fmt.Sprint(i)))
		config.Without = []string{ControllerManager, Scheduler}
		group.Go(func() {
			cp, err := Start(t.Context(), config)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { must(t, cp.Stop(context.Background())) })
			planes[i] = cp
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	if err := planes[0].Kill(Scheduler); err == nil {
		t.Error("want no scheduler where it was left out")
	}
	// An administrator of one control plane is unknown to the other.
	stranger := planes[0].RESTConfig()
	stranger.Host, stranger.CAData = planes[1].URL(), planes[1].CAData()
	_, err := clientset(t, stranger).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("want the other control plane not to know the user, got %v", err)
	}
}
