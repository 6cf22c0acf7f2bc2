// Package identity is the public key infrastructure of the VM controller and hypervisors.
//
// The VM controller has a certificate authority ([Authority]). Identities ([Peer]) are similar to SPIFFE's: the
// only name in a certificate is a URI, millwright://controller or millwright://vm/NAMESPACE/VM/POD. A certificate
// that another system issues may instead contain spiffe://TRUST-DOMAIN/millwright/controller or
// spiffe://TRUST-DOMAIN/millwright/vm/NAMESPACE/VM/POD. Host names and addresses have no meaning.
//
// A process holds [Credentials], which renew its certificate. The controller signs its own certificate
// ([ForController]). A hypervisor generates a key in memory and sends a certificate signing request, together with
// the bound service account token of its Pod, to the controller's [Issuer] ([ForHypervisor]). Certificates are
// valid for [Lifetime]. Only the key of the authority is stored. Alternatively, both may use files that another
// system issues ([FromFiles]).
//
// The authority can be replaced while processes run ([Authority.Replace]). Hypervisors ask the controller which
// authorities to trust ([Credentials.FollowAuthorities]), and report what they trust.
//
// All connections use mutual TLS 1.3. A certificate is verified when a connection is made; the connection stays
// open after the certificate has expired.
package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	uriController = "millwright://controller"
	uriVM         = "millwright://vm/"
	maxNameLength = 253
)

// ErrNotAPeer means that a URI or a certificate does not contain a valid Peer.
var ErrNotAPeer = errors.New("no identity of the virtual machine system")

// Peer is the identity of the hypervisor in one Pod of one VM, or of the controller. Peers can be compared with ==.
// The zero value is not an identity.
type Peer struct {
	// Namespace is the namespace of the VirtualMachine and its Pod.
	Namespace string
	// VM is the name of the VirtualMachine.
	VM string
	// Pod is the name of the hypervisor's Pod.
	Pod string

	controller bool // if true, the names are empty
}

// Controller returns the identity of the VM controller.
func Controller() Peer { return Peer{controller: true} }

// IsController reports whether p is the VM controller.
func (p Peer) IsController() bool { return p == Controller() }

// String returns the name of p in certificates, a URI.
func (p Peer) String() string {
	if p.controller {
		return uriController
	}
	return uriVM + p.Namespace + "/" + p.VM + "/" + p.Pod
}

// parsePeer is the inverse of Peer.String. It returns ErrNotAPeer for any other spelling of a URI, too.
func parsePeer(uri string) (Peer, error) {
	if uri == uriController {
		return Controller(), nil
	}
	names := strings.Split(strings.TrimPrefix(uri, uriVM), "/")
	if !strings.HasPrefix(uri, uriVM) || len(names) != 3 {
		return Peer{}, fmt.Errorf("%w: %.300q", ErrNotAPeer, uri)
	}
	p := Peer{Namespace: names[0], VM: names[1], Pod: names[2]}
	return p, p.validate()
}

// objectName matches the names of Kubernetes objects. They contain no character that is special in a URI.
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func (p Peer) validate() error {
	if p.IsController() {
		return nil
	}
	for _, name := range []string{p.Namespace, p.VM, p.Pod} {
		if p.controller || len(name) > maxNameLength || !objectName.MatchString(name) {
			return fmt.Errorf("%w: %.300q", ErrNotAPeer, p.String())
		}
	}
	return nil
}

// uriOwn is the prefix of names in certificates of Millwright's own authority.
const uriOwn = "millwright://"

// spiffeRealm matches the prefix of names in a SPIFFE trust domain.
var spiffeRealm = regexp.MustCompile(`^spiffe://[a-z0-9._-]{1,255}/millwright/`)

// nameOf returns the identity in a certificate and its realm: the part of the name before "controller" or
// "vm/NAMESPACE/VM/POD". It does not verify the certificate.
func nameOf(cert *x509.Certificate) (p Peer, realm string, err error) {
	if len(cert.URIs) != 1 {
		return Peer{}, "", fmt.Errorf("%w: expected one URI in the certificate, found %d", ErrNotAPeer, len(cert.URIs))
	}
	uri := cert.URIs[0].String()
	realm = spiffeRealm.FindString(uri)
	if realm == "" {
		realm = uriOwn
	} else {
		uri = uriOwn + strings.TrimPrefix(uri, realm)
	}
	p, err = parsePeer(uri)
	return p, realm, err
}

// peerOf returns the identity in a certificate without verifying the certificate.
func peerOf(cert *x509.Certificate) (Peer, error) {
	p, _, err := nameOf(cert)
	return p, err
}

// FromContext returns the identity of the caller of a gRPC method. It returns a status with code UNAUTHENTICATED
// if the caller has no certificate.
func FromContext(ctx context.Context) (Peer, error) {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, errNoCertificate
	}
	return FromAuthInfo(caller.AuthInfo)
}

// FromAuthInfo returns the identity of the client of a connection after its handshake, or an error of FromContext.
func FromAuthInfo(auth credentials.AuthInfo) (Peer, error) {
	info, ok := auth.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Peer{}, errNoCertificate
	}
	p, err := peerOf(info.State.VerifiedChains[0][0])
	if err != nil {
		return Peer{}, status.Error(codes.Unauthenticated, err.Error())
	}
	return p, nil
}

var errNoCertificate = status.Error(codes.Unauthenticated, "a client certificate is required")

// RequireVM returns nil if the caller is the hypervisor in the given Pod of the given VM. Otherwise it returns a
// status with code PERMISSION_DENIED, or an error of FromContext.
func RequireVM(ctx context.Context, namespace, vm, pod string) error {
	want := Peer{Namespace: namespace, VM: vm, Pod: pod}
	caller, err := FromContext(ctx)
	if err != nil {
		return err
	}
	if caller != want {
		return status.Errorf(codes.PermissionDenied, "%s may not act for %s", caller, want)
	}
	return nil
}
