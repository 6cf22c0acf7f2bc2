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
	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzDecide checks that for any requests and objects, a request is approved only if it is for the node of a
// Machine that is not being deleted, and for nothing else. It may have any key.
func FuzzDecide(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, template := range []x509.CertificateRequest{
		{Subject: subject("system:node:n")},
		{Subject: subject("system:node:other")},
		{Subject: subject("system:node:n"), DNSNames: []string{"kubernetes"}},
		{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{group, "system:masters"}}},
		{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{group}, OrganizationalUnit: []string{"x"}}},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der, "client auth,digital signature", []byte(nil), false)
		f.Add(der, "client auth,digital signature,key encipherment", []byte{1, 2, 3}, true)
		f.Add(der, "client auth,digital signature,server auth", []byte(nil), true)
		f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), "any", []byte(nil), true)
	}
	f.Fuzz(func(t *testing.T, der []byte, usages string, ofObjects []byte, registered bool) {
		given := &certificatesv1.CertificateSigningRequestSpec{Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})}
		for usage := range strings.SplitSeq(usages, ",") {
			given.Usages = append(given.Usages, certificatesv1.KeyUsage(usage))
		}
		begin := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: begin, Labels: map[string]string{v1alpha1.NodeLabelKey: "n"}}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: begin, Labels: map[string]string{}}}
		absurd.Objects(ofObjects, machine, node)
		facts := facts{request: given, machine: machine}
		if registered {
			facts.node = node
		}
		got := decide(facts)
		if len(got.message) > maxMessage {
			t.Errorf("a message of %d bytes", len(got.message))
		}
		if got.kind == certificatesv1.CertificateApproved {
			wantOneNode(t, der, facts)
		}
	})
}

// wantOneNode is an independent implementation of what may be approved.
func wantOneNode(t *testing.T, der []byte, f facts) {
	t.Helper()
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	if want := "CN=system:node:" + f.machine.Labels[v1alpha1.NodeLabelKey] + ",O=system:nodes"; request.Subject.String() != want {
		t.Errorf("approved subject %s, want %s", request.Subject, want)
	}
	if names := len(request.DNSNames) + len(request.EmailAddresses) + len(request.IPAddresses) + len(request.URIs); names > 0 {
		t.Errorf("approved %d alternative names", names)
	}
	for _, usage := range f.request.Usages {
		switch usage {
		case certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
		default:
			t.Errorf("approved usage %q", usage)
		}
	}
	if f.machine.DeletionTimestamp != nil {
		t.Error("approved for a Machine that is being deleted")
	}
	if f.node != nil && f.node.CreationTimestamp.Before(&f.machine.CreationTimestamp) {
		t.Error("approved for a node that is older than the Machine")
	}
}
