package nodecertificate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/nodecertificate"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestMain(m *testing.M) { env.Main(m) }

// waitTimeout limits operations that usually take a second or two.
const waitTimeout = 2 * time.Minute

// harness is a control plane that nodes can join, with the controller.
type harness struct {
	*env.Env
	t      *testing.T
	admin  kubernetes.Interface
	tokens *bootstrap.Tokens
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	e := env.New(t, env.WithControllerManager())
	if err := e.ControlPlane.AllowJoining(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{Env: e, t: t, admin: admin}
	h.tokens = &bootstrap.Tokens{Target: e.Client, Installation: e.Namespace, Clock: clock.RealClock{}}
	access := e.UserWith(t, "config/rbac/target-role.yaml", "config/rbac/node-certificates-role.yaml")
	joined, err := target.New(access, target.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		if err := mgr.Add(joined); err != nil {
			return err
		}
		return nodecertificate.New(nodecertificate.Options{
			Machines: mgr.GetClient(), Target: joined, Events: events, Clock: clock.RealClock{},
			Tokens:   &bootstrap.Tokens{Target: joined.Client(), Installation: e.Namespace, Clock: clock.RealClock{}},
			Reserved: func(name string) bool { return name == reserved },
		}).SetupWithManager(mgr)
	})
	return h
}

const reserved = "host-1"

// in returns the harness for a subtest.
func (h *harness) in(t *testing.T) *harness {
	inner := *h
	inner.t = t
	return &inner
}

// machine creates a Machine with the given node name. An empty node name means that it is not known yet.
func (h *harness) machine(name, node string) *v1alpha1.Machine {
	h.t.Helper()
	machine := env.Fresh(h.Env, fixture.Machine(func(m *v1alpha1.Machine) {
		m.Name, m.Labels, m.Finalizers = name, map[string]string{}, nil
		m.Spec.ProviderID = "fake:///" + name
		if node != "" {
			m.Labels[v1alpha1.NodeLabelKey] = node
		}
	}))
	h.create(machine)
	return machine
}

func (h *harness) create(objects ...client.Object) {
	h.t.Helper()
	for _, object := range objects {
		if err := h.Client.Create(h.t.Context(), object); err != nil {
			h.t.Fatal(err)
		}
	}
}

// guest is a client with the token of a Machine.
type guest struct {
	*harness
	client kubernetes.Interface
}

