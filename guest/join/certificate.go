package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/millwright-dev/millwright/guest/kube"
)

const (
	requestsPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	signer       = "kubernetes.io/kube-apiserver-client-kubelet"

	// approvalTimeout is how long to wait for a certificate before the next request.
	approvalTimeout = time.Minute
)

// object is the part of a Kubernetes object that is needed.
type object struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Metadata   metadata `json:"metadata"`
	Spec       any      `json:"spec,omitempty"`
	Status     any      `json:"status,omitempty"`
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	GenerateName    string            `json:"generateName,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Owners          []owner           `json:"ownerReferences,omitempty"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type signingRequestSpec struct {
	Request    []byte   `json:"request"`
	SignerName string   `json:"signerName"`
	Usages     []string `json:"usages"`
}

// signingRequest is the part of a CertificateSigningRequest that is read.
type signingRequest struct {
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"conditions"`
		Certificate []byte `json:"certificate"`
	} `json:"status"`
}

// requestCertificate generates a key and requests a certificate for a Node. The client uses the bootstrap
// token. Key and certificate are in PEM form.
func requestCertificate(ctx context.Context, client *kube.Client, node string) (key, certificate []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, private)
	if err != nil {
		return nil, nil, err
	}
	certificate, err = submit(ctx, client, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), certificate, err
}

// submit creates the CertificateSigningRequest and waits for the certificate.
func submit(ctx context.Context, client *kube.Client, request []byte) ([]byte, error) {
	var created object
	err := client.Post(ctx, requestsPath, object{
		APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest",
		Metadata: metadata{GenerateName: "node-csr-"},
		Spec:     signingRequestSpec{Request: request, SignerName: signer, Usages: []string{"digital signature", "client auth"}},
	}, &created)
	if err != nil {
		return nil, fmt.Errorf("requesting a certificate: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, approvalTimeout)
	defer cancel()
	var certificate []byte
	path := requestsPath + "?watch=true&fieldSelector=" + url.QueryEscape("metadata.name="+created.Metadata.Name)
	err = client.Watch(ctx, path, func(text json.RawMessage) (bool, error) {
		var seen signingRequest
		if err := json.Unmarshal(text, &seen); err != nil {
			return true, err
		}
		for _, condition := range seen.Status.Conditions {
			if condition.Type == "Denied" || condition.Type == "Failed" {
				return true, fmt.Errorf("the certificate was refused: %s: %s", condition.Type, condition.Message)
			}
		}
		certificate = seen.Status.Certificate
		return len(certificate) > 0, nil
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("request %s was not approved and signed within %s", created.Metadata.Name, approvalTimeout)
	}
	return certificate, err
}

// usable returns the parsed pair, unless the certificate is expired or in the last tenth of its lifetime.
func usable(certificate, key []byte, now time.Time) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the certificate and its key cannot be used: %w", err)
	}
	end, begin := pair.Leaf.NotAfter, pair.Leaf.NotBefore
	if now.After(end.Add(-end.Sub(begin) / 10)) {
		return tls.Certificate{}, fmt.Errorf("the certificate expires at %s", end.UTC().Format(time.RFC3339))
	}
	return pair, nil
}
