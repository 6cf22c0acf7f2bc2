package nodecertificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// spec returns a request like that of a kubelet.
func spec(t *testing.T, subject pkix.Name) *certificatesv1.CertificateSigningRequestSpec {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature},
	}
}

func subject(name string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: []string{group}}
}

// TestDecide checks how an existing node with the same name affects the decision.
func TestDecide(t *testing.T) {
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node := func(age time.Duration, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(begin.Add(-age)), Labels: map[string]string{}}}
		change(n)
		return n
	}
	unchanged := func(*corev1.Node) {}
	ours := func(n *corev1.Node) { n.Labels[v1alpha1.LabelKeyMachineName], n.Spec.ProviderID = "m", "fake:///m" }
	cases := map[string]struct {
		why    string
		change func(*facts)
		want   string // reason; empty if undecided
	}{
		"no node":         {"the name is free", func(*facts) {}, ReasonJoins},
		"restarted":       {"the guest lost its certificate after it registered", func(f *facts) { f.node = node(-time.Minute, unchanged) }, ReasonJoins},
		"restarted, ours": {"the manager has marked the node", func(f *facts) { f.node = node(-time.Minute, ours) }, ReasonJoins},
		"ID format": {"some kubelets use another format than their drivers", func(f *facts) {
			f.node = node(-time.Minute, func(n *corev1.Node) { ours(n); n.Spec.ProviderID = "fake://m" })
		}, ReasonJoins},
		"older":       {"a Machine cannot take over an older node", func(f *facts) { f.node = node(time.Minute, unchanged) }, ReasonNodeTaken},
		"older, ours": {"label and ID do not help, since users can copy them", func(f *facts) { f.node = node(time.Minute, ours) }, ReasonNodeTaken},
		"host": {"a host", func(f *facts) {
			f.node = node(-time.Minute, func(n *corev1.Node) { ours(n); n.Labels[vmv1alpha1.HostKey] = "" })
		}, ReasonNodeTaken},
		"other machine's": {"marked", func(f *facts) {
			f.node = node(-time.Minute, func(n *corev1.Node) { ours(n); n.Labels[v1alpha1.LabelKeyMachineName] = "o" })
		}, ReasonNodeTaken},
		"other VM":    {"the node is not marked yet", func(f *facts) { f.node = node(-time.Minute, func(n *corev1.Node) { n.Spec.ProviderID = "fake:///o" }) }, ReasonNodeTaken},
		"conflicting": {"another Machine has the same node name", func(f *facts) { f.conflicting = &v1alpha1.Machine{} }, ReasonNodeTaken},
		"reserved":    {"", func(f *facts) { f.reserved = true }, ReasonNodeTaken},
		"deleted":     {"", func(f *facts) { f.machine.DeletionTimestamp = &metav1.Time{Time: begin} }, ReasonMachineDeleted},
		"no name":     {"the name is not recorded yet", func(f *facts) { f.machine.Labels = nil }, ""},
		"no PEM":      {"", func(f *facts) { f.request.Request = []byte("x") }, ReasonUnusual},
		"no DER": {"", func(f *facts) {
			f.request.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, ReasonUnusual},
		"too long": {"only the length matters, since it is not parsed", func(f *facts) {
			f.request.Request = append(f.request.Request, make([]byte, maxRequest)...)
		}, ReasonUnusual},
		"no prefix": {"", func(f *facts) { f.request.Request = spec(t, subject("n")).Request }, ReasonOtherNode},
		"case":      {"names are compared exactly", func(f *facts) { f.request.Request = spec(t, subject("system:node:N")).Request }, ReasonOtherNode},
		"encipherment": {"RSA keys need it", func(f *facts) {
			f.request.Usages = append(f.request.Usages, certificatesv1.UsageKeyEncipherment)
		}, ReasonJoins},
		"no organization": {"", func(f *facts) { f.request.Request = spec(t, pkix.Name{CommonName: "system:node:n"}).Request }, ReasonUnusual},
		"another organization": {"", func(f *facts) {
			f.request.Request = spec(t, pkix.Name{CommonName: "system:node:n", Organization: []string{"system:masters"}}).Request
		}, ReasonUnusual},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := facts{request: spec(t, subject("system:node:n")), machine: &v1alpha1.Machine{
				ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: metav1.NewTime(begin), Labels: map[string]string{v1alpha1.NodeLabelKey: "n"}},
				Spec:       v1alpha1.MachineSpec{ProviderID: "fake:///m"},
			}}
			tc.change(&f)
			got := decide(f)
			if got.reason != tc.want {
				t.Errorf("%s: %q, %s; want %q", tc.why, got.reason, got.message, tc.want)
			}
			if approved := got.kind == certificatesv1.CertificateApproved; approved != (tc.want == ReasonJoins) {
				t.Errorf("kind %q with reason %s", got.kind, got.reason)
			}
		})
	}
}

// TestDecide_MessagesAreShortened checks that messages are shortened, since they quote text that guests choose.
func TestDecide_MessagesAreShortened(t *testing.T) {
	f := facts{request: spec(t, subject(strings.Repeat("\x1b[2J", 10000))), machine: &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{v1alpha1.NodeLabelKey: "n"}},
	}}
	if got := decide(f); len(got.message) > maxMessage || strings.Contains(got.message, "\x1b") || got.reason != ReasonOtherNode {
		t.Errorf("%s, %d bytes: %.100q", got.reason, len(got.message), got.message)
	}
}