// as returns a client for a token after the API server accepts it.
func (h *harness) as(token string) guest {
	h.t.Helper()
	config := &rest.Config{Host: h.Admin.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: h.Admin.CAData}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		h.t.Fatal(err)
	}
	g := guest{h, client}
	gomega.NewWithT(h.t).Eventually(func() error {
		_, err := client.CertificatesV1().CertificateSigningRequests().Create(h.t.Context(), g.csr(ask{name: "system:node:x"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
	return g
}

// guest returns the guest of a Machine.
func (h *harness) guest(machine *v1alpha1.Machine) guest {
	h.t.Helper()
	token, err := h.tokens.Issue(h.t.Context(), client.ObjectKeyFromObject(machine), time.Hour)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.as(token)
}

// ask describes a certificate signing request.
type ask struct {
	name   string
	groups []string // if nil, those of a kubelet
	change func(*x509.CertificateRequest)
	usages []certificatesv1.KeyUsage // if nil, those of a kubelet
}

func (g guest) csr(a ask) *certificatesv1.CertificateSigningRequest {
	g.t.Helper()
	request, _ := newRequest(g.t, a)
	return request
}

// newRequest returns a request and its key.
func newRequest(t *testing.T, a ask) (*certificatesv1.CertificateSigningRequest, *ecdsa.PrivateKey) {
	t.Helper()
	if a.groups == nil {
		a.groups = []string{"system:nodes"}
	}
	if a.usages == nil {
		a.usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: a.name, Organization: a.groups}}
	if a.change != nil {
		a.change(template)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: a.usages,
		},
	}, key
}

// submit sends a request and returns its name.
func (g guest) submit(a ask) string {
	g.t.Helper()
	created, err := g.client.CertificatesV1().CertificateSigningRequests().Create(g.t.Context(), g.csr(a), metav1.CreateOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	return created.Name
}

// decided waits for a decision and returns the condition.
func (h *harness) decided(request string) certificatesv1.CertificateSigningRequestCondition {
	h.t.Helper()
	var condition certificatesv1.CertificateSigningRequestCondition
	gomega.NewWithT(h.t).Eventually(func(g gomega.Gomega) {
		seen, err := h.admin.CertificatesV1().CertificateSigningRequests().Get(h.t.Context(), request, metav1.GetOptions{})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(seen.Status.Conditions).NotTo(gomega.BeEmpty())
		condition = seen.Status.Conditions[0]
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
	return condition
}

func (h *harness) wantDenied(request, reason string) {
	h.t.Helper()
	if got := h.decided(request); got.Type != certificatesv1.CertificateDenied || got.Reason != reason {
		h.t.Errorf("decision %s, %s: %s; want %s with %s", got.Type, got.Reason, got.Message, certificatesv1.CertificateDenied, reason)
	}
}

// TestRequest_OnlyOwnNodeIsApproved checks that the token of a Machine is accepted only for the certificate of its node.
// The controller manager approves no requests in this test.
func TestRequest_OnlyOwnNodeIsApproved(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	own, other := "node-a-"+h.Namespace, "node-b-"+h.Namespace
	g := h.guest(h.machine("a", own))
	h.machine("b", other)
	name := "system:node:" + own
	uri, err := url.Parse("millwright://vm/default/other/pod")
	if err != nil {
		t.Fatal(err)
	}
	for what, denied := range map[string]struct {
		ask    ask
		reason string
	}{
		"a host":                 {ask{name: "system:node:" + reserved}, nodecertificate.ReasonOtherNode},
		"another machine's node": {ask{name: "system:node:" + other}, nodecertificate.ReasonOtherNode},
		"no node":                {ask{name: "system:node:"}, nodecertificate.ReasonOtherNode},
		"more groups":            {ask{name: name, groups: []string{"system:nodes", "millwright:hosts"}}, nodecertificate.ReasonUnusual},
		"another group":          {ask{name: name, groups: []string{"system:masters"}}, nodecertificate.ReasonUnusual},
		"a DNS name":             {ask{name: name, change: func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes"} }}, nodecertificate.ReasonUnusual},
		"an address":             {ask{name: name, change: func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{127, 0, 0, 1}} }}, nodecertificate.ReasonUnusual},
		"a URI":                  {ask{name: name, change: func(r *x509.CertificateRequest) { r.URIs = []*url.URL{uri} }}, nodecertificate.ReasonUnusual},
		"a mail address":         {ask{name: name, change: func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@example.com"} }}, nodecertificate.ReasonUnusual},
		"more in the subject":    {ask{name: name, change: func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"hosts"} }}, nodecertificate.ReasonUnusual},
		"a server's usage":       {ask{name: name, usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}}, nodecertificate.ReasonUnusual},
		"too few usages":         {ask{name: name, usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}, nodecertificate.ReasonUnusual},
		"no client usage":        {ask{name: name, usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}}, nodecertificate.ReasonUnusual},
	} {
		t.Run(what, func(t *testing.T) { h.in(t).wantDenied(g.submit(denied.ask), denied.reason) })
	}
	events := &corev1.EventList{}
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		g.Expect(h.Client.List(t.Context(), events, client.InNamespace(h.Namespace), client.MatchingFields{"reason": "NodeCertificateDenied"})).To(gomega.Succeed())
		g.Expect(events.Items).NotTo(gomega.BeEmpty())
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// TestRequest_GuestJoins checks that a guest that requests its own node is approved and can act as that node. It can renew
// its certificate, but cannot use it to become another node.
func TestRequest_GuestJoins(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	name := "node-" + h.Namespace
	node := h.certified(h.guest(h.machine("a", name)), ask{name: "system:node:" + name})
	_, err := node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.certified(guest{h, node}, ask{name: "system:node:" + name})
	another := guest{h, node}.csr(ask{name: "system:node:" + reserved})
	_, err = node.CertificatesV1().CertificateSigningRequests().Create(t.Context(), another, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("request for another node: error %v, want Forbidden", err)
	}
}

// certified gets a certificate for a guest, and returns a client that uses it.
func (h *harness) certified(g guest, a ask) kubernetes.Interface {
	h.t.Helper()
	request, key := newRequest(h.t, a)
	requests := g.client.CertificatesV1().CertificateSigningRequests()
	created, err := requests.Create(h.t.Context(), request, metav1.CreateOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	if got := h.decided(created.Name); got.Type != certificatesv1.CertificateApproved {
		h.t.Fatalf("%s: %s", got.Reason, got.Message)
	}
	gomega.NewWithT(h.t).Eventually(func(g gomega.Gomega) {
		created, err = h.admin.CertificatesV1().CertificateSigningRequests().Get(h.t.Context(), created.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(created.Status.Certificate).NotTo(gomega.BeEmpty())
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		h.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: h.Admin.Host, TLSClientConfig: rest.TLSClientConfig{
		CAData: h.Admin.CAData, CertData: created.Status.Certificate,
		KeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}),
	}})
	if err != nil {
		h.t.Fatal(err)
	}
	return client
}

// wantUndecided checks that a request is still undecided after a later request was decided.
func (h *harness) wantUndecided(request string) {
	h.t.Helper()
	later := h.guest(h.machine("later", "later-"+h.Namespace)).submit(ask{name: "system:node:later-" + h.Namespace})
	h.decided(later)
	seen, err := h.admin.CertificatesV1().CertificateSigningRequests().Get(h.t.Context(), request, metav1.GetOptions{})
	if err != nil || len(seen.Status.Conditions) > 0 {
		h.t.Errorf("error %v, conditions %v; want no decision", err, seen.Status.Conditions)
	}
}

// TestRequest_WaitsForNodeName checks a request that arrives before the node's name is recorded.
func TestRequest_WaitsForNodeName(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	machine := h.machine("a", "")
	request := h.guest(machine).submit(ask{name: "system:node:late-" + h.Namespace})
	h.wantUndecided(request)
	before := machine.DeepCopy()
	machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "late-" + h.Namespace}
	if err := h.Client.Patch(t.Context(), machine, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if got := h.decided(request); got.Type != certificatesv1.CertificateApproved {
		t.Errorf("%s: %s", got.Reason, got.Message)
	}
}

// TestRequest_OtherTokensAreIgnored checks the token of another user, and one with the ID of a Machine's token.
func TestRequest_OtherTokensAreIgnored(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.machine("a", "a-"+h.Namespace)
	id := h.tokens.IDs(types.NamespacedName{Namespace: h.Namespace, Name: "a"})[0]
	h.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true", "description": "the user's own",
		},
	})
	h.wantUndecided(h.as(id + ".0123456789abcdef").submit(ask{name: "system:node:a-" + h.Namespace}))
}

// TestRequest_NodesOfOthersAreDenied checks that a Machine cannot get a node name that belongs to another object, whatever its
// label is.
func TestRequest_NodesOfOthersAreDenied(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	later := func(name string, change func(*corev1.Node)) func() {
		return func() {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + h.Namespace, Labels: map[string]string{}}}
			change(node)
			h.create(node)
		}
	}
	cases := map[string]struct {
		node string
		with func()
		want string
	}{
		"reserved": {node: reserved, want: nodecertificate.ReasonNodeTaken},
		"marked": {node: "marked-" + h.Namespace, want: nodecertificate.ReasonNodeTaken, with: later("marked", func(n *corev1.Node) {
			n.Labels[v1alpha1.LabelKeyMachineName] = "another"
		})},
		"host": {node: "host-" + h.Namespace, want: nodecertificate.ReasonNodeTaken, with: later("host", func(n *corev1.Node) {
			n.Labels[vmv1alpha1.HostKey] = ""
		})},
		"other-vm": {node: "other-vm-" + h.Namespace, want: nodecertificate.ReasonNodeTaken, with: later("other-vm", func(n *corev1.Node) {
			n.Spec.ProviderID = "fake:///else"
		})},
		"same-vm": {node: "same-vm-" + h.Namespace, want: nodecertificate.ReasonJoins, with: later("same-vm", func(n *corev1.Node) {
			n.Spec.ProviderID = "fake:///same-vm"
		})},
		"conflicting": {node: "conflicting-" + h.Namespace, want: nodecertificate.ReasonNodeTaken, with: func() { h.machine("other", "conflicting-"+h.Namespace) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := h.in(t)
			g := h.guest(h.machine(name, tc.node))
			if tc.with != nil {
				tc.with()
			}
			if tc.want == nodecertificate.ReasonNodeTaken {
				h.awaitKnown(g, tc.node)
			}
			if got := h.decided(g.submit(ask{name: "system:node:" + tc.node})); got.Reason != tc.want {
				t.Errorf("%s: %s: %s; want %s", got.Type, got.Reason, got.Message, tc.want)
			}
		})
	}
}

// awaitKnown submits requests until one is denied, since the caches of the controller may lag behind.
func (h *harness) awaitKnown(g guest, node string) {
	h.t.Helper()
	gomega.NewWithT(h.t).Eventually(func() certificatesv1.RequestConditionType {
		return h.decided(g.submit(ask{name: "system:node:" + node})).Type
	}).WithTimeout(waitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Equal(certificatesv1.CertificateDenied))
}

// TestRequest_DeletedMachineIsDenied checks that a Machine that is being deleted gets no certificate.
func TestRequest_DeletedMachineIsDenied(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	machine := h.machine("a", "a-"+h.Namespace)
	before := machine.DeepCopy()
	machine.Finalizers = []string{"example.com/hold"}
	if err := h.Client.Patch(t.Context(), machine, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	g := h.guest(machine)
	if err := h.Client.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	h.awaitKnown(g, "a-"+h.Namespace)
	h.wantDenied(g.submit(ask{name: "system:node:a-" + h.Namespace}), nodecertificate.ReasonMachineDeleted)
}

// TestRequest_FloodIsLimited checks that most requests of a guest that requests many certificates are ignored, and that
// those of another guest are decided.
func TestRequest_FloodIsLimited(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	own := "node-a-" + h.Namespace
	g := h.guest(h.machine("a", own))
	const requests = 40 // twice the limit
	var last string
	for range requests {
		last = g.submit(ask{name: "system:node:" + own})
	}
	h.wantUndecided(last)
	events := &corev1.EventList{}
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		g.Expect(h.Client.List(t.Context(), events, client.InNamespace(h.Namespace), client.MatchingFields{"reason": "NodeCertificateRequestsIgnored"})).To(gomega.Succeed())
		g.Expect(events.Items).To(gomega.HaveLen(1))
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}
